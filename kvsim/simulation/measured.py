"""What is kept of a run that was only measured: its summary, the times of its requests, and a thinned-out timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.metrics import Summary, Waste, WasteShares, summarize, waste_shares
from kvsim.recording import Meta, Recording
from kvsim.recording.tables import Memory, Requests, Schedule, Steps

AnyTable = TypeVar("AnyTable", Steps, Schedule, Memory)
_ROUNDING = 1e-9
"""Share of the pool that sums of times may have lost to rounding, so that a share may be this much below 0."""
TIMELINE_POINTS = 2048
"""Most points of a reduced timeline; with one more, every other is dropped."""


class Frame(NamedTuple):
    """Totals after a step was scheduled, or their means; in slots where not said otherwise."""

    scheduled: float
    """Sequences."""
    waiting: float
    """Sequences."""
    written: float
    """Computed tokens, over all tables."""
    padding: float
    """Slots of padding beside what is written: pad tokens, and rows of a batch that have ended."""
    requested: float
    """Slots that were asked for, over all tables."""
    useful: float
    """Slots that were asked for and will be written before their sequence ends."""
    rounding: float
    """Slots that were given beyond what was asked for, over all tables."""
    free: float
    cached: float
    """Free slots that keep a prefix."""
    unusable: float
    """Free slots in pieces too small for the head of the queue."""
    kept_by_batch: float
    """Waiting requests that wait for a place in the batch."""
    kept_by_tokens: float
    """Waiting requests that wait for tokens of the step."""
    shared: float
    """Written slots that are counted once too often, because several tables list their block."""
    expired: float
    """Written slots whose tokens no later step reads."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Every so many-th step of a run: at most `TIMELINE_POINTS` steps, evenly spaced."""

    start_s: npt.NDArray[np.float64]
    scheduled: npt.NDArray[np.int64]
    """Sequences that computed something."""
    waiting: npt.NDArray[np.int64]
    held_slots: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """A run of which only sums were kept."""

    meta: Meta
    requests: Requests
    summary: Summary
    timeline: Timeline

    @classmethod
    def of(cls, recording: Recording) -> Measured:
        """What a recording adds up to."""
        steps, pool = recording.steps, recording.meta.pool
        some = slice(None, None, -(-len(steps) // TIMELINE_POINTS) or 1)
        timeline = Timeline(
            start_s=steps.start_s[some],
            scheduled=steps.num_scheduled[some].astype(np.int64),
            waiting=steps.waiting[some].astype(np.int64),
            held_slots=((pool.num_units or 0) - steps.free_units[some].astype(np.int64)) * pool.unit_slots,
        )
        return cls(meta=recording.meta, requests=recording.requests, summary=summarize(recording), timeline=timeline)

    @property
    def num_steps(self) -> int:
        """Steps that computed something, or preempted a request."""
        return self.summary.num_steps

    @property
    def duration_s(self) -> float:
        """Seconds from the first event to the end of the last step."""
        return self.summary.duration_s


def shares_of(mean: Frame, capacity_slots: int) -> WasteShares:
    """The eight states of a pool, which follow from the mean totals as in `kvsim.metrics.waste`."""
    held = capacity_slots - mean.free
    slots = np.zeros((2, NUM_STATES))
    listed_twice = mean.requested + mean.rounding - held  # blocks that several tables share
    slots[:, SlotState.TOKEN] = mean.written - mean.shared - mean.expired
    slots[:, SlotState.RESERVED] = mean.useful - mean.written
    slots[:, SlotState.INTERNAL] = mean.requested - mean.useful - mean.padding - (listed_twice - mean.shared)
    slots[:, SlotState.PADDING] = mean.padding
    slots[:, SlotState.EXPIRED] = mean.expired
    slots[:, SlotState.CACHED] = mean.cached
    slots[:, SlotState.EXTERNAL] = mean.rounding + mean.unusable
    slots[:, SlotState.FREE] = mean.free - mean.cached - mean.unusable
    slots[np.abs(slots) < _ROUNDING * capacity_slots] = 0.0
    # Means are no whole numbers, but for the type they are what a frame has.
    frames: Any = slots
    lasting = Waste(time_s=np.array([0.0, 1.0]), slots=frames, held=np.full(2, int(held)), capacity=capacity_slots)
    return waste_shares(lasting)


def summary_of_requests(meta: Meta, name: str, requests: Requests) -> Summary:
    """As much of a summary as the requests alone tell."""
    steps, schedule, memory = _empty(Steps), _empty(Schedule), _empty(Memory)
    return summarize(Recording(meta=meta, name=name, requests=requests, steps=steps, schedule=schedule, memory=memory))


def _empty(table: type[AnyTable]) -> AnyTable:
    """A table without rows, and without the columns that may be left out."""
    return table(**{name: np.empty(0, spec.dtype) for name, spec in table.columns() if not spec.optional})
