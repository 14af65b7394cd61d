"""How the units of a pool become cells of a picture, at any level of detail.

Units are laid out in lines of `stride`, as text is. A cell covers `across` neighbouring units in each of `down`
neighbouring lines. A paged pool has no lines of its own, so its lines are as long as the picture is wide; the
rectangle of a static batch keeps its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_WIDE, _MOST_TALL = 4, 12
"""How large a cell is drawn at most, in characters and in lines."""
_MOST_WIDE_NAMED = 10
"""The same for a unit with its name."""


class Detail(Enum):
    """What one cell shows."""

    AREA = auto()
    """The most frequent state among its units."""
    FILL = auto()
    """One unit, and how much of it is written."""
    SLOTS = auto()
    """One unit, drawn slot by slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Which units each cell covers, and how large it is drawn."""

    num_units: int
    stride: int
    across: int = 1
    down: int = 1
    wide: int = 1
    """Characters per cell, horizontally."""
    tall: int = 1
    """Lines of the picture per cell; half characters where those can be told apart."""
    detail: Detail = Detail.AREA

    @property
    def columns(self) -> int:
        """Cells in one row."""
        return -(-self.stride // self.across)

    @property
    def rows(self) -> int:
        """Rows of cells; the last ones may be partly empty."""
        return -(-self.num_units // (self.stride * self.down))

    @property
    def gap(self) -> bool:
        """Whether the last line of a cell stays empty, to keep the rows apart."""
        return self.tall >= (3 if self.detail is Detail.AREA else 2)

    @property
    def num_cells(self) -> int:
        """All cells, including those that no unit falls into."""
        return self.columns * self.rows

    @property
    def width(self) -> int:
        """Characters in one row."""
        return self.columns * self.wide

    @property
    def height(self) -> int:
        """Lines of the whole picture."""
        return self.rows * self.tall

    def cell_of(self, units: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """The cell that each of `units` falls into, row by row from 0."""
        line, offset = np.divmod(units.astype(np.int64), self.stride)
        cells: npt.NDArray[np.int64] = line // self.down * self.columns + offset // self.across
        return cells

    def units_of(self, cell: int) -> npt.NDArray[np.int64]:
        """The units of one cell, in address order; none for a cell past the end."""
        row, column = divmod(cell, self.columns)
        lines = np.arange(row * self.down, (row + 1) * self.down)
        offsets = np.arange(column * self.across, min((column + 1) * self.across, self.stride))
        units = (lines[:, None] * self.stride + offsets).ravel()
        found: npt.NDArray[np.int64] = units[units < self.num_units]
        return found


def fit(num_units: int, width: int, height: int, stride: int | None = None) -> Tiling:
    """The finest tiling by area that shows the whole pool in `width` characters and `height` lines.

    `stride` is the length of the pool's own lines, where it has any. A pool with fewer units than there is room for
    is drawn with larger cells.
    """
    if stride is None:
        across = max(1, -(-num_units // (width * height)))
        stride = min(width * across, num_units)
        return _enlarged(Tiling(num_units=num_units, stride=stride, across=across), width, height)
    across = -(-stride // width)
    num_lines = -(-num_units // stride)
    down = max(1, -(-num_lines // height))
    return _enlarged(Tiling(num_units=num_units, stride=stride, across=across, down=down), width, height)


def levels(
    num_units: int, unit_tokens: int, width: int, height: int, *, stride: int | None, half_blocks: bool
) -> list[Tiling]:
    """Every level of detail for a picture of `width` by `height` characters, coarsest first.

    The coarsest shows the whole pool; each further one covers fewer units per cell, down to one; then come the levels
    that show the inside of a unit, where it has one.
    """
    lines = height * 2 if half_blocks else height
    coarsest = fit(num_units, width, lines, stride)
    if half_blocks and coarsest.tall > 2:  # rows begin with a character, so that names fit into them
        coarsest = replace(coarsest, tall=coarsest.tall - coarsest.tall % 2)
    found = [coarsest]
    while found[-1].across > 1 or found[-1].down > 1:
        finer = replace(found[-1], across=-(-found[-1].across // 2), down=-(-found[-1].down // 2))
        # A paged pool has no lines of its own: they stay as long as the picture is wide.
        found.append(finer if stride is not None else replace(finer, stride=width * finer.across))
    if unit_tokens > 1:
        found.append(_fill_level(num_units, width, height))
        found.append(_slots_level(num_units, unit_tokens, width, height))
    return found


def best_level(tilings: list[Tiling], height: int) -> int:
    """The finest of `tilings` that shows the whole pool in `height` lines of characters."""
    whole = [
        index for index, tiling in enumerate(tilings) if tiling.detail is not Detail.AREA and tiling.height <= height
    ]
    return max(whole, default=0)


def _enlarged(tiling: Tiling, width: int, height: int) -> Tiling:
    """`tiling` with its cells as large as there is room for, within reason, where they show single units or lines."""
    wide = min(width // tiling.columns, _MOST_WIDE) if tiling.across == 1 else 1
    tall = min(height // tiling.rows, _MOST_TALL) if tiling.down == 1 else 1
    return replace(tiling, wide=max(wide, 1), tall=max(tall, 1))


def _fill_level(num_units: int, width: int, height: int) -> Tiling:
    """A character per unit, or more where the whole pool fits; from five on with a line for names below each."""
    for wide in range(_MOST_WIDE_NAMED, 0, -1):
        stride, tall = min(max(width // wide, 1), num_units), 2 if wide > _MOST_WIDE else 1
        if wide == 1 or -(-num_units // stride) * tall <= height:
            break
    return Tiling(num_units=num_units, stride=stride, wide=wide, tall=tall, detail=Detail.FILL)


def _slots_level(num_units: int, unit_tokens: int, width: int, height: int) -> Tiling:
    """A character per slot, or a square of them where the whole pool fits; and gaps between the units, with a line
    for names below each where there is room.
    """
    for scale in range(_MOST_WIDE, 0, -1):
        wide = unit_tokens * scale + 1
        stride = min(max(width // wide, 1), num_units)
        rows = -(-num_units // stride)
        if scale == 1 or (wide <= width and rows * (scale + 1) <= height):
            break
    tall = min(max(height // rows, 1), scale + 2)
    return Tiling(num_units=num_units, stride=stride, wide=wide, tall=tall, detail=Detail.SLOTS)
