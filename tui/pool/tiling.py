"""Division of a pool's units into the cells of a picture.

A paged pool has no lines of its own, so its cells are in address order, as letters in a text. A static batch and
equally long reservations have lines; they keep them. Cells share the picture's width and height among themselves, so
that no part of it stays empty: neighbours may differ by one character.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .array_types import IndexArray

_NARROW = 3
"""Width of a cell, in characters, up to which one more character looks like a larger cell."""


class Detail(Enum):
    """Level of detail of one cell."""

    MIX = auto()
    """Several units in one character: the two paints that matter most, and how much there is of each."""
    HALF = auto()
    """One unit in half a character."""
    FILL = auto()
    """One unit, and how much of it is written."""
    SLOTS = auto()
    """One unit, drawn slot by slot."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Units of each cell, and the cell's place in the picture."""

    num_units: int
    stride: int | None = None
    """Units in one line of the pool; None where it has no lines."""
    columns: int
    rows: int
    """Cells beside and above each other; the last row may be partly empty."""
    width: int
    height: int
    """Characters, and lines of the picture: half characters for `Detail.HALF`."""
    detail: Detail

    @property
    def num_cells(self) -> int:
        """All cells, including those that no unit falls into."""
        return self.columns * self.rows

    @property
    def units_per_cell(self) -> float:
        """Units that a cell covers, on average."""
        if self.stride is None:
            return max(self.num_units / self.num_cells, 1.0)
        return self.across * self.down

    @property
    def across(self) -> float:
        """Units of one line in a cell, where the pool has lines."""
        return max((self.stride or self.num_units) / self.columns, 1.0)

    @property
    def down(self) -> float:
        """Lines of the pool in a cell, where it has lines."""
        return max(self._num_lines / self.rows, 1.0)

    @property
    def _num_lines(self) -> int:
        return -(-self.num_units // (self.stride or self.num_units))

    @cached_property
    def column_edges(self) -> IndexArray:
        """First character of each column, then the end of the last one."""
        edges: IndexArray = np.arange(self.columns + 1) * self.width // self.columns
        return edges

    @cached_property
    def row_edges(self) -> IndexArray:
        """First line of each row, in lines of the picture, then the end of the last one."""
        edges: IndexArray = np.arange(self.rows + 1) * self.height // self.rows
        return edges

    @property
    def wide(self) -> int:
        """Characters of the narrowest cell."""
        return self.width // self.columns

    @property
    def tall(self) -> int:
        """Lines of the lowest cell."""
        return self.height // self.rows

    @property
    def even(self) -> bool:
        """Whether cells look equally wide: narrow ones that differ by a character do not."""
        return self.wide > _NARROW or self.width % self.columns == 0

    @property
    def gap(self) -> bool:
        """Whether the last line of a cell stays empty, to keep the rows apart."""
        match self.detail:
            case Detail.MIX | Detail.HALF:
                return self.detail is Detail.HALF and self.tall >= 3
            case Detail.FILL:
                return self.tall >= 2 and self.wide >= 5
            case Detail.SLOTS:
                return self.tall >= 2

    def cell_of(self, units: npt.NDArray[np.integer[Any]]) -> IndexArray:
        """Return the cell of each of `units`, row by row from 0."""
        at: IndexArray = units.astype(np.int64)
        if self.stride is None:
            if self.num_units > self.num_cells:
                at = at * self.num_cells // self.num_units
            return at
        line, offset = np.divmod(at, self.stride)
        row = line * self.rows // self._num_lines
        cells: IndexArray = row * self.columns + offset * self.columns // self.stride
        return cells

    def units_of(self, cell: int) -> IndexArray:
        """Return the units of one cell, in address order; none for a cell past the end."""
        if self.stride is None:
            if self.num_units <= self.num_cells:
                return np.arange(cell, min(cell + 1, self.num_units))
            begin, end = (-(-at * self.num_units // self.num_cells) for at in (cell, cell + 1))
            return np.arange(begin, end)
        row, column = divmod(cell, self.columns)
        lines = np.arange(*(-(-at * self._num_lines // self.rows) for at in (row, row + 1)))
        offsets = np.arange(*(-(-at * self.stride // self.columns) for at in (column, column + 1)))
        units = (lines[:, None] * self.stride + offsets).ravel()
        found: IndexArray = units[units < self.num_units]
        return found


def one_cell(num_units: int) -> Tiling:
    """Return the whole pool as one character: the tiling before the size of the picture is known."""
    return Tiling(num_units=num_units, columns=1, rows=1, width=1, height=1, detail=Detail.MIX)
