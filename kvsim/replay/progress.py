"""Computed tokens of requests over time, looked up in the schedule of a recording.

The state of a slot depends on the number of tokens that its request has computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.recording.model import Recording
from kvsim.recording.order import sort_key, stable_order
from kvsim.recording.tables import IntArray


class Waits(NamedTuple):
    """Waits for loads: allocations by requests that load blocks before they compute."""

    request: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    """Step in which the request allocates memory."""
    hit_tokens: npt.NDArray[np.int64]
    """Number of tokens of the request that count as computed from `step` on."""


class Progress:
    """Number of computed tokens of any request after any step. A lookup takes logarithmic time."""

    def __init__(self, recording: Recording) -> None:
        schedule = recording.schedule
        self._num_steps = len(recording.steps)
        order = stable_order(schedule.request, len(recording.requests))
        self._step = schedule.step[order].astype(np.int64)
        self._before = schedule.computed_before[order].astype(np.int64)
        self._tokens = schedule.tokens[order].astype(np.int64)
        self._repeats = schedule.repeats[order].astype(np.int64)
        request = schedule.request[order]
        self._key = sort_key(request, self._step)
        self._known = None if schedule.known is None else schedule.known[order].astype(np.int64)
        self._in_all = recording.requests.prompt_tokens.astype(np.int64) + recording.requests.output_tokens
        num_requests = len(recording.requests)
        self._first_row = np.searchsorted(request, np.arange(num_requests + 1))
        self.initial = np.zeros(num_requests, np.int64)
        """Largest number of computed tokens that each request had before the recording began."""
        if (before := recording.meta.initial_computed) is not None:
            self.initial[: len(before)] = before
        self.most_computed = self.initial.copy()
        """Largest number of computed tokens that each request has, across preemptions: the slots that it needs."""
        np.maximum.at(self.most_computed, request, self._before + self._tokens * self._repeats)
        self.first_tokens = np.zeros(num_requests, np.int64)
        """Number of tokens that each request computes in its first step; 0 without a step."""
        nothing = np.zeros(0, np.int64)
        self.waiting = Waits(nothing, nothing, nothing)
        """Waits of requests for their loads; empty before `reset`."""
        scheduled = self._first_row[1:] > self._first_row[:-1]
        self.first_tokens[scheduled] = self._tokens[self._first_row[:-1][scheduled]]

    def reset(self, requests: IntArray, steps: IntArray, hit_tokens: IntArray) -> None:
        """Set the computed tokens of each of `requests` to its `hit_tokens`, in the step in which it allocates memory.

        The schedule has no row for this step if the request loads blocks first. Without a reset, tokens that a
        preemption discarded would count until the request computes again. If the step computes the request, the
        schedule has the computed tokens, and `hit_tokens` is ignored.
        """
        key = sort_key(requests, steps)
        place = np.searchsorted(self._key, key)
        is_scheduled = np.append(self._key, -1)[place] == key
        waits = np.flatnonzero((steps < self._num_steps) & ~is_scheduled)
        waits = waits[np.argsort(key[waits])]
        place, request = place[waits], requests[waits].astype(np.int64)
        self.waiting = Waits(request, np.asarray(steps)[waits].astype(np.int64), hit_tokens[waits].astype(np.int64))
        self._key = np.insert(self._key, place, key[waits])
        self._step = np.insert(self._step, place, self.waiting.step)
        self._before = np.insert(self._before, place, self.waiting.hit_tokens)
        self._tokens, self._repeats = np.insert(self._tokens, place, 0), np.insert(self._repeats, place, 0)
        if self._known is not None:  # a waiting request knows the tokens of its next step
            self._known = np.insert(self._known, place, np.append(self._known, 0)[place])
        self._first_row += np.searchsorted(request, np.arange(len(self._first_row)))

    def computed(self, requests: IntArray, steps: IntArray | int) -> npt.NDArray[np.int64]:
        """Return, for each of `requests`, its number of computed tokens right after its step in `steps` was scheduled;
        0 before its first step.

        `steps` has one step for each request, or is one step for all requests.

        The requests must hold memory: after a preemption, the discarded tokens still count until it runs again.
        """
        if not len(self._key):
            return np.zeros(len(requests), np.int64)
        row, times, exists = self._newest(requests, steps)
        return np.where(exists, self._before[row] + self._tokens[row] * times, 0)

    def newest_step(self, requests: IntArray, steps: IntArray) -> npt.NDArray[np.int64]:
        """Return, for each of `requests`, the last step up to its step in `steps` in which it computes; -1 for none."""
        row, times, exists = self._newest(requests, steps)
        return np.where(exists, self._step[row] + times - 1, -1)

    def is_loading(self, requests: IntArray, steps: IntArray) -> npt.NDArray[np.bool_]:
        """Tell, for each of `requests`, whether it has begun a load from host memory or another server, up to and
        including its step in `steps`, and has not computed since.
        """
        row, _, exists = self._newest(requests, steps)
        is_loading: npt.NDArray[np.bool_] = exists & (np.append(self._repeats, 1)[row] == 0)
        return is_loading

    def num_steps(self, requests: IntArray, steps: IntArray) -> npt.NDArray[np.int64]:
        """Return, for each of `requests`, the number of its computing steps, up to its step in `steps` included."""
        row, times, exists = self._newest(requests, steps)
        before = np.cumsum(self._repeats) - self._repeats
        return np.where(exists, before[row] - before[self._first_row[requests]] + times, 0)

    def known(self, requests: IntArray, steps: IntArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return two arrays, with an entry for each of `requests`: its number of known tokens in its newest step up to
        and including its step in `steps`, and in its next step after that one.

        Known tokens are those of the prompt and of processed outputs, without drafts. If a request has no later step,
        the second number is that of all its tokens. Both are 0 before the request's first step. There must be drafts.
        """
        assert self._known is not None
        row, _, exists = self._newest(requests, steps)
        later = np.append(self._known, 0)[row + 1]
        is_last = row + 1 >= self._first_row[np.asarray(requests) + 1]
        later = np.where(is_last, self._in_all[requests], later)
        return np.where(exists, self._known[row], 0), np.where(exists, later, 0)

    def reached(self, requests: IntArray, steps: IntArray) -> npt.NDArray[np.int64]:
        """Return, for each of `requests`, the largest number of computed tokens that it has had, up to and including
        its step in `steps`.

        Tokens that a preemption discarded count.
        """
        row, times, exists = self._newest(requests, steps)
        # Keep the rows of requests apart, so that the running maximum begins anew with every request.
        apart = sort_key(np.repeat(np.arange(len(self.most_computed)), np.diff(self._first_row)), 0)
        most = np.maximum.accumulate(apart + self._before + self._tokens * self._repeats) - apart
        earlier = np.where(row > self._first_row[requests], most[row - 1], 0)
        return np.where(exists, np.maximum(earlier, self._before[row] + self._tokens[row] * times), 0)

    def _newest(self, requests: IntArray, steps: IntArray | int) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
        """Return three arrays with an entry for each of `requests`: its last row that begins at or before `steps`, the
        number of the row's steps up to and including `steps`, and whether there is such a row.

        Rows are indices in the order of request and step. Without a row, the first two numbers have no meaning.
        """
        row = np.searchsorted(self._key, sort_key(np.asarray(requests), steps), side="right") - 1
        exists = row >= self._first_row[requests]
        row = np.where(exists, row, 0)
        return row, np.minimum(steps - self._step[row] + 1, self._repeats[row]), exists

    def most_tokens(self, request: int, step: int) -> int:
        """Return the largest number of computed tokens that `request` has had up to and including `step`.

        Tokens that a preemption discarded count: they are known, although their KV must be computed again. Unlike in
        `reached`, rejected drafts do not count.
        """
        rows = slice(*self._first_row[request : request + 2])
        times = np.minimum(step - self._step[rows] + 1, self._repeats[rows])
        reached = self._before[rows] + self._tokens[rows] * times
        most = int(reached.max(where=times > 0, initial=self.initial[request]))
        if self._known is None:
            return most
        [known_later] = self.known(np.array([request]), np.array([step]))[1]
        return min(most, int(known_later) - 1) if known_later else most  # 0 before the first step

    def computed_before(self, request: int, step: int) -> int | None:
        """Return the number of tokens that `request` has computed before `step`; None if `step` does not compute it."""
        [row], _, [exists] = self._newest(np.array([request]), step)
        if not exists or step - self._step[row] >= self._repeats[row]:
            return None
        return int(self._before[row] + self._tokens[row] * (step - self._step[row]))
