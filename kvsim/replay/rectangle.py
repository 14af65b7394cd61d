"""Addresses for a recorded static batch, whose engine has none.

`generate()` holds one tensor per layer and adds a column in each step; there is no pool and no address. To show it like
others, each batch is laid out as a rectangle: one row of slots per request, as wide as at the end of the batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.model import MAX_UNITS, Recording
from kvsim.recording.tables import IntArray, Memory, MemoryKind


def with_addresses(recording: Recording) -> Recording:
    """Add memory events and a pool to `recording`, unless it has them.

    A batch is the set of requests that were first scheduled in the same step. The pool is as large as
    the largest batch.

    Raises:
        RecordingError: a batch is larger than any pool.
    """
    if recording.meta.pool.num_units is not None:
        return recording
    schedule, steps = recording.schedule, recording.steps
    repeats = schedule.repeats
    num_requests = len(recording.requests)
    first_step = np.full(num_requests, len(steps), np.int64)
    np.minimum.at(first_step, schedule.request, schedule.step)
    last_step = np.full(num_requests, -1, np.int64)
    np.maximum.at(last_step, schedule.request, schedule.step + repeats - 1)
    final = np.zeros(num_requests, np.int64)
    np.maximum.at(final, schedule.request, schedule.computed_before + schedule.tokens.astype(np.int64) * repeats)

    opening = schedule.computed_before == 0
    first_tokens = np.zeros(num_requests, np.int64)
    first_tokens[schedule.request[opening]] = schedule.tokens[opening]

    scheduled = np.flatnonzero(first_step < len(steps))
    base = np.zeros(num_requests, np.int64)
    num_units = 1
    preallocated = recording.meta.policy.get("cache") == "static"
    for start in np.unique(first_step[scheduled]):
        rows = np.flatnonzero(first_step == start)
        width = int(final[rows].max())
        if preallocated:
            width = max(width, int(first_tokens[rows].max() + recording.requests.max_tokens[rows].max()) - 1)
            final[rows] = width
        base[rows] = np.arange(len(rows)) * width
        num_units = max(num_units, len(rows) * width)
    if num_units > MAX_UNITS:
        raise RecordingError(
            f"recording {recording.name!r} has a batch of {num_units:,} slots; no server has more than {MAX_UNITS:,}."
        )

    request, step, position, length = (
        column.astype(np.int64)
        for column in (schedule.request, schedule.step, schedule.computed_before, schedule.tokens)
    )
    if preallocated:  # allocated when the batch begins
        request, step, position = request[opening], step[opening], position[opening]
        length, repeats = final[request], np.ones(len(request), np.int32)
    num_append, num_release = len(request), len(scheduled)
    kind = np.repeat(np.array([MemoryKind.APPEND, MemoryKind.RELEASE], np.uint8), (num_append, num_release))
    seq = np.concatenate((steps.schedule_seq[step], steps.output_seq[last_step[scheduled]]))
    order = np.argsort(seq, kind="stable")

    def column(appends: IntArray, releases: IntArray) -> IntArray:
        return np.concatenate((appends, releases))[order].astype(np.int32)

    memory = Memory(
        seq=seq[order],
        step=column(step, last_step[scheduled]),
        kind=kind[order],
        request=column(request, scheduled),
        position=column(position, np.zeros(num_release, np.int32)),
        address=column(base[request] + position, np.full(num_release, -1)),
        length=column(length, final[scheduled]),
        repeat=column(repeats, np.ones(num_release, np.int32)),
    )
    return replace(
        recording,
        meta=replace(
            recording.meta, pool=replace(recording.meta.pool, unit_tokens=1, num_units=num_units, first_unit=0)
        ),
        memory=memory,
    )
