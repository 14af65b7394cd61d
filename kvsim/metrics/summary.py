"""A recording in a few numbers, for tables and for `--json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.metrics.latency import Distribution, latencies
from kvsim.metrics.shares import UNKNOWN_SHARES, WasteShares, waste_shares
from kvsim.metrics.waiting import UNKNOWN, Limits, WaitingFor
from kvsim.metrics.waste import Waste, time_mean, waste
from kvsim.recording import Recording, RequestStatus

if TYPE_CHECKING:
    from kvsim.recording.tables import FloatArray, IntArray, Requests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Summary:
    """What a run did; a figure that the run does not define, such as the mean of nothing, is NaN.

    Means over time give each step the time until the next one begins.
    """

    name: str
    policy: str
    num_finished: int
    num_refused: int
    num_aborted: int
    num_unfinished: int
    num_steps: int
    duration_s: float
    output_tokens: int
    """Output tokens of all requests, unfinished ones included."""
    output_tokens_per_s: float
    requests_per_s: float
    """Finished requests."""
    mean_batch: float
    """Sequences scheduled per step, over time."""
    peak_batch: int
    mean_occupancy: float
    """Part of the pool that requests hold, 0 to 1, over time."""
    peak_occupancy: float
    num_preemptions: int
    num_fragmented_steps: int
    """Steps that left the head of the queue waiting although the free slots, were they side by side, would have
    done.
    """
    num_fragmented_requests: int
    """Requests that waited at the head of the queue for that reason, whether for a step or for a thousand."""
    swapped_out_bytes: int
    """Copied to the host instead of being computed again."""
    swapped_in_bytes: int
    prefix_hit_tokens: int
    """Prompt tokens that needed no computing when their request was first scheduled."""
    computed_tokens: int
    """Scheduled over all steps."""
    vain_tokens: int
    """Computed tokens that no finished request needed: computed again after a preemption, or for an answer that had
    ended, or for pads."""
    mean_waiting: float
    """Requests in the queue, over time."""
    waiting_for: WaitingFor
    wait_s: Distribution
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    waste: WasteShares

    def as_dict(self) -> dict[str, Any]:
        """Everything as nested dictionaries of strings and numbers; None stands for NaN, which JSON does not have."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def as_row(self) -> dict[str, Any]:
        """Everything as one row of a table: nested names are joined by dots, such as `ttft_s.mean`."""
        return dict(_flat(self.as_dict()))

    def __repr__(self) -> str:
        return f"<Summary of {self.name!r}: {', '.join(f'{label} {value}' for label, value in self._shown())}>"

    def _repr_html_(self) -> str:
        lines = "".join(f"<tr><th>{label}</th><td>{value}</td></tr>" for label, value in self._shown())
        return f"<table>{lines}</table>"

    def _shown(self) -> list[tuple[str, str]]:
        """The figures that people look at first, in words."""
        return [
            ("finished", f"{self.num_finished:,}"),
            ("output tokens/s", f"{self.output_tokens_per_s:,.0f}"),
            ("mean batch", f"{self.mean_batch:.3g}"),
            ("TTFT mean", f"{self.ttft_s.mean:.3g} s"),
            ("TPOT mean", f"{1e3 * self.tpot_s.mean:.3g} ms"),
            ("end to end p99", f"{self.e2e_s.p99:.3g} s"),
            ("preemptions", f"{self.num_preemptions:,}"),
            ("pool holds tokens", f"{self.waste.pool_percent[0]:.1f} %"),
        ]


def summarize(recording: Recording, slots: Waste | None = None) -> Summary:
    """Summarize `recording`; give `slots` where its waste is known already."""
    requests, steps = recording.requests, recording.steps
    if slots is None and len(steps):
        slots = waste(recording)
    status = np.bincount(requests.status, minlength=len(RequestStatus))
    times = latencies(recording)
    fragmented_s = steps.start_s[:0] if steps.unusable_units is None else steps.start_s[steps.unusable_units > 0]
    duration_s, output_tokens = recording.duration_s, int(requests.output_tokens.sum())
    computed = int(steps.prefill_tokens.sum(dtype=np.int64) + steps.decode_tokens.sum(dtype=np.int64))
    return Summary(
        name=recording.name,
        policy=recording.meta.rules_name,
        num_finished=int(status[RequestStatus.FINISHED]),
        num_refused=int(status[RequestStatus.REFUSED]),
        num_aborted=int(status[RequestStatus.ABORTED]),
        num_unfinished=int(status[RequestStatus.UNFINISHED]),
        num_steps=len(steps),
        duration_s=duration_s,
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s if duration_s else np.nan,
        requests_per_s=len(times.request) / duration_s if duration_s else np.nan,
        mean_batch=_step_mean(slots, steps.num_scheduled),
        peak_batch=int(steps.num_scheduled.max(initial=0)),
        mean_occupancy=float(time_mean(slots.time_s, slots.held)) / slots.capacity if slots and duration_s else np.nan,
        peak_occupancy=float(slots.occupancy.max()) if slots else np.nan,
        num_preemptions=recording.num_preemptions,
        num_fragmented_steps=len(fragmented_s),
        num_fragmented_requests=_num_heads(recording, fragmented_s),
        swapped_out_bytes=_bytes(recording, steps.swapped_out_units),
        swapped_in_bytes=_bytes(recording, steps.swapped_in_units),
        prefix_hit_tokens=int(requests.cached_tokens.sum()),
        computed_tokens=computed,
        vain_tokens=vain_tokens(computed, requests),
        mean_waiting=_step_mean(slots, steps.waiting),
        waiting_for=_waiting_for(recording, slots),
        wait_s=Distribution.of(times.wait_s),
        ttft_s=Distribution.of(times.ttft_s),
        tpot_s=Distribution.of(times.tpot_s),
        e2e_s=Distribution.of(times.e2e_s),
        waste=waste_shares(slots) if slots else UNKNOWN_SHARES,
    )


def vain_tokens(computed: int, requests: Requests) -> int:
    """How many of `computed` tokens go beyond what the requests that finished needed, each counted once."""
    rows = requests.status == RequestStatus.FINISHED
    lengths = (
        requests.prompt_tokens[rows].astype(np.int64) + requests.output_tokens[rows] - requests.cached_tokens[rows]
    )
    return max(computed - int((lengths - 1).sum()), 0)


def _waiting_for(recording: Recording, slots: Waste | None) -> WaitingFor:
    """What requests waited for, by the limits of the recorded engine; a static batch keeps all others waiting."""
    steps, meta = recording.steps, recording.meta
    waiting = _step_mean(slots, steps.waiting)
    if meta.policy_name == "static":
        return WaitingFor.split(waiting, waiting, 0.0)
    limits = Limits.of(meta.engine, meta.policy)
    if limits is None or np.isnan(waiting):
        return UNKNOWN
    kept = limits.keeping(steps.waiting, steps.running, steps.prefill_tokens + steps.decode_tokens)
    return WaitingFor.split(waiting, *(_step_mean(slots, each) for each in kept))


def _num_heads(recording: Recording, time_s: FloatArray) -> int:
    """How many requests stood at the head of the queue at some of these times: it changes with each admission."""
    admitted_s = recording.requests.first_scheduled_s
    heads = np.searchsorted(np.sort(admitted_s[~np.isnan(admitted_s)]), time_s, side="right")
    return int(np.count_nonzero(np.bincount(heads)))


def _bytes(recording: Recording, units: IntArray | None) -> int:
    """All units of a column of the steps, in bytes."""
    return 0 if units is None else int(units.sum()) * recording.meta.pool.bytes_per_unit


def _step_mean(slots: Waste | None, values: IntArray) -> float:
    """Mean over time of a column of the steps, NaN if no time passes; nothing is scheduled or waits after the last."""
    passes = slots is not None and slots.time_s[-1] > slots.time_s[0]
    return float(time_mean(slots.time_s, np.append(values, 0))) if slots is not None and passes else np.nan


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(value: Any) -> Any:
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
