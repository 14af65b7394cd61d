"""Who held which units, and for how long: the runs of every request's table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import is_new, stable_order, units_of_runs
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
class RunsOfRows:
    """For each row of `memory.parquet`, the consecutive runs of `Holdings` that it hands out or takes back."""

    first: IntArray
    count: IntArray
    """0 for an eviction."""


def tables_of(memory: Memory, num_requests: int, *, unit_by_unit: bool) -> tuple[Holdings, RunsOfRows]:
    """The runs of every table, and the runs that each row of `memory` speaks of."""
    num_rows = len(memory)
    rows = np.flatnonzero(memory.kind != MemoryKind.EVICT).astype(np.int32)
    rows = rows[stable_order(memory.request[rows], num_requests)]
    request, released = memory.request[rows], memory.kind[rows] == MemoryKind.RELEASE
    num_runs = (~released).astype(np.int32) if not unit_by_unit else np.where(released, 0, memory.length[rows])
    of_rows = _runs_of_rows(num_rows, rows, request, released, num_runs)

    # The release that ends a row's residency is the next one of the same request.
    release_at = np.flatnonzero(released)
    following = np.cumsum(released, dtype=np.int32) - released
    ends = np.append(rows[release_at], np.int32(num_rows))[following]
    whose = np.append(request[release_at], np.int32(-1))[following]
    death_row = np.where(whose == request, ends, np.int32(num_rows))[~released]
    birth_row, request = rows[~released], request[~released]

    length = memory.length[birth_row]
    position, address = memory.position[birth_row], memory.address[birth_row]
    # One more for what is never given back.
    narrow = np.int32 if not num_rows or memory.seq[-1] < np.iinfo(np.int32).max else np.int64
    seq = np.append(memory.seq, np.iinfo(narrow).max).astype(narrow)
    birth_seq, death_seq = seq[birth_row], seq[death_row]
    if unit_by_unit:
        run, offset = units_of_runs(length)
        request, birth_row = request[run], birth_row[run]
        birth_seq, death_seq = birth_seq[run], death_seq[run]
        position, address = position[run] + offset, address[run] + offset
        length = requested = repeat = np.broadcast_to(np.int32(1), len(run))
    else:
        repeat = np.broadcast_to(np.int32(1), len(request)) if memory.repeat is None else memory.repeat[birth_row]
        requested = repeat * (length if memory.requested is None else memory.requested[birth_row])
        length = length * repeat
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
        first_row=np.searchsorted(request, np.arange(num_requests + 1)),
        residencies=Residencies(
            request=request[first_run],
            first_run=first_run,
            birth_row=birth_row[first_run],
            birth_seq=birth_seq[first_run],
            death_seq=death_seq[first_run],
        ),
    )
    return tables, of_rows


def _runs_of_rows(
    num_rows: int, rows: IntArray, request: IntArray, released: npt.NDArray[np.bool_], num_runs: IntArray
) -> RunsOfRows:
    """For each of `rows`, in order of request, its runs: a release takes back what its table has."""
    runs_before = np.cumsum(num_runs, dtype=np.int32) - num_runs
    begins = is_new(request)
    begins[1:] |= released[:-1]
    table_begin = np.maximum.accumulate(np.where(begins, runs_before, 0))
    first, count = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
    first[rows] = np.where(released, table_begin, runs_before)
    count[rows] = np.where(released, runs_before - table_begin, num_runs)
    return RunsOfRows(first=first, count=count)
