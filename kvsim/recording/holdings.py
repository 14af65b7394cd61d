"""Who held which units, and for how long: the runs of every request's table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import in_parts, is_new, stable_order
from kvsim.recording.tables import IntArray, Memory, MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residencies:
    """Every time that a request holds memory, from its admission until it gives everything back."""

    request: IntArray
    first_run: IntArray
    """The first of its runs."""
    birth_row: IntArray
    birth_seq: IntArray
    death_seq: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Deaths:
    """The rows in which runs are given back: by the row that handed them out, or of each run by itself."""

    by_birth_row: IntArray | None
    by_run: IntArray | None = None

    def at(self, runs: IntArray | slice) -> Deaths:
        """Those of some of the runs."""
        return self if self.by_run is None else Deaths(None, self.by_run[runs])

    def rows_of(self, birth_row: IntArray) -> IntArray:
        """The row that gives each run back; `birth_row` says which gave it out."""
        if self.by_run is not None:
            return self.by_run
        assert self.by_birth_row is not None
        return self.by_birth_row.take(birth_row)


class Runs:
    """Runs of units that requests held: who, where, and from when to when.

    A long recording has tens of millions, so a column is gathered when it is first asked for. It is as narrow as it can
    be.
    """

    def __init__(self, memory: Memory, birth_row: IntArray, offset: IntArray | None, death: Deaths) -> None:
        """The runs that `birth_row` gave to requests: whole rows, or, of each, the single unit at `offset`."""
        self._memory, self._offset, self._death = memory, offset, death
        self.birth_row = birth_row
        """The row of `memory.parquet` that gave the run to the request: rows of one step stand in their order."""

    def at(self, runs: IntArray | slice) -> Runs:
        """Some of these runs."""
        offset = None if self._offset is None else self._offset[runs]
        return Runs(self._memory, self.birth_row[runs], offset, self._death.at(runs))

    @cached_property
    def death_row(self) -> IntArray:
        """The row in which the run was given back; as many as there are rows where it never was."""
        return self._death.rows_of(self.birth_row)

    @cached_property
    def request(self) -> IntArray:
        """The request that held the run."""
        return self._memory.request.take(self.birth_row)

    @cached_property
    def group(self) -> IntArray:
        """The KV-cache group of the table that the run stood in."""
        group = self._memory.group
        return np.broadcast_to(np.int32(0), len(self.birth_row)) if group is None else group.take(self.birth_row)

    @cached_property
    def position(self) -> IntArray:
        """Position of the run in its table, in units."""
        return self._from_offset(self._memory.position)

    @cached_property
    def address(self) -> IntArray:
        """Address of its first unit."""
        return self._from_offset(self._memory.address)

    @cached_property
    def length(self) -> IntArray:
        """Units in the end, when the run has stopped growing."""
        return self._of_rows(self._memory.length)

    @cached_property
    def requested(self) -> IntArray:
        """Units of the run that were asked for."""
        return self._of_rows(self._memory.length if self._memory.requested is None else self._memory.requested)

    @cached_property
    def repeat(self) -> IntArray:
        """Steps over which the run grows, the same number of units in each; 1 for all at once."""
        repeat = self._memory.repeat
        if repeat is None or self._offset is not None:
            return np.broadcast_to(np.int32(1), len(self.birth_row))
        return repeat.take(self.birth_row)

    @cached_property
    def birth_seq(self) -> IntArray:
        """Sequence number at which the run was handed out."""
        return seq_of(self._memory, self.birth_row)

    @cached_property
    def death_seq(self) -> IntArray:
        """Sequence number at which the run was given back; greater than any if it never was."""
        return seq_of(self._memory, self.death_row)

    def _from_offset(self, column: IntArray) -> IntArray:
        values: IntArray = column.take(self.birth_row)
        if self._offset is not None:
            values += self._offset
        return values

    def _of_rows(self, column: IntArray) -> IntArray:
        """What a column of lengths says; of single units, 1."""
        if self._offset is not None:
            return np.broadcast_to(np.int32(1), len(self.birth_row))
        return column.take(self.birth_row) * self.repeat


class Holdings(Runs):
    """Every run of units that a request ever held, sorted by request, then by time."""

    def __init__(
        self, memory: Memory, *, birth_row: IntArray, offset: IntArray | None, death: Deaths,
        first_row: IntArray, first_of_table: IntArray, residencies: Residencies,
    ) -> None:  # fmt: skip
        super().__init__(memory, birth_row, offset, death)
        self.first_row = first_row
        """Row at which each request begins; one more entry than there are requests."""
        self.first_of_table = first_of_table
        """First run of each table: there is one for each residency and group, in order."""
        self.residencies = residencies

    @cached_property
    def table(self) -> IntArray:
        """The number of the table that each run stands in."""
        lengths = np.diff(self.first_of_table, append=len(self.birth_row))
        return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

    def held(self, request: int, seq: int) -> IntArray:
        """The rows that `request` holds after everything up to `seq`."""
        first, end = self.first_row[request : request + 2].tolist()
        rows: IntArray = first + np.flatnonzero((self.birth_seq[first:end] <= seq) & (self.death_seq[first:end] > seq))
        return rows

    def together(self) -> IntArray:
        """The first of each sequence of runs that a table was given and that were taken from it together; a run that
        grows is one by itself.
        """
        found = list[IntArray]()
        for part in in_parts(len(self.birth_row)):
            before = max(part.start - 1, 0)
            runs = self.at(slice(before, part.stop))
            begins = is_new(runs.request) | (runs.position == 0)
            begins |= is_new(runs.birth_seq)
            begins |= is_new(runs.death_seq)
            grows = runs.repeat > 1
            begins |= grows
            begins[1:] |= grows[:-1]
            found.append(part.start + np.flatnonzero(begins[part.start - before :]))
        return np.concatenate(found) if found else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Releases:
    """The rows of `memory.parquet` in which requests give tables back, in order, and the runs of each."""

    row: IntArray
    last_run: IntArray
    """A table is given back from its end."""
    num_runs: IntArray


def tables_of(memory: Memory, num_requests: int, *, unit_by_unit: bool) -> tuple[Holdings, Releases, IntArray]:
    """The runs of every table, the rows that give them back, and, for each row of `memory` that hands out a run, the
    row that gives it back: as many as there are rows where none does, 0 for rows that hand out nothing.
    """
    birth_row, turns = _turns(memory, num_requests)
    until = np.zeros(len(memory), np.int32)
    until[birth_row] = turns.death_rows(len(birth_row), nothing=len(memory))
    first_row, begin, end, first_of_table = turns.first_take, turns.begin, turns.end, turns.first_of_table()
    offset: IntArray | None = None
    if unit_by_unit:
        length = memory.length.take(birth_row)
        behind = np.cumsum(length, dtype=np.int32)  # less than 2**31, as are all operations
        units_before = np.concatenate(([np.int32(0)], behind))
        first_row, begin, end, first_of_table = (
            units_before[rows].astype(np.int64) for rows in (first_row, begin, end, first_of_table)
        )
        offset = _counted_from_0(length, behind)
        birth_row = np.repeat(birth_row, length)
    first = birth_row[first_of_table]
    tables = Holdings(
        memory,
        birth_row=birth_row,
        offset=offset,
        death=Deaths(until),
        first_row=first_row,
        first_of_table=first_of_table,
        residencies=Residencies(
            request=memory.request[first],
            first_run=first_of_table,
            birth_row=first,
            birth_seq=seq_of(memory, first),
            death_seq=seq_of(memory, until[first]),
        ),
    )
    in_order = np.argsort(turns.releases)
    back = Releases(row=turns.releases[in_order], last_run=end[in_order] - 1, num_runs=(end - begin)[in_order])
    return tables, back, until


def _counted_from_0(length: IntArray, behind: IntArray) -> IntArray:
    """The offset of each unit in its run; the runs are `length` units long and end before those `behind`."""
    narrow = np.int16 if length.max(initial=0) <= np.iinfo(np.int16).max else np.int32
    offset: IntArray = np.ones(int(behind[-1]) if len(behind) else 0, narrow)
    offset[:1] = 0
    offset[behind[:-1]] = 1 - length[:-1]
    return np.cumsum(offset, dtype=narrow, out=offset)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Turns:
    """The rows that give tables back, by request and then in order, among those that make them longer."""

    releases: npt.NDArray[np.int32]
    request: IntArray
    """The request of each."""
    begin: npt.NDArray[np.int64]
    """First of the rows [begin, end), among those that make tables longer, that a release gives back."""
    end: npt.NDArray[np.int64]
    first_take: npt.NDArray[np.int64]
    """The first row of each request, of those; one more entry than there are requests."""

    def death_rows(self, num_takes: int, *, nothing: int) -> npt.NDArray[np.int32]:
        """For each row that makes a table longer, the one that gives it back; `nothing` where none does."""
        edges = np.zeros(2 * len(self.releases) + 2, np.int64)
        edges[1:-1:2], edges[2:-1:2], edges[-1] = self.begin, self.end, num_takes
        rows = np.full(2 * len(self.releases) + 1, nothing, np.int32)
        rows[1::2] = self.releases
        return np.repeat(rows, np.diff(edges))

    def first_of_table(self) -> npt.NDArray[np.int64]:
        """The first of the rows that make each table longer: of a request, or behind what it gave back before."""
        first, behind = self.first_take[:-1], self.first_take[1:]
        goes_on = self.end < behind[self.request]
        return np.unique(np.concatenate((first[first < behind], self.end[goes_on])))


def _turns(memory: Memory, num_requests: int) -> tuple[npt.NDArray[np.int32], _Turns]:
    """The rows that make tables longer, by request and then in order, and those that give them back among them."""
    rows = np.arange(len(memory), dtype=np.int32)[memory.kind != MemoryKind.EVICT]
    rows = rows[stable_order(memory.request[rows], num_requests)]
    released = memory.kind.take(rows) == MemoryKind.RELEASE
    takes, at = rows[~released], np.flatnonzero(released)
    releases, end = rows[at], at - np.arange(len(at))
    first_take = np.searchsorted(memory.request.take(takes), np.arange(num_requests + 1, dtype=memory.request.dtype))
    # A release gives back what its request has taken since the one before.
    before = np.concatenate((np.zeros(1, np.int64), end))[:-1]
    request = memory.request[releases]
    begin = np.maximum(first_take[request], before)
    return takes, _Turns(releases=releases, request=request, begin=begin, end=end, first_take=first_take)


def seq_of(memory: Memory, rows: IntArray) -> IntArray:
    """The `seq` of some rows, and a number above all of them for the row behind the last; as narrow as they can be."""
    narrow = np.int32 if not len(memory) or memory.seq[-1] < np.iinfo(np.int32).max else np.int64
    seq: IntArray = np.full(len(rows), np.iinfo(narrow).max, narrow)
    there = rows < len(memory)
    if there.all():
        seq[:] = memory.seq.take(rows)
    else:
        seq[there] = memory.seq.take(rows[there])
    return seq
