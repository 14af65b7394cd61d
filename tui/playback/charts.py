"""Series of the charts over time, frame by frame, and totals of the time before a session's first frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState

from .run_events import Events

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.metrics.slot_account import GapSlots
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray, IntArray


_LEAST_IDLE = 1 / 400
"""Shortest idle span, as a share of the run, that can be seen on a time axis."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Charts:
    """Series with one row per frame, in order of time."""

    times_s: FloatArray
    """Times at which the frames begin, in seconds."""
    slots: npt.NDArray[np.int64]
    """Number of slots of the pool in each state: shape (num_frames, 8). Without rows until they are counted."""
    running: IntArray
    """Number of running requests, without those whose row of a static batch is held after their answer is complete."""
    waiting: IntArray
    events: Events
    """Events. Their `frame` is a row of these charts."""

    def __len__(self) -> int:
        return len(self.times_s)

    def rows(self, begin: int, end: int | None = None) -> Charts:
        """Return the rows [begin, end), or all from `begin` on."""
        some = slice(begin, end)
        return Charts(
            times_s=self.times_s[some],
            slots=self.slots[some],
            running=self.running[some],
            waiting=self.waiting[some],
            events=self.events.between(begin, len(self) if end is None else end),
        )

    def followed_by(self, later: Charts) -> Charts:
        """Return these rows, then those of `later`.

        The events of these rows get `NO_OWNER` as request, because the requests of `later` have other row numbers.
        """
        return Charts(
            times_s=np.concatenate((self.times_s, later.times_s)),
            slots=np.concatenate((self.slots, later.slots)),
            running=np.concatenate((self.running, later.running)),
            waiting=np.concatenate((self.waiting, later.waiting)),
            events=self.events.followed_by(later.events, len(self)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdleSpans:
    """Spans of time between the output of a step and the beginning of the next, with no step in flight, in order."""

    begin_s: FloatArray
    end_s: FloatArray
    """Times in seconds at which the spans end and the next steps begin."""
    slots: npt.NDArray[np.int64]
    """Number of slots of the pool in each state during the span: shape (num_spans, 8)."""
    running: IntArray
    waiting: IntArray

    @classmethod
    def none(cls) -> IdleSpans:
        """Return an object without spans."""
        no_spans = np.empty(0, np.int64)
        slots = np.empty((0, len(SlotState)), np.int64)
        return cls(begin_s=np.empty(0), end_s=np.empty(0), slots=slots, running=no_spans, waiting=no_spans)

    @classmethod
    def of(cls, recording: Recording, in_gaps: GapSlots) -> IdleSpans:
        """Return the idle spans of a recording that are long enough to be seen on a time axis.

        `in_gaps` has all its idle spans, called gaps, and the slots by state in each.
        """
        gaps = in_gaps.gaps
        end_s = recording.steps.start_s[gaps.step + 1]
        long = end_s - gaps.begin_s > recording.duration_s * _LEAST_IDLE
        return cls(
            begin_s=gaps.begin_s[long],
            end_s=end_s[long],
            slots=in_gaps.slots[long],
            running=gaps.running[long],
            waiting=gaps.waiting[long],
        )

    def released_s(self, times_s: FloatArray) -> FloatArray:
        """Return the time in seconds at which the memory that each frame shows as newly free was released.

        The frames begin at `times_s`. The memory was released at the beginning of the idle span before the frame. If
        there is none, it was released when the frame began.
        """
        if not len(self.end_s):
            return times_s
        span = np.searchsorted(self.end_s, times_s).clip(max=len(self.end_s) - 1)
        return np.where(self.end_s[span] == times_s, self.begin_s[span], times_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Before:
    """Charts, and counts of requests, preemptions and tokens, of the time before a session's first frame."""

    first_step: int
    """Number of the step that the session's first frame shows, as the server counts steps."""
    num_summary_frames: int = 0
    """1 if the session's first frame summarizes everything before it, otherwise 0."""
    charts: Charts | None = None
    """Charts of the frames before the session's first frame; None if unknown."""
    num_finished: int = 0
    num_refused: int = 0
    num_preemptions: int = 0
    tokens_served: int = 0
    """Number of output tokens of requests that ended before the first frame."""
