"""Number of slots of the pool in each of the eight states, at every frame of a recording.

A frame is the state after a step was scheduled, or after the last step. An extent is a range of consecutive units that
one memory row gives to a request. `Replay.slots` gives the same numbers for one frame, unit by unit.

Two columns of `Replay` have an entry per request. `full` is the largest number of slots that the request fills, without
the useless tokens that it computes in a static batch after its last one. `pad` is how many of these slots are padding
before its tokens; 0 but in a static batch. A unit has `unit_slots` slots. Without KV-cache groups, each slot is for one
token, and `unit_tokens` is the same number.

This module computes all frames at once, by running sums, in time proportional to the rows of the recording. Each extent
adds its slots at its allocation and removes them at its release, and each schedule row adds its computed tokens. A row
that decodes for many steps is a ramp (see `ramps`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.memory.waste import SlotState, SlotTotals
from kvsim.metrics.gaps import Gaps
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
"""Larger than any number of slots, and small enough that adding to it cannot overflow."""
_EXTENTS_AT_ONCE = 1 << 20
"""Number of extents that are processed together. Their data takes about 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GapSlots:
    """Number of slots in each state in the gaps between steps, one row for each gap."""

    gaps: Gaps
    slots: npt.NDArray[np.int64]
    """Number of slots: int64[num_gaps, 8], in the order of `SlotState`."""
    held: npt.NDArray[np.int64]
    """Number of slots that requests hold: int64[num_gaps].

    They include slots that the allocator added to round up a request.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waste:
    """Number of slots in each state, one row for each frame: after each step was scheduled, and after the last step.

    If no step is in flight between the output of a step and the next step, `in_gaps` has the slots of that time.
    `with_gaps` puts all rows in order of time.
    """

    time_s: FloatArray
    """Time at which each frame begins, in seconds from the first event: float64[num_frames]."""
    slots: npt.NDArray[np.int64]
    """Number of slots: int64[num_frames, 8], in the order of `SlotState`; every row adds up to `capacity`."""
    held: npt.NDArray[np.int64]
    """Number of slots that requests hold: int64[num_frames].

    They include slots that the allocator added to round up a request.
    """
    capacity: int
    """Number of slots in the pool."""
    in_gaps: GapSlots | None = None
    """Slots in the gaps between steps. None in the result of `with_gaps`, which has the gaps among its rows."""

    def with_gaps(self) -> Waste:
        """Return the slots with a row for each frame, and a row for each gap that differs from the step before it."""
        if self.in_gaps is None:
            return self
        step, slots, held = self.in_gaps.gaps.step, self.in_gaps.slots, self.in_gaps.held
        differ = (slots != self.slots[step]).any(axis=1) | (held != self.held[step])
        after = step[differ] + 1
        return Waste(
            time_s=np.insert(self.time_s, after, self.in_gaps.gaps.begin_s[differ]),
            slots=np.insert(self.slots, after, slots[differ], axis=0),
            held=np.insert(self.held, after, held[differ]),
            capacity=self.capacity,
        )

    def at(self, times_s: FloatArray) -> npt.NDArray[np.int64]:
        """Return the slots in each state at each time, gaps included: int64[num_times, 8].

        Times before the first frame have the slots of the first frame, and times after the last one those of the last.
        """
        over_time = self.with_gaps()
        row = np.searchsorted(over_time.time_s, times_s, side="right") - 1
        return np.asarray(over_time.slots[np.maximum(row, 0)])

    @property
    def occupancy(self) -> FloatArray:
        """Share of the pool's slots that requests hold, 0 to 1: float64[num_frames]."""
        return self.held / self.capacity

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table: `time_s`, a column of slots for each state, and `held`."""
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
        """Return the mean number of slots in each state over time: float64[8]."""
        over_time = self.with_gaps()
        return time_mean(over_time.time_s, over_time.slots)


def time_mean(time_s: FloatArray, values: IntArray) -> FloatArray:
    """Return the mean of `values` over time, along the first axis.

    Each value is weighted by the seconds until the next one; the last has weight 0. If all times are equal, all values
    have equal weight.
    """
    weights = np.diff(time_s, append=time_s[-1])
    return np.average(values, axis=0, weights=weights if weights.sum() > 0 else None)


def means_between(time_s: FloatArray, values: npt.NDArray[Any], edges_s: FloatArray) -> FloatArray:
    """Return the mean of `values` over time in each interval between consecutive `edges_s`, along the first axis.

    A value holds from its entry in `time_s` until the next one. Before the first and after the last entry, it is 0.
    """
    columns = values.reshape(len(values), -1).astype(np.float64)
    area = np.vstack((np.zeros(columns.shape[1]), np.cumsum(np.diff(time_s)[:, None] * columns[:-1], axis=0)))
    at_edges = np.stack([np.interp(edges_s, time_s, column) for column in area.T], axis=1)
    return (np.diff(at_edges, axis=0) / np.diff(edges_s)[:, None]).reshape(-1, *values.shape[1:])


def waste(source: Replay | Recording) -> Waste:
    """Count the slots of the pool in each of the eight states at every frame.

    Two kinds of slots are `external`: slots that the allocator added by rounding, and free slots that the engine
    reported as unusable for the first request in its queue. A shared unit counts once.

    Raises:
        RecordingError: the recording has no steps.
    """
    from kvsim.replay import Replay  # noqa: PLC0415  a run without recorded steps is not replayed

    replay = Replay(source) if isinstance(source, Recording) else source
    slots, held = _account(replay, _unusable(replay))
    return Waste(
        time_s=np.append(replay.recording.steps.start_s, replay.recording.duration_s),
        slots=slots,
        held=held,
        capacity=replay.num_units * replay.unit_slots,
        in_gaps=_in_gaps(replay, slots, held),
    )


def _in_gaps(replay: Replay, slots: Numbers, held: Numbers) -> GapSlots:
    gaps, recording = Gaps.of(replay), replay.recording
    after_schedule, after_output = (
        np.searchsorted(recording.memory.seq, seq[gaps.step], side="right")
        for seq in (recording.steps.schedule_seq, recording.steps.output_seq)
    )
    if recording.steps.unusable_units is None and (after_schedule == after_output).all():
        return GapSlots(gaps=gaps, slots=slots[gaps.step], held=held[gaps.step])
    unusable = _unusable(replay)
    unusable[gaps.step[gaps.waiting == 0]] = 0
    slots, held = _account(replay.after_outputs(), unusable)
    return GapSlots(gaps=gaps, slots=slots[gaps.step], held=held[gaps.step])


def _account(replay: Replay, unusable: Numbers) -> tuple[Numbers, Numbers]:
    """Return the slots in each state, int64[num_frames, 8], and the held slots, int64[num_frames].

    `unusable` is as `_unusable` returns it.
    """
    from kvsim.metrics.group_totals import group_totals  # noqa: PLC0415

    capacity = replay.num_units * replay.unit_slots
    held, cached = _held_and_cached(replay)
    totals = group_totals if replay.recording.meta.pool.groups else _totals_of_one_group
    slots = totals(replay, capacity - held, cached, unusable).states(capacity)
    _check_totals(replay, slots, capacity)
    return slots.T, held


def _totals_of_one_group(replay: Replay, free: Numbers, cached: Numbers, unusable: Numbers) -> SlotTotals:
    """Return the totals at every frame for a pool without several KV-cache groups."""
    tables, held = _FrameSlots.of(replay), replay.num_units * replay.unit_slots - free
    progress = Ramps(replay)
    overrun = progress.total_between(replay.full, np.full_like(replay.full, _NO_LIMIT))
    # In a static batch, a request has finished once its row is written beyond its last token. From then on, all its
    # tokens are useless. `total_between` is 1 from when token `full + 1` is computed. Weighted with the number of live
    # tokens, it is the number of useless tokens.
    stale = progress.total_between(replay.full, replay.full + 1, weight=replay.full - replay.pad)
    return SlotTotals(
        free=free,
        cached=cached,
        unusable=unusable,
        rounding=tables.rounding,
        written=progress.total_between(replay.pad, replay.full) - stale,
        useful=tables.within_full - tables.within_pad - stale,
        padding=tables.within_pad + overrun + stale,
        shared=tables.lengths - held,  # each unit counts once in the pool, and once in every table that has it
        expired=0,
    )


def _check_totals(replay: Replay, slots: npt.NDArray[np.int64], capacity: int) -> None:
    """Check that every state has 0 to `capacity` slots at every frame. Otherwise the tables contradict each other."""
    wrong = (slots < 0) | (slots > capacity)
    if wrong.any():
        frame, state = (int(place[0]) for place in np.nonzero(wrong.T))
        raise RecordingError(
            f"recording {replay.recording.name!r} contradicts itself at step {frame}: {slots[state, frame]:,} slots "
            f"of its pool of {capacity:,} would be {SlotState(state).name.lower()}."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FrameSlots:
    """Numbers of slots in all block tables together, at every frame: int64[num_frames].

    A shared unit counts once per table.
    """

    lengths: npt.NDArray[np.int64]
    """Number of all slots."""
    rounding: npt.NDArray[np.int64]
    """Number of slots that no request asked for, because the allocator rounded up."""
    within_full: npt.NDArray[np.int64]
    """Number of requested slots within the full length of their request.

    The full length counts padding, and all tokens that get KV before the request ends.
    """
    within_pad: npt.NDArray[np.int64]
    """Number of requested slots in the padding before the first token of their request."""

    @classmethod
    def of(cls, replay: Replay) -> _FrameSlots:
        """Add up the slots of all extents, in parts, because a long recording has tens of millions of extents."""
        total = {field.name: np.zeros(replay.num_frames, np.int64) for field in fields(cls)}
        first = replay.ledger.tables.first_of_series()
        end = np.append(first[1:], len(replay.ledger.tables.birth_row))
        for begin in range(0, len(first), _EXTENTS_AT_ONCE):
            some = slice(begin, begin + _EXTENTS_AT_ONCE)
            for name, slots in cls._of_ranges(replay, first[some], end[some]).items():
                total[name] += slots
        return cls(**total)

    @staticmethod
    def _of_ranges(replay: Replay, first: IntArray, end: IntArray) -> dict[str, npt.NDArray[np.int64]]:
        """Return the slots of ranges of extents, by the names of the fields of this class.

        The extents [first[i], end[i]) of range i are in one table, and were allocated and released together.

        For example, let a request get 64 units of one slot at the beginning of its table. It has asked for 48, and
        fills 40. While it holds them, they add 64 to `lengths`, 16 to `rounding` and 40 to `within_full`.
        """
        tables, unit_tokens = replay.ledger.tables, replay.unit_tokens
        extents = tables.at(first)
        request, repeat = extents.request, extents.repeat
        units = np.add.reduceat(tables.at(slice(first[0], end[-1])).length, first - first[0], dtype=np.int64)
        length = units * unit_tokens

        def requested_end(rows: IntArray) -> npt.NDArray[np.int64]:
            """Return the offset in its table at which the requested slots of each extent end."""
            runs_at = tables.at(rows)
            return (runs_at.position.astype(np.int64) + runs_at.requested) * unit_tokens

        # A range of extents holds the requested slots [low, high) of its table. An extent may be longer than requested;
        # the requested slots of the next extent then begin where those of the extent before end. Single units are
        # never rounded up, and their positions are exact even if they replace other units.
        high = requested_end(end - 1)
        low = extents.position.astype(np.int64) * unit_tokens
        if not replay.ledger.unit_by_unit:
            low = np.where(low == 0, 0, requested_end(np.maximum(first - 1, 0)))
        full, pad = replay.full[request], replay.pad[request]
        born, dead = frames_of(replay, extents.birth_seq), frames_of(replay, extents.death_seq)
        growing = np.flatnonzero(repeat > 1)
        step_slots = length[growing] // repeat[growing]

        def sum_over_frames(amount: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            """Return, for every frame, the sum of `amount` over the ranges of extents that are held at the frame."""
            if not len(growing):
                return running_sum(replay.num_frames, (born, amount), (dead, -amount))
            at_once = np.where(repeat > 1, 0, amount)
            return running_sum(replay.num_frames, (born, at_once), (dead, -amount)) + ramp(
                replay.num_frames, born[growing], step_slots, amount[growing]
            )

        return {
            "lengths": sum_over_frames(length),
            "rounding": sum_over_frames(length - (high - low)),
            "within_full": sum_over_frames(np.minimum(high, full) - np.minimum(low, full)),
            "within_pad": sum_over_frames(np.minimum(high, pad) - np.minimum(low, pad)),
        }


def _held_and_cached(replay: Replay) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return, for every frame, the number of slots that requests hold, and of free slots with a cached prefix."""
    ledger, tables, unit_slots = replay.ledger, replay.ledger.tables, replay.unit_slots
    memory = replay.recording.memory
    rows, num_frames = np.searchsorted(memory.seq, replay.frame_seq, side="right"), replay.num_frames
    held, cached = np.zeros((2, num_frames), np.int64)
    if ledger.unit_by_unit:
        held = ledger.units_before(rows)
        if ledger.is_shared or replay.recording.meta.prefix_caching:
            # For each row, the first frame that shows it; the last entry is for units that are never freed.
            narrow = np.min_scalar_type(num_frames)
            frame = np.repeat(np.arange(num_frames + 1, dtype=narrow), np.diff(rows, prepend=0, append=len(memory) + 1))
            held_once, cached = np.zeros((2, num_frames + 1), np.int64)
            cached[0] = len(ledger.initial_cached)
            for part in ledger.successions(with_prefixes=True):
                _add_changes(part, frame, held_once, cached)
            held, cached = held + np.cumsum(held_once)[:-1], np.cumsum(cached)[:-1]
    else:
        for _, operations in ledger.parts():
            units = operations.change * operations.length.astype(np.int64)
            held += running_sum(num_frames, (frames_of(replay, memory.seq[operations.row]), units))
    held, cached = held * unit_slots, cached * unit_slots
    growing = np.flatnonzero(tables.repeat > 1)
    if len(growing):  # the sums above include only the units of a growing extent's first step
        extents = tables.at(growing)
        repeat, born = extents.repeat, frames_of(replay, extents.birth_seq)
        step_slots = extents.length.astype(np.int64) // repeat * unit_slots
        held += ramp(replay.num_frames, born + 1, step_slots, step_slots * (repeat - 1))
    return held, cached


def _add_changes(
    part: Successions, frame: IntArray, held_once: npt.NDArray[np.int64], cached: npt.NDArray[np.int64]
) -> None:
    """Add changes to `held_once` and `cached`, which the caller sums up over frames.

    `cached` gets the changes of the number of free units with a cached prefix. `held_once` corrects a count in which a
    unit counts once per holder: it gets -1 when a further request begins to hold a unit, and 1 when that ends. If two
    requests hold a unit from row 3 to row 9 and from row 5 to row 7, it is -1 from row 5 to row 7.

    `part` has consecutive uses of units. `frame` has, for each row of the memory table, the first frame that shows it.
    """
    takes, is_held = part.until > part.row, part.is_held
    joins = np.flatnonzero(takes & is_held)  # allocations of units that another request holds
    is_later = part.until[joins] > part.held_until[joins]

    def add(changes: npt.NDArray[np.int64], rows: IntArray, amount: int) -> None:
        # `np.add.at` is many times faster if both arrays have one type.
        np.add.at(changes, frame.take(rows), np.int64(amount))

    # While two requests hold a unit, it is counted twice: from the second allocation until the first release.
    add(held_once, part.row[joins], -1)
    add(held_once, np.minimum(part.until[joins], part.held_until[joins]), 1)
    # A unit becomes cached when its last holder releases it, until it is allocated again or evicted.
    is_last = takes & part.keeps
    is_last[joins] &= is_later
    add(cached, part.until[np.flatnonzero(is_last)], 1)
    add(cached, part.row[np.flatnonzero(part.kept & ~is_held)], -1)
    add(cached, part.held_until[joins[part.kept[joins] & is_later]], -1)


def _unusable(replay: Replay) -> npt.NDArray[np.int64]:
    """Return, for every frame, the number of free slots that the head of the queue cannot use.

    It is 0 after the last step, and at all frames if the recording does not state these slots.
    """
    units = replay.recording.steps.unusable_units
    if units is None:
        return np.zeros(replay.num_frames, np.int64)
    return np.append(np.maximum(units, 0).astype(np.int64), 0) * replay.unit_tokens
