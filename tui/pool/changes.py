"""Changes of the pool between two frames: units that are taken, hit, evicted and freed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import units_of_runs
from kvsim.recording.tables import MemoryKind

from .paint import Change

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay


Lights: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]
"""Units, and the paint of what has just happened to each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """Units from 0 in address order, as often as something happened to each."""

    taken: npt.NDArray[np.int64]
    """Handed to a request, not counting `hit`."""
    freed: npt.NDArray[np.int64]
    """Units that the last request which held them gave back; they may keep a prefix."""
    hit: npt.NDArray[np.int64]
    """Found in the prefix cache, and taken or shared as they are."""
    evicted: npt.NDArray[np.int64]
    """Units that lost the prefix that they kept, because they were taken."""

    def __len__(self) -> int:
        return sum(map(len, (self.taken, self.freed, self.hit, self.evicted)))

    @property
    def lights(self) -> Lights:
        """The paint of what has happened to each unit. Of several, the last counts: an eviction more than what it was
        for.
        """
        parts = (
            (self.freed, Change.FREED),
            (self.taken, Change.TAKEN),
            (self.hit, Change.HIT),
            (self.evicted, Change.EVICTED),
        )
        return (
            np.concatenate([units for units, _ in parts]),
            np.concatenate([np.full(len(units), change, np.uint8) for units, change in parts]),
        )


def changes_between(replay: Replay, before: int, after: int) -> Changes:
    """Return the changes after frame `before` up to frame `after`; with -1, from the beginning."""
    memory = replay.recording.memory
    since = int(replay.frame_seq[before]) if before >= 0 else -1
    begin, end = np.searchsorted(memory.seq, (since, int(replay.frame_seq[after])), side="right")
    rows = slice(int(begin), max(int(begin), int(end)))
    kind, address, length = memory.kind[rows], memory.address[rows].astype(np.int64), memory.length[rows]

    def units(which: MemoryKind) -> npt.NDArray[np.int64]:
        runs = kind == which
        run, offset = units_of_runs(length[runs].astype(np.int64))
        return _inside(address[runs][run] + offset, replay)

    freed = replay.freed_between(before, after).astype(np.int64)
    return Changes(
        taken=units(MemoryKind.APPEND),
        freed=freed[(freed >= 0) & (freed < replay.num_units)],
        hit=units(MemoryKind.SHARE),
        evicted=units(MemoryKind.EVICT),
    )


def _inside(addresses: npt.NDArray[np.int64], replay: Replay) -> npt.NDArray[np.int64]:
    units = addresses - replay.first_unit
    return units[(units >= 0) & (units < replay.num_units)]
