"""Check replaced units: a request of SGLang frees its own copy of a prefix, and shares the units of the radix tree.

In `memory.parquet`, a replacement is a release of a part of the table and a share of as many units in the same
positions, with one `seq`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.policies import Radix
from kvsim.recording.grouped import Operations, tables_of_groups
from kvsim.recording.holdings import Holdings
from kvsim.recording.model import Recording
from kvsim.recording.order import expanded, sort_key
from kvsim.recording.rules import require, require_inside
from kvsim.recording.tables import IntArray, Memory, MemoryKind


def replacing_rows(memory: Memory) -> npt.NDArray[np.bool_]:
    """Tell, for each memory row, whether it belongs to a replacement. Such rows do not change the length of a table."""
    replaces = memory.releases_part
    if not replaces.any():
        return replaces
    key = sort_key(memory.request, memory.seq)
    shares = np.flatnonzero(memory.kind == MemoryKind.SHARE)
    shares = shares[np.isin(key[shares], np.unique(key[replaces]))]
    replaces[shares] = True
    return replaces


def check_replaced_units(recording: Recording, file: Path) -> None:
    """Check that a request replaces only units that it holds, each by a unit in the same position."""
    memory, pool = recording.memory, recording.meta.pool
    parts = memory.releases_part
    is_tree = recording.meta.policy_name == Radix.name and recording.meta.prefix_caching
    require(~parts | is_tree, file, "a release should have address -1: it frees the whole table")
    if not parts.any():
        return
    require(~parts | ((memory.length > 0) & (memory.position >= 0)), file, "length should be positive")
    require_inside(memory, pool, parts, file)
    if memory.cached is not None:
        require(~parts | (memory.cached == 0), file, "a unit that is replaced should keep no prefix")
    replaces = replacing_rows(memory)
    freed, shared = (_unit_keys(memory, np.flatnonzero(replaces & chosen)) for chosen in (parts, ~parts))
    rows = np.flatnonzero(parts)
    extent, _ = expanded(memory.length[rows])
    rule = "a unit that is released alone should be replaced at its position by a shared one"
    require(np.isin(freed, shared), file, rule, rows[extent])
    rows = np.flatnonzero(replaces & ~parts)
    extent, _ = expanded(memory.length[rows])
    require(np.isin(shared, freed), file, "position should be where the request's table ends", rows[extent])
    _check_held(recording, parts, file)


def _check_held(recording: Recording, parts: npt.NDArray[np.bool_], file: Path) -> None:
    memory = recording.memory
    tables, operations = tables_of_groups(memory, len(recording.requests))
    num_units = np.bincount(operations.row, minlength=len(memory))
    require(~parts | (num_units == memory.length), file, "the request releases a unit that it does not hold")
    require_positions(memory, tables, operations, file)


def require_positions(memory: Memory, tables: Holdings, operations: Operations, file: Path) -> None:
    """Check that each release of a part of a table states the positions in which the request held the units."""
    of_part = memory.releases_part[operations.row]
    row, extent = operations.row[of_part], operations.extent[of_part]
    holds = np.ones(len(memory), np.bool_)
    holds[row[tables.position[extent] != memory.position[row] + operations.address[of_part] - memory.address[row]]] = (
        False
    )
    require(holds, file, "position should be that of the freed unit")


def _unit_keys(memory: Memory, rows: IntArray) -> npt.NDArray[np.int64]:
    """Return a number for each unit of the memory rows `rows`, equal only for equal request, `seq` and table index."""
    extent, offset = expanded(memory.length[rows])
    span, width = int(memory.seq[-1]) + 1, int((memory.position + memory.length).max()) + 1
    row = rows[extent]
    first_key: npt.NDArray[np.int64] = (memory.request[row].astype(np.int64) * span + memory.seq[row]) * width
    return first_key + memory.position[row] + offset
