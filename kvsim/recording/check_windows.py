"""Check the counts of SGLang's second pool, for layers with sliding windows. The steps state only its free units."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.model import Recording
from kvsim.recording.rules import require
from kvsim.recording.tables import MemoryKind


def check_windows(recording: Recording, folder: Path) -> None:
    """Check the counts of the second pool against its size and against allocations in the first pool.

    Every unit that a table allocates in the first pool comes with one in the second pool. So a step allocates at most
    as many units of the second pool as of the first, holds at least these units after it, and the second pool never has
    more held units than the first.
    """
    steps, pool, file = recording.steps, recording.meta.pool, folder / "steps.parquet"
    windows, free, cached = pool.windows, steps.free_window_units, steps.cached_window_units
    if windows is None or not len(steps):
        return
    if free is None or cached is None:
        raise RecordingError(
            f"{file}: meta.json has pool.windows, which needs free_window_units and cached_window_units."
        )
    free, num_units = free.astype(np.int64), windows.num_units
    require((free <= num_units) & (free >= 0), file, f"free_window_units should lie between 0 and {num_units}")
    require((cached <= free) & (cached >= 0), file, "cached_window_units should lie between 0 and free_window_units")
    assert pool.num_units is not None
    held = num_units - free
    require(held <= pool.num_units - steps.free_units, file, "more units of windows are held than units of the others")
    memory, rows = recording.memory, np.flatnonzero(recording.memory.kind == MemoryKind.APPEND)
    rows = rows[memory.step[rows] < len(steps)]
    allocated = np.bincount(memory.step[rows], weights=memory.length[rows], minlength=len(steps)).astype(np.int64)
    require(held >= allocated, file, "fewer units of windows are held than the step has taken")
    unused = np.concatenate(([num_units], free - cached))
    require(
        unused[:-1] - unused[1:] <= allocated, file, "more units of windows are taken than memory.parquet hands out"
    )
