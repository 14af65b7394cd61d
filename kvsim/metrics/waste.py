"""Where every slot was, at every frame of a recording: running sums over the schedule and the memory events.

`Replay.slots` answers the question for one frame, unit by unit. Here it is answered for all frames at once, in time
proportional to the rows of the recording. Each run of units adds its slots when it is taken and removes them when it is
given back; each row of the schedule adds the tokens that it computes. A decoding row that stands for many steps is a
ramp, kept as a change of slope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.recording import Recording, Replay

if TYPE_CHECKING:
    from kvsim.recording.tables import FloatArray, IntArray

_NO_LIMIT = np.iinfo(np.int64).max // 2
"""Above any number of slots, and far enough from overflow to be added to."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waste:
    """The slots of a pool by state, one row per frame: after each step was scheduled, and once more after the last."""

    time_s: FloatArray
    """When each frame begins, in seconds from the first event: float64[num_frames]."""
    slots: npt.NDArray[np.int64]
    """Shape (num_frames, 7), in the order of `SlotState`; every row adds up to `capacity`."""
    held: npt.NDArray[np.int64]
    """Slots in somebody's hands, what the allocator rounded up included: int64[num_frames]."""
    capacity: int
    """Slots in the pool."""

    @property
    def occupancy(self) -> FloatArray:
        """Held part of the pool, 0 to 1: float64[num_frames]."""
        return self.held / self.capacity

    def mean_slots(self) -> FloatArray:
        """Slots in each state, averaged over time: float64[7]."""
        return time_mean(self.time_s, self.slots)


def time_mean(time_s: FloatArray, values: npt.NDArray[np.int64]) -> FloatArray:
    """Mean of `values` over time, along the first axis; each holds from its time to the next, the last for no time.

    Where no time passes at all, the values count equally.
    """
    weights = np.diff(time_s, append=time_s[-1])
    return np.average(values, axis=0, weights=weights if weights.sum() > 0 else None)


def waste(source: Replay | Recording) -> Waste:
    """Split the pool into the seven states at every frame.

    Slots are counted for what the allocator was asked for; what it rounded up to is `external`, as are the free slots
    that the engine reported unusable for the head of its queue. A unit that several requests share counts once.

    Raises:
        RecordingError: the recording has no steps.
    """
    replay = source if isinstance(source, Replay) else Replay(source)
    unit_tokens, num_frames = replay.unit_tokens, replay.num_frames
    tables, ledger = replay.ledger.tables, replay.ledger

    # What each run of units adds to its table: requested slots [low, high), and `length` of them in all.
    high = (tables.position + tables.requested) * unit_tokens
    low = np.where(tables.position == 0, 0, np.concatenate(([0], high))[:-1])
    full, pad = replay.full[tables.request], replay.pad[tables.request]
    born, dead = _frames(replay, tables.birth_seq), _frames(replay, tables.death_seq)

    def alive(amount: IntArray) -> npt.NDArray[np.int64]:
        return _running_sum(num_frames, (born, amount), (dead, -amount))

    requested = alive(high - low)
    lengths = alive(tables.length * unit_tokens)
    within_full = alive(np.minimum(high, full) - np.minimum(low, full))
    within_pad = alive(np.minimum(high, pad) - np.minimum(low, pad))

    progress = _Ramps(replay)
    written = progress.total_between(replay.pad, replay.full)
    overrun = progress.total_between(replay.full, np.full_like(replay.full, _NO_LIMIT))
    # A row that is written on beyond its last token has ended: its tokens are of no use to anybody.
    stale = progress.total_between(replay.full, replay.full + 1, weight=replay.full - replay.pad)

    op_frame, op_slots = _frames(replay, ledger.seq), ledger.length * unit_tokens
    held = _running_sum(num_frames, (op_frame, _changes(ledger.address, ledger.refs > 0) * op_slots))
    cached = _running_sum(num_frames, (op_frame, _changes(ledger.address, ledger.cached) * op_slots))
    capacity = replay.num_units * unit_tokens
    free = capacity - held - cached
    unusable = np.minimum(_unusable(replay), free)

    slots = np.zeros((num_frames, NUM_STATES), np.int64)
    slots[:, SlotState.TOKEN] = (
        written - stale - (lengths - held)
    )  # several tables may list a unit that the pool has once
    slots[:, SlotState.RESERVED] = within_full - within_pad - written
    slots[:, SlotState.INTERNAL] = requested - within_full - overrun
    slots[:, SlotState.PADDING] = within_pad + overrun + stale
    slots[:, SlotState.CACHED] = cached
    slots[:, SlotState.EXTERNAL] = lengths - requested + unusable
    slots[:, SlotState.FREE] = free - unusable
    return Waste(
        time_s=np.append(replay.recording.steps.start_s, replay.recording.duration_s),
        slots=slots,
        held=held,
        capacity=capacity,
    )


def _frames(replay: Replay, seq: IntArray) -> npt.NDArray[np.int64]:
    """The first frame that shows what happened at each `seq`; `num_frames` where none does."""
    return np.searchsorted(replay.frame_seq, seq)


def _running_sum(num_frames: int, *changes: tuple[IntArray, IntArray]) -> npt.NDArray[np.int64]:
    """The running sum of amounts that are added at frames, given as (frames, amounts); beyond the last, none counts."""
    total = np.zeros(num_frames + 1, np.int64)
    for frames, amounts in changes:
        np.add.at(total, frames, amounts)
    return np.cumsum(total)[:-1]


def _changes(address: IntArray, state: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """+1 or -1 where an operation turns `state` of its address on or off, 0 where it stays. All are off at first."""
    order = np.argsort(address, kind="stable")
    after = state[order].astype(np.int64)
    before = np.concatenate(([0], after))[:-1]
    before[np.diff(address[order], prepend=-1) != 0] = 0
    changes = np.empty_like(after)
    changes[order] = after - before
    return changes


def _unusable(replay: Replay) -> npt.NDArray[np.int64]:
    """Free slots that cannot serve the head of the queue, per frame; after the last step nobody waits for any."""
    units = replay.recording.steps.unusable_units
    if units is None:
        return np.zeros(replay.num_frames, np.int64)
    return np.append(np.maximum(units, 0).astype(np.int64), 0) * replay.unit_tokens


class _Ramps:
    """Computed tokens of every request while it holds memory: a jump at each row of the schedule, then a slope of one.

    A row has computed `first` tokens at frame `begin`, one more in each of the `rise` frames after it, and stands until
    `end`, where the next row of the same request takes over or the request's memory is given back.
    """

    def __init__(self, replay: Replay) -> None:
        schedule, self._num_frames = replay.recording.schedule, replay.num_frames
        repeats = schedule.repeats.astype(np.int64)
        # Only a slope of one crosses every limit at a whole frame; rows that repeat a larger chunk are few.
        copies = np.where(schedule.tokens > 1, repeats, 1)
        index = np.repeat(np.arange(len(repeats)), copies)
        nth = np.arange(len(index)) - np.repeat(np.cumsum(copies) - copies, copies)
        request, tokens = schedule.request[index].astype(np.int64), schedule.tokens[index].astype(np.int64)
        begin = schedule.step[index] + nth
        first = schedule.computed_before[index] + tokens * (nth + 1)
        rise = np.where(copies[index] == repeats[index], 0, repeats[index] - 1)

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
        """Computed tokens in the slots [low, high) of each request, times its weight, added up at every frame."""
        low, high = low[self._request], high[self._request]
        each = np.ones(len(low), np.int64) if weight is None else weight[self._request]
        begin, end, first, rise = self._begin, self._end, self._first, self._rise
        at_begin, at_end = np.clip(first, low, high) - low, np.clip(first + rise, low, high) - low
        # Token number n + 1 counts if low <= n < high, and is computed at frame begin + (n + 1 - first).
        slope_from = begin + np.clip(low - first + 1, 1, rise + 1)
        slope_to = np.maximum(begin + np.clip(high - first + 1, 1, rise + 1), slope_from)
        slope = _running_sum(self._num_frames, (slope_from, each), (slope_to, -each))
        return _running_sum(self._num_frames, (begin, each * at_begin), (end, -each * at_end)) + np.cumsum(slope)

    @staticmethod
    def _end_of_residency(replay: Replay, request: IntArray, begin: IntArray) -> npt.NDArray[np.int64]:
        """The frame at which each row's request gives its memory back; 0 where it holds none at `begin`."""
        tables = replay.ledger.tables
        first = np.flatnonzero(tables.position == 0)
        if not len(first):
            return np.zeros(len(request), np.int64)
        birth_seq, death_seq = tables.birth_seq[first], tables.death_seq[first]
        # What gives its memory back and takes other at the same moment has moved, and what it computed with it.
        stays = np.append(
            (tables.request[first][1:] != tables.request[first][:-1]) | (birth_seq[1:] != death_seq[:-1]), True
        )
        last = np.flatnonzero(stays)[np.cumsum(stays) - stays]
        born, dead = _frames(replay, birth_seq), _frames(replay, death_seq[last])
        key = tables.request[first] * (replay.num_frames + 1) + born
        residency = np.searchsorted(key, request * (replay.num_frames + 1) + begin, side="right") - 1
        found = residency >= 0
        found[found] = tables.request[first][residency[found]] == request[found]
        end = np.zeros(len(request), np.int64)
        end[found] = dead[residency[found]]
        return end
