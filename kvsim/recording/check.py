"""What must hold between the tables of a recording; the first row that breaks a rule is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.check_group_tables import check_tables_of_groups
from kvsim.recording.check_requests import check_requests
from kvsim.recording.check_schedule import check_agreement, check_schedule, check_steps
from kvsim.recording.check_settings import check_settings
from kvsim.recording.model import Recording
from kvsim.recording.order import is_new, stable_order
from kvsim.recording.rules import require, rises, within
from kvsim.recording.tables import IntArray, Memory, MemoryKind, Steps


def check(recording: Recording, folder: Path) -> None:
    """Check that the tables agree with each other and with the pool.

    Raises:
        RecordingError: naming the file and row of the first disagreement.
    """
    check_requests(recording, folder / "requests.parquet")
    check_steps(recording, folder / "steps.parquet")
    check_settings(recording, folder)
    check_schedule(recording, folder / "schedule.parquet")
    _check_memory(recording, folder / "memory.parquet")
    if recording.meta.pool.groups:
        check_tables_of_groups(recording, folder)
    elif len(recording.memory):  # an engine whose cache has no addresses reports none
        _check_block_tables(recording, folder)
    elif recording.meta.pool.num_units is None:
        _check_rectangles(recording, folder / "schedule.parquet")
    elif len(recording.schedule):
        raise RecordingError(f"{folder / 'memory.parquet'} is empty, and schedule.parquet computes in a pool.")
    _check_initial_free(recording, folder / "meta.json")
    check_agreement(recording, folder)


def _check_memory(recording: Recording, file: Path) -> None:
    memory, pool = recording.memory, recording.meta.pool
    held = memory.kind != MemoryKind.EVICT
    require(~held | within(memory.request, len(recording.requests)), file, "request is not a row of requests.parquet")
    require(rises(memory.seq), file, "seq should not decrease")
    # After the last step, memory may still be given back.
    require(within(memory.step, len(recording.steps) + 1), file, "step is not a row of steps.parquet")
    before = np.append(np.int64(-1), recording.steps.schedule_seq).take(memory.step)
    require(memory.seq > before, file, "seq should come after that of the step before")
    placed = memory.kind != MemoryKind.RELEASE
    if len(recording.steps):
        upto = np.append(recording.steps.schedule_seq, np.iinfo(np.int64).max).take(memory.step)
        require(~placed | (memory.seq <= upto), file, "seq should not come after that of its step")
    if not pool.groups:
        require(
            memory.groups == 0, file, "group is for pools with several KV-cache groups, which meta.json should list"
        )
        require(placed | (memory.address == -1), file, "a release should have address -1: it frees the whole table")
    require(~placed | (memory.length > 0), file, "length should be positive")
    require(~placed | (memory.position >= 0), file, "position should not be negative")
    if memory.cached is not None and not pool.groups:
        kept = placed | ((memory.cached >= 0) & (memory.cached <= memory.length))
        require(kept, file, "cached should lie between 0 and length")
    if memory.requested is not None:
        asked = (memory.requested > 0) & (memory.requested <= memory.length)
        require(~placed | asked, file, "requested should be positive and not more than length")
    if memory.repeat is not None and not pool.groups:
        _check_growth(recording, file)
    if pool.num_units is not None:
        end = pool.first_unit + pool.num_units
        units = memory.length if memory.repeat is None else memory.length.astype(np.int64) * memory.repeat
        inside = (memory.address >= pool.first_unit) & (memory.address.astype(np.int64) + units <= end)
        require(~placed | inside, file, f"the units lie outside the pool [{pool.first_unit}, {end})")


def _check_growth(recording: Recording, file: Path) -> None:
    """A row that repeats does so in steps that there are, and in a pool in which nothing is shared or cached."""
    memory, meta, steps = recording.memory, recording.meta, recording.steps
    assert memory.repeat is not None
    require(memory.repeat > 0, file, "repeat should be positive")
    grows = np.flatnonzero(memory.repeat > 1)
    if not len(grows):
        return
    holds = np.ones(len(memory), np.bool_)
    is_shared = ((memory.kind == MemoryKind.SHARE) | (memory.kind == MemoryKind.EVICT)).any()
    alone = meta.policy_name != "paged" and meta.pool.unit_tokens == 1 and not meta.prefix_caching and not is_shared
    holds[grows] = alone & (memory.kind[grows] == MemoryKind.APPEND)
    require(holds, file, "repeat is for rows that append, in a pool of single slots without prefixes")
    holds[grows] = memory.step[grows].astype(np.int64) + memory.repeat[grows] <= len(steps)
    require(holds, file, "repeat runs past the last step")
    holds[grows] = memory.seq[grows] == steps.schedule_seq[memory.step[grows]]
    require(holds, file, "a row that repeats should have the seq at which its step was scheduled")


def _check_block_tables(recording: Recording, folder: Path) -> None:
    """Each request's table grows at its end, is given back only if there is one, and holds whatever is computed."""
    memory, schedule, steps = recording.memory, recording.schedule, recording.steps
    rows = np.flatnonzero(memory.kind != MemoryKind.EVICT).astype(np.int32)
    rows = rows[stable_order(memory.request[rows], len(recording.requests))]
    request, released = memory.request.take(rows), memory.kind.take(rows) == MemoryKind.RELEASE
    position, seq, length = memory.position.take(rows).astype(np.int64), memory.seq.take(rows), memory.length.take(rows)
    repeat = np.broadcast_to(np.int32(1), len(rows)) if memory.repeat is None else memory.repeat[rows]
    end = position + length * repeat
    end[released] = 0
    first = is_new(request)
    held_before = np.concatenate((np.zeros(1, np.int64), end))[:-1]
    held_before[first] = 0

    file = folder / "memory.parquet"
    require(released | (position == held_before), file, "position should be where the request's table ends", rows)
    require(~released | (held_before > 0), file, "the request gives back a table that it does not have", rows)
    whole = ~released | (length == held_before)
    require(whole, file, "length should be that of the table that is given back", rows)
    _check_free_units(recording, folder / "steps.parquet", rows[released], held_before[released])
    if memory.repeat is not None:
        grown_seq = steps.schedule_seq[np.minimum(memory.step[rows] + repeat, len(steps)) - 1]
        grown = first[1:] | (repeat[:-1] == 1) | (seq[1:] > grown_seq[:-1])
        require(grown, file, "the request's table still grows by an earlier row", rows[1:])

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
    require(holds_all, folder / "schedule.parquet", "more is computed than the request holds memory for")


def _check_free_units(recording: Recording, file: Path, releases: np.ndarray, given_back: np.ndarray) -> None:
    """Where no unit is shared and no row grows, `free_units` follow from the changes of ownership: the rows `releases`
    give so many units back.
    """
    memory, steps, num_units = recording.memory, recording.steps, recording.meta.pool.num_units
    grows = memory.repeat is not None and (memory.repeat > 1).any()
    if num_units is None or grows or (memory.kind == MemoryKind.SHARE).any():
        return
    change = memory.length * (memory.kind == MemoryKind.APPEND).astype(np.int64)
    change[releases] = -given_back
    held = np.append(0, change.cumsum())[
        np.cumsum(np.bincount(_shown_in(memory, steps), minlength=len(steps) + 1))[:-1]
    ]
    require(held <= num_units, file, f"more units are held than the pool's {num_units}")
    free = (steps.free_units == -1) | (steps.free_units == num_units - held)
    require(free, file, "free_units should be what memory.parquet leaves of the pool")


def _shown_in(memory: Memory, steps: Steps) -> IntArray:
    """The first step that is scheduled when each row of `memory` has happened; the number of steps where none is.

    It is the row's own, but for what is given back behind it.
    """
    shown = memory.step.astype(np.int64)
    upto = np.append(steps.schedule_seq, np.iinfo(np.int64).max).take(shown)
    later = np.flatnonzero(memory.seq > upto)
    shown[later] = np.searchsorted(steps.schedule_seq, memory.seq[later])
    return shown


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
    require(holds, file, "computed_before should be what the request has computed in earlier rows")


def _check_initial_free(recording: Recording, file: Path) -> None:
    free, pool = recording.meta.initial_free, recording.meta.pool
    if free is None or pool.num_units is None:
        return
    inside = (free >= pool.first_unit) & (free < pool.first_unit + pool.num_units)
    if not inside.all() or not np.diff(np.sort(free)).all():
        raise RecordingError(f"{file}: initial_free should list each unit of the pool at most once.")
