"""Who held which units, and for how long: the runs of every request's table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import stable_order
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
    num_rows = len(memory)
    takes = _rows_by_request(memory, (memory.kind == MemoryKind.APPEND) | (memory.kind == MemoryKind.SHARE))
    releases = _rows_by_request(memory, memory.kind == MemoryKind.RELEASE)
    request, whose = memory.request[takes], memory.request[releases]
    first_take = np.searchsorted(request, np.arange(num_requests + 1))
    # A release gives back what its request has taken since the one before.
    end = np.searchsorted(request * np.int64(num_rows) + takes, whose * np.int64(num_rows) + releases)
    begin = np.maximum(first_take[whose], np.concatenate((np.zeros(1, np.int64), end))[:-1])
    death_row = _filled(begin, end, releases, len(takes), nothing=num_rows)
    until = np.zeros(num_rows, np.int32)
    until[takes] = death_row

    length, position, address = memory.length[takes], memory.position[takes], memory.address[takes]
    seq = and_never(memory.seq)
    birth_row: IntArray = takes
    birth_seq, death_seq = seq[takes], seq[death_row]
    one: IntArray = np.broadcast_to(np.int32(1), int(length.sum()) if unit_by_unit else len(takes))
    if unit_by_unit:
        units_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(length, dtype=np.int64)))
        begin, end, first_row = units_before[begin], units_before[end], units_before[first_take]
        request, birth_row, birth_seq, death_seq, position, address, first_unit = (
            np.repeat(column, length)
            for column in (request, takes, birth_seq, death_seq, position, address, units_before[:-1].astype(np.int32))
        )
        nth = np.arange(len(request), dtype=np.int32)
        nth -= first_unit
        position += nth
        address += nth
        length = requested = repeat = one
    else:
        repeat = one if memory.repeat is None else memory.repeat[takes]
        requested = repeat * (length if memory.requested is None else memory.requested[takes])
        length, first_row = length * repeat, first_take
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
    in_order = np.argsort(releases)
    back = Releases(row=releases[in_order], last_run=end[in_order] - 1, num_runs=(end - begin)[in_order])
    return tables, back, until


def _rows_by_request(memory: Memory, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """The chosen rows, by request and then in order."""
    rows = np.flatnonzero(chosen).astype(np.int32)
    return rows[stable_order(memory.request[rows], int(memory.request.max(initial=0)) + 1)]


def _filled(begin: IntArray, end: IntArray, values: IntArray, size: int, *, nothing: int) -> npt.NDArray[np.int32]:
    """`values` in the ranges [begin, end), which ascend, and `nothing` between them."""
    edges = np.zeros(2 * len(begin) + 2, np.int64)
    edges[1:-1:2], edges[2:-1:2], edges[-1] = begin, end, size
    filled = np.full(2 * len(begin) + 1, nothing, np.int32)
    filled[1::2] = values
    return np.repeat(filled, np.diff(edges))


def and_never(seq: IntArray) -> IntArray:
    """`seq`, which does not fall, and behind it a number above all of them; as narrow as they can be."""
    narrow = np.int32 if not len(seq) or seq[-1] < np.iinfo(np.int32).max else np.int64
    longer: IntArray = np.full(len(seq) + 1, np.iinfo(narrow).max, narrow)
    longer[:-1] = seq
    return longer
