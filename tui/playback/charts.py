"""What charts over time are drawn from, frame by frame; and what a session knows of the time before its first frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .events import Events

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Charts:
    """One row per frame, in their order."""

    times_s: FloatArray
    """Times at which the frames begin, in seconds."""
    slots: npt.NDArray[np.int64]
    """Slots of the pool by state: shape (num_frames, 8), or without rows where they have not been added up."""
    running: IntArray
    """Requests in the batch."""
    waiting: IntArray
    """Requests in the queue."""
    events: Events
    """Events, by the number of the row that shows each first."""

    def __len__(self) -> int:
        return len(self.times_s)

    def rows(self, begin: int, end: int | None = None) -> Charts:
        """The rows [begin, end), or all from `begin` on."""
        some = slice(begin, end)
        return Charts(
            times_s=self.times_s[some],
            slots=self.slots[some],
            running=self.running[some],
            waiting=self.waiting[some],
            events=self.events.between(begin, len(self) if end is None else end),
        )

    def followed_by(self, later: Charts) -> Charts:
        """These rows, and those of `later` behind them, whose requests have numbers of their own."""
        return Charts(
            times_s=np.concatenate((self.times_s, later.times_s)),
            slots=np.concatenate((self.slots, later.slots)),
            running=np.concatenate((self.running, later.running)),
            waiting=np.concatenate((self.waiting, later.waiting)),
            events=self.events.of_others().followed_by(later.events, len(self)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Before:
    """What came before the first frame that a session can show."""

    first_step: int
    """The number that its server gave to the step of that frame."""
    num_stood_for: int = 0
    """Frames, from that one on, that are shown for all that happened before; 0 or 1."""
    charts: Charts | None = None
    """The frames before those that follow; None where they are not known, and charts begin with the first."""
    num_finished: int = 0
    num_refused: int = 0
    num_preempted: int = 0
    tokens_served: int = 0
    """Tokens of answers that were put out to requests which had gone by then."""
