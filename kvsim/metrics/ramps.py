"""Sums over requests at every frame of a recording, from jumps and ramps.

A jump is an amount that is added at one frame; a ramp is an equal amount that is added at each of several frames. The
time grows with the rows of a recording, not with its tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import expanded, sort_key

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray
    from kvsim.replay import Replay


def frames_of(replay: Replay, seq: IntArray) -> npt.NDArray[np.int64]:
    """Return the first frame at or after each event number in `seq`; `num_frames` if there is none."""
    return np.searchsorted(replay.frame_seq, seq)


def running_sum(num_frames: int, *changes: tuple[IntArray, IntArray]) -> npt.NDArray[np.int64]:
    """Return, for every frame, the sum of all amounts that were added at this frame or before.

    Each of `changes` is a pair of arrays: frames, and the amounts to add at these frames. Changes after the last frame
    are ignored.
    """
    total = np.zeros(num_frames + 1, np.int64)
    for frames, amounts in changes:
        np.add.at(total, frames, amounts)
    return np.cumsum(total)[:-1]


def ramp(num_frames: int, begin: IntArray, step: IntArray, amount: IntArray) -> npt.NDArray[np.int64]:
    """Return, for every frame, the sum of ramps. Each grows by `step` per frame from `begin` on, up to `amount`."""
    whole_steps = amount // step
    complete = begin + whole_steps
    slope = running_sum(num_frames, (begin, step), (complete, -step))
    return np.cumsum(slope) + running_sum(num_frames, (complete, amount - whole_steps * step))


class Ramps:
    """Computed tokens of every request while it holds memory: for each schedule row a jump, then one token per frame.

    With a row, the request has `first` computed tokens at frame `begin`, and one more in each of the next `rise`
    frames. The row is valid until frame `end`, at which the request's next row begins or its memory is released.
    """

    def __init__(self, replay: Replay) -> None:
        """Build the ramps from the schedule of a recording."""
        schedule, self._num_frames = replay.recording.schedule, replay.num_frames
        repeats = schedule.repeats.astype(np.int64)
        # Split rows that compute more than one token per step into one row per step: only a slope of one reaches every
        # limit exactly at a frame. Few rows repeat a larger chunk.
        copies = np.where(schedule.tokens > 1, repeats, 1)
        index, nth = expanded(copies)
        request, tokens = schedule.request[index].astype(np.int64), schedule.tokens[index].astype(np.int64)
        begin = schedule.step[index] + nth
        first = schedule.computed_before[index] + tokens * (nth + 1)
        rise = np.where(copies[index] == repeats[index], 0, repeats[index] - 1)

        # A request that waits for blocks from the host holds those that it found in the pool.
        waits = replay.progress.waiting
        request, begin = np.append(request, waits.request), np.append(begin, waits.step)
        first, rise = np.append(first, waits.hit_tokens), np.append(rise, np.zeros_like(waits.step))
        order = np.lexsort((begin, request))
        request, begin, first, rise = (values[order] for values in (request, begin, first, rise))
        end = np.full(len(request), self._num_frames)
        same = request[1:] == request[:-1]
        end[:-1][same] = begin[1:][same]
        end = np.minimum(end, self._end_of_residency(replay, request, begin))
        kept = end > begin
        self._request, self._begin, self._first, self._end = (values[kept] for values in (request, begin, first, end))
        self._rise = np.minimum(rise[kept], self._end - self._begin - 1)

    def total_between(
        self, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64], weight: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.int64]:
        """Return, for every frame, the number of computed tokens at positions [low, high), summed over all requests.

        `low`, `high` and `weight` have an entry for each request. Each token counts `weight` times; once if it is None.
        """
        low, high = low[self._request], high[self._request]
        each = np.ones(len(low), np.int64) if weight is None else weight[self._request]
        begin, end, first, rise = self._begin, self._end, self._first, self._rise
        at_begin, at_end = np.clip(first, low, high) - low, np.clip(first + rise, low, high) - low
        # Token number n + 1 counts if low <= n < high, and is computed at frame begin + (n + 1 - first).
        slope_from = begin + np.clip(low - first + 1, 1, rise + 1)
        slope_to = np.maximum(begin + np.clip(high - first + 1, 1, rise + 1), slope_from)
        slope = running_sum(self._num_frames, (slope_from, each), (slope_to, -each))
        return running_sum(self._num_frames, (begin, each * at_begin), (end, -each * at_end)) + np.cumsum(slope)

    @staticmethod
    def _end_of_residency(replay: Replay, request: IntArray, begin: IntArray) -> npt.NDArray[np.int64]:
        """Return the frame at which each request releases the memory that it holds at frame `begin`.

        It is 0 for a request that holds no memory at that frame.
        """
        held = replay.ledger.tables.residencies
        if not len(held.request):
            return np.zeros(len(request), np.int64)
        # A move keeps computed tokens, so find the last of the residencies that it joins.
        is_last = np.append(~held.continues_previous[1:], True)
        last = np.flatnonzero(is_last)[np.cumsum(is_last) - is_last]
        born, dead = frames_of(replay, held.birth_seq), frames_of(replay, held.death_seq[last])
        residency = np.searchsorted(sort_key(held.request, born), sort_key(request, begin), side="right") - 1
        exists = residency >= 0
        exists[exists] = held.request[residency[exists]] == request[exists]
        end = np.zeros(len(request), np.int64)
        end[exists] = dead[residency[exists]]
        return end
