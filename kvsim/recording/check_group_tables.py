"""Check the block tables of a pool with several KV-cache groups. Windows may release units of a running request."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.kv_groups.group import CacheKind
from kvsim.recording.by_request import computed_after
from kvsim.recording.check_replaced_units import require_positions
from kvsim.recording.grouped import tables_of_groups
from kvsim.recording.holdings import Holdings
from kvsim.recording.model import Recording
from kvsim.recording.order import is_new, sort_key
from kvsim.recording.rules import require, require_inside, within
from kvsim.recording.tables import WHOLE_TABLE, IntArray, MemoryKind

_WITHOUT_GAPS = (CacheKind.FULL, CacheKind.MLA)


def check_tables_of_groups(recording: Recording, folder: Path) -> None:
    """Check that every table grows at its end, releases only units that it holds, and has room for computed tokens."""
    memory, file = recording.memory, folder / "memory.parquet"
    _check_rows(recording, file)
    tables, operations = tables_of_groups(memory, len(recording.requests))
    _check_growth(recording, file)
    num_units = np.bincount(operations.row, minlength=len(memory))
    require(num_units == memory.length, file, "length should be the number of units that the table holds and releases")
    require_positions(memory, tables, operations, file)
    _check_ends(tables, file)
    _check_computed(recording, tables, folder / "schedule.parquet")
    _check_free_units(recording, tables, folder / "steps.parquet")


def _check_rows(recording: Recording, file: Path) -> None:
    memory, pool = recording.memory, recording.meta.pool
    owned = memory.kind != MemoryKind.EVICT
    require(~owned | within(memory.groups, len(pool.groups)), file, "group is not one of meta.json's kv_cache_groups")
    if memory.repeat is not None:
        require(memory.repeat == 1, file, "repeat is for pools of single slots")
    released, part = memory.kind == MemoryKind.RELEASE, memory.releases_part
    require(~released | part | (memory.length >= 0), file, "length should not be negative")
    require(~part | (memory.length > 0), file, "length should be positive if a part of a table is released")
    require_inside(memory, pool, part, file)
    if memory.cached is not None:
        most = np.where(part, memory.length, np.iinfo(np.int32).max)
        require(
            ~released | ((memory.cached >= 0) & (memory.cached <= most)), file, "cached should not be more than length"
        )


def _check_growth(recording: Recording, file: Path) -> None:
    """Check that each memory row appends at the end of its table, or after a gap of null blocks.

    A gap may be before the first units of a group with windows, and between the states of a Mamba group.
    """
    memory, groups = recording.memory, recording.meta.pool.groups
    whole = (memory.kind == MemoryKind.RELEASE) & (memory.address == WHOLE_TABLE)
    placed = (memory.kind == MemoryKind.APPEND) | (memory.kind == MemoryKind.SHARE)
    rows = np.flatnonzero(placed | whole)
    rows = rows[np.lexsort((rows, memory.groups[rows], memory.request[rows]))]
    position = memory.position[rows].astype(np.int64)
    end = np.where(whole[rows], 0, position + memory.length[rows])
    # Position at which the table ended before each row; 0 for the first row of a table.
    before = np.concatenate((np.zeros(1, np.int64), end))[:-1]
    before[is_new(memory.request[rows]) | is_new(memory.groups[rows])] = 0
    no_overlap = whole[rows] | (position >= before)
    require(no_overlap, file, "position should not be before the end of the request's table", rows)
    has_gaps = np.array([group.kind not in _WITHOUT_GAPS for group in groups])[memory.groups[rows]]
    is_state = np.array([group.kind is CacheKind.MAMBA for group in groups])[memory.groups[rows]]
    may_skip = whole[rows] | is_state | (has_gaps & (before == 0))
    require(may_skip | (position == before), file, "position should be where the request's table ends", rows)


def _check_ends(tables: Holdings, file: Path) -> None:
    held = tables.residencies
    end = np.repeat(held.death_seq, np.diff(held.first_extent, append=len(tables.request)))
    is_left = tables.death_seq > end
    if is_left.any():
        row = int(tables.birth_row[int(np.argmax(is_left))])
        raise RecordingError(f"{file}, row {row}: the request releases some of its tables, but never this one.")


def _check_computed(recording: Recording, tables: Holdings, file: Path) -> None:
    schedule, pool = recording.schedule, recording.meta.pool
    seq = recording.steps.schedule_seq[schedule.step + schedule.repeats - 1].astype(np.int64)
    computed = computed_after(schedule)
    last_position = np.append(tables.position, -1).astype(np.int64)
    for number, group in enumerate(pool.groups):
        if group.kind is not CacheKind.MAMBA:
            extent = _newest_extents(tables, number, schedule.request, seq)
            rule = f"more is computed than the request holds memory for in group {number}"
            require((last_position[extent] + 1) * group.block_size >= computed, file, rule)


def _newest_extents(tables: Holdings, group: int, request: IntArray, seq: IntArray) -> IntArray:
    """Return the index in `tables` of each request's newest extent (a unit) in `group` at its `seq`; or -1."""
    extents = np.flatnonzero(tables.group == group)
    if not len(extents):
        return np.full(len(request), -1)
    key = sort_key(tables.request[extents], tables.birth_seq[extents])
    index = np.searchsorted(key, sort_key(request, seq), side="right") - 1
    extent = np.append(extents, -1)[index]
    residency = np.searchsorted(tables.residencies.first_extent, extent, side="right") - 1
    is_held = (extent >= 0) & (tables.request[extent] == request) & (tables.residencies.death_seq[residency] > seq)
    return np.where(is_held, extent, -1)


def _check_free_units(recording: Recording, tables: Holdings, file: Path) -> None:
    memory, steps, num_units = recording.memory, recording.steps, recording.meta.pool.num_units
    if num_units is None or (memory.kind == MemoryKind.SHARE).any():
        return
    moments = steps.schedule_seq
    allocated = np.searchsorted(np.sort(tables.birth_seq), moments, side="right")
    released = np.searchsorted(np.sort(tables.death_seq), moments, side="right")
    held = allocated - released
    require(held <= num_units, file, f"more units are held than the pool's {num_units}")
    free = (steps.free_units == -1) | (steps.free_units == num_units - held)
    require(free, file, "free_units should be what memory.parquet leaves of the pool")
