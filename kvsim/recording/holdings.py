"""Who held which units, and for how long: the runs of every request's table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import is_new, stable_order
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holdings:
    """Every run of units that a request ever held, sorted by request, then by time.

    A long recording has tens of millions, so the columns are as narrow as they can be.
    """

    request: IntArray
    group: IntArray
    """The KV-cache group of the table that the run stands in."""
    table: IntArray
    """The number of that table: one for each residency and group, in order."""
    position: IntArray
    """Position of the run in its table, in units."""
    address: IntArray
    length: IntArray
    """Units in the end, when the run has stopped growing."""
    requested: IntArray
    """Units of the run that were asked for."""
    repeat: IntArray
    """Steps over which the run grows, the same number of units in each; 1 for all at once."""
    birth_row: IntArray
    """The row of `memory.parquet` that gave the run to the request: rows of one step stand in their order."""
    birth_seq: IntArray
    death_seq: IntArray
    """Sequence number at which the run was given back; greater than any if it never was."""
    first_row: IntArray
    """Row at which each request begins; one more entry than there are requests."""
    residencies: Residencies

    def held(self, request: int, seq: int) -> IntArray:
        """The rows that `request` holds after everything up to `seq`."""
        first, end = self.first_row[request : request + 2].tolist()
        rows: IntArray = first + np.flatnonzero((self.birth_seq[first:end] <= seq) & (self.death_seq[first:end] > seq))
        return rows

    def together(self) -> IntArray:
        """The first of each sequence of runs that a table was given and that were taken from it together; a run that
        grows is one by itself.
        """
        begins = is_new(self.request) | (self.position == 0)
        begins |= is_new(self.birth_seq)
        begins |= is_new(self.death_seq)
        grows = self.repeat > 1
        if grows.any():
            begins |= grows
            begins[1:] |= grows[:-1]
        return np.flatnonzero(begins)


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
    takes, turns = _turns(memory, num_requests)
    until = np.zeros(len(memory), np.int32)
    death_row = turns.death_rows(len(takes), nothing=len(memory))
    until[takes] = death_row
    seq, length = and_never(memory.seq), memory.length[takes]
    first_row, begin, end = turns.first_take, turns.begin, turns.end
    # A column at a time: a long recording has tens of millions of runs.
    birth_row: IntArray = takes
    death_seq = seq.take(death_row)
    if unit_by_unit:
        units_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(length, dtype=np.int64)))
        first_row, begin, end = units_before[first_row], units_before[begin], units_before[end]
        birth_row, death_seq = np.repeat(takes, length), np.repeat(death_seq, length)
        nth = np.arange(len(birth_row), dtype=np.int32)
        nth -= np.repeat(units_before[:-1].astype(np.int32), length)
    position, address = memory.position.take(birth_row), memory.address.take(birth_row)
    one: IntArray = np.broadcast_to(np.int32(1), len(birth_row))
    requested = repeat = one
    if unit_by_unit:
        length = one
        position += nth
        address += nth
    else:
        repeat = one if memory.repeat is None else memory.repeat[takes]
        requested = repeat * (length if memory.requested is None else memory.requested[takes])
        length = length * repeat
    request, birth_seq = memory.request.take(birth_row), seq.take(birth_row)
    begins = position == 0
    first_run = np.flatnonzero(begins)
    tables = Holdings(
        request=request,
        group=np.broadcast_to(np.int32(0), len(request)),
        table=np.cumsum(begins, dtype=np.int32) - np.int32(1),
        position=position,
        address=address,
        length=length,
        requested=requested,
        repeat=repeat,
        birth_row=birth_row,
        birth_seq=birth_seq,
        death_seq=death_seq,
        first_row=first_row,
        residencies=Residencies(
            request=request[first_run],
            first_run=first_run,
            birth_row=birth_row[first_run],
            birth_seq=birth_seq[first_run],
            death_seq=death_seq[first_run],
        ),
    )
    in_order = np.argsort(turns.releases)
    back = Releases(row=turns.releases[in_order], last_run=end[in_order] - 1, num_runs=(end - begin)[in_order])
    return tables, back, until


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Turns:
    """The rows that give tables back, by request and then in order, among those that make them longer."""

    releases: npt.NDArray[np.int32]
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


def _turns(memory: Memory, num_requests: int) -> tuple[npt.NDArray[np.int32], _Turns]:
    """The rows that make tables longer, by request and then in order, and those that give them back among them."""
    rows = np.flatnonzero(memory.kind != MemoryKind.EVICT).astype(np.int32)
    rows = rows[stable_order(memory.request[rows], num_requests)]
    released = memory.kind.take(rows) == MemoryKind.RELEASE
    takes, at = rows[~released], np.flatnonzero(released)
    releases, end = rows[at], at - np.arange(len(at))
    first_take = np.searchsorted(memory.request.take(takes), np.arange(num_requests + 1, dtype=memory.request.dtype))
    # A release gives back what its request has taken since the one before.
    before = np.concatenate((np.zeros(1, np.int64), end))[:-1]
    begin = np.maximum(first_take[memory.request[releases]], before)
    return takes, _Turns(releases=releases, begin=begin, end=end, first_take=first_take)


def and_never(seq: IntArray) -> IntArray:
    """`seq`, which does not fall, and behind it a number above all of them; as narrow as they can be."""
    narrow = np.int32 if not len(seq) or seq[-1] < np.iinfo(np.int32).max else np.int64
    longer: IntArray = np.full(len(seq) + 1, np.iinfo(narrow).max, narrow)
    longer[:-1] = seq
    return longer
