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
from kvsim.memory.waste import SlotState, SlotTotals
from kvsim.metrics.ramps import Ramps, frames_of, ramp, running_sum
from kvsim.recording import Recording

if TYPE_CHECKING:
    from kvsim.recording.tables import FloatArray, IntArray
    from kvsim.replay import Replay
    from kvsim.replay.by_unit import Successions

Numbers = npt.NDArray[np.int64]

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
    from kvsim.metrics.group_totals import group_totals  # noqa: PLC0415  a run whose steps are not kept is not played
    from kvsim.replay import Replay  # noqa: PLC0415

    replay = Replay(source) if isinstance(source, Recording) else source
    capacity = replay.num_units * replay.unit_slots
    held, cached = _held_and_cached(replay)
    totals = group_totals if replay.recording.meta.pool.groups else _totals
    slots = totals(replay, held, capacity - held, cached).states(capacity)
    _check_account(replay, slots, capacity)
    return Waste(
        time_s=np.append(replay.recording.steps.start_s, replay.recording.duration_s),
        slots=slots.T,
        held=held,
        capacity=capacity,
    )


def _totals(replay: Replay, held: Numbers, free: Numbers, cached: Numbers) -> SlotTotals:
    """The totals of a pool whose layers are alike, at every frame."""
    asked = _Asked.of(replay)
    progress = Ramps(replay)
    overrun = progress.total_between(replay.full, np.full_like(replay.full, _NO_LIMIT))
    # A row that is written on beyond its last token has ended: its tokens are of no use any more.
    stale = progress.total_between(replay.full, replay.full + 1, weight=replay.full - replay.pad)
    return SlotTotals(
        free=free,
        cached=cached,
        unusable=_unusable(replay),
        requested=asked.requested,
        rounding=asked.lengths - asked.requested,
        written=progress.total_between(replay.pad, replay.full) - stale,
        useful=asked.within_full - asked.within_pad - stale,
        padding=asked.within_pad + overrun + stale,
        shared=asked.lengths - held,  # several tables may list a unit that the pool has once
        expired=0,
    )


def _check_account(replay: Replay, slots: npt.NDArray[np.int64], capacity: int) -> None:
    """Raise where a state would have less than nothing or more than the pool: its tables contradict each other there.

    The reader compares what it can without following every unit; this is what is left.
    """
    wrong = (slots < 0) | (slots > capacity)
    if wrong.any():
        frame, state = (int(place[0]) for place in np.nonzero(wrong.T))
        raise RecordingError(
            f"recording {replay.recording.name!r} contradicts itself at step {frame}: {slots[state, frame]:,} slots "
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
        """Add up what the runs of units add to their tables, some at a time: a long recording has tens of millions."""
        total = np.zeros((len(fields(cls)), replay.num_frames), np.int64)
        first = replay.ledger.tables.together()
        behind = np.append(first[1:], len(replay.ledger.tables.birth_row))
        for begin in range(0, len(first), _RUNS_AT_ONCE):
            some = slice(begin, begin + _RUNS_AT_ONCE)
            total += cls._of_runs(replay, first[some], behind[some])
        return cls(**dict(zip((field.name for field in fields(cls)), total, strict=True)))

    @staticmethod
    def _of_runs(replay: Replay, first: IntArray, behind: IntArray) -> npt.NDArray[np.int64]:
        """What the runs [first, behind) of each table add, which came and went together."""
        tables, unit_tokens = replay.ledger.tables, replay.unit_tokens
        runs = tables.at(first)
        request, repeat = runs.request, runs.repeat
        units = np.add.reduceat(tables.at(slice(first[0], behind[-1])).length, first - first[0], dtype=np.int64)
        length = units * unit_tokens

        def end(of: IntArray) -> npt.NDArray[np.int64]:
            """Place behind what was asked for up to each of some runs."""
            upto = tables.at(of)
            return (upto.position.astype(np.int64) + upto.requested) * unit_tokens

        # They hold what was asked for in [low, high); low is where the run before them in their table ends.
        high = end(behind - 1)
        low = np.where(runs.position == 0, 0, end(np.maximum(first - 1, 0)))
        full, pad = replay.full[request], replay.pad[request]
        born, dead = frames_of(replay, runs.birth_seq), frames_of(replay, runs.death_seq)
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
    rows, num_frames = np.searchsorted(memory.seq, replay.frame_seq, side="right"), replay.num_frames
    held, cached = np.zeros((2, num_frames), np.int64)
    if ledger.unit_by_unit:
        held = ledger.units_before(rows)
        if ledger.is_shared or replay.recording.meta.prefix_caching:
            # The frame that shows each row, and one for what never happens.
            narrow = np.min_scalar_type(num_frames)
            frame = np.repeat(np.arange(num_frames + 1, dtype=narrow), np.diff(rows, prepend=0, append=len(memory) + 1))
            change = np.zeros((2, num_frames + 1), np.int64)
            change[1, 0] = len(ledger.initial_cached)
            for part in ledger.successions(with_prefixes=True):
                _note(part, frame, *change)
            held, cached = np.cumsum(change, axis=1)[:, :-1] + np.stack((held, cached))
    else:
        for _, operations in ledger.parts():
            units = operations.change * operations.length.astype(np.int64)
            held += running_sum(num_frames, (frames_of(replay, memory.seq[operations.row]), units))
    held, cached = held * unit_slots, cached * unit_slots
    growing = np.flatnonzero(tables.repeat > 1)
    if len(growing):  # the operation that takes a growing run takes what it has in its first step
        runs = tables.at(growing)
        repeat, born = runs.repeat, frames_of(replay, runs.birth_seq)
        step_slots = runs.length.astype(np.int64) // repeat * unit_slots
        held += ramp(replay.num_frames, born + 1, step_slots, step_slots * (repeat - 1))
    return held, cached


def _note(part: Successions, frame: IntArray, held: npt.NDArray[np.int64], cached: npt.NDArray[np.int64]) -> None:
    """Note in which frames units begin or cease to keep a prefix while nobody holds them; of those that several hold,
    of which each holder was counted, count one. `frame` is the first that shows each row.
    """
    takes, is_held = part.until > part.row, part.is_held
    joins = np.flatnonzero(takes & is_held)
    is_later = part.until[joins] > part.held_until[joins]

    def add(to: npt.NDArray[np.int64], rows: IntArray, amount: int) -> None:
        np.add.at(to, frame.take(rows), np.int64(amount))  # of one type, which is many times as fast

    add(held, part.row[joins], -1)
    add(held, np.minimum(part.until[joins], part.held_until[joins]), 1)
    is_last = takes & part.keeps
    is_last[joins] &= is_later
    add(cached, part.until[np.flatnonzero(is_last)], 1)
    add(cached, part.row[np.flatnonzero(part.kept & ~is_held)], -1)
    add(cached, part.held_until[joins[part.kept[joins] & is_later]], -1)


def _unusable(replay: Replay) -> npt.NDArray[np.int64]:
    """Free slots that cannot serve the head of the queue, per frame; after the last step no request waits for any."""
    units = replay.recording.steps.unusable_units
    if units is None:
        return np.zeros(replay.num_frames, np.int64)
    return np.append(np.maximum(units, 0).astype(np.int64), 0) * replay.unit_tokens
