"""Changes of ownership, block by block, as they are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvsim.engine.ownership import MemoryKind

if TYPE_CHECKING:
    from kvsim.engine.driver import Driver

Change: TypeAlias = tuple[int, int, int, int, int]
"""Kind, request, position, block, KV-cache group. A release of a whole table has the number of its blocks in place of
the block, or `UNTOLD`, and `WHOLE_TABLE` for a position.
"""
UNTOLD = 0
WHOLE_TABLE = -1


class Changes:
    """What an engine that is stepped by hand has changed since it was last looked at, and how often it did what."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.num_allocations = 0
        self.num_hits = 0
        self.num_evictions = 0
        self._changes: list[Change] = []
        self._evicted: list[int] = []

    def take(self) -> None:
        """Take what the last action brought."""
        for row in self._driver.changes():
            kind, request, position, address = int(row.kind), int(row.request), int(row.position), int(row.address)
            units, group = range(int(row.length)), int(row.group)
            if kind == MemoryKind.RELEASE and address == WHOLE_TABLE:
                self._changes.append((kind, request, WHOLE_TABLE, len(units), group))
            elif kind == MemoryKind.EVICT:
                self.num_evictions += len(units)
                self._evicted += [address + unit for unit in units]
            else:
                self.num_allocations += len(units) * (kind == MemoryKind.APPEND)
                self.num_hits += len(units) * (kind == MemoryKind.SHARE)
                self._changes += [(kind, request, position + unit, address + unit, group) for unit in units]

    def drain(self) -> list[Change]:
        """Everything but evictions since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def drain_evicted(self) -> list[int]:
        """Blocks that lost their prefix since the last call, in order."""
        evicted, self._evicted = self._evicted, []
        return evicted
