"""Convert the rows of `memory.parquet` to operations on extents of units, for the ledger.

A row such as "request 7 frees its table" becomes operations on the units of that table, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvsim.recording.grouped import NO_EXTENT
from kvsim.recording.tables import IntArray, Memory, MemoryKind

if TYPE_CHECKING:
    from kvsim.recording.grouped import Operations
    from kvsim.recording.holdings import Holdings, Releases

NO_OWNER = -1
"""Owner of a free unit."""
CHANGE = np.zeros(len(MemoryKind), np.int8)
"""Number that a memory row adds to the number of requests that hold an extent, indexed by `MemoryKind`."""
CHANGE[[MemoryKind.APPEND, MemoryKind.SHARE]] = 1
CHANGE[MemoryKind.RELEASE] = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Operations on extents (ranges of units), in order.

    The allocation of an extent that grows in every step has the units of its first step. Its release has all its units.
    """

    row: IntArray
    """Row of `memory.parquet` of which the operation is a part."""
    address: IntArray
    length: IntArray
    change: npt.NDArray[np.int8]
    """1 if a request gets the extent, -1 if a request frees it, 0 if free units lose their cached prefix."""
    owner: IntArray
    """Request that allocates or frees the extent; `NO_OWNER` for evictions."""
    position: IntArray
    """Index in the owner's table of the extent's first unit."""
    group: IntArray | None
    """Index of the KV-cache group of the table; None if the model has one group."""
    until: IntArray
    """Row of `memory.parquet` in which an allocated extent is freed, or the number of rows. Only for allocations."""


class UnitAllocations(NamedTuple):
    """Allocations and evictions of single units, in order."""

    row: IntArray
    """Row of `memory.parquet` of which the allocation or eviction is a part."""
    address: IntArray
    position: IntArray
    """Index of the unit in the request's table."""
    until: IntArray
    """Row in which the request frees the unit; the number of rows if it never does; `row` for an eviction."""


class RowConverter(Protocol):
    """Converter from rows of `memory.parquet` to operations on units."""

    def num_ops(self) -> IntArray:
        """Return the number of operations that each row becomes."""

    def part(self, ops: IntArray, row: IntArray, nth: IntArray) -> Part:
        """Return the operations `ops`, numbered over the whole table.

        Operation `ops[i]` is number `nth[i]`, from 0, among the operations of row `row[i]` of `memory.parquet`.
        """

    def allocations(self, begin: int, end: int) -> UnitAllocations:
        """Return the allocations and evictions of the rows [begin, end), unit by unit."""


class UnitRowReader:
    """Converter for recordings in which a release frees a whole table.

    A release becomes one operation for each extent of the table, the last extent first. Any other row becomes one
    operation, or with `unit_by_unit` one for each of its units.
    """

    def __init__(
        self, memory: Memory, tables: Holdings, releases: Releases, until: IntArray, *, unit_by_unit: bool
    ) -> None:
        self._memory, self._tables, self._releases, self._until = memory, tables, releases, until
        evictions = np.flatnonzero(memory.kind == MemoryKind.EVICT)
        self._until[evictions] = evictions
        self._unit_by_unit = unit_by_unit

    def num_ops(self) -> IntArray:
        """Return the number of operations that each row becomes."""
        num_ops = self._memory.length.copy() if self._unit_by_unit else np.ones(len(self._memory), np.int32)
        num_ops[self._releases.row] = self._releases.num_extents
        return num_ops

    def allocations(self, begin: int, end: int) -> UnitAllocations:
        """Return the allocations and evictions of the rows [begin, end), unit by unit."""
        memory = self._memory
        row = begin + np.flatnonzero(memory.kind[begin:end] != MemoryKind.RELEASE).astype(np.int32)
        length = memory.length.take(row).astype(np.intp)
        if not len(row) or length.max() == 1:
            return UnitAllocations(row, memory.address.take(row), memory.position.take(row), self._until.take(row))
        row = np.repeat(row, length)
        nth = np.arange(len(row), dtype=np.int32)
        nth -= np.repeat((np.cumsum(length) - length).astype(np.int32), length)
        address, position = memory.address.take(row) + nth, memory.position.take(row) + nth
        return UnitAllocations(row, address, position, self._until.take(row))

    def part(self, ops: IntArray, row: IntArray, nth: IntArray) -> Part:
        """Return the operations `ops`, as `RowConverter.part` describes."""
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
            extents = tables.at(releases.last_extent.take(release) - nth[back])
            address[back], position[back] = extents.address, extents.position
            if not self._unit_by_unit:
                length[back] = extents.length
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


class ListedOperations:
    """Converter for recordings in which a table may free some units before others. All operations are in memory."""

    def __init__(self, memory: Memory, tables: Holdings, operations: Operations) -> None:
        self._memory, self._tables, self._operations = memory, tables, operations

    def num_ops(self) -> IntArray:
        """Return the number of operations that each row becomes."""
        return np.bincount(self._operations.row, minlength=len(self._memory))

    def allocations(self, begin: int, end: int) -> UnitAllocations:
        """Return the allocations and evictions of the rows [begin, end), unit by unit."""
        first, behind = np.searchsorted(self._operations.row, (begin, end)).tolist()
        ops = first + np.flatnonzero(self._memory.kind[self._operations.row[first:behind]] != MemoryKind.RELEASE)
        row = self._operations.row[ops]
        part = self.part(ops, row, row)
        return UnitAllocations(row, part.address, part.position, np.where(part.change > 0, part.until, row))

    def part(self, ops: IntArray, row: IntArray, nth: IntArray) -> Part:
        """Return the operations `ops`, as `RowConverter.part` describes."""
        del nth  # operations are listed in order
        tables, is_of_table = self._tables, self._operations.extent[ops] != NO_EXTENT
        extent = np.where(is_of_table, self._operations.extent[ops], 0)

        def of_extent(column: IntArray, nothing: int) -> IntArray:
            return np.where(is_of_table, column[extent], nothing) if len(column) else np.full(len(extent), nothing)

        return Part(
            row=row,
            address=self._operations.address[ops],
            length=np.broadcast_to(np.int32(1), len(row)),
            change=CHANGE[self._memory.kind[row]],
            owner=of_extent(tables.request, NO_OWNER),
            position=of_extent(tables.position, 0),
            group=of_extent(tables.group, 0),
            until=of_extent(tables.death_row, 0),
        )
