"""One recording opened for watching: everything that the panels read, and who is being followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics import waste
from kvsim.recording.replay import Replay

from .events import events_of
from .player import Player

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.model import Recording


class Session:
    """The state behind the screen. `show` moves the replay to the player's frame; nothing else moves it.

    Raises:
        RecordingError: the recording has no steps.
    """

    def __init__(self, recording: Recording, *, at_s: float | None = None) -> None:
        self.replay = Replay(recording)
        self.recording = self.replay.recording
        breakdown = waste(self.replay)
        self.slots = breakdown.slots
        """Slots of the pool by state, one row per frame."""
        self.times_s = breakdown.time_s
        """When each frame begins."""
        self.events = events_of(self.replay)
        self.player = Player(self.times_s, self.events.notable.frame)
        if at_s is not None:
            self.player.go_to_time(at_s)
        self.followed: int | None = None
        """The request that a person wants to see more of."""
        self.selected: int | None = None
        """The unit under the cursor, from 0 in address order."""
        self.show()

    @property
    def capacity(self) -> int:
        """Slots in the pool."""
        return self.replay.num_units * self.replay.unit_tokens

    @property
    def unit_name(self) -> str:
        """What this recording's engine calls a unit of its pool."""
        return "block" if self.replay.unit_tokens > 1 else "slot"

    @property
    def breakdown(self) -> npt.NDArray[np.int64]:
        """Slots of the pool by state at the current frame: shape (7,)."""
        slots: npt.NDArray[np.int64] = self.slots[self.player.frame]
        return slots

    def show(self) -> None:
        """Make the replay's frame the player's."""
        self.replay.seek(self.player.frame)

    def counts(self, column: str) -> npt.NDArray[np.int64]:
        """A column of the steps, with 0 for the frame after the last one."""
        return np.append(getattr(self.recording.steps, column).astype(np.int64), 0)

    def residencies(self, request: int) -> list[tuple[int, int]]:
        """The spans of frames in which `request` holds memory: first frame, and the first one after."""
        tables = self.replay.ledger.tables
        rows = slice(*tables.first_row[request : request + 2])
        first = tables.position[rows] == 0
        births, deaths = tables.birth_seq[rows][first], tables.death_seq[rows][first]
        frames = np.minimum(np.searchsorted(self.replay.frame_seq, (births, deaths)), self.replay.num_frames - 1)
        return list(zip(*frames.tolist(), strict=True))

    def request_name(self, request: int) -> str:
        """What the recording calls a request."""
        return str(self.recording.requests.id[request])
