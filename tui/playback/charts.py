"""Series of the charts over time, frame by frame, and totals of the time before a session's first frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .run_events import Events

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Charts:
    """Series with one row per frame, in order."""

    times_s: FloatArray
    """Times at which the frames begin, in seconds."""
    slots: npt.NDArray[np.int64]
    """Slots of the pool by state: shape (num_frames, 8); no rows before they are added up."""
    running: IntArray
    """Requests in the batch whose answer is not complete."""
    waiting: IntArray
    """Requests in the queue."""
    events: Events
    """Events, by the first row that shows each."""

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
        """Return these rows followed by those of `later`, whose request numbers are different ones."""
        return Charts(
            times_s=np.concatenate((self.times_s, later.times_s)),
            slots=np.concatenate((self.slots, later.slots)),
            running=np.concatenate((self.running, later.running)),
            waiting=np.concatenate((self.waiting, later.waiting)),
            events=self.events.followed_by(later.events, len(self)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Before:
    """Totals of the time before the first frame that a session can show."""

    first_step: int
    """Number of the first frame's step on its server."""
    num_summary_frames: int = 0
    """Number of first frames that summarize all that happened before: 0 or 1."""
    charts: Charts | None = None
    """Charts of earlier frames; None if unknown."""
    num_finished: int = 0
    num_refused: int = 0
    num_preempted: int = 0
    tokens_served: int = 0
    """Output tokens of requests that have left."""
