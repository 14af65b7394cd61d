"""State and paint of every unit of the pool at the replay's current frame.

From one frame to the next, only the units that changed are recomputed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.display.palette import NUM_HUES
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import tells_owners
from kvsim.replay.unfolding import NO_OWNER

from ..look.stack import EIGHTHS
from .free_queue import next_units
from .layer_kinds import places_of_units
from .paint import (
    AGE,
    AGES,
    DIM,
    EMPTY,
    FOLLOWED,
    FOLLOWED_SHARED,
    HOLDER_STEPS,
    HOLDERS,
    KIND,
    NEXT,
    OWNER,
    PARTLY,
    SHARED,
    ColorBy,
)

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from .array_types import IndexArray, MaskArray, PaintArray
    from .unit_changes import Lights

_UNITS_PER_SCATTERED_UNIT = 4
"""Number of consecutive units that are recomputed in the time of one scattered unit."""


class DrawnUnits:
    """State of every unit of the pool, updated from frame to frame.

    Three arrays have one uint8 per unit, in address order: `dominant` is the most frequent state of the unit's slots,
    `fill` the written part of the unit in eighths, rounded up, and `rest` the most frequent state of the others.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._frame, self._after_output = replay.frame, replay.after_output
        self.dominant = np.full(replay.num_units, SlotState.FREE, np.uint8)
        self.rest = np.full(replay.num_units, SlotState.FREE, np.uint8)
        self.fill = np.zeros(replay.num_units, np.uint8)
        self._recompute_all()

    def update(self) -> IndexArray:
        """Update to the replay's current frame; return the units that may look different now, in address order."""
        replay, before, was_after = self._replay, self._frame, self._after_output
        self._frame, self._after_output = replay.frame, replay.after_output
        if before == replay.frame and was_after == replay.after_output:
            return np.empty(0, np.int64)
        if was_after or replay.after_output or self._is_far(before):
            return self._recompute_all()
        units = replay.changed_units(before, replay.frame)
        if len(units):
            self._recompute(units)
        return units

    def _is_far(self, before: int) -> bool:
        replay = self._replay
        num_ops = abs(replay.num_ops(replay.frame) - replay.num_ops(before))
        return num_ops > replay.num_units // _UNITS_PER_SCATTERED_UNIT

    def _recompute_all(self) -> IndexArray:
        """Compute the state of every unit; return the units that were or are occupied."""
        before, now = np.flatnonzero(self.dominant != SlotState.FREE), self._replay.occupied()
        self.dominant[before] = self.rest[before] = SlotState.FREE
        self.fill[before] = 0
        self._recompute(now)
        return np.union1d(before, now)

    def _recompute(self, units: IndexArray) -> None:
        slots = self._replay.slots(units)  # counts: shape (units, states)
        self.dominant[units] = slots.argmax(axis=1)
        written = slots[:, [SlotState.TOKEN, SlotState.PADDING]].sum(axis=1)
        self.fill[units] = -(-written * EIGHTHS // self._replay.unit_slots)
        slots[:, (SlotState.TOKEN, SlotState.PADDING)] = 0
        self.rest[units] = slots.argmax(axis=1)


class Paints:
    """Paints of every unit, for the meaning of colour `by`.

    Three arrays have one uint8 per unit, in address order: `written` is the paint of the written part, `rest` the paint
    of the other part, and `whole` the paint of a unit that is drawn in one colour. Recent changes may be highlighted.
    """

    def __init__(self, replay: Replay, states: DrawnUnits, by: ColorBy) -> None:
        self._replay, self._states = replay, states
        self.by = by
        self.written = np.full(replay.num_units, SlotState.FREE, np.uint8)
        self.rest = self.written.copy()
        self.whole = self.written.copy()
        self.colors_only_followed = by is ColorBy.OWNER and not tells_owners(replay.recording)
        """True if only the followed request has its own colour, because there are too few hues for all requests.

        Colours of other units mean states.
        """
        self._followed: int | None = None
        self._own_units = self._next_units = np.empty(0, np.int64)
        """Units of the followed request, and free units to be allocated next. Empty unless `colors_only_followed`."""
        self._marks = np.zeros(replay.num_units if self.colors_only_followed else 0, np.uint8)
        """Mark of each unit: `FOLLOWED`, `NEXT`, or 0 for none; empty unless `colors_only_followed`."""
        self._is_fragmented = is_fragmented(replay)
        self._lit = np.zeros(replay.num_units, np.uint8)
        self._lit_units = np.empty(0, np.int64)
        self.update(np.arange(replay.num_units) if self._is_fragmented else replay.occupied())

    def update(self, units: IndexArray) -> IndexArray:
        """Paint `units` again, whose states have changed; return the units that may look different now."""
        fragmented = is_fragmented(self._replay)
        if fragmented != self._is_fragmented:
            self._is_fragmented, units = fragmented, np.arange(len(self.whole))
        if self.by is ColorBy.AGE:
            units = np.union1d(units, self._replay.occupied())
        if self.colors_only_followed:
            units = np.union1d(units, self._mark())
        if len(units):
            self._paint(units)
        return units

    def follow(self, request: int | None) -> IndexArray:
        """Give `request`, or none, its own colour if `colors_only_followed`; return the units that may change."""
        if not self.colors_only_followed or request == self._followed:
            return np.empty(0, np.int64)
        self._followed = request
        return self.update(np.empty(0, np.int64))

    def _mark(self) -> IndexArray:
        replay, followed, before = self._replay, self._followed, (self._own_units, self._next_units)
        addresses = np.empty(0, np.int64) if followed is None else replay.block_table(followed)[1]
        self._own_units, self._next_units = addresses.astype(np.int64) - replay.first_unit, next_units(replay)
        changed = [np.empty(0, np.int64)]
        for old, new in zip(before, (self._own_units, self._next_units), strict=True):
            if not np.array_equal(old, new):
                changed += [old, new]
        if len(changed) > 1:
            for units in before:
                self._marks[units] = 0
            self._marks[self._own_units], self._marks[self._next_units] = FOLLOWED, NEXT
        return np.concatenate(changed)

    def light_up(self, lights: Lights) -> IndexArray:
        """Highlight the units of `lights`, and end older highlights; return the units that may look different now."""
        before, (units, paints) = self._lit_units, lights
        self._lit[before] = 0
        self._lit[units] = paints
        self._lit_units = np.unique(units)
        touched = np.union1d(before, self._lit_units)
        if len(touched):
            self._paint(touched)
        return touched

    @property
    def has_lights(self) -> bool:
        """True if a changed unit is highlighted."""
        return len(self._lit_units) > 0

    def _paint(self, units: IndexArray) -> None:
        """Compute the paints of `units`, written part, rest and whole, from their states and `by`."""
        states, replay = self._states, self._replay
        dominant, rest, fill = states.dominant[units], states.rest[units], states.fill[units]
        if self._is_fragmented:
            dominant, rest = (np.where(part == SlotState.FREE, SlotState.EXTERNAL, part) for part in (dominant, rest))
        owner, refs = replay.owner[units], replay.refs[units]
        held = owner != NO_OWNER
        # Padding fills whole extents, so the written part holds tokens unless padding is dominant.
        written = np.where(dominant == SlotState.PADDING, SlotState.PADDING, SlotState.TOKEN).astype(np.uint8)
        match self.by:
            case ColorBy.STATE:
                pass
            case ColorBy.OWNER:
                hued = SlotState.TOKEN if self.colors_only_followed else OWNER + (owner % NUM_HUES).astype(np.uint8)
                written = np.where(written == SlotState.PADDING, SlotState.PADDING, hued).astype(np.uint8)
                written[refs > 1] = SHARED
            case ColorBy.LAYERS:
                written = KIND + places_of_units(replay, units)
            case ColorBy.SHARING:
                written = (HOLDERS + np.searchsorted(HOLDER_STEPS, refs, side="left")).astype(np.uint8)
                rest = np.where(held, HOLDERS, rest)
            case ColorBy.AGE:
                written = rest = np.where(held, AGE + self._ages(units), rest)
        whole = np.where(fill > 0, written, rest)
        if self.by is ColorBy.STATE:
            whole = dominant
        elif self.by in (ColorBy.OWNER, ColorBy.LAYERS):
            # A reservation that will never be used is shown as waste until its first slot is written.
            whole = np.where((dominant == SlotState.INTERNAL) & (fill == 0), SlotState.INTERNAL, whole)
        whole = np.where(held, whole, dominant)
        if self.colors_only_followed:
            whole = np.where(np.isin(dominant, (SlotState.INTERNAL, SlotState.EXPIRED)), dominant, whole)
            partly = (whole == SlotState.TOKEN) & (fill < EIGHTHS) & (rest == SlotState.RESERVED)
            marks = np.where((refs > 1) & (self._marks[units] > 0), FOLLOWED_SHARED, self._marks[units])
            written, whole = np.where(marks > 0, marks, written), np.where(marks > 0, marks, whole)
            whole = np.where(partly & (marks == 0), PARTLY, whole)
            dominant, rest = (np.where(marks == NEXT, NEXT, part) for part in (dominant, rest))
        lit = self._lit[units]
        for paints, values in (
            (self.written, np.where(held, written, dominant)),
            (self.rest, rest),
            (self.whole, whole),
        ):
            paints[units] = np.where(lit > 0, lit, values)

    def _ages(self, units: IndexArray) -> PaintArray:
        """Return the age of each of `units` as a level from 0 to `AGES` - 1.

        Level 0 is for units held longer than 1/8 of the recorded time. The bound of each further level is half as long.
        Units without a holder have the highest level.
        """
        replay = self._replay
        births = np.full(replay.num_units, replay.seq, np.int64)
        for request in replay.live_requests().tolist():
            _, addresses = replay.block_table(request)
            rows = replay.ledger.tables.held(request, replay.seq)
            born, lengths = replay.ledger.tables.birth_seq[rows], replay.ledger.tables.length[rows]
            if lengths.sum() == len(addresses):
                np.minimum.at(births, addresses - replay.first_unit, np.repeat(born, lengths))
            elif len(addresses):  # an extent that grows in place has fewer units in its rows; it is as old as its birth
                births[addresses - replay.first_unit] = born[0]
        frames = np.searchsorted(replay.frame_seq, births[units])
        times_s = np.append(replay.recording.steps.start_s, replay.recording.duration_s)
        age = np.maximum(replay.time_s - times_s[np.minimum(frames, replay.num_frames - 1)], 0.0)
        oldest = max(replay.recording.recorded_s / 4, 1e-9)
        levels: PaintArray = np.clip(
            np.floor(np.log2(oldest / np.maximum(age, oldest * 2.0**-AGES))), 0, AGES - 1
        ).astype(np.uint8)
        return levels


def is_fragmented(replay: Replay) -> bool:
    """Tell whether all free units lie in extents too short for the request at the head of the queue."""
    steps, frame = replay.recording.steps, replay.frame
    if steps.unusable_units is None or frame >= len(steps) or replay.after_output:
        return False
    return 0 < int(steps.free_units[frame]) <= int(steps.unusable_units[frame])


def dimmed(paints: PaintArray, lit: MaskArray) -> PaintArray:
    """Return `paints` with grey versions of the paints that are not `lit`."""
    shown: PaintArray = paints + np.where(lit | (paints == EMPTY), 0, DIM).astype(np.uint8)
    return shown


def with_one_owner_lit(
    first: PaintArray, second: PaintArray, eighths: PaintArray, lit: MaskArray, request: int
) -> tuple[PaintArray, PaintArray, PaintArray]:
    """Return the paints of cells that show several units, with requests other than `request` in grey.

    A cell has the paint `first` in its left `eighths`, and the paint `second` in the rest; the result is these three.
    `lit` marks the cells in which `request` holds slots.
    """
    own_paints = (OWNER + request % NUM_HUES, SlotState.RESERVED, SHARED)
    is_own = [np.isin(paints, own_paints) & lit for paints in (first, second)]
    unseen = lit & ~is_own[0] & ~is_own[1]
    first = dimmed(first, is_own[0])
    second = np.where(unseen, own_paints[0], dimmed(second, is_own[1])).astype(np.uint8)
    # If the request has too little of the cell to be seen, it gets the smallest visible part.
    return first, second, np.minimum(eighths, np.where(unseen, EIGHTHS - 1, EIGHTHS)).astype(np.uint8)
