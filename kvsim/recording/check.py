"""What must hold between the tables of a recording; the first row that breaks a rule is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.model import Recording
from kvsim.recording.tables import IntArray, MemoryKind


def check(recording: Recording, folder: Path) -> None:
    """Check that the tables agree with each other and with the pool.

    Raises:
        RecordingError: naming the file and row of the first disagreement.
    """
    _check_requests(recording, folder / "requests.parquet")
    _check_steps(recording, folder / "steps.parquet")
    _check_schedule(recording, folder / "schedule.parquet")
    _check_memory(recording, folder / "memory.parquet")
    _check_initial_free(recording, folder / "meta.json")


def _require(holds: np.ndarray, file: Path, rule: str) -> None:  # type: ignore[type-arg]
    if not holds.all():
        raise RecordingError(f"{file}, row {int(np.argmin(holds))}: {rule}.")


def _check_requests(recording: Recording, file: Path) -> None:
    requests = recording.requests
    _require(requests.request == np.arange(len(requests)), file, "request should count the rows from 0")
    _require(requests.prompt_tokens > 0, file, "prompt_tokens should be positive")
    _require(requests.output_tokens >= 0, file, "output_tokens should not be negative")
    _require(np.isfinite(requests.arrival_s), file, "arrival_s should be a finite time")


def _check_steps(recording: Recording, file: Path) -> None:
    steps, pool = recording.steps, recording.meta.pool
    _require(steps.step == np.arange(len(steps)), file, "step should count the rows from 0")
    _require(np.diff(steps.schedule_seq, prepend=-1) > 0, file, "schedule_seq should increase")
    _require(steps.output_seq > steps.schedule_seq, file, "output_seq should come after schedule_seq")
    _require(np.isfinite(steps.start_s) & (steps.end_s >= steps.start_s), file, "end_s should not precede start_s")
    if pool.num_units is not None:
        fits = (steps.free_units >= -1) & (steps.free_units <= pool.num_units)
        _require(fits, file, f"free_units should lie between 0 and the pool's {pool.num_units}")


def _check_schedule(recording: Recording, file: Path) -> None:
    schedule = recording.schedule
    _require(_within(schedule.request, len(recording.requests)), file, "request is not a row of requests.parquet")
    _require(_within(schedule.step, len(recording.steps)), file, "step is not a row of steps.parquet")
    last = schedule.step.astype(np.int64) + schedule.repeats - 1
    _require((schedule.repeats > 0) & (last < len(recording.steps)), file, "repeat runs past the last step")
    _require(schedule.tokens > 0, file, "tokens should be positive")
    _require(np.diff(schedule.step, prepend=0) >= 0, file, "step should not decrease")


def _check_memory(recording: Recording, file: Path) -> None:
    memory, pool = recording.memory, recording.meta.pool
    held = memory.kind != MemoryKind.EVICT
    _require(~held | _within(memory.request, len(recording.requests)), file, "request is not a row of requests.parquet")
    _require(np.diff(memory.seq, prepend=0) >= 0, file, "seq should not decrease")
    placed = memory.kind != MemoryKind.RELEASE
    _require(placed | (memory.address == -1), file, "a release should have address -1: it frees the whole table")
    _require(~placed | (memory.length > 0), file, "length should be positive")
    if pool.num_units is not None:
        end = pool.first_unit + pool.num_units
        inside = (memory.address >= pool.first_unit) & (memory.address + memory.length <= end)
        _require(~placed | inside, file, f"the units lie outside the pool [{pool.first_unit}, {end})")


def _check_initial_free(recording: Recording, file: Path) -> None:
    free, pool = recording.meta.initial_free, recording.meta.pool
    if free is None or pool.num_units is None:
        return
    inside = (free >= pool.first_unit) & (free < pool.first_unit + pool.num_units)
    if not inside.all() or len(np.unique(free)) != len(free):
        raise RecordingError(f"{file}: initial_free should list each unit of the pool at most once.")


def _within(values: IntArray, size: int) -> np.ndarray:  # type: ignore[type-arg]
    return (values >= 0) & (values < size)
