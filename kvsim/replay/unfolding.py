"""How the rows of `memory.parquet` become operations on runs of units.

A row says "request 7 gives back its table"; the operations say which units that were, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvsim.recording.grouped import NO_RUN
from kvsim.recording.tables import IntArray, Memory, MemoryKind

if TYPE_CHECKING:
    from kvsim.recording.grouped import Operations
    from kvsim.recording.holdings import Holdings, Releases

NO_OWNER = -1
"""The owner of a unit that is free."""
CHANGE = np.zeros(len(MemoryKind), np.int8)
"""Holders that a run gains or loses, by the kind of the operation."""
CHANGE[[MemoryKind.APPEND, MemoryKind.SHARE]] = 1
CHANGE[MemoryKind.RELEASE] = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Some operations on runs of units, in the order in which they happened.

    A run that grows is taken with the units of its first step, and given back with all of them.
    """

    row: IntArray
    """The row of `memory.parquet`."""
    address: IntArray
    length: IntArray
    change: npt.NDArray[np.int8]
    """1 where a request takes the run, -1 where it gives it back, 0 where the units lose a prefix that they kept."""
    owner: IntArray
    """The request that takes or gives back; `NO_OWNER` where none does."""
    position: IntArray
    """Position of the run in that request's table, in units."""
    group: IntArray | None
    """The KV-cache group of that table; None where a model has one."""
    until: IntArray
    """The row in which a run that is taken is given back; as many as there are rows where it never is."""


class Takes(NamedTuple):
    """Units that are taken, and those that lose a prefix that they kept, in order."""

    row: IntArray
    """The row of `memory.parquet`."""
    address: IntArray
    position: IntArray
    """The unit's place in the table of the request that takes it."""
    until: IntArray
    """The row in which that request gives it back: as many as there are rows where it never does, and `row` where no
    request takes it.
    """


class Unfolded(Protocol):
    """How rows become operations."""

    def num_ops(self) -> IntArray:
        """Operations of each row."""

    def part(self, ops: IntArray, row: IntArray, nth: IntArray) -> Part:
        """The operations `ops`, each of which is the `nth` of its `row`."""

    def takes(self, begin: int, end: int) -> Takes:
        """All takes of the rows [begin, end), each of one unit."""


class Rows:
    """Rows that stand for runs behind each other. A table is given back from its end."""

    def __init__(
        self, memory: Memory, tables: Holdings, releases: Releases, until: IntArray, *, unit_by_unit: bool
    ) -> None:
        self._memory, self._tables, self._releases, self._until = memory, tables, releases, until
        evictions = np.flatnonzero(memory.kind == MemoryKind.EVICT)
        self._until[evictions] = evictions
        self._unit_by_unit = unit_by_unit

    def num_ops(self) -> IntArray:
        """Operations of each row."""
        num_ops = self._memory.length.copy() if self._unit_by_unit else np.ones(len(self._memory), np.int32)
        num_ops[self._releases.row] = self._releases.num_runs
        return num_ops

    def takes(self, begin: int, end: int) -> Takes:
        """All takes of the rows [begin, end), each of one unit."""
        memory = self._memory
        row = begin + np.flatnonzero(memory.kind[begin:end] != MemoryKind.RELEASE).astype(np.int32)
        length = memory.length.take(row).astype(np.intp)
        if not len(row) or length.max() == 1:
            return Takes(row, memory.address.take(row), memory.position.take(row), self._until.take(row))
        row = np.repeat(row, length)
        nth = np.arange(len(row), dtype=np.int32)
        nth -= np.repeat((np.cumsum(length) - length).astype(np.int32), length)
        return Takes(row, memory.address.take(row) + nth, memory.position.take(row) + nth, self._until.take(row))

    def part(self, ops: IntArray, row: IntArray, nth: IntArray) -> Part:
        """The operations `ops`, each of which is the `nth` of its `row`."""
        del ops
        memory, tables, releases = self._memory, self._tables, self._releases
        change, owner = CHANGE.take(memory.kind.take(row)), memory.request.take(row)
        owner[change == 0] = NO_OWNER
        address, position, back = memory.address.take(row), memory.position.take(row), (change < 0).nonzero()[0]
        if self._unit_by_unit:
            length: IntArray = np.ones(len(row), np.int32)
            address += nth
            position += nth
        else:
            length = memory.length.take(row)
        if len(back):
            release = releases.row.searchsorted(row[back].astype(releases.row.dtype))
            runs = tables.at(releases.last_run.take(release) - nth[back])
            address[back], position[back] = runs.address, runs.position
            if not self._unit_by_unit:
                length[back] = runs.length
        return Part(
            row=row,
            address=address,
            length=length,
            change=change,
            owner=owner,
            position=position,
            group=None,
            until=self._until.take(row),
        )


class Listed:
    """Operations where groups let go of units on the way: everything is listed, unit by unit."""

    def __init__(self, memory: Memory, tables: Holdings, operations: Operations) -> None:
        self._memory, self._tables, self._operations = memory, tables, operations

    def num_ops(self) -> IntArray:
        """Operations of each row."""
        return np.bincount(self._operations.row, minlength=len(self._memory))

    def takes(self, begin: int, end: int) -> Takes:
        """All takes of the rows [begin, end), each of one unit."""
        first, behind = np.searchsorted(self._operations.row, (begin, end)).tolist()
        ops = first + np.flatnonzero(self._memory.kind[self._operations.row[first:behind]] != MemoryKind.RELEASE)
        row = self._operations.row[ops]
        part = self.part(ops, row, row)
        return Takes(row, part.address, part.position, np.where(part.change > 0, part.until, row))

    def part(self, ops: IntArray, row: IntArray, nth: IntArray) -> Part:
        """The operations `ops`, each of which is the `nth` of its `row`."""
        del nth  # they are listed in their order
        tables, is_of_table = self._tables, self._operations.run[ops] != NO_RUN
        run = np.where(is_of_table, self._operations.run[ops], 0)

        def of_run(column: IntArray, nothing: int) -> IntArray:
            return np.where(is_of_table, column[run], nothing) if len(column) else np.full(len(run), nothing)

        return Part(
            row=row,
            address=self._operations.address[ops],
            length=np.broadcast_to(np.int32(1), len(row)),
            change=CHANGE[self._memory.kind[row]],
            owner=of_run(tables.request, NO_OWNER),
            position=of_run(tables.position, 0),
            group=of_run(tables.group, 0),
            until=of_run(tables.death_row, 0),
        )
