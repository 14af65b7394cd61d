"""What the pool looks like at one frame: a state for every unit, and a state for every cell of a tiling.

Both follow the replay incrementally: a step recomputes the units that it touched and the cells that those fall into.
This module knows nothing of terminals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.memory.waste import NUM_STATES, SlotState

if TYPE_CHECKING:
    from kvsim.recording.replay import Replay

    from .tiling import Tiling

EIGHTHS = 8
"""A unit's fill is told in eighths."""
_UNITS_PER_TOUCH = 4
"""How many units are recomputed, all in a row, in the time that finding out about one touched unit takes."""
EMPTY = NUM_STATES
"""The code of a cell without units."""


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
        written = slots[:, SlotState.TOKEN] + slots[:, SlotState.PADDING]
        self.fill[units] = -(-written * EIGHTHS // self._replay.unit_tokens)
        slots[:, (SlotState.TOKEN, SlotState.PADDING)] = 0
        self.rest[units] = slots.argmax(axis=1)


class Cells:
    """The picture of a tiling: `codes` has one uint8 per cell, the most frequent state of its units, or `EMPTY`."""

    def __init__(self, tiling: Tiling, states: npt.NDArray[np.uint8]) -> None:
        self.tiling = tiling
        self._states = states.copy()
        key = tiling.cell_of(np.arange(tiling.num_units)) * NUM_STATES + states
        counts = np.bincount(key, minlength=tiling.num_cells * NUM_STATES)
        self.counts = counts.reshape(tiling.num_cells, NUM_STATES).astype(np.int32)
        """Units of each cell in each state: shape (cells, 7)."""
        self.codes = np.where(self.counts.any(axis=1), self.counts.argmax(axis=1), EMPTY).astype(np.uint8)

    def update(self, units: npt.NDArray[np.int64], states: npt.NDArray[np.uint8]) -> None:
        """Take over the states of `units` (each once) from `states`, the states of all units."""
        changed = units[self._states[units] != states[units]]
        if not len(changed):
            return
        cells = self.tiling.cell_of(changed)
        np.subtract.at(self.counts, (cells, self._states[changed]), 1)
        np.add.at(self.counts, (cells, states[changed]), 1)
        self._states[changed] = states[changed]
        cells = np.unique(cells)
        self.codes[cells] = self.counts[cells].argmax(axis=1)


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
