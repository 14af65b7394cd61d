"""Compute the state of all slots at every frame of a recording, by running sums over its schedule and memory events.

`Replay.slots` does this for one frame, unit by unit. This module does it for all frames at once, in time proportional
to the rows of the recording. Each run of units adds its slots at its allocation and removes them at its release; each
row of the schedule adds its computed tokens. A decoding row of many steps is a ramp, stored as a change of slope.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.memory.waste import SlotState, SlotTotals
from kvsim.metrics.ramps import Ramps, frames_of, ramp, running_sum
from kvsim.recording import Recording
from kvsim.recording.tables import as_pandas

if TYPE_CHECKING:
    import pyarrow as pa

    from kvsim.recording.tables import FloatArray, IntArray
    from kvsim.replay import Replay
    from kvsim.replay.by_unit import Successions

Numbers = npt.NDArray[np.int64]

_NO_LIMIT = np.iinfo(np.int64).max // 2
"""Number above any number of slots, and small enough to be added to without overflow."""
_RUNS_AT_ONCE = 1 << 20
"""Runs processed together, in about 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waste:
    """Slots of a pool by state, one row per frame: after each step was scheduled, and once after the last step."""

    time_s: FloatArray
    """Begin of each frame in seconds from the first event: float64[num_frames]."""
    slots: npt.NDArray[np.int64]
    """Slots of shape (num_frames, 8), in the order of `SlotState`; every row adds up to `capacity`."""
    held: npt.NDArray[np.int64]
    """Slots held by requests, rounding included: int64[num_frames]."""
    capacity: int
    """Slots in the pool."""

    @property
    def occupancy(self) -> FloatArray:
        """Held share of the pool, 0 to 1: float64[num_frames]."""
        return self.held / self.capacity

    def to_arrow(self) -> pa.Table:
        """Return a row per frame: `time_s`, the slots in each state by the state's name, and `held`."""
        import pyarrow as pa  # noqa: PLC0415  slow to import, and few callers need it

        states = {state.name.lower(): self.slots[:, state] for state in SlotState}
        return pa.table({"time_s": self.time_s, **states, "held": self.held})

    def to_pandas(self) -> Any:
        """Return the columns of `to_arrow` as a `pandas.DataFrame`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return as_pandas(self.to_arrow())

    def mean_slots(self) -> FloatArray:
        """Return the slots in each state, averaged over time: float64[8]."""
        return time_mean(self.time_s, self.slots)


def time_mean(time_s: FloatArray, values: npt.NDArray[np.int64]) -> FloatArray:
    """Return the mean of `values` over time, along the first axis; each lasts until the next time, the last for 0 s.

    If no time passes at all, all values have equal weight.
    """
    weights = np.diff(time_s, append=time_s[-1])
    return np.average(values, axis=0, weights=weights if weights.sum() > 0 else None)


def waste(source: Replay | Recording) -> Waste:
    """Split the pool into the eight states at every frame.

    Requested slots are counted by state. Slots added by rounding are `external`, as are free slots that the engine
    reported as unusable for the head of its queue. A shared unit counts once.

    Raises:
        RecordingError: the recording has no steps.
    """
    from kvsim.metrics.group_totals import group_totals  # noqa: PLC0415  a run whose steps are not kept is not played
    from kvsim.replay import Replay  # noqa: PLC0415

    replay = Replay(source) if isinstance(source, Recording) else source
    capacity = replay.num_units * replay.unit_slots
    held, cached = _held_and_cached(replay)
    totals = group_totals if replay.recording.meta.pool.groups else _totals
    slots = totals(replay, capacity - held, cached).states(capacity)
    _check_account(replay, slots, capacity)
    return Waste(
        time_s=np.append(replay.recording.steps.start_s, replay.recording.duration_s),
        slots=slots.T,
        held=held,
        capacity=capacity,
    )


def _totals(replay: Replay, free: Numbers, cached: Numbers) -> SlotTotals:
    """Return the totals at every frame, for a pool with one kind of layers."""
    asked, held = _FrameSlots.of(replay), replay.num_units * replay.unit_slots - free
    progress = Ramps(replay)
    overrun = progress.total_between(replay.full, np.full_like(replay.full, _NO_LIMIT))
    # A static row written beyond its last token has ended: its tokens are useless.
    stale = progress.total_between(replay.full, replay.full + 1, weight=replay.full - replay.pad)
    return SlotTotals(
        free=free,
        cached=cached,
        unusable=_unusable(replay),
        rounding=asked.rounding,
        written=progress.total_between(replay.pad, replay.full) - stale,
        useful=asked.within_full - asked.within_pad - stale,
        padding=asked.within_pad + overrun + stale,
        shared=asked.lengths - held,  # several tables may contain a unit that the pool has once
        expired=0,
    )


def _check_account(replay: Replay, slots: npt.NDArray[np.int64], capacity: int) -> None:
    """Raise an error if a state has negative slots or more than the pool: the tables contradict each other.

    The reader has checked everything that needs no replay of single units.
    """
    wrong = (slots < 0) | (slots > capacity)
    if wrong.any():
        frame, state = (int(place[0]) for place in np.nonzero(wrong.T))
        raise RecordingError(
            f"recording {replay.recording.name!r} contradicts itself at step {frame}: {slots[state, frame]:,} slots "
            f"of its pool of {capacity:,} would be {SlotState(state).name.lower()}."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FrameSlots:
    """Slots in all tables at every frame, with shared units counted for each table: int64[num_frames]."""

    lengths: npt.NDArray[np.int64]
    """Allocated slots."""
    rounding: npt.NDArray[np.int64]
    """Allocated slots beyond the requested ones."""
    within_full: npt.NDArray[np.int64]
    """Requested slots up to each request's last token."""
    within_pad: npt.NDArray[np.int64]
    """Requested slots before each request's first token."""

    @classmethod
    def of(cls, replay: Replay) -> _FrameSlots:
        """Sum the slots of all runs, in parts: a long recording has tens of millions."""
        total = np.zeros((len(fields(cls)), replay.num_frames), np.int64)
        first = replay.ledger.tables.together()
        behind = np.append(first[1:], len(replay.ledger.tables.birth_row))
        for begin in range(0, len(first), _RUNS_AT_ONCE):
            some = slice(begin, begin + _RUNS_AT_ONCE)
            total += cls._of_runs(replay, first[some], behind[some])
        return cls(**dict(zip((field.name for field in fields(cls)), total, strict=True)))

    @staticmethod
    def _of_runs(replay: Replay, first: IntArray, behind: IntArray) -> npt.NDArray[np.int64]:
        """Return the slots of the runs [first, behind) of each table, which were allocated and released together."""
        tables, unit_tokens = replay.ledger.tables, replay.unit_tokens
        runs = tables.at(first)
        request, repeat = runs.request, runs.repeat
        units = np.add.reduceat(tables.at(slice(first[0], behind[-1])).length, first - first[0], dtype=np.int64)
        length = units * unit_tokens

        def end(of: IntArray) -> npt.NDArray[np.int64]:
            """Return the position behind the requested slots of some runs."""
            upto = tables.at(of)
            return (upto.position.astype(np.int64) + upto.requested) * unit_tokens

        # Runs hold the requested slots in [low, high); low is the end of the previous run of the table, if lengths are
        # rounded up. Single units are not, and may replace others.
        high = end(behind - 1)
        low = runs.position.astype(np.int64) * unit_tokens
        if not replay.ledger.unit_by_unit:
            low = np.where(low == 0, 0, end(np.maximum(first - 1, 0)))
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
            alive(length),
            alive(length - (high - low)),
            alive(np.minimum(high, full) - np.minimum(low, full)),
            alive(np.minimum(high, pad) - np.minimum(low, pad)),
        ))  # fmt: skip


def _held_and_cached(replay: Replay) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the slots held by requests, and the free slots with a cached prefix, at every frame."""
    ledger, tables, unit_slots = replay.ledger, replay.ledger.tables, replay.unit_slots
    memory = replay.recording.memory
    rows, num_frames = np.searchsorted(memory.seq, replay.frame_seq, side="right"), replay.num_frames
    held, cached = np.zeros((2, num_frames), np.int64)
    if ledger.unit_by_unit:
        held = ledger.units_before(rows)
        if ledger.is_shared or replay.recording.meta.prefix_caching:
            # The frame that shows each row, and one for rows that never occur.
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
    if len(growing):  # the allocation of a growing run includes only its first step
        runs = tables.at(growing)
        repeat, born = runs.repeat, frames_of(replay, runs.birth_seq)
        step_slots = runs.length.astype(np.int64) // repeat * unit_slots
        held += ramp(replay.num_frames, born + 1, step_slots, step_slots * (repeat - 1))
    return held, cached


def _note(part: Successions, frame: IntArray, held: npt.NDArray[np.int64], cached: npt.NDArray[np.int64]) -> None:
    """Record the frames in which free units gain or lose a prefix, and count each shared unit once.

    `frame` is the first frame that shows each row.
    """
    takes, is_held = part.until > part.row, part.is_held
    joins = np.flatnonzero(takes & is_held)
    is_later = part.until[joins] > part.held_until[joins]

    def add(to: npt.NDArray[np.int64], rows: IntArray, amount: int) -> None:
        np.add.at(to, frame.take(rows), np.int64(amount))  # equal types are many times as fast

    add(held, part.row[joins], -1)
    add(held, np.minimum(part.until[joins], part.held_until[joins]), 1)
    is_last = takes & part.keeps
    is_last[joins] &= is_later
    add(cached, part.until[np.flatnonzero(is_last)], 1)
    add(cached, part.row[np.flatnonzero(part.kept & ~is_held)], -1)
    add(cached, part.held_until[joins[part.kept[joins] & is_later]], -1)


def _unusable(replay: Replay) -> npt.NDArray[np.int64]:
    """Return the free slots that cannot serve the head of the queue, per frame; 0 after the last step."""
    units = replay.recording.steps.unusable_units
    if units is None:
        return np.zeros(replay.num_frames, np.int64)
    return np.append(np.maximum(units, 0).astype(np.int64), 0) * replay.unit_tokens
