"""Add addresses to a recorded static batch, so that its memory can be shown like a pool.

`generate()` has one tensor per layer, in which each step adds a column (one slot for each request). It has no pool and
no addresses. Here, each batch becomes a rectangle: one row of slots per request, as wide as at the end of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.by_request import computed_after, last_steps
from kvsim.recording.model import MAX_UNITS, Recording
from kvsim.recording.tables import WHOLE_TABLE, IntArray, Memory, MemoryKind


def with_addresses(recording: Recording) -> Recording:
    """Return `recording` with a pool and memory events; if it has a pool, return it unchanged.

    A batch is the set of requests whose first step is the same. The pool is as large as the largest batch.

    Raises:
        RecordingError: a batch has more slots than any server.
    """
    if recording.meta.pool.num_units is not None:
        return recording
    batches, row_slots = _batches(recording)
    base, num_units = _lay_out(batches, row_slots)
    if num_units > MAX_UNITS:
        raise RecordingError(
            f"recording {recording.name!r} has a batch of {num_units:,} slots; no server has more than {MAX_UNITS:,}."
        )
    scheduled = np.unique(recording.schedule.request).astype(np.int64)
    zero = np.zeros_like(scheduled)
    releases = (last_steps(recording)[scheduled], scheduled, zero, zero + WHOLE_TABLE, row_slots[scheduled], zero + 1)
    pool = replace(recording.meta.pool, unit_tokens=1, num_units=num_units, first_unit=0)
    meta = replace(recording.meta, pool=pool)
    return replace(recording, meta=meta, memory=_memory(recording, _appends(recording, base, row_slots), releases))


def _is_preallocated(recording: Recording) -> bool:
    return recording.meta.policy.get("cache") == "static"


def _batches(recording: Recording) -> tuple[list[IntArray], IntArray]:
    """Return the requests of each batch, and the number of slots of each request's row at the end of its batch.

    With a static cache, the rows have this number of slots from the beginning of the batch.
    """
    schedule, num_steps, num_requests = recording.schedule, len(recording.steps), len(recording.requests)
    first_step = np.full(num_requests, num_steps, np.int64)
    np.minimum.at(first_step, schedule.request, schedule.step)
    batches: list[IntArray] = [
        np.flatnonzero(first_step == step) for step in np.unique(first_step[first_step < num_steps])
    ]
    row_slots = np.zeros(num_requests, np.int64)
    np.maximum.at(row_slots, schedule.request, computed_after(schedule))
    if _is_preallocated(recording):
        opening = schedule.computed_before == 0
        first_tokens = np.zeros(num_requests, np.int64)
        first_tokens[schedule.request[opening]] = schedule.tokens[opening]
        for rows in batches:
            width = int(first_tokens[rows].max() + recording.requests.max_tokens[rows].max()) - 1
            row_slots[rows] = max(width, int(row_slots[rows].max()))
    return batches, row_slots


def _appends(recording: Recording, base: IntArray, row_slots: IntArray) -> tuple[Any, ...]:
    """Return the columns of the memory rows that allocate slots: step, request, position, address, length, repeat.

    `base` has the address of each request's row of slots.
    """
    schedule = recording.schedule
    request, step, position, length = (
        column.astype(np.int64)
        for column in (schedule.request, schedule.step, schedule.computed_before, schedule.tokens)
    )
    repeats = schedule.repeats
    if _is_preallocated(recording):  # all slots are allocated when the batch begins
        opening = schedule.computed_before == 0
        request, step, position = request[opening], step[opening], position[opening]
        length, repeats = row_slots[request], np.ones(len(request), np.int32)
    return step, request, position, base[request] + position, length, repeats


def _lay_out(batches: Sequence[IntArray], widths: IntArray) -> tuple[IntArray, int]:
    """Return the address of each request's row of slots, and the number of slots of the largest batch."""
    base, num_units = np.zeros(len(widths), np.int64), 1
    for rows in batches:
        width = int(widths[rows].max())
        base[rows] = np.arange(len(rows)) * width
        num_units = max(num_units, len(rows) * width)
    return base, num_units


def _memory(recording: Recording, appends: tuple[Any, ...], releases: tuple[Any, ...]) -> Memory:
    steps, num_appends, num_releases = recording.steps, len(appends[0]), len(releases[0])
    kind = np.repeat(np.array([MemoryKind.APPEND, MemoryKind.RELEASE], np.uint8), (num_appends, num_releases))
    seq = np.concatenate((steps.schedule_seq[appends[0]], steps.output_seq[releases[0]]))
    order = np.argsort(seq, kind="stable")
    step, request, position, address, length, repeat = (
        np.concatenate(pair)[order].astype(np.int32) for pair in zip(appends, releases, strict=True)
    )
    return Memory(
        seq=seq[order], step=step, kind=kind[order], request=request, position=position, address=address,
        length=length, repeat=repeat,
    )  # fmt: skip
