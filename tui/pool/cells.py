"""The two colours of each cell that shows several units, updated from frame to frame.

Colours are numbers, called paints (`paint.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState

from ..look.stack import EIGHTHS
from .paint import ALWAYS_SHOWN_WEIGHT, EMPTY, NUM_PAINTS, WRITTEN, importance

if TYPE_CHECKING:
    from .array_types import IndexArray, PaintArray
    from .tiling import Tiling

_UNITS_PER_CHUNK = 1 << 18
"""Number of units that are counted at a time, which bounds the memory of temporary arrays."""


class Cells:
    """The two most important paints of every cell of a tiling.

    `first` and `second` have one paint per cell, `EMPTY` for a cell without units. `eighths` is the share of the first
    paint, 8 for a cell of one paint. Important paints, such as waste, are shown even if a single unit has them.
    """

    def __init__(self, tiling: Tiling, paints: PaintArray) -> None:
        self.tiling = tiling
        self._paints = paints.copy()
        self._weights = np.array(importance(), np.int64)
        self._first_unit, last_unit = np.zeros((2, tiling.num_cells), np.int64)
        counts = np.zeros(tiling.num_cells * NUM_PAINTS, np.int64)
        for begin in range(0, tiling.num_units, _UNITS_PER_CHUNK):
            units = np.arange(begin, min(begin + _UNITS_PER_CHUNK, tiling.num_units))
            cell_of = tiling.cell_of(units)
            counts += np.bincount(cell_of * NUM_PAINTS + paints[units], minlength=len(counts))
            last_unit[cell_of] = units  # the last assignment wins: the last unit of each cell
        for end in range(tiling.num_units, 0, -_UNITS_PER_CHUNK):
            units = np.arange(max(end - _UNITS_PER_CHUNK, 0), end)[::-1]
            self._first_unit[tiling.cell_of(units)] = units
        across = (last_unit - self._first_unit) % (tiling.stride or max(tiling.num_units, 1))
        self._corners = np.stack((self._first_unit, self._first_unit + across, last_unit - across, last_unit))
        self.sideways = np.zeros(tiling.num_cells, np.bool_)
        """True if the two paints of a cell lie beside each other, not one above the other."""
        self.counts = counts.reshape(tiling.num_cells, NUM_PAINTS).astype(np.int32)
        """Number of units with each paint in each cell: shape (cells, NUM_PAINTS)."""
        self.first, self.second, self.eighths = (np.zeros(tiling.num_cells, np.uint8) for _ in range(3))
        self._choose(np.arange(tiling.num_cells))

    def update(self, units: IndexArray, paints: PaintArray) -> None:
        """Update the cells of `units`, which has no duplicates.

        `paints` has the new paints of all units of the pool.
        """
        changed = units[self._paints[units] != paints[units]]
        if not len(changed):
            return
        cells = self.tiling.cell_of(changed)
        np.subtract.at(self.counts, (cells, self._paints[changed]), 1)
        np.add.at(self.counts, (cells, paints[changed]), 1)
        self._paints[changed] = paints[changed]
        self._choose(np.unique(cells))

    @staticmethod
    def _with_written(counts: IndexArray, first: IndexArray, second: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return the two paints of each cell: `first` and `second`, except that some show a written paint instead.

        If the two differ, and neither is of written slots, the most frequent written paint of the cell, if it has any,
        replaces the paint of reserved slots. `counts` has the number of units by paint: shape (cells, NUM_PAINTS).
        """
        written = WRITTEN[counts[:, WRITTEN].argmax(axis=1)]
        hidden = counts[np.arange(len(counts)), written] > 0
        hidden &= ~np.isin(first, WRITTEN) & ~np.isin(second, WRITTEN) & (first != second)
        shown = [np.where(hidden & (part == SlotState.RESERVED), written, part) for part in (first, second)]
        return shown[0], shown[1]

    def _choose(self, cells: IndexArray) -> None:
        """Choose the paints of `cells`: the most frequent one, and of the others the one with the largest product of
        count and weight (`importance`).
        """
        counts = self.counts[cells].astype(np.int64)
        rows = np.arange(len(cells))
        first = counts.argmax(axis=1)
        others = counts * self._weights
        others[rows, first] = 0
        second = np.where(others.any(axis=1), others.argmax(axis=1), first)
        first, second = self._with_written(counts, first, second)
        most = counts[rows, first]
        less = counts[rows, second] * (second != first)
        eighths = np.rint(EIGHTHS * most / np.maximum(most + less, 1)).astype(np.int64)
        # Tokens and waste are visible however few they are. A trace of other memory is left out.
        less[(eighths == EIGHTHS) & (self._weights[second] < ALWAYS_SHOWN_WEIGHT)] = 0
        eighths = np.clip(eighths, 1, EIGHTHS - 1)
        second = np.where(less > 0, second, first)
        # The paint of the cell's first unit is drawn first.
        begins = self._paints[np.minimum(self._first_unit[cells], self.tiling.num_units - 1)]
        swapped = (begins == second) & (less > 0)
        first, second = np.where(swapped, second, first), np.where(swapped, first, second)
        eighths = np.where(swapped, EIGHTHS - eighths, eighths)
        self.first[cells] = np.where(most > 0, first, EMPTY)
        self.second[cells] = np.where(most > 0, second, EMPTY)
        self.eighths[cells] = np.where(less > 0, eighths, EIGHTHS)
        top_left, top_right, bottom_left, bottom_right = self._paints[self._corners[:, cells]]
        self.sideways[cells] = (top_left == bottom_left) & (top_right == bottom_right) & (top_left != top_right)
