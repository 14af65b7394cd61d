"""A run without a recording: per-request times, and the sums that a summary is made of.

A `Tally` listens to the same reports as a `RecordingBuilder` and forgets them at once, so that memory does not grow
with the steps. Where the memory went is kept as integrals over time of a few totals over all sequences, from which the
seven states follow; the result agrees with the summary of a recording of the same run, but for the rounding of sums.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Row
from operator import add, mul, sub

import numpy as np
import numpy.typing as npt

from kvsim.memory.padded import Rectangle
from kvsim.policies import Policy, Static
from kvsim.recording import Meta, Pool, RequestStatus
from kvsim.recording.tables import Requests
from kvsim.simulation.measured import Frame, Measured
from kvsim.simulation.sums import Sums
from kvsim.simulation.surprises import Surprises
from kvsim.workload import Ragged, Workload


class Tally(Sums):
    """Listens to a run of `workload` and keeps sums; requests are numbered in the order in which they arrive."""

    def __init__(self, workload: Workload, policy: Policy, pool: Pool) -> None:
        """Listen to `workload` under `policy`, which shares out `pool`."""
        assert pool.num_units is not None
        super().__init__(pool.num_units * pool.unit_tokens)
        size = len(workload)
        self._workload = workload
        self._unit_tokens = pool.unit_tokens
        prompt = workload.prompt_tokens.astype(np.int64)
        longest = np.maximum(policy.max_model_len - prompt, 1)
        outputs = np.minimum(workload.output_tokens, longest)
        # A stop that only the output reveals is noticed one token late where steps are scheduled ahead.
        ahead = not isinstance(policy, Static) and policy.scheduler.async_scheduling
        surprises = outputs < np.minimum(workload.max_tokens, longest) if ahead else np.zeros(size, np.bool_)
        self._full = array("q", (prompt + outputs - 1 + surprises).tobytes())  # tokens of each request in the end
        self._is_surprising = array("b", surprises.astype(np.int8).tobytes())
        self._surprises = Surprises()
        self._num_requests = 0
        self._arrival_s, self._first_scheduled_s, self._first_token_s, self._finished_s = (
            array("d", [np.nan]) * size for _ in range(4)
        )
        self._output_tokens, self._status, self._preemptions, self._cached_tokens = (
            array("q", [0]) * size for _ in range(4)
        )
        self._computed, self._requested = (array("q", [0]) * size for _ in range(2))
        self._written = self._sum_requested = self._sum_useful = self._sum_rounding = 0
        self._one_by_one = 0  # tokens of the step under way that were reported request by request
        self._num_admitted = 0
        self._swapped_out_units = self._swapped_in_units = 0
        self._passed_useful: list[int] = []

    def next_seq(self) -> None:
        """Nothing is ordered here."""

    def arrived(self, name: str, time_s: float, *_: int, refused: bool = False, **__: object) -> int:  # noqa: ARG002
        """A request became visible to the engine; return its row."""
        row = self._num_requests
        self._num_requests = row + 1
        self._arrival_s[row] = time_s
        if refused:
            self._status[row] = RequestStatus.REFUSED
        return row

    def scheduled(self, request: int, computed_before: int, tokens: int, time_s: float, repeat: int = 1) -> None:
        """`request` computes `tokens` more tokens in the step under way."""
        assert repeat == 1, "static batches are reported whole"
        self._one_by_one += 1
        after = computed_before + tokens
        self._written += after - self._computed[request]
        self._computed[request] = after
        if self._first_scheduled_s[request] != self._first_scheduled_s[request]:
            self._first_scheduled_s[request] = time_s
            self._cached_tokens[request] = computed_before
            self._num_admitted += 1

    def joined(self, request: int, computed_before: int, time_s: float) -> None:
        """The tokens of `request` are among those that `step` counts, until `scheduled_on`."""

    def scheduled_on(self, request: int, num_steps: int) -> None:
        """`request` has computed a token in each of so many steps; they are in the sums already."""
        self._computed[request] += num_steps

    def step(
        self, *, start_s: float, num_scheduled: int, waiting: int, free_units: int, unusable_units: int,
        cached_units: int = 0, swapped_out_units: int = 0, swapped_in_units: int = 0, **_: float,
    ) -> int:  # fmt: skip
        """Close the step under way and return its number."""
        number, unit_tokens = self.num_steps, self._unit_tokens
        self._written += num_scheduled - self._one_by_one
        self._one_by_one = 0
        self._swapped_out_units += swapped_out_units
        self._swapped_in_units += swapped_in_units
        self._surprises.at((start_s,))
        free = free_units * unit_tokens
        self._open(
            start_s,
            Frame(
                num_scheduled, waiting, self._written, 0, self._sum_requested, self._sum_useful,
                self._sum_rounding, free, cached_units * unit_tokens, min(unusable_units, free_units) * unit_tokens,
            ),
        )  # fmt: skip
        self._mark(number, start_s, num_scheduled, waiting, free)
        if unusable_units > 0:
            self._count_fragmented(1, self._num_admitted)
        self.num_steps = number + 1
        return number

    def pass_step(self) -> None:
        """A step was passed, and what it allocated reported."""
        self._passed_useful.append(self._sum_useful)

    def passed_steps(
        self, start_s: Row[float], end_s: Row[float], *,
        ahead: bool,  # noqa: ARG002  outputs are not told apart here
        num_seqs: int, waiting: int, free_units: Row[int], cached_units: Row[int], unusable_units: int,
    ) -> None:  # fmt: skip
        """Add the steps that were passed: one token each for the same `num_seqs` requests, and nothing else."""
        number, num_steps, unit_tokens = self.num_steps, len(start_s), self._unit_tokens
        written, last_free = self._written, free_units[-1] * unit_tokens
        useful = self._passed_useful
        self._surprises.at(start_s)
        # What is asked for in a leap comes from the free units, and stays.
        unused = self._sum_requested + last_free
        self.num_steps = number + num_steps
        self._written = written + num_seqs * num_steps
        self.end_s = end_s[-1]
        unusable = min(unusable_units, free_units[-1]) * unit_tokens
        first_free = free_units[0] * unit_tokens
        frame = Frame(
            num_seqs, waiting, written + num_seqs, 0, unused - first_free, useful[0],
            self._sum_rounding, first_free, cached_units[0] * unit_tokens, unusable,
        )  # fmt: skip
        self._open(start_s[0], frame)
        if num_steps > 1:
            durations = [*map(sub, start_s[1:], start_s)]
            time_s = start_s[-1] - start_s[0]
            free = sum(map(mul, durations, free_units)) * unit_tokens
            changes = (
                num_seqs * time_s,
                waiting * time_s,
                sum(map(mul, durations, range(written + num_seqs, self._written + 1, num_seqs))),
                0.0,
                unused * time_s - free,
                sum(map(mul, durations, useful)),
                self._sum_rounding * time_s,
                free,
                sum(map(mul, durations, cached_units)) * unit_tokens,
                unusable * time_s,
            )
            self._integrals = [*map(add, self._integrals, changes)]
            self._frame_s = start_s[-1]
            self._frame = frame._replace(
                written=self._written, requested=self._sum_requested, useful=useful[-1],
                free=last_free, cached=cached_units[-1] * unit_tokens,
            )  # fmt: skip
            self._most_held = max(self._most_held, self._capacity - last_free)
        for index in range(-number % self._stride, num_steps, self._stride):
            self._mark(number + index, start_s[index], num_seqs, waiting, free_units[index] * unit_tokens)
        useful.clear()
        if unusable_units > 0:
            self._count_fragmented(num_steps, self._num_admitted)

    def batch(
        self, rectangle: Rectangle, time_s: npt.NDArray[np.float64], waiting: npt.NDArray[np.int64], num_units: int
    ) -> None:
        """Add the steps of a static batch, whose beginnings and end are `time_s`; the pool is its own meanwhile."""
        num_steps, rows, slots = len(waiting), rectangle.num_rows, rectangle.by_step
        written, padding, reserved = slots.token[:num_steps], slots.padding[:num_steps], slots.reserved[:num_steps]
        held = rows * np.array([rectangle.width_at(step) for step in range(num_steps)])
        nothing = np.zeros(num_steps, np.int64)
        totals = np.stack([
            np.full(num_steps, rows), waiting, written, padding, held, written + reserved, nothing, num_units - held,
            nothing, nothing,
        ])  # fmt: skip
        self.add(time_s[:-1], totals)
        self.end_s = float(time_s[-1])
        # Afterwards the pool is empty, until the next step begins.

    def scheduled_once(self, request: int, time_s: float) -> None:
        """`request` is in a static batch that begins now."""
        self._first_scheduled_s[request] = time_s
        self._num_admitted += 1

    def output(self, step: int, time_s: float) -> None:  # noqa: ARG002
        """The output of `step` was processed."""
        self.end_s = time_s

    def emitted(self, request: int, time_s: float, count: int = 1) -> None:
        """`request` has `count` more outputs."""
        outputs = self._output_tokens
        if not outputs[request]:
            self._first_token_s[request] = time_s
        outputs[request] += count

    def preempted(self, request: int) -> None:
        """`request` lost its memory and will compute its tokens again."""
        self._preemptions[request] += 1

    def ended(self, request: int, status: RequestStatus, time_s: float) -> None:
        """`request` left the engine."""
        self._status[request] = status
        self._finished_s[request] = time_s

    def append_blocks(self, request: int, position: int, blocks: Row[int]) -> None:
        """`request` got free `blocks`."""
        before, more, full = position * self._unit_tokens, len(blocks) * self._unit_tokens, self._full[request]
        self._sum_requested += more
        if before + more < full:
            self._sum_useful += more
        elif before < full:
            self._sum_useful += full - before
            self._hold_last(request)

    def share_blocks(self, request: int, position: int, blocks: Row[int]) -> None:
        """`request` joined the holders of `blocks`."""
        self.append_blocks(request, position, blocks)

    def append_extent(self, request: int, position: int, address: int, length: int, requested: int) -> None:  # noqa: ARG002
        """`request` got `length` slots from `address` on, having asked for `requested`."""
        full = self._full[request]
        self._requested[request] = position + requested
        self._sum_requested += requested
        self._sum_useful += min(position + requested, full) - min(position, full)
        self._sum_rounding += length - requested
        if position < full <= position + requested:
            self._hold_last(request)

    def release(self, request: int, num_units: int, num_cached: int) -> None:  # noqa: ARG002
        """`request` gave back its whole table."""
        computed = self._computed[request]
        self._written -= computed
        self._computed[request] = 0
        if self._is_surprising[request]:
            self._surprises.leave(request, computed=computed == self._full[request])
        self.vacate(request, num_units)

    def vacate(self, request: int, num_units: int) -> None:
        """`request` left its slots, and what it has computed stays in the sums."""
        length = num_units * self._unit_tokens
        requested = self._requested[request] or length
        self._requested[request] = 0
        self._sum_requested -= requested
        self._sum_useful -= min(requested, self._full[request])
        self._sum_rounding -= length - requested

    def evict(self, blocks: Row[int]) -> None:
        """Blocks that lose their prefix were free before."""

    def finish(self, meta: Meta, name: str = "") -> Measured:
        """What the reports add up to."""
        self._surprises.at((self.end_s,))
        return self.summarize(
            meta, name, self._requests(), useless_slot_s=self._surprises.slot_s,
            swapped_out_units=self._swapped_out_units, swapped_in_units=self._swapped_in_units,
        )  # fmt: skip

    def _hold_last(self, request: int) -> None:
        """`request` has the slot of its last token, which may come as a surprise."""
        if self._is_surprising[request]:
            self._surprises.hold(request, len(self._passed_useful))

    def _requests(self) -> Requests:
        workload, size = self._workload, self._num_requests
        return Requests(
            request=np.arange(size, dtype=np.int32),
            id=np.asarray(workload.ids[:size], np.str_),
            arrival_s=np.array(self._arrival_s)[:size],
            arrival_seq=np.arange(size),
            prompt_tokens=workload.prompt_tokens[:size],
            output_tokens=np.array(self._output_tokens, np.int32)[:size],
            max_tokens=workload.max_tokens[:size],
            priority=workload.priority[:size],
            prompt_hashes=Ragged.empty(size, np.int64),
            first_scheduled_s=np.array(self._first_scheduled_s)[:size],
            first_token_s=np.array(self._first_token_s)[:size],
            finished_s=np.array(self._finished_s)[:size],
            status=np.array(self._status, np.uint8)[:size],
            preemptions=np.array(self._preemptions, np.int32)[:size],
            cached_tokens=np.array(self._cached_tokens, np.int32)[:size],
        )
