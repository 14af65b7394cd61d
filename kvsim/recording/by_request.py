"""Look up the schedule by request: the steps that compute it, and the step that reaches a number of computed tokens.

The schedule of a recording has a row for each request and series of steps, and is sorted by step. The checks of a
recording use these look-ups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.policies import Radix
from kvsim.recording.model import Recording
from kvsim.recording.order import sort_key, stable_order
from kvsim.recording.tables import IntArray, Schedule

_NEVER = np.iinfo(np.int64).max


def first_rows(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """Return the scheduled requests in ascending order, and the first schedule row of each."""
    return np.unique(schedule.request, return_index=True)


def last_steps(recording: Recording, never: int = 0) -> npt.NDArray[np.int64]:
    """Return, for each request, the index of the last step that computes it; `never` if no step does."""
    schedule, last = recording.schedule, np.full(len(recording.requests), never, np.int64)
    np.maximum.at(last, schedule.request, schedule.step + schedule.repeats - 1)
    return last


def computed_after(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Return, for each schedule row, the number of its request's computed tokens after the row's last step."""
    return schedule.computed_before + schedule.tokens * schedule.repeats.astype(np.int64)


def rows_with_output(recording: Recording) -> Schedule:
    """Return the schedule without the computations whose output SGLang ignores.

    SGLang ignores the output of a step for a request that it retracted after the step was scheduled. The schedule of
    other engines is returned as it is.
    """
    schedule, steps, memory = recording.schedule, recording.steps, recording.memory
    if recording.meta.policy_name != Radix.name or not recording.requests.preemptions.any():
        return schedule
    ends, last = memory.end_rows, schedule.step + schedule.repeats - 1
    release_key = np.append(np.sort(sort_key(memory.request[ends], memory.seq[ends])), _NEVER)
    next_release = release_key[np.searchsorted(release_key, sort_key(schedule.request, steps.schedule_seq[last]))]
    is_ignored = next_release < sort_key(schedule.request, steps.output_seq[last])
    repeat = schedule.repeats - is_ignored  # only the last step of a row can be in flight at a retraction
    kept = np.flatnonzero(repeat > 0)
    columns = {name: getattr(schedule, name)[kept] for name in ("step", "request", "computed_before", "tokens")}
    return Schedule(**columns, repeat=repeat[kept])


class TokenSteps(NamedTuple):
    """Requests that reach a given number of computed tokens, and the first step after which each has reached it."""

    request: IntArray
    step: IntArray
    is_end: npt.NDArray[np.bool_]
    """True if the request has exactly the given number of tokens after the step; False if more."""

    @classmethod
    def of(cls, schedule: Schedule, tokens: IntArray) -> TokenSteps:
        """Find, for each request, the first step after which it has computed `tokens[request]` tokens.

        Requests for which this number is 0, and those that never reach it, are left out.
        """
        wanted, before = tokens[schedule.request], schedule.computed_before
        rows = np.flatnonzero((before < wanted) & (computed_after(schedule) >= wanted))
        request, first = np.unique(schedule.request[rows], return_index=True)
        row = rows[first]
        num_steps, left = np.divmod(wanted[row] - before[row], schedule.tokens[row])
        is_end = left == 0  # the last of `num_steps` steps reaches the number; otherwise the step after them
        return cls(request, schedule.step[row] + num_steps - is_end, is_end)


class RowsByRequest(NamedTuple):
    """Schedule rows, sorted by request and then by step."""

    row: npt.NDArray[np.int32]
    """Index of each row in the schedule."""
    key: npt.NDArray[np.int64]
    """One integer for the request and the first step of each row, from `sort_key`; ascending."""

    @classmethod
    def of(cls, recording: Recording) -> RowsByRequest:
        """Sort the schedule rows of a recording by request and then by step."""
        schedule = recording.schedule
        row = stable_order(schedule.request, len(recording.requests))
        return cls(row, sort_key(schedule.request[row], schedule.step[row]))

    def last_row_before(self, request: IntArray, step: IntArray) -> npt.NDArray[np.int32]:
        """Return the schedule index of each request's last row that begins before `step`, an array like `request`.

        Each request must have such a row.
        """
        return self.row[np.searchsorted(self.key, sort_key(request, step)) - 1]

    def computed_before(self, schedule: Schedule, request: IntArray, step: IntArray) -> npt.NDArray[np.int64]:
        """Return the number of tokens that each request has computed before `step`, with those of steps in flight."""
        row = self.last_row_before(request, step)
        num_steps = np.minimum(schedule.repeats[row], step - schedule.step[row])
        computed: npt.NDArray[np.int64] = (
            schedule.computed_before[row] + schedule.tokens[row].astype(np.int64) * num_steps
        )
        return computed


def first_rows_since(recording: Recording, request: IntArray, step: IntArray) -> IntArray:
    """Return the schedule row of each residency's first computation; -1 if the residency ends without one.

    A residency is the time from an admission of a request to the release of its memory. Residency i is of `request[i]`,
    and begins in `step[i]`.
    """
    by_request = RowsByRequest.of(recording)
    begins = sort_key(request, step)
    at = np.searchsorted(by_request.key, begins)
    first_key, first_row = np.append(by_request.key, _NEVER)[at], np.append(by_request.row, -1)[at]
    # A residency ends before the next residency of its request, or before the rows of the next request.
    in_order = np.append(np.sort(begins), _NEVER)
    next_begins = np.minimum(in_order[np.searchsorted(in_order, begins, side="right")], sort_key(request + 1, 0))
    return np.where(first_key < next_begins, first_row, -1)
