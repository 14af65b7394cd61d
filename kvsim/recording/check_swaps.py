"""Check swaps: with `swap_gib`, the computed tokens of a preempted request move to the host if there is room.

The host memory is replayed, and its swapped units are compared with those that the steps state.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvsim.recording.by_request import RowsByRequest
from kvsim.recording.check_queue import ResidencyRows
from kvsim.recording.model import Recording
from kvsim.recording.rules import agree, require
from kvsim.recording.tables import IntArray, RequestStatus

_GIB = 1 << 30


class Admissions(NamedTuple):
    """Admitted requests, each at the step in which it begins to compute."""

    request: IntArray
    step: IntArray
    computed: IntArray
    """Number of tokens that the request has computed before the step: its prefix hits, or what was swapped in."""
    hits: IntArray
    """Number of tokens of the request that are prefix hits."""


def check_swaps(recording: Recording, residencies: ResidencyRows, admitted: Admissions, file: Path) -> None:
    """Check that an admitted request begins with its hits, or with its swapped-out tokens if these are more.

    The columns `swapped_in_units` and `swapped_out_units` of the steps are checked as well. A recording without them is
    not checked.
    """
    steps = recording.steps
    if steps.swapped_in_units is None or steps.swapped_out_units is None:
        return
    unit_tokens = recording.meta.pool.unit_tokens
    units = -(-admitted.computed // unit_tokens) - admitted.hits // unit_tokens
    units[admitted.computed <= admitted.hits] = 0
    swapped_in = np.bincount(admitted.step, weights=units, minlength=len(steps)).astype(np.int64)
    agree(steps.swapped_in_units, swapped_in, file, "swapped_in_units", "schedule.parquet")
    host = _HostRoom(recording, admitted)
    for event in _events(recording, residencies, admitted):
        host.apply(event)
    agree(steps.swapped_out_units, host.swapped_out, file, "swapped_out_units", "schedule.parquet")
    rule = "a request should begin with its hits, or with what was swapped out"
    require(~np.isin(admitted.step, host.wrong_steps), file, rule, admitted.step)


class _SwapEvent(NamedTuple):
    """Abort, preemption or admission of a request. Within a step, these happen in the order of `kind`."""

    step: int
    kind: int
    row: int
    """Index in `Admissions` for an admission. For an abort or a preemption, it only says in which order they happen."""
    request: int
    computed: int = 0


_ABORT, _VICTIM, _ADMISSION = range(3)


def _events(recording: Recording, residencies: ResidencyRows, admitted: Admissions) -> list[_SwapEvent]:
    """Return all swap events in the order in which they happen."""
    steps, requests = recording.steps, recording.requests
    aborted = np.flatnonzero(requests.status == RequestStatus.ABORTED)
    aborted_step = np.searchsorted(steps.start_s, requests.finished_s[aborted])
    step = np.minimum(residencies.end_step, len(steps) - 1)
    # A residency that ends while a step is scheduled ends by a preemption.
    victims = np.flatnonzero((residencies.end_step == step) & (steps.schedule_seq[step] == residencies.end_seq))
    victims = victims[np.argsort(residencies.end_row[victims])]
    request, step = residencies.end_request[victims], step[victims]
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
    """State of the host memory. It stores all computed tokens of a preempted request; without enough room, none."""

    def __init__(self, recording: Recording, admitted: Admissions) -> None:
        self._unit_tokens, self._admitted = recording.meta.pool.unit_tokens, admitted
        self._num_free = int(recording.meta.policy["swap_gib"] * _GIB) // recording.meta.pool.bytes_per_unit
        self._parked: dict[int, int] = {}
        self.swapped_out = np.zeros(len(recording.steps), np.int64)
        self.wrong_steps: list[int] = []

    def apply(self, event: _SwapEvent) -> None:
        if event.kind == _VICTIM:
            num_units = -(-event.computed // self._unit_tokens)
            if num_units <= self._num_free:
                self._parked[event.request] = event.computed
                self._num_free -= num_units
                self.swapped_out[event.step] += num_units
            return
        parked = self._parked.pop(event.request, 0)
        self._num_free += -(-parked // self._unit_tokens)
        if event.kind == _ADMISSION:
            computed, hits = (int(column[event.row]) for column in (self._admitted.computed, self._admitted.hits))
            if computed != max(hits, parked):
                self.wrong_steps.append(event.step)
