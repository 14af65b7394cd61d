"""Replay a recording: go to any step, forward or backward at the same cost.

A frame shows the pool right after a step was scheduled. One more frame shows it after the last release. If no step is
in flight after the output of a step, its frame has a second state: the pool after that output.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from numbers import Integral, Real
from threading import Lock

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.memory.waste import NUM_STATES
from kvsim.recording.holdings import Extents
from kvsim.recording.model import Recording
from kvsim.recording.order import expanded, sort_key
from kvsim.recording.tables import FloatArray, IntArray
from kvsim.replay.few_units import FewUnits
from kvsim.replay.growing_extents import GrowingExtents
from kvsim.replay.ledger import Ledger
from kvsim.replay.progress import Progress
from kvsim.replay.rectangle import with_addresses
from kvsim.replay.resets import reset_at_allocations
from kvsim.replay.unit_slots import Numbers, UnitContents, slots_of_groups, slots_of_units, table_groups
from kvsim.replay.unit_states import SingleUnits, UnitStates
from kvsim.replay.waiting import Waiting
from kvsim.setting_fields import check_instance

_UNITS_AT_ONCE = 1 << 16
"""Number of units that are split into states together, so that their data fits into the CPU cache."""


class Replay:
    """The pool of a recording at any of its frames. The unit at address `first_unit + i` has the number i.

    After `seek`, the arrays `owner`, `position`, `refs` and `cached` (one entry per unit) describe the pool. They are
    read-only, and change at the next seek.
    """

    def __init__(self, recording: Recording) -> None:
        """Index `recording` for seeking.

        Raises:
            RecordingError: it has no steps, or allocates a unit while a request holds it.
        """
        check_instance("the recording", recording, Recording, "one that was read, as kvsim.read returns it")
        if not len(recording.steps):
            raise RecordingError(f"recording {recording.name!r} has no steps, so there is nothing to replay.")
        self.recording = recording = with_addresses(recording)
        self.progress = Progress(recording)
        self.ledger = Ledger(recording, self.progress)
        pool, steps = recording.meta.pool, recording.steps
        assert pool.num_units is not None  # `with_addresses` adds one
        self.num_units: int = pool.num_units
        self.unit_tokens = pool.unit_tokens
        self.unit_slots = pool.unit_slots
        self.groups = table_groups(pool)
        """KV-cache groups; a single one, with full attention, for most models."""
        self.first_unit = pool.first_unit
        self.num_frames = len(steps) + 1
        self.frame_seq = np.append(steps.schedule_seq, max(steps.output_seq.max(), recording.memory.seq.max(initial=0)))
        """Number (`seq`) of the last event that each frame includes."""
        is_gap = steps.output_seq[:-1] < steps.schedule_seq[1:]
        self._has_gap = np.concatenate((is_gap, [False, False]))
        self._gap_seq = np.where(self._has_gap, np.append(steps.output_seq, 0), self.frame_seq)
        reset_at_allocations(self.progress, self.ledger, recording, self.frame_seq)
        self.pad = self._padding_per_request()
        self.full = self._full_per_request()
        self._index_tables()
        self._waiting = Waiting(recording, self.ledger, self.progress)

        self._growth = GrowingExtents(self.ledger.tables, self.frame_seq)
        self.frame = 0
        self.after_output = False
        """True if the pool is shown after the output of the frame's step, False if right after its scheduling."""
        self._contents: UnitStates | None = None
        # A seek while another thread creates the contents must move them, too.
        self._moving = Lock()

    @property
    def _states(self) -> UnitStates:
        """Contents of each unit, created on first use, because sums over the pool do not need them."""
        with self._moving:
            if self._contents is None:
                self._contents = UnitStates.of(self.ledger, self.num_units, self.first_unit)
                self._show(self._contents)
            return self._contents

    @property
    def owner(self) -> npt.NDArray[np.int32]:
        """One of the requests that hold each unit; `NO_OWNER` if none does."""
        return self._states.owner

    @property
    def position(self) -> npt.NDArray[np.int32]:
        """Index of each unit in its owner's table."""
        return self._states.position

    @property
    def refs(self) -> npt.NDArray[np.int32]:
        """Number of requests that hold each unit."""
        return self._states.refs

    @property
    def cached(self) -> npt.NDArray[np.bool_]:
        """True for each unit in the prefix cache that no request holds."""
        return self._states.cached

    def after_outputs(self) -> Replay:
        """Return another replay of the recording whose frames show the pool after the output of their step.

        If another step is in flight at that output, the frame shows the pool right after the scheduling of its step.
        """
        later = copy(self)
        later.frame_seq = self._gap_seq
        later._computed_by_live = self._computed_by_live.copy()
        later._contents, later._moving = None, Lock()
        return later

    def occupied(self) -> npt.NDArray[np.int64]:
        """Return the units that are held or in the prefix cache at the current frame, in order of address."""
        units: npt.NDArray[np.int64] = np.flatnonzero((self.refs > 0) | self.cached)
        return units

    @property
    def group(self) -> npt.NDArray[np.int16]:
        """Index of the KV-cache group of the table that holds each unit; empty if the model has one group."""
        return self._states.group

    @property
    def time_s(self) -> float:
        """Time of the current frame, in seconds from the first event."""
        return self.time_of(self.frame)

    def time_of(self, frame: int) -> float:
        """Return the time at which `frame` begins, in seconds from the first event."""
        steps = self.recording.steps
        return float(steps.start_s[frame]) if frame < len(steps) else self.recording.duration_s

    def frame_at(self, time_s: float) -> int:
        """Return the last frame that begins at or before `time_s`; 0 if none does."""
        check_instance("time_s", time_s, Real, "a number of seconds")
        if time_s >= self.recording.duration_s:
            return self.num_frames - 1
        return max(0, int(np.searchsorted(self.recording.steps.start_s, time_s, side="right")) - 1)

    def in_gap(self, frames: IntArray, times_s: FloatArray) -> npt.NDArray[np.bool_]:
        """Tell, for each pair of `frames` and `times_s`, whether the time is in the gap after the frame's step.

        In a gap, the output of the step is processed and no other step is in flight.
        """
        end_s = np.append(self.recording.steps.end_s, np.inf)
        return np.asarray(self._has_gap[frames] & (times_s >= end_s[frames]))

    @property
    def seq(self) -> int:
        """Number (`seq`) of the last event that the current state includes."""
        return self._seq_at(self.frame, after_output=self.after_output)

    def _seq_at(self, frame: int, *, after_output: bool) -> int:
        return int((self._gap_seq if after_output else self.frame_seq)[frame])

    def seek(self, frame: int, *, after_output: bool = False) -> None:
        """Make `frame` the current frame. A number beyond the recording becomes that of the first or last frame.

        With `after_output`, show the pool after the output of the frame's step, if no step is in flight at that output.
        """
        check_instance("frame", frame, Integral, "a whole number")
        with self._moving:
            self.frame, self.after_output = min(max(frame, 0), self.num_frames - 1), after_output
            if self._contents is not None:
                self._show(self._contents)

    def _show(self, states: UnitStates) -> None:
        afresh = states.go_to(int(self.ledger.ops_until(self.seq)), self.seq)
        if len(self._growth):
            self._growth.show(states, self.frame, self.seq, afresh=afresh)

    def num_ops(self, frame: int) -> int:
        """Return the number of operations on units up to and including `frame`."""
        return int(self.ledger.ops_until(self.frame_seq[frame]))

    def freed_between(self, before: int, after: int) -> IntArray:
        """Return the units that become free after frame `before`, up to and including frame `after`.

        If `before` is -1, this is from the beginning of the recording on. A unit freed several times is repeated.
        """
        return self._states.freed(self.num_ops(before) if before >= 0 else 0, self.num_ops(after))

    def warm_up(self) -> None:
        """Build all keyframes, so that later seeks are fast. Thread-safe."""
        self._states.warm_up()

    def changed_units(self, before: int, after: int) -> Numbers:
        """Return the units whose state may differ between two frames, ascending.

        One of the two must be the current frame.
        """
        low, high = sorted((before, after))
        units = self._states.units_of(self.num_ops(low), self.num_ops(high))
        residencies = self._live_residencies(self.seq)
        live = self.ledger.tables.residencies.request[residencies].astype(np.int64)
        old, new = (self.computed_at(live, frame) for frame in (low, high))
        # If a request of a static batch finishes before the batch, its whole row becomes padding.
        old = np.where((old <= self.full[live]) & (new > self.full[live]), 0, old)
        growing = new > old
        written = self._units_written(residencies[growing], old[growing], new[growing])
        grown = self._growth.units_between(low, high) - self.first_unit if len(self._growth) else units[:0]
        units = np.concatenate((units, written, grown))
        if len(units) < self.num_units // 64:
            return np.unique(units)
        is_touched = np.zeros(self.num_units, np.bool_)
        is_touched[units] = True
        return np.flatnonzero(is_touched)

    def live_requests(self) -> Numbers:
        """Return the requests that hold memory at the current frame, in order of admission."""
        return self._live_at(self.seq)

    def _live_at(self, seq: int) -> Numbers:
        held = self.ledger.tables.residencies
        live: Numbers = held.request[self._live_residencies(seq)].astype(np.int64)
        return live

    def waiting_requests(self) -> Numbers:
        """Return the requests that wait at the current frame: preempted ones first, each kind in order of arrival."""
        return self._waiting.at(self.seq, self.time_s, self.live_requests())

    def block_table(self, request: int, group: int | None = None) -> tuple[IntArray, IntArray]:
        """Return two arrays with an entry for each unit that `request` holds at the current frame: its index in the
        block table, and its address.

        If `group` is given, only units of this KV-cache group are returned.
        """
        tables = self.ledger.tables
        rows = tables.held(request, self.seq)
        if group is not None:
            rows = rows[tables.at(rows).group == group]
        extents, extent, offset = self._units_in(rows)
        return extents.position[extent] + offset, extents.address[extent] + offset

    def block_tables(self) -> tuple[Numbers, Numbers, IntArray]:
        """Return three arrays: the requests that hold memory at the current frame, in order of admission; and for each
        of their units, the index of its holder among these requests, and its address.
        """
        tables, live = self.ledger.tables, self.live_requests()
        begin, end = tables.first_of_request[live], tables.first_of_request[live + 1]
        holder, nth = expanded(end - begin)
        rows = begin[holder] + nth
        held = (tables.birth_seq[rows] <= self.seq) & (tables.death_seq[rows] > self.seq)
        extents, extent, offset = self._units_in(rows[held])
        return live, holder[held][extent].astype(np.int64), extents.address[extent] + offset

    def _units_in(self, indices: IntArray) -> tuple[Extents, IntArray, IntArray]:
        """Return the extents at `indices` in the tables of the ledger, and two arrays with an entry for each unit that
        they have at the current frame: the index of its extent in `indices`, and its offset in the extent.
        """
        extents = self.ledger.tables.at(indices)
        lengths = extents.length
        if len(self._growth):
            lengths = self._growth.lengths_at(self.frame, indices, lengths)
        return extents, *expanded(lengths)

    def computed_at(self, requests: IntArray, frames: IntArray | int) -> Numbers:
        """Return the number of computed tokens of each of `requests` right after the step of its frame was scheduled.

        `frames` has one frame for each request, or is one frame for all. Each request must hold memory at its frame.
        """
        return self.progress.computed(requests, np.minimum(frames, self.num_frames - 2))

    def computed(self, requests: IntArray) -> Numbers:
        """Return the number of computed tokens of each of `requests` at the current frame. All must hold memory."""
        return self.computed_at(requests, self.frame)

    def slots(self, units: IntArray | slice = slice(None)) -> Numbers:
        """Return the number of slots of each unit in each state: int64[units, 8], in the order of `SlotState`. Each row
        adds up to the unit's size.

        Slots in the state `external` count as `free` here: they are free, but in ranges too short for the first waiting
        request. Whether they are in this state depends on the whole pool and the queue.
        """
        if self.recording.meta.pool.groups:
            return slots_of_groups(self, units)
        return self._split(self._contents_of(self._states, units, self.frame, self.seq))

    def states_at(
        self,
        frames: Sequence[int],
        units: IntArray | slice = slice(None),
        after_output: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[npt.NDArray[np.uint8], IntArray]:
        """Return two arrays of shape (frames, units): the state that most slots of each unit have, and its owner.

        If several states have equally many slots, it is the first one in `SlotState`. The owner of a free unit is
        `NO_OWNER`. `after_output[i]` is the argument `after_output` of `seek` for `frames[i]`; if it is None, all are
        False. This may move the replay to another frame.
        """
        num_units = len(range(self.num_units)[units] if isinstance(units, slice) else units)
        after = [False] * len(frames) if after_output is None else after_output.tolist()
        few, pool, shown = self._pool_with(units, num_units)
        states = np.empty((len(frames), num_units), np.uint8)
        owners = np.empty((len(frames), num_units), np.int32)
        at_once = max(1, _UNITS_AT_ONCE // max(num_units, 1))
        for begin in range(0, len(frames), at_once):
            part, contents, slots = slice(begin, begin + at_once), list[UnitContents](), list[Numbers]()
            # Collect the contents of several frames, and split them into states together.
            for nth, frame in enumerate(frames[part], start=begin):
                seq = self._seq_at(frame, after_output=after[nth])
                if few is None:
                    self.seek(frame, after_output=after[nth])
                else:
                    pool.go_to(few.ops_until(int(self.ledger.ops_until(seq))), seq)
                owners[nth] = pool.owner[shown]
                if self.recording.meta.pool.groups:
                    slots.append(self.slots(units))
                else:
                    contents.append(self._contents_of(pool, shown, frame, seq))
            if contents:
                slots = [self._split(UnitContents(*map(np.stack, zip(*contents, strict=True))))]
            states[part] = np.concatenate(slots).reshape(-1, num_units, NUM_STATES).argmax(axis=-1)
        return states, owners

    def _pool_with(
        self, units: IntArray | slice, num_units: int
    ) -> tuple[FewUnits | None, UnitStates, IntArray | slice]:
        """Return the pool in which `units` are replayed fastest, and the numbers of `units` in it.

        It is a sample with its contents if `units` are a small part of the pool. Otherwise it is the whole pool, and
        None takes the place of the sample.
        """
        if isinstance(units, slice) or not FewUnits.is_faster(self.ledger, num_units, self.num_units):
            return None, self._states, units
        addresses = self.first_unit + np.asarray(units)
        few = FewUnits(self.ledger, addresses)
        return few, SingleUnits(few, few.end_of_pool, 0), few.numbers_of(addresses)

    def _contents_of(self, pool: UnitStates, units: IntArray | slice, frame: int, seq: int) -> UnitContents:
        live = self._live_at(seq)
        self._computed_by_live[live] = self.computed_at(live, frame)
        owner = pool.owner[units].copy()  # NO_OWNER is -1, the last entry of `_computed_by_live`
        return UnitContents(
            owner=owner,
            position=pool.position[units].copy(),
            is_shared=pool.refs[units] > 1,
            is_cached=pool.cached[units].copy(),
            computed=self._computed_by_live[owner],
        )

    def _split(self, contents: UnitContents) -> Numbers:
        return slots_of_units(
            contents, unit_tokens=self.unit_tokens, pad=self.pad, full=self.full, requested=self._requested
        )

    def held_extents(self) -> IntArray:
        """Return the indices in `ledger.tables` of the extents that are held at the current frame."""
        tables, seq = self.ledger.tables, self.seq
        extents: IntArray = np.flatnonzero((tables.birth_seq <= seq) & (tables.death_seq > seq))
        return extents

    def _live_residencies(self, seq: int) -> Numbers:
        """Return the indices of the residencies (from admission to release) that are under way right after event `seq`,
        in order of admission.
        """
        begin, end = (np.searchsorted(edge, seq, "right") for edge in (self._all_dead_at, self._residency_birth))
        window = slice(begin, max(begin, end))
        alive = self.ledger.tables.residencies.death_seq[self._residencies[window]] > seq
        live: Numbers = self._residencies[window][alive]
        return live

    def _units_written(self, residencies: Numbers, old: Numbers, new: Numbers) -> Numbers:
        changed = [self._units_between(residencies, number, *span) for number, group in enumerate(self.groups)
                   for span in group.changed(old, new)]  # fmt: skip
        return np.concatenate(changed)

    def _units_between(self, residencies: Numbers, group: int, low: Numbers, high: Numbers) -> Numbers:
        """Return, for all i, the units [`low[i]`, `high[i]`) of the table of `residencies[i]` in KV-cache `group`."""
        tables, seq = self.ledger.tables, self.seq
        table = self._table_of[residencies, group]
        has = (table >= 0) & (high > low)
        table_key, low, high = sort_key(table[has], 0), low[has], high[has]
        # Several extents may have had one position, one after the other: start at the first of these.
        first = np.searchsorted(self._run_key, table_key + low)
        first = np.minimum(first, np.searchsorted(self._run_key, table_key + low, side="right") - 1)
        # A table may begin after positions that were never held.
        first = np.maximum(first, np.searchsorted(self._run_key, table_key, side="left"))
        last = np.maximum(np.searchsorted(self._run_key, table_key + high, side="left"), first)
        span, nth = expanded(last - first)
        rows = first[span] + nth
        # After a step backward, the table may be shorter.
        held = (tables.birth_seq[rows] <= seq) & (tables.death_seq[rows] > seq)
        span, rows = span[held], rows[held]
        begin = np.maximum(tables.position[rows], low[span])
        end = np.minimum(tables.position[rows] + tables.length[rows], high[span])
        extent, offset = expanded(np.maximum(end - begin, 0))
        address: Numbers = tables.address[rows] + begin - tables.position[rows]
        return address[extent] + offset - self.first_unit

    @cached_property
    def _run_key(self) -> Numbers:
        return sort_key(self.ledger.tables.table, self.ledger.tables.position)

    def _padding_per_request(self) -> Numbers:
        if self.recording.meta.policy_name != "static":
            return np.zeros(len(self.recording.requests), np.int64)
        pad: Numbers = np.maximum(self.progress.first_tokens - self.recording.requests.prompt_tokens, 0)
        return pad

    def _full_per_request(self) -> Numbers:
        """Return, for each request, the largest number of slots that it fills, with the padding before its tokens.

        A request of a static batch goes on computing after its last token. These slots do not count, nor does the last
        output token, which has no KV.
        """
        requests = self.recording.requests
        if self.recording.meta.policy_name != "static":
            return self.progress.most_computed
        full: Numbers = self.pad + np.maximum(requests.prompt_tokens + requests.output_tokens - 1, 0)
        return full

    def _index_tables(self) -> None:
        tables, requests = self.ledger.tables, self.recording.requests
        held = tables.residencies
        self._residencies: Numbers = np.argsort(held.birth_row, kind="stable")
        self._residency_birth = held.birth_seq[self._residencies]
        self._all_dead_at = np.maximum.accumulate(held.death_seq[self._residencies])
        self._table_of = np.full((len(held.request), len(self.groups)), -1, np.int64)
        residency = np.searchsorted(held.first_extent, tables.first_of_table, side="right") - 1
        self._table_of[residency, tables.at(tables.first_of_table).group] = np.arange(len(residency))
        last = tables.at(np.append(tables.first_of_table[1:], len(tables.birth_row))[: len(residency)] - 1)
        self._requested = np.zeros(len(requests), np.int64)
        np.maximum.at(self._requested, last.request, last.position + last.requested)
        self._requested *= self.unit_tokens
        self._computed_by_live = np.zeros(len(requests) + 1, np.int64)  # one more for units without an owner
