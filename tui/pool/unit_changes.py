"""Changes of the pool between two frames, for highlights: units that were allocated, hit, evicted or freed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvsim.recording.order import expanded
from kvsim.recording.tables import MemoryKind

from .array_types import IndexArray, PaintArray
from .paint import UnitChange

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay


Lights: TypeAlias = tuple[IndexArray, PaintArray]
"""(units that have changed, paint that highlights each). If a unit occurs several times, its last paint counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """Units by kind of change, numbered from 0 in address order. A unit is listed once for each of its changes."""

    taken: IndexArray
    """Units that were allocated to a request; prefix-cache hits are in `hit`."""
    freed: IndexArray
    """Units whose last holder freed them; they may still cache a prefix."""
    hit: IndexArray
    """Units that were prefix-cache hits."""
    evicted: IndexArray
    """Units that lost a cached prefix when they were allocated."""

    def __len__(self) -> int:
        return sum(map(len, (self.taken, self.freed, self.hit, self.evicted)))

    @property
    def lights(self) -> Lights:
        """Changed units and the paints of their changes."""
        parts = (
            (self.freed, UnitChange.FREED),
            (self.taken, UnitChange.TAKEN),
            (self.hit, UnitChange.HIT),
            (self.evicted, UnitChange.EVICTED),
        )
        return (
            np.concatenate([units for units, _ in parts]),
            np.concatenate([np.full(len(units), change, np.uint8) for units, change in parts]),
        )


def changes_between(replay: Replay, before: int, after: int) -> Changes:
    """Return the changes after frame `before` up to frame `after`. A `before` of -1 includes the first frame."""
    memory = replay.recording.memory
    since = int(replay.frame_seq[before]) if before >= 0 else -1
    begin, end = np.searchsorted(memory.seq, (since, int(replay.frame_seq[after])), side="right")
    rows = slice(int(begin), max(int(begin), int(end)))
    kind, address, length = memory.kind[rows], memory.address[rows].astype(np.int64), memory.length[rows]

    def units(which: MemoryKind) -> IndexArray:
        runs = kind == which
        run, offset = expanded(length[runs].astype(np.int64))
        return _inside(address[runs][run] + offset, replay)

    freed = replay.freed_between(before, after).astype(np.int64)
    return Changes(
        taken=units(MemoryKind.APPEND),
        freed=freed[(freed >= 0) & (freed < replay.num_units)],
        hit=units(MemoryKind.SHARE),
        evicted=units(MemoryKind.EVICT),
    )


def _inside(addresses: IndexArray, replay: Replay) -> IndexArray:
    units = addresses - replay.first_unit
    return units[(units >= 0) & (units < replay.num_units)]
