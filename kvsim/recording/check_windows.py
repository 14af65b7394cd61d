"""Checks of the second pool of SGLang, whose units are counted after every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.model import Recording
from kvsim.recording.rules import require
from kvsim.recording.tables import MemoryKind


def check_windows(recording: Recording, folder: Path) -> None:
    """Check the counted units of the pool of windows against that pool and against the changes of the first one.

    Every unit that a table gets has one of windows. So no more of these are taken in a step, at least as many are held
    after it, and never more than units of the first pool.

    Raises:
        RecordingError: naming the file and the first row that cannot be right.
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
    taken = np.bincount(memory.step[rows], weights=memory.length[rows], minlength=len(steps)).astype(np.int64)
    require(held >= taken, file, "fewer units of windows are held than the step has taken")
    unused = np.concatenate(([num_units], free - cached))
    require(unused[:-1] - unused[1:] <= taken, file, "more units of windows are taken than memory.parquet hands out")
