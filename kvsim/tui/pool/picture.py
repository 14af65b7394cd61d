"""What the pool looks like at one frame: what every unit is, and how it is painted; and the paints of every cell.

Both follow the replay incrementally: a step recomputes the units that it touched and the cells that those fall into.
This module knows nothing of terminals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.memory.waste import SlotState
from kvsim.palette import NUM_HUES
from kvsim.recording.ledger import NOBODY

from .paint import (
    AGE,
    AGES,
    DIM,
    EMPTY,
    HOLDER_STEPS,
    HOLDERS,
    NUM_PAINTS,
    OWNER,
    SHARED,
    TINT,
    ColorBy,
    importance,
)

if TYPE_CHECKING:
    from kvsim.recording.replay import Replay

    from .changes import Lights
    from .tiling import Tiling

EIGHTHS = 8
"""A unit's fill is told in eighths, and so is how a cell of several units is divided."""
_UNITS_PER_TOUCH = 4
"""How many units are recomputed, all in a row, in the time that finding out about one touched unit takes."""


class UnitStates:
    """The state of every unit of the pool, kept up to date from frame to frame.

    `dominant` is the state of most of a unit's slots; `fill` the eighths of it that are written, rounded up; `rest`
    the state of most of what is not written. One uint8 per unit each, in address order.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._frame = replay.frame
        self.dominant = np.full(replay.num_units, SlotState.FREE, np.uint8)
        self.rest = np.full(replay.num_units, SlotState.FREE, np.uint8)
        self.fill = np.zeros(replay.num_units, np.uint8)
        self._recompute(slice(None))

    def update(self) -> npt.NDArray[np.int64]:
        """Follow the replay to its current frame; return the units that may look different now, in address order."""
        replay, before = self._replay, self._frame
        self._frame = replay.frame
        if before == replay.frame:
            return np.empty(0, np.int64)
        if self._is_far(before):
            self._recompute(slice(None))
            return np.arange(replay.num_units)
        units = replay.touched(before, replay.frame)
        if len(units):
            self._recompute(units)
        return units

    def _is_far(self, before: int) -> bool:
        """Whether more has happened since a frame than there are units: then all of them are looked at sooner than what
        happened to each.
        """
        replay = self._replay
        num_ops = abs(replay.num_ops(replay.frame) - replay.num_ops(before))
        return num_ops > replay.num_units // _UNITS_PER_TOUCH

    def _recompute(self, units: npt.NDArray[np.int64] | slice) -> None:
        slots = self._replay.slots(units)
        self.dominant[units] = slots.argmax(axis=1)
        written = slots[:, [SlotState.TOKEN, SlotState.PADDING]].sum(axis=1)
        self.fill[units] = -(-written * EIGHTHS // self._replay.unit_slots)
        slots[:, (SlotState.TOKEN, SlotState.PADDING)] = 0
        self.rest[units] = slots.argmax(axis=1)


class Paints:
    """The paint of what is written in every unit, of the rest of it, and of the unit as a whole.

    One uint8 per unit each, in address order. `update` follows `UnitStates`; what has just changed may be lit up.
    """

    def __init__(self, replay: Replay, states: UnitStates, by: ColorBy) -> None:
        self._replay, self._states = replay, states
        self.by = by
        self.written = np.zeros(replay.num_units, np.uint8)
        self.rest = np.zeros(replay.num_units, np.uint8)
        self.whole = np.zeros(replay.num_units, np.uint8)
        self._lit = np.zeros(replay.num_units, np.uint8)
        self._lit_units = np.empty(0, np.int64)
        self.update(np.arange(replay.num_units))

    def update(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Follow the states of `units`; return the units that may look different now."""
        if self.by is ColorBy.AGE:
            units = np.arange(self._replay.num_units)
        if len(units):
            self._paint(units)
        return units

    def light_up(self, lights: Lights) -> npt.NDArray[np.int64]:
        """Paint units in the paint of what has just happened to them, and no others; return which look different."""
        before, (units, paints) = self._lit_units, lights
        self._lit[before] = 0
        self._lit[units] = paints
        self._lit_units = np.unique(units)
        touched = np.union1d(before, self._lit_units)
        if len(touched):
            self._paint(touched)
        return touched

    def _paint(self, units: npt.NDArray[np.int64]) -> None:
        states, replay = self._states, self._replay
        dominant, rest, fill = states.dominant[units], states.rest[units], states.fill[units]
        owner, refs = replay.owner[units], replay.refs[units]
        held = owner != NOBODY
        # What is written of a unit that is mostly not: tokens, because padding comes in whole extents.
        written = np.where(dominant == SlotState.PADDING, SlotState.PADDING, SlotState.TOKEN).astype(np.uint8)
        match self.by:
            case ColorBy.STATE:
                pass
            case ColorBy.OWNER:
                hue = (owner % NUM_HUES).astype(np.uint8)
                written = np.where(written == SlotState.PADDING, SlotState.INTERNAL, OWNER + hue)
                written[refs > 1] = SHARED
                rest = np.where(rest == SlotState.RESERVED, TINT + hue, rest)
            case ColorBy.SHARING:
                written = (HOLDERS + np.searchsorted(HOLDER_STEPS, refs, side="left")).astype(np.uint8)
                rest = np.where(held, HOLDERS, rest)
            case ColorBy.AGE:
                written = rest = np.where(held, AGE + self._ages()[units], rest)
        whole = np.where(fill > 0, written, rest)
        if self.by is ColorBy.STATE:
            whole = dominant
        elif self.by is ColorBy.OWNER:  # reservations that will never be used are waste, however little is written
            whole = np.where((dominant == SlotState.INTERNAL) & (fill == 0), SlotState.INTERNAL, whole)
        whole = np.where(held, whole, dominant)
        lit = self._lit[units]
        for paints, values in (
            (self.written, np.where(held, written, dominant)),
            (self.rest, rest),
            (self.whole, whole),
        ):
            paints[units] = np.where(lit > 0, lit, values)

    def _ages(self) -> npt.NDArray[np.uint8]:
        """A level for every unit that is held: the newest have the highest, and each level is half as old."""
        replay = self._replay
        births = np.full(replay.num_units, replay.frame_seq[replay.frame], np.int64)
        for request in replay.live_requests().tolist():
            _, addresses = replay.block_table(request)
            rows = replay.ledger.tables.held(request, int(replay.frame_seq[replay.frame]))
            born, lengths = replay.ledger.tables.birth_seq[rows], replay.ledger.tables.length[rows]
            if lengths.sum() == len(addresses):
                np.minimum.at(births, addresses - replay.first_unit, np.repeat(born, lengths))
            elif len(addresses):  # an extent that grows is as old as its request's stay
                births[addresses - replay.first_unit] = born[0]
        frames = np.searchsorted(replay.frame_seq, births)
        times_s = np.append(replay.recording.steps.start_s, replay.recording.duration_s)
        age = np.maximum(replay.time_s - times_s[np.minimum(frames, replay.num_frames - 1)], 0.0)
        oldest = max(float(replay.recording.duration_s) / 4, 1e-9)
        levels: npt.NDArray[np.uint8] = np.clip(
            np.floor(np.log2(oldest / np.maximum(age, oldest * 2.0**-AGES))), 0, AGES - 1
        ).astype(np.uint8)
        return levels


class Cells:
    """The picture of a tiling whose cells cover several units: for each, the two paints that matter most.

    `first` and `second` have one uint8 per cell, `EMPTY` for a cell without units; `eighths` tells how much of the
    cell is the first, 8 where there is no second. What is rare and important is seen even if one unit of many is it.
    """

    def __init__(self, tiling: Tiling, paints: npt.NDArray[np.uint8]) -> None:
        self.tiling = tiling
        self._paints = paints.copy()
        self._weights = np.array(importance(), np.int64)
        self._first_unit = np.searchsorted(tiling.cell_of(np.arange(tiling.num_units)), np.arange(tiling.num_cells))
        key = tiling.cell_of(np.arange(tiling.num_units)) * NUM_PAINTS + paints
        counts = np.bincount(key, minlength=tiling.num_cells * NUM_PAINTS)
        self.counts = counts.reshape(tiling.num_cells, NUM_PAINTS).astype(np.int32)
        """Units of each cell in each paint: shape (cells, NUM_PAINTS)."""
        self.first, self.second, self.eighths = (np.zeros(tiling.num_cells, np.uint8) for _ in range(3))
        self._choose(np.arange(tiling.num_cells))

    def update(self, units: npt.NDArray[np.int64], paints: npt.NDArray[np.uint8]) -> None:
        """Take over the paints of `units` (each once) from `paints`, the paints of all units."""
        changed = units[self._paints[units] != paints[units]]
        if not len(changed):
            return
        cells = self.tiling.cell_of(changed)
        np.subtract.at(self.counts, (cells, self._paints[changed]), 1)
        np.add.at(self.counts, (cells, paints[changed]), 1)
        self._paints[changed] = paints[changed]
        self._choose(np.unique(cells))

    def _choose(self, cells: npt.NDArray[np.int64]) -> None:
        counts = self.counts[cells].astype(np.int64)
        rows = np.arange(len(cells))
        first = counts.argmax(axis=1)
        most = counts[rows, first]
        others = counts * self._weights
        others[rows, first] = 0
        second = others.argmax(axis=1)
        less = counts[rows, second] * (second != first)
        eighths = np.clip(np.rint(EIGHTHS * most / np.maximum(most + less, 1)), 1, EIGHTHS - 1).astype(np.int64)
        second = np.where(less > 0, second, first)
        # What stands first in memory stands first in the cell.
        begins = self._paints[np.minimum(self._first_unit[cells], self.tiling.num_units - 1)]
        swapped = (begins == second) & (less > 0)
        first, second = np.where(swapped, second, first), np.where(swapped, first, second)
        eighths = np.where(swapped, EIGHTHS - eighths, eighths)
        self.first[cells] = np.where(most > 0, first, EMPTY)
        self.second[cells] = np.where(most > 0, second, EMPTY)
        self.eighths[cells] = np.where(less > 0, eighths, EIGHTHS)


def dimmed(paints: npt.NDArray[np.uint8], lit: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """`paints` in shade where they are not `lit`."""
    shade: npt.NDArray[np.uint8] = paints + np.where(lit | (paints == EMPTY), 0, DIM).astype(np.uint8)
    return shade


class Lines:
    """How long the pool's own lines are: the row of a rectangle, or a reservation if all are equally long.

    A paged pool has no lines, nor has one whose extents differ in length.
    """

    def __init__(self, replay: Replay) -> None:
        tables = replay.ledger.tables
        first = np.flatnonzero(tables.position == 0) if replay.unit_tokens == 1 else np.empty(0, np.int64)
        begins = tables.address[first] - replay.first_unit
        self._since_seq, self._lengths = np.zeros(1, np.int64), [0]
        policy = replay.recording.meta.policy
        if "row_tokens" in policy:
            self._lengths = [int(policy["row_tokens"])]
        elif replay.recording.meta.policy_name == "static" and len(first):
            ends = np.zeros(len(replay.full), np.int64)
            np.maximum.at(ends, tables.request, tables.position + tables.length)
            order = np.argsort(tables.birth_seq[first], kind="stable")
            self._since_seq, batches = np.unique(tables.birth_seq[first][order], return_index=True)
            widths = np.gcd.reduceat(begins[order], batches)
            # A batch of one row has nothing to tell its width by but its end.
            alone = np.maximum.reduceat(ends[tables.request[first]][order], batches)
            self._lengths = np.where(widths > 0, widths, alone).tolist()
        elif len(first):
            lengths = np.unique(tables.length[first])
            if len(lengths) == 1 and not (begins % lengths[0]).any():
                self._lengths = [int(lengths[0])]

    def length_at(self, seq: int) -> int | None:
        """Units in one line at a sequence number, None where there are none; a batch's last until the next batch."""
        batch = max(int(np.searchsorted(self._since_seq, seq, side="right")) - 1, 0)
        length = self._lengths[batch]
        return length if length > 1 else None
