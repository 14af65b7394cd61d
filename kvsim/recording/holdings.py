"""Compute which request holds each unit at each time, from the memory rows that allocate and release units.

The result is a list of extents. An extent is a range of consecutive units that one memory row gives to a request.
Checks, replays and figures read the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import in_parts, is_new, stable_order
from kvsim.recording.tables import IntArray, Memory, MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residencies:
    """Times in which requests hold memory, one entry each. A residency begins with an admission (its birth) and ends
    when the request releases all its memory (its death).
    """

    request: IntArray
    first_extent: IntArray
    """Index in `Holdings` of the residency's first extent."""
    birth_row: IntArray
    """Row of `memory.parquet` with the residency's first allocation."""
    birth_seq: IntArray
    death_seq: IntArray
    """Event number (`seq`) of the release; a number above all others if the memory is never released."""

    @property
    def continues_previous(self) -> npt.NDArray[np.bool_]:
        """Tell, for each residency, whether it began by a move of the request's units.

        A move is a release and an allocation with the same `seq`: the previous residency of the request ends then.
        """
        moved = np.zeros(len(self.request), np.bool_)
        moved[1:] = (self.request[1:] == self.request[:-1]) & (self.birth_seq[1:] == self.death_seq[:-1])
        return moved


@dataclass(frozen=True, slots=True, eq=False)
class Deaths:
    """Memory rows that release extents, in exactly one of the fields. The number of memory rows means "never"."""

    by_birth_row: IntArray | None
    """Row that releases what each memory row allocates. None if units of one row may have different releases."""
    by_extent: IntArray | None = None
    """Row that releases each extent. None if `by_birth_row` is given."""

    def at(self, extents: IntArray | slice) -> Deaths:
        """Return the deaths of some extents, given by indices or a slice. `by_birth_row` is kept whole."""
        return self if self.by_extent is None else Deaths(None, self.by_extent[extents])

    def rows_of(self, birth_row: IntArray) -> IntArray:
        """Return, for each extent, the row that releases it. `birth_row` has the row that allocates each."""
        if self.by_extent is not None:
            return self.by_extent
        assert self.by_birth_row is not None
        return self.by_birth_row.take(birth_row)


class Extents:
    """Extents of units: which request holds each, where and when. Either every extent has all units of one memory row,
    or every extent is a single unit.

    A long recording has tens of millions of extents. So each column is computed on first use, in the smallest type.
    """

    def __init__(self, memory: Memory, birth_row: IntArray, offset: IntArray | None, death: Deaths) -> None:
        """Args:
        memory: the memory table.
        birth_row: the row of `memory` that allocates each extent.
        offset: offset of each extent's only unit in that row; None if each extent is a whole row.
        death: the rows that release the extents.
        """
        self._memory, self._offset, self._death = memory, offset, death
        self.birth_row = birth_row

    def at(self, extents: IntArray | slice) -> Extents:
        """Return some of these extents, given by indices or a slice."""
        offset = None if self._offset is None else self._offset[extents]
        return Extents(self._memory, self.birth_row[extents], offset, self._death.at(extents))

    @cached_property
    def death_row(self) -> IntArray:
        """Row of `memory.parquet` that releases each extent; the number of rows if none does."""
        return self._death.rows_of(self.birth_row)

    @cached_property
    def request(self) -> IntArray:
        """Request that holds each extent."""
        return self._memory.request.take(self.birth_row)

    @cached_property
    def group(self) -> IntArray:
        """Index of the KV-cache group of each extent's table."""
        group = self._memory.group
        return np.broadcast_to(np.int32(0), len(self.birth_row)) if group is None else group.take(self.birth_row)

    @cached_property
    def position(self) -> IntArray:
        """Index in its table of each extent's first unit."""
        return self._from_offset(self._memory.position)

    @cached_property
    def address(self) -> IntArray:
        """Address of each extent's first unit."""
        return self._from_offset(self._memory.address)

    @cached_property
    def length(self) -> IntArray:
        """Number of units of each extent; of an extent that grows step by step, the number after its last growth."""
        return self._of_rows(self._memory.length)

    @cached_property
    def requested(self) -> IntArray:
        """Number of units that the request asked for with each extent; an allocator may round up."""
        return self._of_rows(self._memory.length if self._memory.requested is None else self._memory.requested)

    @cached_property
    def repeat(self) -> IntArray:
        """Number of steps in which each extent grows by equal numbers of units; 1 if it does not grow."""
        repeat = self._memory.repeat
        if repeat is None or self._offset is not None:
            return np.broadcast_to(np.int32(1), len(self.birth_row))
        return repeat.take(self.birth_row)

    @cached_property
    def birth_seq(self) -> IntArray:
        """Event number (`seq`) of each extent's allocation."""
        return seq_of(self._memory, self.birth_row)

    @cached_property
    def death_seq(self) -> IntArray:
        """Event number (`seq`) of each extent's release; a number above all others if it is never released."""
        return seq_of(self._memory, self.death_row)

    def _from_offset(self, column: IntArray) -> IntArray:
        values: IntArray = column.take(self.birth_row)
        if self._offset is not None:
            values += self._offset
        return values

    def _of_rows(self, column: IntArray) -> IntArray:
        if self._offset is not None:
            return np.broadcast_to(np.int32(1), len(self.birth_row))
        return column.take(self.birth_row) * self.repeat


class Holdings(Extents):
    """Extents of units that requests held, sorted by request and then by time."""

    def __init__(
        self, memory: Memory, *, birth_row: IntArray, offset: IntArray | None, death: Deaths,
        first_of_request: IntArray, first_of_table: IntArray, residencies: Residencies,
    ) -> None:  # fmt: skip
        super().__init__(memory, birth_row, offset, death)
        self.first_of_request = first_of_request
        """Index of the first extent of each request, and at the end the number of extents."""
        self.first_of_table = first_of_table
        """Index of the first extent of each table, ascending. There is one table per residency (time from an admission
        of a request to the release of its memory) and KV-cache group.

        Unlike `first_of_request`, it has no entry for the end.
        """
        self.residencies = residencies

    @cached_property
    def table(self) -> IntArray:
        """Index of each extent's table, in the order of `first_of_table`."""
        lengths = np.diff(self.first_of_table, append=len(self.birth_row))
        return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

    def held(self, request: int, seq: int) -> IntArray:
        """Return the indices of the extents that `request` holds right after event `seq`."""
        first, end = self.first_of_request[request : request + 2].tolist()
        extents: IntArray = first + np.flatnonzero(
            (self.birth_seq[first:end] <= seq) & (self.death_seq[first:end] > seq)
        )
        return extents

    def first_of_series(self) -> IntArray:
        """Return the index of the first extent of each series.

        A series is adjacent extents of one request at consecutive table positions, which are allocated at one `seq` and
        released at one `seq`. A growing extent is a series by itself.
        """
        parts = list[IntArray]()
        for part in in_parts(len(self.birth_row)):
            before = max(part.start - 1, 0)
            extents = self.at(slice(before, part.stop))
            begins = is_new(extents.request) | (extents.position == 0)
            begins |= is_new(extents.birth_seq)
            begins |= is_new(extents.death_seq)
            position = extents.position
            begins[1:] |= position[1:] != position[:-1] + extents.length[:-1]
            grows = extents.repeat > 1
            begins |= grows
            begins[1:] |= grows[:-1]
            parts.append(part.start + np.flatnonzero(begins[part.start - before :]))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Releases:
    """Rows of `memory.parquet` that release whole tables, in order, and the extents of each table."""

    row: IntArray
    last_extent: IntArray
    """Index of the last extent of the table. A table is released from its end, so this extent is released first."""
    num_extents: IntArray


def tables_of(memory: Memory, num_requests: int, *, unit_by_unit: bool) -> tuple[Holdings, Releases, IntArray]:
    """Return three parts: the extents of every table, the rows that release tables, and for each row of `memory` the
    row that releases what it allocates.

    Each extent has the units of one memory row; with `unit_by_unit`, it is one unit. The third part has the number of
    rows if nothing releases the units, and a meaningless 0 for rows that allocate nothing.
    """
    birth_row, released = _rows_by_request(memory, num_requests)
    until = np.zeros(len(memory), np.int32)
    until[birth_row] = released.death_rows(len(birth_row), nothing=len(memory))
    edges = [released.first_of_request, released.begin, released.end, released.first_of_table()]
    offset: IntArray | None = None
    if unit_by_unit:
        length = memory.length.take(birth_row)
        end_units = np.cumsum(length, dtype=np.int32)  # at most 2**31 - 1, the limit of operations
        units_before = np.concatenate(([np.int32(0)], end_units))
        edges = [units_before[rows].astype(np.int64) for rows in edges]  # indices of units in place of rows
        offset = _offsets_in_runs(length, end_units)
        birth_row = np.repeat(birth_row, length)
    first_of_request, begin, end, first_of_table = edges
    first = birth_row[first_of_table]
    tables = Holdings(
        memory,
        birth_row=birth_row,
        offset=offset,
        death=Deaths(until),
        first_of_request=first_of_request,
        first_of_table=first_of_table,
        residencies=Residencies(
            request=memory.request[first],
            first_extent=first_of_table,
            birth_row=first,
            birth_seq=seq_of(memory, first),
            death_seq=seq_of(memory, until[first]),
        ),
    )
    in_order = np.argsort(released.releases)
    back = Releases(row=released.releases[in_order], last_extent=end[in_order] - 1, num_extents=(end - begin)[in_order])
    return tables, back, until


def _offsets_in_runs(length: IntArray, end: IntArray) -> IntArray:
    narrow = np.int16 if length.max(initial=0) <= np.iinfo(np.int16).max else np.int32
    # The running sum of ones counts 0, 1, 2, ...; at the first unit of each extent, it falls back to 0.
    offset: IntArray = np.ones(int(end[-1]) if len(end) else 0, narrow)
    offset[:1] = 0
    offset[end[:-1]] = 1 - length[:-1]
    return np.cumsum(offset, dtype=narrow, out=offset)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ReleaseRows:
    """Releases of whole tables, and the rows that extend tables, each sorted by request and then by time.

    Release i frees what the sorted extending rows with the indices from `begin[i]` to `end[i] - 1` allocated.
    """

    releases: npt.NDArray[np.int32]
    request: IntArray
    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    first_of_request: npt.NDArray[np.int64]
    """Index of the first extending row of each request, and at the end the number of extending rows."""

    def death_rows(self, num_extending: int, *, nothing: int) -> npt.NDArray[np.int32]:
        # The edges 0, begin, end, begin, end, ... bound extending rows that are never released, released, never, ...
        edges = np.zeros(2 * len(self.releases) + 2, np.int64)
        edges[1:-1:2], edges[2:-1:2], edges[-1] = self.begin, self.end, num_extending
        rows = np.full(2 * len(self.releases) + 1, nothing, np.int32)
        rows[1::2] = self.releases
        return np.repeat(rows, np.diff(edges))

    def first_of_table(self) -> npt.NDArray[np.int64]:
        first, end = self.first_of_request[:-1], self.first_of_request[1:]
        goes_on = self.end < end[self.request]
        return np.unique(np.concatenate((first[first < end], self.end[goes_on])))


def _rows_by_request(memory: Memory, num_requests: int) -> tuple[npt.NDArray[np.int32], _ReleaseRows]:
    rows = np.arange(len(memory), dtype=np.int32)[memory.kind != MemoryKind.EVICT]
    rows = rows[stable_order(memory.request[rows], num_requests)]
    released = memory.kind.take(rows) == MemoryKind.RELEASE
    extending, at = rows[~released], np.flatnonzero(released)
    releases, end = rows[at], at - np.arange(len(at))  # `end` counts the extending rows before each release
    first_of_request = np.searchsorted(
        memory.request.take(extending), np.arange(num_requests + 1, dtype=memory.request.dtype)
    )
    # A release frees the rows of its request since the last release.
    before = np.concatenate((np.zeros(1, np.int64), end))[:-1]
    request = memory.request[releases]
    begin = np.maximum(first_of_request[request], before)
    return extending, _ReleaseRows(
        releases=releases, request=request, begin=begin, end=end, first_of_request=first_of_request
    )


def seq_of(memory: Memory, rows: IntArray) -> IntArray:
    """Return the event number (`seq`) of each of `rows` of `memory`.

    The row `len(memory)` means "never", and gets the largest number of the type. The type is int32 if that suffices for
    the recording, otherwise int64.
    """
    narrow = np.int32 if not len(memory) or memory.seq[-1] < np.iinfo(np.int32).max else np.int64
    seq: IntArray = np.full(len(rows), np.iinfo(narrow).max, narrow)
    exists = rows < len(memory)
    if exists.all():
        seq[:] = memory.seq.take(rows)
    else:
        seq[exists] = memory.seq.take(rows[exists])
    return seq
