"""Highlights of recent changes for a fraction of a second, so that the eye can follow playback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from .unit_changes import changes_between

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from .unit_changes import Lights

FLASH_S: Final = 0.3
"""Wall seconds for which changes are highlighted."""
_MOST_STEPS = 8
"""Largest number of steps whose changes are highlighted together. After a longer jump, only the last step's are."""
_MOST_LIT = 1 / 3
"""Largest share of the pool that is highlighted at once. Larger changes are not highlighted."""


class Flash:
    """Changes of the pool that the user has seen in the last `flash_s` wall seconds."""

    def __init__(self, replay: Replay, flash_s: float) -> None:
        self._replay = replay
        self.flash_s = flash_s
        self._lit: list[tuple[float, Lights]] = []

    def see(self, before: int, now_s: float) -> bool:
        """Highlight the units that changed since frame `before`; return True if there are any.

        If the current frame is more than `_MOST_STEPS` later, only the changes of its last step count. Nothing is
        highlighted after a step back, or if more than a third of the pool has changed. After a step forward, older
        highlights stay until `flash_s` has passed.
        """
        frame = self._replay.frame
        if frame < before:  # the user stepped back
            self._lit.clear()
            return False
        # After a jump, highlight the changes of the last step alone.
        since = before if frame - before <= _MOST_STEPS else frame - 1
        changes = changes_between(self._replay, since, frame)
        if not 0 < len(changes) <= self._replay.num_units * _MOST_LIT:
            return False
        self._lit.append((now_s, changes.lights))
        return True

    def lights(self, now_s: float) -> Lights:
        """Return the units to highlight at wall time `now_s`, and drop changes that are older than `flash_s`."""
        self._lit = [(when_s, lights) for when_s, lights in self._lit if when_s > now_s - self.flash_s]
        units = [units for _, (units, _) in self._lit]
        paints = [paints for _, (_, paints) in self._lit]
        if not units:
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        return np.concatenate(units), np.concatenate(paints)
