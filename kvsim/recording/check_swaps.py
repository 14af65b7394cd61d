"""Checks of what is swapped to host memory and back: the computed tokens of preempted requests, while there is room."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

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
    host = _HostRoom(recording, admitted)
    for event in _events(recording, stays, admitted):
        host.follow(event)
    agree(steps.swapped_out_units, host.left_units, file, "swapped_out_units", "schedule.parquet")
    rule = "a request should begin with its hits, or with what was swapped out"
    require(~np.isin(admitted.step, host.wrong_steps), file, rule, admitted.step)


class _SwapEvent(NamedTuple):
    """An abort, a preemption or an admission of a request; in one step they happen in this order."""

    step: int
    kind: int
    row: int
    """Row of the kind's own table, for admissions of `Admissions`."""
    request: int
    computed: int = 0
    """Computed tokens of a victim."""


_ABORT, _VICTIM, _ADMISSION = range(3)


def _events(recording: Recording, stays: Stays, admitted: Admissions) -> list[_SwapEvent]:
    """Return what changes the host memory, in order."""
    steps, requests = recording.steps, recording.requests
    aborted = np.flatnonzero(requests.status == RequestStatus.ABORTED)
    aborted_step = np.searchsorted(steps.start_s, requests.finished_s[aborted])
    step = np.minimum(stays.end_step, len(steps) - 1)
    victims = np.flatnonzero((stays.end_step == step) & (steps.schedule_seq[step] == stays.end_seq))
    victims = victims[np.argsort(stays.end_row[victims])]
    request, step = stays.end_request[victims], step[victims]
    computed = RowsByRequest.of(recording).computed_before(recording.schedule, request, step)
    kinds = (
        (_ABORT, aborted_step, aborted),
        (_VICTIM, step, request, computed),
        (_ADMISSION, admitted.step, admitted.request),
    )
    return sorted(
        _SwapEvent(at, kind, row, *values)
        for kind, *columns in kinds
        for row, (at, *values) in enumerate(zip(*(column.tolist() for column in columns), strict=True))
    )


class _HostRoom:
    """Host memory as events follow each other: it has all of a victim's computed tokens, or none without room."""

    def __init__(self, recording: Recording, admitted: Admissions) -> None:
        self._unit_tokens, self._admitted = recording.meta.pool.unit_tokens, admitted
        self._num_free = int(recording.meta.policy["swap_gib"] * _GIB) // recording.meta.pool.bytes_per_unit
        self._parked: dict[int, int] = {}
        """Tokens of each request on the host."""
        self.left_units = np.zeros(len(recording.steps), np.int64)
        """Units that leave in each step."""
        self.wrong_steps: list[int] = []
        """Steps in which a request begins with other tokens."""

    def follow(self, event: _SwapEvent) -> None:
        """Let the next event happen."""
        if event.kind == _VICTIM:
            num_units = -(-event.computed // self._unit_tokens)
            if num_units <= self._num_free:
                self._parked[event.request] = event.computed
                self._num_free -= num_units
                self.left_units[event.step] += num_units
            return
        parked = self._parked.pop(event.request, 0)
        self._num_free += -(-parked // self._unit_tokens)
        if event.kind == _ADMISSION:
            computed, hits = (int(column[event.row]) for column in (self._admitted.computed, self._admitted.hits))
            if computed != max(hits, parked):
                self.wrong_steps.append(event.step)
