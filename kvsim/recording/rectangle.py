"""Addresses for a recorded static batch, whose engine has none.

`generate()` holds one tensor per layer and grows it by a column a step; there is no pool and no address. To show it
beside the others, each batch is laid out as the rectangle it is: one row of slots per request, wide enough for the
batch's end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvsim.recording.model import Recording
from kvsim.recording.tables import Memory, MemoryKind


def with_addresses(recording: Recording) -> Recording:
    """Return `recording` with memory events and a pool; itself where it has them.

    A batch is the set of requests that were first scheduled in the same step. The pool is as large as the largest
    batch.
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
    np.maximum.at(final, schedule.request, schedule.computed_before.astype(np.int64) + schedule.tokens * repeats)

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

    index = np.repeat(np.arange(len(repeats)), repeats)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    request, step = schedule.request[index].astype(np.int64), schedule.step[index] + nth
    position = schedule.computed_before[index] + schedule.tokens[index] * nth
    length = schedule.tokens[index].astype(np.int64)
    if preallocated:  # all of it at once, when the batch begins
        opens = position == 0
        request, step, position = request[opens], step[opens], position[opens]
        length = final[request]
    num_append, num_release = len(request), len(scheduled)
    kind = np.repeat(np.array([MemoryKind.APPEND, MemoryKind.RELEASE], np.uint8), (num_append, num_release))
    seq = np.concatenate((steps.schedule_seq[step], steps.output_seq[last_step[scheduled]]))
    order = np.argsort(seq, kind="stable")
    memory = Memory(
        seq=seq[order],
        step=np.concatenate((step, last_step[scheduled]))[order],
        kind=kind[order],
        request=np.concatenate((request, scheduled))[order],
        position=np.concatenate((position, np.zeros(num_release, np.int64)))[order],
        address=np.concatenate((base[request] + position, np.full(num_release, -1)))[order],
        length=np.concatenate((length, final[scheduled]))[order],
    )
    return replace(
        recording,
        meta=replace(recording.meta, pool=replace(recording.meta.pool, num_units=num_units)),
        memory=memory,
    )
