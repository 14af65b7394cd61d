"""Sum the steps of a run, during a simulation or from a recording, and build the summary.

The figures of a step count until the next step begins. If no step is in flight between its output and the next step,
they count until the output. From the output to the next step, the figures after the output count. Only integrals over
time are kept. They are always added in the same order, so that a run and its recording have the same figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.metrics.hit_rate import prefix_hits
from kvsim.metrics.request_times import Distribution, latencies_of
from kvsim.metrics.shares import UNKNOWN_SHARES, shares_of
from kvsim.metrics.summary import Summary
from kvsim.metrics.waiting import UNKNOWN, Limits, WaitingFor
from kvsim.recording import Meta, RequestStatus
from kvsim.recording.tables import Requests

Numbers = npt.NDArray[np.integer]

STEPS_TOGETHER = 4_096
"""Number of steps that are added at once. More would not fit into the CPU's cache; fewer would take more calls."""
_SCHEDULED, _WAITING, _FOR_MEMORY, _FOR_BATCH, _FOR_TOKENS, _FOR_ADAPTERS, _HELD, _STATES = range(8)
"""Rows of `Sums._integrals`. The row `_STATES` and the seven after it are the slot states."""
_FREE_SHARE = 0.1
"""If at least this share of the pool is free, waiting requests count as waiting for an adapter, not for memory."""
_ROUNDING = 1e-9
"""Share of the pool below which a mean counts as 0, because differences of long sums have rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepFigures:
    """Figures of consecutive steps from which a summary is made, one entry per step."""

    start_s: npt.NDArray[np.float64]
    scheduled: Numbers
    """Number of sequences that the step computes."""
    running: Numbers
    waiting: Numbers
    tokens: Numbers
    """Number of tokens that the step computes."""
    preempted: Numbers
    held: Numbers
    """Number of slots that requests hold, including slots that the allocator added to round up a request."""
    states: npt.NDArray[np.int64]
    """Number of slots in each state: int64[8, num_steps], in the order of `SlotState`."""
    is_fragmented: npt.NDArray[np.bool_]
    """True if enough slots for the first request in the queue are free, but not contiguous."""
    admitted_before: Numbers
    """Number of requests that were admitted in the run before the step."""
    swapped_out: Numbers
    """Number of units that the step copies to the host."""
    swapped_in: Numbers
    """Number of units that the step copies back from the host."""

    def __len__(self) -> int:
        return len(self.start_s)

    def parts(self) -> Iterator[StepFigures]:
        """Yield these steps in parts of `STEPS_TOGETHER`."""
        for begin in range(0, len(self), STEPS_TOGETHER):
            part = slice(begin, begin + STEPS_TOGETHER)
            yield StepFigures(**{name: getattr(self, name)[..., part] for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapFigures:
    """Figures of the gaps between steps from which a summary is made, one entry per gap, in order.

    A gap may have no length, and its figures may be equal to those of the step before it.
    """

    next_step: Numbers
    """Index of the step that ends each gap, from 0 over the run."""
    begin_s: npt.NDArray[np.float64]
    running: Numbers
    waiting: Numbers
    held: Numbers
    """Number of slots that requests hold, including slots that the allocator added to round up a request."""
    states: npt.NDArray[np.int64]
    """Number of slots in each state: int64[8, num_gaps], in the order of `SlotState`."""

    def between(self, begin: int, end: int) -> GapFigures:
        """Return the gaps before the steps [begin, end)."""
        return self.some(slice(*np.searchsorted(self.next_step, (begin, end)).tolist()))

    def some(self, chosen: slice | npt.NDArray[np.bool_]) -> GapFigures:
        """Return the gaps that `chosen` selects."""
        return GapFigures(**{name: getattr(self, name)[..., chosen] for name in self.__dataclass_fields__})


class Sums:
    """Sums over the steps of a run, and over the gaps between them."""

    def __init__(self, capacity: int, limits: Limits | None) -> None:
        """`capacity` is the number of slots in the pool. `limits` are those of one step; None if they are unknown."""
        self.num_steps = 0
        self._capacity, self._limits = capacity, limits
        self._begin_s = self._last_s = 0.0
        self._last = np.zeros(_STATES + NUM_STATES)
        self._integrals = np.zeros_like(self._last)
        self._last_limited = np.zeros(2, np.int64)
        self._gap_edges_s = [np.empty(0)]
        self._peak_batch = self._most_held = self._num_preemptions = self._computed_tokens = 0
        self._swapped_out = self._swapped_in = 0
        self._num_fragmented_steps = self._num_fragmented_requests = 0
        self._last_fragmented = -1

    def add(self, steps: StepFigures, gaps: GapFigures | None) -> None:
        """Add 1 to `STEPS_TOGETHER` steps, and the gaps before these steps. All calls but the last add the maximum.

        `gaps` is None if there are none.
        """
        totals = np.empty((len(self._last), len(steps)))
        totals[_SCHEDULED], totals[_WAITING], totals[_HELD] = steps.scheduled, steps.waiting, steps.held
        self._split_waiting(totals, waiting=steps.waiting, running=steps.running, tokens=steps.tokens, held=steps.held)
        totals[_STATES:] = steps.states
        until_s = self._add_gaps(steps, totals, gaps) if gaps else steps.start_s
        if self.num_steps == 0:
            self._begin_s = float(steps.start_s[0])
        else:
            self._integrals += self._last * (until_s[0] - self._last_s)
        self._integrals += totals[:, :-1] @ (until_s[1:] - steps.start_s[:-1])
        self._last, self._last_s = totals[:, -1].copy(), float(steps.start_s[-1])
        self._last_limited = np.array((steps.running[-1], steps.tokens[-1]))
        self.num_steps += len(steps)
        self._peak_batch = max(self._peak_batch, int(steps.scheduled.max()))
        self._most_held = max(self._most_held, int(steps.held.max()))
        self._num_preemptions += int(steps.preempted.sum(dtype=np.int64))
        self._computed_tokens += int(steps.tokens.sum(dtype=np.int64))
        self._swapped_out += int(steps.swapped_out.sum(dtype=np.int64))
        self._swapped_in += int(steps.swapped_in.sum(dtype=np.int64))
        self._add_fragmented(steps.admitted_before[steps.is_fragmented])

    def _split_waiting(
        self, totals: npt.NDArray[np.float64], *, waiting: Numbers, running: Numbers, tokens: Numbers, held: Numbers
    ) -> None:
        """Write the rows `_FOR_...` of `totals`: the waiting requests of each step by the limit for which they wait.

        The limit follows from the running sequences, the computed tokens and the held slots of the step.
        """
        limits = self._limits or Limits(max_num_seqs=0, max_num_batched_tokens=0)
        totals[_FOR_MEMORY : _FOR_TOKENS + 1] = limits.split(waiting, running, tokens)
        totals[_FOR_ADAPTERS] = 0
        if limits.max_loras:
            has_memory = held <= (1 - _FREE_SHARE) * self._capacity
            totals[_FOR_ADAPTERS] = np.where(has_memory, totals[_FOR_MEMORY], 0)
            totals[_FOR_MEMORY] -= totals[_FOR_ADAPTERS]

    def _add_gaps(
        self, steps: StepFigures, totals: npt.NDArray[np.float64], gaps: GapFigures
    ) -> npt.NDArray[np.float64]:
        """Add the gaps before `steps`. `totals` has the figures of these steps.

        Return, for each step, the time in seconds until which the figures of the step before it count. A gap with the
        same figures as the step before it counts as a part of that step.
        """
        index = gaps.next_step - self.num_steps
        lasts = steps.start_s[index] > gaps.begin_s
        index, gaps = index[lasts], gaps.some(lasts)
        if self._is_static:
            self._gap_edges_s.append(np.stack((gaps.begin_s, steps.start_s[index]), axis=1).ravel())
        before = np.column_stack((self._last, totals[:, :-1]))[:, index]
        running, tokens = np.column_stack((self._last_limited, (steps.running[:-1], steps.tokens[:-1])))[:, index]
        after = np.empty_like(before)
        waiting = np.zeros_like(gaps.waiting) if self._is_static else gaps.waiting  # see `_waited_in_gaps`
        after[_SCHEDULED] = np.minimum(before[_SCHEDULED], gaps.running)
        after[_WAITING], after[_HELD], after[_STATES:] = waiting, gaps.held, gaps.states
        # The step before a gap shows the limit for which requests wait in the gap.
        self._split_waiting(after, waiting=waiting, running=running, tokens=tokens, held=before[_HELD])
        differs = (after != before).any(axis=0)
        index, begin_s = index[differs], gaps.begin_s[differs]
        self._integrals += after[:, differs] @ (steps.start_s[index] - begin_s)
        until_s = steps.start_s.copy()
        until_s[index] = begin_s
        return until_s

    def _add_fragmented(self, admitted: Numbers) -> None:
        """Count fragmented steps, and the requests that waited at the head of the queue in these steps.

        `admitted` has, for each fragmented step, the number of requests admitted before it. If two steps have the same
        number, the same request was at the head.
        """
        self._num_fragmented_steps += len(admitted)
        if len(admitted):  # the number of admissions never falls
            self._num_fragmented_requests += int(np.count_nonzero(np.diff(admitted, prepend=self._last_fragmented)))
            self._last_fragmented = int(admitted[-1])

    @property
    def _is_static(self) -> bool:
        return self._limits is not None and self._limits.max_num_seqs == 0

    def _waited_in_gaps(self, requests: Requests) -> float:
        """Return the seconds that all `requests` together waited in gaps between static batches.

        A static batch may begin long after a request has arrived, without a step in between.
        """
        edges_s = np.concatenate(self._gap_edges_s)
        left_s = np.where(np.isnan(requests.first_scheduled_s), requests.finished_s, requests.first_scheduled_s)
        waited = requests.status != RequestStatus.REFUSED
        if not len(edges_s) or not waited.any():
            return 0.0
        gap_s = np.cumsum(np.diff(edges_s, prepend=edges_s[0]) * (np.arange(len(edges_s)) % 2))
        until_left, until_arrival = (
            np.interp(time_s[waited], edges_s, gap_s)
            for time_s in (np.nan_to_num(left_s, nan=np.inf), requests.arrival_s)
        )
        return float((until_left - until_arrival).sum())

    def _means(self, requests: Requests, time_s: float, end_s: float, useless_slot_s: float) -> npt.NDArray[np.float64]:
        """Return the means over time of all integrals, for the `time_s` seconds that end at `end_s`.

        They are NaN if `time_s` is 0. `useless_slot_s` is as in `summary`.
        """
        integrals = self._integrals + self._last * (end_s - self._last_s)
        if self._is_static:
            integrals[[_WAITING, _FOR_BATCH]] += self._waited_in_gaps(requests)
        integrals[_STATES + SlotState.RESERVED] -= useless_slot_s
        integrals[_STATES + SlotState.INTERNAL] += useless_slot_s
        mean = integrals / time_s if time_s else np.full(len(integrals), np.nan)
        mean[np.abs(mean) < _ROUNDING * self._capacity * (np.arange(len(mean)) >= _STATES)] = 0.0
        return mean

    def _waiting_for(self, mean: npt.NDArray[np.float64]) -> WaitingFor:
        """Return the mean number of requests that wait for each limit. `mean` is the result of `_means`.

        If the limits are unknown, the numbers are NaN.
        """
        if self._limits is None:
            return UNKNOWN
        memory, batch, tokens, adapters = mean[_FOR_MEMORY : _FOR_ADAPTERS + 1].tolist()
        return WaitingFor(memory=memory, batch=batch, tokens=tokens, adapters=adapters)

    def summary(
        self,
        meta: Meta,
        name: str,
        requests: Requests,
        end_s: float,
        *,
        useless_slot_s: float = 0.0,
        images_used: int = 0,
        images_computed: int = 0,
    ) -> Summary:
        """Return the summary of the added steps and of `requests`. The last step ends at `end_s` seconds.

        `useless_slot_s` is the sum over time, in slot-seconds, of slots that counted as reserved but were never
        written. They are moved to the state `internal`.
        """
        time_s = end_s - self._begin_s if self.num_steps else 0.0
        mean = self._means(requests, time_s, end_s, useless_slot_s)
        return Summary(
            name=name,
            policy=meta.rules_name,
            **_of_requests(meta, requests, end_s),
            num_steps=self.num_steps,
            duration_s=end_s,
            mean_batch=float(mean[_SCHEDULED]),
            peak_batch=self._peak_batch,
            mean_occupancy=float(mean[_HELD]) / self._capacity if self._capacity else np.nan,
            peak_occupancy=self._most_held / self._capacity if self.num_steps else np.nan,
            num_preemptions=self._num_preemptions,
            num_fragmented_steps=self._num_fragmented_steps,
            num_fragmented_requests=self._num_fragmented_requests,
            swapped_out_bytes=self._swapped_out * meta.pool.bytes_per_unit,
            swapped_in_bytes=self._swapped_in * meta.pool.bytes_per_unit,
            swapped_out_units=self._swapped_out,
            swapped_in_units=self._swapped_in,
            loaded_tokens=self._swapped_in * meta.pool.unit_tokens,
            computed_tokens=self._computed_tokens,
            vain_tokens=_vain_tokens(self._computed_tokens, requests),
            mean_waiting=float(mean[_WAITING]),
            waiting_for=self._waiting_for(mean),
            limits=self._limits,
            waste=shares_of(mean[_STATES:], self._capacity) if time_s else UNKNOWN_SHARES,
            images_used=images_used,
            images_computed=images_computed,
        )


def _of_requests(meta: Meta, requests: Requests, end_s: float) -> dict[str, Any]:
    """Return the figures of a summary that follow from `requests` alone, for a run that ends at `end_s` seconds."""
    status = np.bincount(requests.status, minlength=len(RequestStatus))
    num_finished, output_tokens = int(status[RequestStatus.FINISHED]), int(requests.output_tokens.sum())
    times, hits = latencies_of(requests), prefix_hits(meta, requests)
    return {
        "num_finished": num_finished,
        "num_refused": int(status[RequestStatus.REFUSED]),
        "num_aborted": int(status[RequestStatus.ABORTED]),
        "num_unfinished": int(status[RequestStatus.UNFINISHED]),
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / end_s if end_s else np.nan,
        "requests_per_s": num_finished / end_s if end_s else np.nan,
        "prefix_queried_tokens": hits.queried_tokens,
        "prefix_hit_tokens": hits.hit_tokens,
        "prefix_hit_rate": hits.rate,
        "prefix_no_hits": hits.why_none,
        **{name: Distribution.of(getattr(times, name)) for name in ("wait_s", "ttft_s", "tpot_s", "e2e_s")},
    }


def _vain_tokens(computed: int, requests: Requests) -> int:
    """Return how many of the `computed` tokens no finished request needed; see `Summary.vain_tokens`."""
    rows = requests.status == RequestStatus.FINISHED
    lengths = (
        requests.prompt_tokens[rows].astype(np.int64) + requests.output_tokens[rows] - requests.cached_tokens[rows]
    )
    return max(computed - int((lengths - 1).sum()), 0)
