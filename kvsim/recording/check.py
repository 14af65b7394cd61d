"""What must hold between the tables of a recording; the first row that breaks a rule is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.model import Recording
from kvsim.recording.order import is_new, stable_order
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
    if len(recording.memory):  # an engine whose cache has no addresses reports none
        _check_block_tables(recording, folder)
    elif recording.meta.pool.num_units is None:
        _check_rectangles(recording, folder / "schedule.parquet")
    _check_initial_free(recording, folder / "meta.json")


def _require(holds: np.ndarray, file: Path, rule: str, rows: np.ndarray | None = None) -> None:
    """Raise for the first row that does not hold; `rows` says which rows of the file were looked at, if not all."""
    if not holds.all():
        row = np.argmin(holds) if rows is None else rows[~holds].min()
        raise RecordingError(f"{file}, row {int(row)}: {rule}.")


def _check_requests(recording: Recording, file: Path) -> None:
    requests = recording.requests
    _require(requests.request == np.arange(len(requests)), file, "request should count the rows from 0")
    _require(requests.prompt_tokens > 0, file, "prompt_tokens should be positive")
    _require(requests.output_tokens >= 0, file, "output_tokens should not be negative")
    _require(np.isfinite(requests.arrival_s), file, "arrival_s should be a finite time")
    for name in ("first_scheduled_s", "first_token_s", "finished_s"):
        _require(~np.isinf(getattr(requests, name)), file, f"{name} should be a finite time, or empty")


def _check_steps(recording: Recording, file: Path) -> None:
    steps, pool = recording.steps, recording.meta.pool
    _require(steps.step == np.arange(len(steps)), file, "step should count the rows from 0")
    _require(_rises(steps.schedule_seq, np.greater), file, "schedule_seq should increase")
    _require(steps.output_seq > steps.schedule_seq, file, "output_seq should come after schedule_seq")
    timed = np.isfinite(steps.start_s) & np.isfinite(steps.end_s) & (steps.end_s >= steps.start_s)
    _require(timed, file, "start_s and end_s should be finite times in this order")
    _require(_rises(steps.start_s, least=-np.inf), file, "start_s should not decrease")
    if pool.num_units is not None:
        fits = (steps.free_units >= -1) & (steps.free_units <= pool.num_units)
        _require(fits, file, f"free_units should lie between 0 and the pool's {pool.num_units}")


def _check_schedule(recording: Recording, file: Path) -> None:
    schedule = recording.schedule
    _require(_within(schedule.request, len(recording.requests)), file, "request is not a row of requests.parquet")
    _require(_within(schedule.step, len(recording.steps)), file, "step is not a row of steps.parquet")
    last = schedule.step.astype(np.int64) + schedule.repeats - 1
    _require((schedule.repeats > 0) & (last < len(recording.steps)), file, "repeat runs past the last step")
    _require(schedule.computed_before >= 0, file, "computed_before should not be negative")
    _require(schedule.tokens > 0, file, "tokens should be positive")
    _require(_rises(schedule.step), file, "step should not decrease")


def _check_memory(recording: Recording, file: Path) -> None:
    memory, pool = recording.memory, recording.meta.pool
    held = memory.kind != MemoryKind.EVICT
    _require(~held | _within(memory.request, len(recording.requests)), file, "request is not a row of requests.parquet")
    _require(_rises(memory.seq), file, "seq should not decrease")
    # After the last step, memory may still be given back.
    _require(_within(memory.step, len(recording.steps) + 1), file, "step is not a row of steps.parquet")
    placed = memory.kind != MemoryKind.RELEASE
    _require(placed | (memory.address == -1), file, "a release should have address -1: it frees the whole table")
    _require(~placed | (memory.length > 0), file, "length should be positive")
    _require(~placed | (memory.position >= 0), file, "position should not be negative")
    if memory.requested is not None:
        asked = (memory.requested > 0) & (memory.requested <= memory.length)
        _require(~placed | asked, file, "requested should be positive and not more than length")
    if memory.repeat is not None:
        _check_growth(recording, file)
    if pool.num_units is not None:
        end = pool.first_unit + pool.num_units
        units = memory.length if memory.repeat is None else memory.length.astype(np.int64) * memory.repeat
        inside = (memory.address >= pool.first_unit) & (memory.address.astype(np.int64) + units <= end)
        _require(~placed | inside, file, f"the units lie outside the pool [{pool.first_unit}, {end})")


def _check_growth(recording: Recording, file: Path) -> None:
    """A row that repeats does so in steps that there are, and in a pool in which nothing is shared or cached."""
    memory, meta, steps = recording.memory, recording.meta, recording.steps
    assert memory.repeat is not None
    _require(memory.repeat > 0, file, "repeat should be positive")
    grows = np.flatnonzero(memory.repeat > 1)
    if not len(grows):
        return
    holds = np.ones(len(memory), np.bool_)
    is_shared = ((memory.kind == MemoryKind.SHARE) | (memory.kind == MemoryKind.EVICT)).any()
    alone = meta.policy_name != "paged" and meta.pool.unit_tokens == 1 and not meta.prefix_caching and not is_shared
    holds[grows] = alone & (memory.kind[grows] == MemoryKind.APPEND)
    _require(holds, file, "repeat is for rows that append, in a pool of single slots without prefixes")
    holds[grows] = memory.step[grows].astype(np.int64) + memory.repeat[grows] <= len(steps)
    _require(holds, file, "repeat runs past the last step")
    holds[grows] = memory.seq[grows] == steps.schedule_seq[memory.step[grows]]
    _require(holds, file, "a row that repeats should have the seq at which its step was scheduled")


def _check_block_tables(recording: Recording, folder: Path) -> None:
    """Each request's table grows at its end, is given back only if there is one, and holds whatever is computed."""
    memory, schedule, steps = recording.memory, recording.schedule, recording.steps
    rows = np.flatnonzero(memory.kind != MemoryKind.EVICT).astype(np.int32)
    rows = rows[stable_order(memory.request[rows], len(recording.requests))]
    request, released = memory.request[rows], memory.kind[rows] == MemoryKind.RELEASE
    position, seq = memory.position[rows].astype(np.int64), memory.seq[rows]
    repeat = np.broadcast_to(np.int32(1), len(rows)) if memory.repeat is None else memory.repeat[rows]
    end = np.where(released, 0, position + memory.length[rows] * repeat)
    first = is_new(request)
    held_before = np.concatenate((np.zeros(1, np.int64), end))[:-1]
    held_before[first] = 0

    file = folder / "memory.parquet"
    _require(released | (position == held_before), file, "position should be where the request's table ends", rows)
    _require(~released | (held_before > 0), file, "the request gives back a table that it does not have", rows)
    if memory.repeat is not None:
        grown_seq = steps.schedule_seq[np.minimum(memory.step[rows] + repeat, len(steps)) - 1]
        grown = first[1:] | (repeat[:-1] == 1) | (seq[1:] > grown_seq[:-1])
        _require(grown, file, "the request's table still grows by an earlier row", rows[1:])

    last_step = schedule.step + schedule.repeats - 1
    span = max(int(memory.seq[-1]), int(steps.schedule_seq.max(initial=0))) + 1
    key = schedule.request.astype(np.int64) * span + steps.schedule_seq[last_step]
    at = np.searchsorted(request.astype(np.int64) * span + seq, key, side="right") - 1
    asked = memory.length if memory.requested is None else memory.requested
    usable = np.where(released[at], 0, position[at] + asked[rows[at]] * repeat[at])
    held = np.where((at >= 0) & (request[at] == schedule.request), usable, 0)
    if memory.repeat is not None:  # so far
        left = np.maximum(memory.step[rows[at]] + memory.repeat[rows[at]] - 1 - last_step, 0)
        held -= np.minimum(left * memory.length[rows[at]], held)
    computed = schedule.computed_before + schedule.tokens.astype(np.int64) * schedule.repeats
    holds_all = computed <= held * recording.meta.pool.unit_tokens
    _require(holds_all, folder / "schedule.parquet", "more is computed than the request holds memory for")


def _check_rectangles(recording: Recording, file: Path) -> None:
    """Without a pool, requests hold what they have computed; so nothing may be computed twice, or left out."""
    schedule = recording.schedule
    rows = stable_order(schedule.request, len(recording.requests))
    before = schedule.computed_before[rows].astype(np.int64)
    expected = np.concatenate(
        (np.zeros(1, np.int64), before + schedule.tokens[rows] * schedule.repeats[rows].astype(np.int64))
    )[:-1]
    expected[is_new(schedule.request[rows])] = 0
    holds = np.ones(len(schedule), np.bool_)
    holds[rows] = before == expected
    _require(holds, file, "computed_before should be what the request has computed in earlier rows")


def _check_initial_free(recording: Recording, file: Path) -> None:
    free, pool = recording.meta.initial_free, recording.meta.pool
    if free is None or pool.num_units is None:
        return
    inside = (free >= pool.first_unit) & (free < pool.first_unit + pool.num_units)
    if not inside.all() or len(np.unique(free)) != len(free):
        raise RecordingError(f"{file}: initial_free should list each unit of the pool at most once.")


def _within(values: IntArray, size: int) -> np.ndarray:
    return (values >= 0) & (values < size)


def _rises(values: np.ndarray, than: np.ufunc = np.greater_equal, *, least: float = 0) -> np.ndarray:
    """Where each of `values` is not less than the one before, or `than` says otherwise; the first not below `least`."""
    rises = np.ones(len(values), np.bool_)
    rises[:1] = values[:1] >= least
    than(values[1:], values[:-1], out=rises[1:])
    return rises
