"""Division of a pool's units into the cells of a picture.

The cells of a paged pool follow each other in address order, as letters do in a text. They are equally large and have
equally many units, so that they can be counted; the rest of the picture is empty.

A static batch, and equally long reservations, consist of lines: each row of their picture shows whole lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..look.stack import EIGHTHS
from .array_types import IndexArray


class Detail(Enum):
    """Content and form of one cell."""

    MIX = auto()
    """Several units in a cell: the two paints that matter most, and the share of each."""
    PART = auto()
    """One unit per cell, some eighths of a character wide. Two units may share a character."""
    HALF = auto()
    """One unit per cell, half a line high."""
    FILL = auto()
    """One unit per cell, and how much of it is written."""
    SLOTS = auto()
    """One unit per cell, slot by slot."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Units of each cell, and position of each cell in the picture."""

    num_units: int
    stride: int | None = None
    """Number of units in one line of the pool; None for a paged pool."""
    columns: int
    """Number of cells in a row."""
    rows: int
    """Number of rows of cells; the last row may be partly empty."""
    width: int
    """Width of the picture in characters."""
    height: int
    """Height of the picture in lines. For `Detail.HALF`, a line of characters has two of these lines."""
    detail: Detail
    per_cell: int = 1
    """Number of units of a cell of a paged pool. The last cell may have fewer."""
    eighths: int = 0
    """Width of a cell in eighths of a character; 0 unless `Detail.PART`."""
    margin: int = 0
    """Number of characters left of the picture: names of lines, or numbers of units."""
    gutter: int = 0
    """Number of characters left of each unit for its number and holder; 0 unless `Detail.SLOTS`."""
    separates_units: bool = False
    """True if gaps separate equally large units, which bear numbers and holders; only for `Detail.FILL`.

    Without a margin, numbers and holders are on a line below each unit. With a margin, which has the number of each
    row's first unit, the holders are on the units.
    """
    label: int = 0
    """Number of characters of the names on units, 0 without names.

    A unit's written part is drawn at least this wide, so that the name fits.
    """

    @property
    def span(self) -> int:
        """Width of the picture and its margin in characters."""
        return self.margin + self.width

    @property
    def num_cells(self) -> int:
        """Number of cells, including cells without units."""
        return self.columns * self.rows

    @property
    def units_per_cell(self) -> float:
        """Average number of units that a cell covers."""
        if self.stride is None:
            return self.per_cell
        return self.across * self.down

    @property
    def across(self) -> float:
        """Average number of units that a cell covers in each line of the pool."""
        return max((self.stride or self.num_units) / self.columns, 1.0)

    @property
    def down(self) -> float:
        """Average number of the pool's lines that a cell covers."""
        return max(self._num_lines / self.rows, 1.0)

    @property
    def _num_lines(self) -> int:
        return -(-self.num_units // (self.stride or self.num_units))

    @cached_property
    def column_edges(self) -> IndexArray:
        """First character of each column, then the end of the last column."""
        edges: IndexArray = np.arange(self.columns + 1) * self.width // self.columns
        if self.eighths:
            edges = np.append(np.arange(self.columns) * self.eighths // EIGHTHS, self.width)
        return edges

    @cached_property
    def row_edges(self) -> IndexArray:
        """First line of each row, in lines of the picture, then the end of the last row."""
        edges: IndexArray = np.arange(self.rows + 1) * self.height // self.rows
        return edges

    @property
    def wide(self) -> int:
        """Width of the narrowest cell in whole characters."""
        return self.width // self.columns

    @property
    def tall(self) -> int:
        """Height of the lowest cell in lines."""
        return self.height // self.rows

    @property
    def gap(self) -> bool:
        """True if the last line of each cell is empty, to separate rows."""
        match self.detail:
            case Detail.MIX | Detail.PART | Detail.HALF:
                return self.detail is Detail.HALF and self.tall >= 3
            case Detail.FILL if self.separates_units:
                return not self.margin
            case Detail.FILL:
                return self.tall >= 2 and self.wide >= 5
            case Detail.SLOTS:
                return self.tall >= 2

    def cell_of(self, units: npt.NDArray[np.integer[Any]]) -> IndexArray:
        """Return the index of the cell with each of `units`. Cells are counted row by row from 0."""
        at: IndexArray = units.astype(np.int64)
        if self.stride is None:
            return at // self.per_cell
        line, offset = np.divmod(at, self.stride)
        row = line * self.rows // self._num_lines
        cells: IndexArray = row * self.columns + offset * self.columns // self.stride
        return cells

    def units_of(self, cell: int) -> IndexArray:
        """Return the units of cell `cell` in address order; empty for a cell after the last unit."""
        if self.stride is None:
            return np.arange(cell * self.per_cell, min((cell + 1) * self.per_cell, self.num_units))
        row, column = divmod(cell, self.columns)
        lines = np.arange(*(-(-at * self._num_lines // self.rows) for at in (row, row + 1)))
        offsets = np.arange(*(-(-at * self.stride // self.columns) for at in (column, column + 1)))
        units = (lines[:, None] * self.stride + offsets).ravel()
        found: IndexArray = units[units < self.num_units]
        return found


def one_cell(num_units: int) -> Tiling:
    """Return a tiling with the whole pool in one character, for the time before the picture's size is known."""
    return Tiling(
        num_units=num_units, columns=1, rows=1, width=1, height=1, detail=Detail.MIX, per_cell=max(num_units, 1)
    )
