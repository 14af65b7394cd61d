"""Checks of what is swapped to host memory and back: the computed tokens of preempted requests, while there is room."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.recording.by_request import RowsByRequest
from kvsim.recording.check_queue import Stays
from kvsim.recording.model import Recording
from kvsim.recording.rules import agree, require
from kvsim.recording.tables import IntArray, RequestStatus

_GIB = 1 << 30


class Admissions(NamedTuple):
    """Requests that begin to compute: the step of each, its computed tokens, and its tokens that are hits."""

    request: IntArray
    step: IntArray
    computed: IntArray
    hits: IntArray


def check_swaps(recording: Recording, stays: Stays, admitted: Admissions, file: Path) -> None:
    """Check that a request begins with its hits and the tokens that were swapped in, which left at its preemption.

    Raises:
        RecordingError: naming `file`, which has the steps, and the first row that disagrees.
    """
    steps = recording.steps
    if steps.swapped_in_units is None or steps.swapped_out_units is None:
        return
    unit_tokens = recording.meta.pool.unit_tokens
    came_units = -(-admitted.computed // unit_tokens) - admitted.hits // unit_tokens
    came_units[admitted.computed <= admitted.hits] = 0
    came = np.bincount(admitted.step, weights=came_units, minlength=len(steps)).astype(np.int64)
    agree(steps.swapped_in_units, came, file, "swapped_in_units", "schedule.parquet")
    if recording.has_drafts:
        _check_bounds(recording, steps.swapped_out_units, came, file)
    else:
        left = _swapped_out(recording, stays, admitted)
        agree(steps.swapped_out_units, left, file, "swapped_out_units", "schedule.parquet")


def _check_bounds(recording: Recording, stated: IntArray, came: npt.NDArray[np.int64], file: Path) -> None:
    """Check what left where no table says how many drafts were accepted, so that computed tokens are unknown."""
    steps, memory = recording.steps, recording.memory
    ends = memory.ends
    gone = np.searchsorted(steps.schedule_seq, memory.seq[ends])
    most = np.bincount(gone, weights=memory.length[ends], minlength=len(steps) + 1)[:-1]
    require(stated <= most, file, "swapped_out_units should be no more than memory.parquet gives back")
    so_far = np.cumsum(stated, dtype=np.int64)
    require(so_far >= np.cumsum(came), file, "swapped_in_units should be no more than went out before")


def _swapped_out(recording: Recording, stays: Stays, admitted: Admissions) -> npt.NDArray[np.int64]:
    """Count the units that leave in each step: all of a preempted request's computed tokens, or none without room."""
    steps, pool, requests = recording.steps, recording.meta.pool, recording.requests
    num_free = int(recording.meta.policy["swap_gib"] * _GIB) // pool.bytes_per_unit
    step = np.minimum(stays.end_step, len(steps) - 1)
    victims = np.flatnonzero((stays.end_step == step) & (steps.schedule_seq[step] == stays.end_seq))
    victims = victims[np.argsort(stays.end_row[victims])]
    request, step = stays.end_request[victims], step[victims]
    computed = RowsByRequest.of(recording).computed_before(recording.schedule, request, step)
    num_units = -(-computed // pool.unit_tokens)
    aborted = np.flatnonzero(requests.status == RequestStatus.ABORTED)
    aborted_step = np.searchsorted(steps.start_s, requests.finished_s[aborted])
    # In one step, aborts come first, and victims give way before others are admitted.
    events = [(at, 0, number, 0) for at, number in zip(aborted_step.tolist(), aborted.tolist(), strict=True)]
    columns = (step.tolist(), request.tolist(), num_units.tolist())
    events += [(at, 1, number, units) for at, number, units in zip(*columns, strict=True)]
    events += [(at, 2, number, 0) for at, number in zip(admitted.step.tolist(), admitted.request.tolist(), strict=True)]
    left, parked = np.zeros(len(steps), np.int64), dict[int, int]()
    for at, kind, number, units in sorted(events, key=lambda event: event[:2]):
        if kind != 1:
            num_free += parked.pop(number, 0)
        elif units <= num_free:
            num_free -= units
            parked[number] = units
            left[at] += units
    return left
