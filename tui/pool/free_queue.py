"""Free units in the order in which they are allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.recording.order import expanded
from kvsim.recording.tables import MemoryKind

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from .array_types import IndexArray

MOST_NEXT: Final = 8
"""Largest number of free units that are marked as next to be allocated."""
_ROWS: Final = (64, 1024)
"""Numbers of rows of `memory.parquet` to search: the larger one if the smaller one has too few allocations."""


def next_units(replay: Replay, most: int = MOST_NEXT) -> IndexArray:
    """Return at most `most` free units, from 0 in address order, in the recorded order of their next allocation.

    Units that are a prefix-cache hit before their next allocation, and units that are not allocated in the next 1024
    rows of `memory.parquet`, are left out.
    """
    begin = int(np.searchsorted(replay.recording.memory.seq, replay.seq, side="right"))
    found = np.empty(0, np.int64)
    most = min(most, int((replay.refs == 0).sum()))
    for num_rows in _ROWS:
        if len(found) < most:
            found = _allocated_in(replay, slice(begin, begin + num_rows))[:most]
    return found


def _allocated_in(replay: Replay, rows: slice) -> IndexArray:
    """Return the units that are free now and allocated in `rows` of `memory.parquet`, in the order of these rows."""
    memory = replay.recording.memory
    used = np.isin(memory.kind[rows], (MemoryKind.APPEND, MemoryKind.SHARE))
    run, offset = expanded(memory.length[rows][used].astype(np.int64))
    units = memory.address[rows][used].astype(np.int64)[run] + offset - replay.first_unit
    is_free = (units >= 0) & (units < replay.num_units)
    is_free[is_free] = replay.refs[units[is_free]] == 0
    units, allocated = units[is_free], (memory.kind[rows][used][run] == MemoryKind.APPEND)[is_free]
    first = np.sort(np.unique(units, return_index=True)[1])
    found: IndexArray = units[first][allocated[first]]
    return found
