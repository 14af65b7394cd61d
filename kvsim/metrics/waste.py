"""Where every slot was, at every frame of a recording: running sums over the schedule and the memory events.

`Replay.slots` answers the question for one frame, unit by unit. Here it is answered for all frames at once, in time
proportional to the rows of the recording. Each run of units adds its slots when it is taken and removes them when it is
given back; each row of the schedule adds the tokens that it computes. A decoding row that stands for many steps is a
ramp, kept as a change of slope.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.metrics.ramps import Ramps, frames_of, ramp, running_sum
from kvsim.recording import Recording

if TYPE_CHECKING:
    from kvsim.recording.tables import FloatArray
    from kvsim.replay import Replay
    from kvsim.replay.by_unit import Successions

_NO_LIMIT = np.iinfo(np.int64).max // 2
"""A number above any number of slots, and far enough from overflow to be added to."""
_RUNS_AT_ONCE = 1 << 20
"""So many take some 100 MB on the way."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waste:
    """The slots of a pool by state, one row per frame: after each step was scheduled, and once more after the last."""

    time_s: FloatArray
    """Times at which the frames begin, in seconds from the first event: float64[num_frames]."""
    slots: npt.NDArray[np.int64]
    """Shape (num_frames, 8), in the order of `SlotState`; every row adds up to `capacity`."""
    held: npt.NDArray[np.int64]
    """Slots that requests hold, what the allocator rounded up included: int64[num_frames]."""
    capacity: int
    """Slots in the pool."""

    @property
    def occupancy(self) -> FloatArray:
        """Held part of the pool, 0 to 1: float64[num_frames]."""
        return self.held / self.capacity

    def mean_slots(self) -> FloatArray:
        """Slots in each state, averaged over time: float64[8]."""
        return time_mean(self.time_s, self.slots)


def time_mean(time_s: FloatArray, values: npt.NDArray[np.int64]) -> FloatArray:
    """Mean of `values` over time, along the first axis; each holds from its time to the next, the last for no time.

    Where no time passes at all, the values count equally.
    """
    weights = np.diff(time_s, append=time_s[-1])
    return np.average(values, axis=0, weights=weights if weights.sum() > 0 else None)


def waste(source: Replay | Recording) -> Waste:
    """Split the pool into the eight states at every frame.

    Slots are counted for what the allocator was asked for; what it rounded up to is `external`, as are the free slots
    that the engine reported unusable for the head of its queue. A unit that several requests share counts once.

    Raises:
        RecordingError: the recording has no steps.
    """
    if isinstance(source, Recording):
        from kvsim.replay import Replay  # noqa: PLC0415  a run whose steps are not kept is not played either

        replay = Replay(source)
    else:
        replay = source
    if replay.recording.meta.pool.groups:
        return _waste_of_groups(replay)
    asked = _Asked.of(replay)
    progress = Ramps(replay)
    written = progress.total_between(replay.pad, replay.full)
    overrun = progress.total_between(replay.full, np.full_like(replay.full, _NO_LIMIT))
    # A row that is written on beyond its last token has ended: its tokens are of no use any more.
    stale = progress.total_between(replay.full, replay.full + 1, weight=replay.full - replay.pad)

    held, cached = _held_and_cached(replay)
    capacity = replay.num_units * replay.unit_tokens
    free = capacity - held - cached
    unusable = np.minimum(_unusable(replay), free)

    slots = np.zeros((replay.num_frames, NUM_STATES), np.int64)
    # Several tables may list a unit that the pool has once.
    slots[:, SlotState.TOKEN] = written - stale - (asked.lengths - held)
    slots[:, SlotState.RESERVED] = asked.within_full - asked.within_pad - written
    slots[:, SlotState.INTERNAL] = asked.requested - asked.within_full - overrun
    slots[:, SlotState.PADDING] = asked.within_pad + overrun + stale
    slots[:, SlotState.CACHED] = cached
    slots[:, SlotState.EXTERNAL] = asked.lengths - asked.requested + unusable
    slots[:, SlotState.FREE] = free - unusable
    _check_account(replay, slots, capacity)
    return Waste(
        time_s=np.append(replay.recording.steps.start_s, replay.recording.duration_s),
        slots=slots,
        held=held,
        capacity=capacity,
    )


def _waste_of_groups(replay: Replay) -> Waste:
    """The account of a pool that several KV-cache groups share, where a slot is a byte."""
    from kvsim.metrics.group_totals import totals_of  # noqa: PLC0415  it knows this module's sums

    held, cached = _held_and_cached(replay)
    totals = totals_of(replay)
    capacity = replay.num_units * replay.unit_slots
    free = capacity - held - cached
    slots = np.zeros((replay.num_frames, NUM_STATES), np.int64)
    slots[:, SlotState.TOKEN] = totals.written - totals.shared - totals.expired
    slots[:, SlotState.RESERVED] = totals.useful - totals.written
    slots[:, SlotState.INTERNAL] = held + totals.shared - totals.useful
    slots[:, SlotState.EXPIRED] = totals.expired
    slots[:, SlotState.CACHED] = cached
    slots[:, SlotState.FREE] = free
    _check_account(replay, slots, capacity)
    return Waste(
        time_s=np.append(replay.recording.steps.start_s, replay.recording.duration_s),
        slots=slots,
        held=held,
        capacity=capacity,
    )


def _check_account(replay: Replay, slots: npt.NDArray[np.int64], capacity: int) -> None:
    """Raise where a state would have less than nothing or more than the pool: its tables contradict each other there.

    The reader compares what it can without following every unit; this is what is left.
    """
    wrong = (slots < 0) | (slots > capacity)
    if wrong.any():
        frame, state = (int(place[0]) for place in np.nonzero(wrong))
        raise RecordingError(
            f"recording {replay.recording.name!r} contradicts itself at step {frame}: {slots[frame, state]:,} slots "
            f"of its pool of {capacity:,} would be {SlotState(state).name.lower()}."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """Slots in all tables at every frame, a unit that several list counted for each: int64[num_frames]."""

    requested: npt.NDArray[np.int64]
    """Slots that were asked for."""
    lengths: npt.NDArray[np.int64]
    """Slots that were given."""
    within_full: npt.NDArray[np.int64]
    """Slots that were asked for, up to each request's last token."""
    within_pad: npt.NDArray[np.int64]
    """Slots up to there that stand in front of each request's first token."""

    @classmethod
    def of(cls, replay: Replay) -> _Asked:
        """Add up what each run of units adds to its table, some at a time: a long recording has tens of millions."""
        total = np.zeros((len(fields(cls)), replay.num_frames), np.int64)
        for begin in range(0, len(replay.ledger.tables.request), _RUNS_AT_ONCE):
            total += cls._of_runs(replay, begin, begin + _RUNS_AT_ONCE)
        return cls(**dict(zip((field.name for field in fields(cls)), total, strict=True)))

    @staticmethod
    def _of_runs(replay: Replay, begin: int, end: int) -> npt.NDArray[np.int64]:
        tables, rows, unit_tokens = replay.ledger.tables, slice(begin, end), replay.unit_tokens
        request, repeat = tables.request[rows], tables.repeat[rows]
        length = tables.length[rows].astype(np.int64) * unit_tokens
        # A run holds what was asked for in [low, high); low is where the run before it in its table ends.
        high = (tables.position[rows].astype(np.int64) + tables.requested[rows]) * unit_tokens
        before = max(begin - 1, 0)
        last_high = (int(tables.position[before]) + int(tables.requested[before])) * unit_tokens
        low = np.where(tables.position[rows] == 0, 0, np.concatenate(([last_high], high))[:-1])
        full, pad = replay.full[request], replay.pad[request]
        born, dead = frames_of(replay, tables.birth_seq[rows]), frames_of(replay, tables.death_seq[rows])
        growing = np.flatnonzero(repeat > 1)
        step_slots = length[growing] // repeat[growing]

        def alive(amount: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            if not len(growing):
                return running_sum(replay.num_frames, (born, amount), (dead, -amount))
            at_once = np.where(repeat > 1, 0, amount)
            return running_sum(replay.num_frames, (born, at_once), (dead, -amount)) + ramp(
                replay.num_frames, born[growing], step_slots, amount[growing]
            )

        return np.stack((
            alive(high - low),
            alive(length),
            alive(np.minimum(high, full) - np.minimum(low, full)),
            alive(np.minimum(high, pad) - np.minimum(low, pad)),
        ))  # fmt: skip


def _held_and_cached(replay: Replay) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Slots that requests hold, and free ones that still hold a prefix, at every frame."""
    ledger, tables, unit_slots = replay.ledger, replay.ledger.tables, replay.unit_slots
    memory = replay.recording.memory
    by_row = np.zeros((2, len(memory) + 1), np.int32)
    if ledger.unit_by_unit:
        by_row[0, :-1] = ledger.units_by_row()
        if ledger.is_shared or replay.recording.meta.prefix_caching:
            for part in ledger.successions(with_prefixes=True):
                _note(part, *by_row)
    else:
        for _, operations in ledger.parts():
            np.add.at(by_row[0], operations.row, (operations.change * operations.length).astype(np.int32))
    # Never more than there are units, of which an int32 can count all.
    np.cumsum(by_row, axis=1, out=by_row)
    rows = np.searchsorted(memory.seq, replay.frame_seq, side="right")
    held, cached = np.where(rows > 0, by_row[:, np.maximum(rows - 1, 0)], 0).astype(np.int64) * unit_slots
    growing = np.flatnonzero(tables.repeat > 1)
    if len(growing):  # the operation that takes a growing run takes what it has in its first step
        repeat, born = tables.repeat[growing], frames_of(replay, tables.birth_seq[growing])
        step_slots = tables.length[growing].astype(np.int64) // repeat * unit_slots
        held += ramp(replay.num_frames, born + 1, step_slots, step_slots * (repeat - 1))
    return held, cached


def _note(part: Successions, held: npt.NDArray[np.int32], cached: npt.NDArray[np.int32]) -> None:
    """Note, row by row, which units begin or cease to keep a prefix while nobody holds them; of those that are held,
    of which each holder was counted, count one.
    """
    one = np.int32(1)  # of the same type, which is many times as fast
    takes, is_held = part.until > part.row, part.is_held
    joins = np.flatnonzero(takes & is_held)
    np.subtract.at(held, part.row[joins], one)
    np.add.at(held, np.minimum(part.until[joins], part.held_until[joins]), one)
    is_last = takes & part.keeps
    is_last[joins] &= part.until[joins] > part.held_until[joins]
    np.add.at(cached, part.until[np.flatnonzero(is_last)], one)
    np.subtract.at(cached, part.row[np.flatnonzero(part.kept & ~is_held)], one)
    goes_on = joins[part.kept[joins] & (part.until[joins] > part.held_until[joins])]
    np.subtract.at(cached, part.held_until[goes_on], one)


def _unusable(replay: Replay) -> npt.NDArray[np.int64]:
    """Free slots that cannot serve the head of the queue, per frame; after the last step no request waits for any."""
    units = replay.recording.steps.unusable_units
    if units is None:
        return np.zeros(replay.num_frames, np.int64)
    return np.append(np.maximum(units, 0).astype(np.int64), 0) * replay.unit_tokens
