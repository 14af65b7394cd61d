"""Compute which request holds each unit at each time, for tables that release some units before they end.

`kvsim.recording.holdings` does this for tables that are released as a whole. Here, an admitted request gets a table in
every KV-cache group, and releases all its tables together at the end. Before that, the table of a window group releases
units that the window has passed. A request of SGLang frees its own copies of units that the radix tree has, and shares
the units of the tree in the same positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.recording.holdings import Deaths, Holdings, Residencies, seq_of
from kvsim.recording.order import expanded, is_new, sort_key
from kvsim.recording.tables import WHOLE_TABLE, IntArray, Memory, MemoryKind

NO_EXTENT = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operations:
    """Operations on single units, in order: allocations, releases and evictions."""

    row: IntArray
    """Row of `memory.parquet` that the operation is part of."""
    extent: IntArray
    """Index in `Holdings` of the extent (here one unit) that is allocated or released; `NO_EXTENT` for an eviction."""
    address: IntArray


def tables_of_groups(memory: Memory, num_requests: int) -> tuple[Holdings, Operations]:
    """Return the extents of all tables in all KV-cache groups, each of one unit, and all operations on units."""
    ends = _Ends.of(memory)
    placed = (memory.kind == MemoryKind.APPEND) | (memory.kind == MemoryKind.SHARE)
    run_row, offset = _units(memory, placed)
    request, group = memory.request[run_row].astype(np.int64), memory.groups[run_row].astype(np.int64)
    position, address = memory.position[run_row] + offset, memory.address[run_row] + offset
    # A residency has the number of the end that follows it, which is the next request's if it never ends.
    residency = ends.first_at_or_after(request, memory.seq[run_row])
    order = np.lexsort((run_row, position, group, residency, request))
    request, group, residency, run_row = request[order], group[order], residency[order], run_row[order]
    address, offset = address[order], offset[order]
    # A unit is released with its table, unless a window has released it before.
    released_early = _released_early(memory, request, group, address, run_row)
    death_row = np.minimum(ends.rows(request, residency, group, len(memory)), released_early)
    never = seq_of(memory, np.array([len(memory)]))
    begins = is_new(request) | is_new(residency)
    first_extent = np.flatnonzero(begins)
    end_seq = np.append(ends.seq, never)
    is_ended = ends.is_of(request[first_extent], residency[first_extent])
    first_birth = np.minimum.reduceat(run_row, first_extent) if len(first_extent) else run_row
    tables = Holdings(
        memory,
        birth_row=run_row.astype(np.int32),
        offset=offset,
        death=Deaths(None, death_row.astype(np.int32)),
        first_of_request=np.searchsorted(request, np.arange(num_requests + 1)),
        first_of_table=np.flatnonzero(begins | is_new(group)),
        residencies=Residencies(
            request=request[first_extent].astype(np.int32),
            first_extent=first_extent,
            birth_row=first_birth,
            birth_seq=seq_of(memory, first_birth),
            death_seq=np.where(is_ended, end_seq[np.minimum(residency[first_extent], len(ends.seq))], never),
        ),
    )
    return tables, _operations(memory, tables, death_row)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ends:
    """Ends of residencies, sorted by request and then by time.

    When a residency ends, the request releases its tables in all KV-cache groups. `request` and `seq` have one entry
    for each end, `key` and `row` one for each released table.
    """

    request: npt.NDArray[np.int64]
    seq: IntArray
    key: npt.NDArray[np.int64]
    """`i * num_groups + g` for the table of group `g` that is released at end `i`; ascending."""
    row: npt.NDArray[np.int64]
    num_groups: int

    @classmethod
    def of(cls, memory: Memory) -> _Ends:
        whole = np.flatnonzero((memory.kind == MemoryKind.RELEASE) & (memory.address == WHOLE_TABLE))
        num_groups = int(memory.groups.max(initial=0)) + 1
        request, seq = memory.request[whole].astype(np.int64), memory.seq[whole]
        _, first, number = np.unique(sort_key(request, seq), return_index=True, return_inverse=True)
        key = number * num_groups + memory.groups[whole]
        order = np.argsort(key, kind="stable")
        return cls(request=request[first], seq=seq[first], key=key[order], row=whole[order], num_groups=num_groups)

    def first_at_or_after(self, request: IntArray, seq: IntArray) -> npt.NDArray[np.int64]:
        """Return the index of the first end of `request` at event number `seq` or later.

        If the request has no such end, the result is the index of another request's end, or the number of ends. `is_of`
        tells these cases apart.
        """
        return np.searchsorted(sort_key(self.request, self.seq), sort_key(request, seq))

    def is_of(self, request: IntArray, end: IntArray) -> npt.NDArray[np.bool_]:
        exists = end < len(self.request)
        exists[exists] = self.request[end[exists]] == request[exists]
        return exists

    def rows(self, request: IntArray, end: IntArray, group: IntArray, never: int) -> npt.NDArray[np.int64]:
        wanted = end * self.num_groups + group
        at = np.minimum(np.searchsorted(self.key, wanted), max(len(self.key) - 1, 0))
        exists = self.is_of(request, end)
        exists[exists] = self.key[at[exists]] == wanted[exists]
        rows = np.full(len(end), never, np.int64)
        rows[exists] = self.row[at[exists]]
        return rows


def _units(memory: Memory, chosen: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], IntArray]:
    rows = np.flatnonzero(chosen)
    extent, offset = expanded(memory.length[rows])
    return rows[extent], offset


def _released_early(
    memory: Memory, request: IntArray, group: IntArray, address: IntArray, birth_row: IntArray
) -> npt.NDArray[np.int64]:
    """Return, for each extent, the row that releases it before its residency ends; the number of rows if none does.

    A release names units, not extents. It releases the newest extent that the request got at this address before.
    """
    death_row = np.full(len(request), len(memory), np.int64)
    rows, offset = _units(memory, memory.releases_part)
    if not len(rows):
        return death_row
    released = memory.request[rows].astype(np.int64), memory.groups[rows], memory.address[rows] + offset
    places = np.concatenate([_place(request, group, address, memory), _place(*released, memory)])
    numbers = np.unique(places, return_inverse=True)[1].reshape(-1)  # small numbers, so that keys do not overflow
    held, left = numbers[: len(request)], numbers[len(request) :]
    key = sort_key(held, birth_row)
    order = np.argsort(key)
    newest = np.searchsorted(key[order], sort_key(left, rows)) - 1
    extent = order[np.maximum(newest, 0)]
    matches = (newest >= 0) & (held[extent] == left)
    death_row[extent[matches]] = rows[matches]
    return death_row


def _place(request: IntArray, group: IntArray, address: IntArray, memory: Memory) -> npt.NDArray[np.int64]:
    num_groups, end = int(memory.groups.max(initial=0)) + 1, int((memory.address + memory.length).max(initial=0)) + 1
    return (request.astype(np.int64) * num_groups + group) * end + address


def _operations(memory: Memory, tables: Holdings, death_row: npt.NDArray[np.int64]) -> Operations:
    evicted, offset = _units(memory, memory.kind == MemoryKind.EVICT)
    dead = np.flatnonzero(death_row < len(memory))
    extents = np.arange(len(tables.request))
    row = np.concatenate((tables.birth_row, death_row[dead], evicted))
    extent = np.concatenate((extents, dead, np.full(len(evicted), NO_EXTENT)))
    address = np.concatenate((tables.address, tables.address[dead], memory.address[evicted] + offset))
    rank = np.concatenate((tables.position, -tables.position[dead], offset))
    order = np.lexsort((rank, row))
    return Operations(
        row=row[order].astype(np.int64), extent=extent[order].astype(np.int32), address=address[order].astype(np.int32)
    )
