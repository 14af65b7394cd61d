"""How the units of a pool become cells of a picture, at any level of detail.

A paged pool has no lines of its own, so its cells stand in address order as letters do in a text. A static batch and
equally long reservations have lines; they keep them. Cells share the picture's width and height among themselves, so
that no part of it stays empty: neighbours may differ by one character.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_WIDE, _MOST_TALL = 12, 4
"""The largest cell that one unit is drawn in, in characters and in lines of characters."""
_LEAST_FILL = 0.9
"""Share of the picture that the pool should take."""


class Detail(Enum):
    """What one cell shows."""

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
    """Which units each cell covers, and where it is drawn."""

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
    def column_edges(self) -> npt.NDArray[np.int64]:
        """Where each column begins, in characters, and where the last one ends."""
        edges: npt.NDArray[np.int64] = np.arange(self.columns + 1) * self.width // self.columns
        return edges

    @cached_property
    def row_edges(self) -> npt.NDArray[np.int64]:
        """Where each row begins, in lines of the picture, and where the last one ends."""
        edges: npt.NDArray[np.int64] = np.arange(self.rows + 1) * self.height // self.rows
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
    def gap(self) -> bool:
        """Whether the last line of a cell stays empty, to keep the rows apart."""
        match self.detail:
            case Detail.MIX | Detail.HALF:
                return self.detail is Detail.HALF and self.tall >= 3
            case Detail.FILL:
                return self.tall >= 2 and self.wide >= 5
            case Detail.SLOTS:
                return self.tall >= 2

    def cell_of(self, units: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """The cell that each of `units` falls into, row by row from 0."""
        at: npt.NDArray[np.int64] = units.astype(np.int64)
        if self.stride is None:
            if self.num_units > self.num_cells:
                at = at * self.num_cells // self.num_units
            return at
        line, offset = np.divmod(at, self.stride)
        row = line * self.rows // self._num_lines
        cells: npt.NDArray[np.int64] = row * self.columns + offset * self.columns // self.stride
        return cells

    def units_of(self, cell: int) -> npt.NDArray[np.int64]:
        """The units of one cell, in address order; none for a cell past the end."""
        if self.stride is None:
            if self.num_units <= self.num_cells:
                return np.arange(cell, min(cell + 1, self.num_units))
            begin, end = (-(-at * self.num_units // self.num_cells) for at in (cell, cell + 1))
            return np.arange(begin, end)
        row, column = divmod(cell, self.columns)
        lines = np.arange(*(-(-at * self._num_lines // self.rows) for at in (row, row + 1)))
        offsets = np.arange(*(-(-at * self.stride // self.columns) for at in (column, column + 1)))
        units = (lines[:, None] * self.stride + offsets).ravel()
        found: npt.NDArray[np.int64] = units[units < self.num_units]
        return found


def one_cell(num_units: int) -> Tiling:
    """The whole pool in one character: what there is before there is room for anything."""
    return Tiling(num_units=num_units, columns=1, rows=1, width=1, height=1, detail=Detail.MIX)


def levels(
    num_units: int,
    unit_tokens: int,
    width: int,
    height: int,
    *,
    stride: int | None,
    half_blocks: bool,
    has_slots: bool = True,
) -> list[Tiling]:
    """Every level of detail for a picture of `width` by `height` characters, coarsest first.

    The coarsest shows the whole pool; each further one covers fewer units per cell, down to one; then come the levels
    that show the inside of a unit, where it has one, and its slots, unless units of several groups differ in those.
    """
    if stride is not None:
        return _levels_of_lines(num_units, width, height, stride, half_blocks=half_blocks)
    found = []
    rows = height
    while num_units > width * rows * (1 + (half_blocks and rows == height)):
        found.append(Tiling(num_units=num_units, columns=width, rows=rows, width=width, height=rows, detail=Detail.MIX))
        rows *= 2
    if half_blocks and width * height < num_units <= 2 * width * height:
        found.append(_one_each(num_units, width, 2 * height, Detail.HALF))
    if unit_tokens > 1:
        found.append(_one_each(num_units, width, height, Detail.FILL))
        if has_slots:
            found.append(_slots_level(num_units, unit_tokens, width, height))
    elif not found or found[-1].detail is not Detail.HALF:
        found.append(_one_each(num_units, width, 2 * height if half_blocks else height, _UNIT[half_blocks]))
    return found


_UNIT = {True: Detail.HALF, False: Detail.MIX}
"""Detail of a unit without an inside, where half characters can be told apart and where they cannot."""


def best_level(tilings: list[Tiling], height: int) -> int:
    """The finest of `tilings` that shows the whole pool in `height` lines of characters."""
    whole = [
        index
        for index, tiling in enumerate(tilings)
        if tiling.detail in (Detail.FILL, Detail.SLOTS) and tiling.height <= height
    ]
    return max(whole, default=0)


def _levels_of_lines(num_units: int, width: int, height: int, stride: int, *, half_blocks: bool) -> list[Tiling]:
    """The lines of the pool one below the other, each as long as the picture is wide, then longer and longer."""
    num_lines = -(-num_units // stride)
    columns, rows = min(width, stride), min(height, num_lines)
    found = [_lines(num_units, stride, columns, rows, width, height)]
    while columns < stride or rows < num_lines:
        columns, rows = min(2 * columns, stride), min(2 * rows, num_lines)
        found.append(_lines(num_units, stride, columns, rows, max(width, columns), max(height, rows)))
    # Lines that have characters of their own keep them: names fit there.
    if half_blocks and found[-1].units_per_cell == 1 and num_lines > height:
        finest = found.pop()
        found.append(
            Tiling(
                num_units=num_units,
                stride=stride,
                columns=finest.columns,
                rows=finest.rows,
                width=finest.width,
                height=max(2 * height, finest.rows),
                detail=Detail.HALF,
            )
        )
    return found


def _lines(num_units: int, stride: int, columns: int, rows: int, width: int, height: int) -> Tiling:
    return Tiling(
        num_units=num_units, stride=stride, columns=columns, rows=rows, width=width, height=height, detail=Detail.MIX
    )


def _one_each(num_units: int, width: int, height: int, detail: Detail) -> Tiling:
    """A cell for each unit: as square as can be, even, and with nothing of the picture left empty.

    Where there is no room for all, a character or half a one for each, in more lines than there are.
    """
    halves = 1 if detail is Detail.HALF else 2  # how many times as tall as wide one character of a line is
    best: tuple[float, Tiling] | None = None
    for rows in range(-(-num_units // width), height + 1):
        columns = -(-num_units // rows)
        for cell_width, cell_height in ((width / columns, height / rows), (width // columns, height // rows)):
            fill = num_units * cell_width * cell_height / (width * height)
            stretched = cell_width == width / columns and cell_height == height / rows
            if cell_width > _MOST_WIDE * 2 or (fill < _LEAST_FILL and not stretched):
                continue
            uneven = sum((math.ceil(size) - math.floor(size)) / size for size in (cell_width, cell_height))
            squareness = abs(math.log(cell_width / (halves * cell_height)))
            score = squareness + 2 * uneven + 8 * max(1 - fill, 0)
            if best is None or score < best[0]:
                picture = Tiling(
                    num_units=num_units,
                    columns=columns,
                    rows=rows,
                    width=round(cell_width * columns),
                    height=round(cell_height * rows),
                    detail=detail,
                )
                best = (score, picture)
    if best is not None:
        return best[1]
    columns, rows = min(width, num_units), -(-num_units // width)
    return Tiling(
        num_units=num_units,
        columns=columns,
        rows=rows,
        width=columns,
        height=max(rows, min(height, rows)),
        detail=detail,
    )


def _slots_level(num_units: int, unit_tokens: int, width: int, height: int) -> Tiling:
    """A character per slot, or a square of them where the whole pool fits; and gaps between the units, with a line
    for names below each where there is room.
    """
    for scale in range(_MOST_TALL, 0, -1):
        wide = unit_tokens * scale + 1
        columns = min(max(width // wide, 1), num_units)
        rows = -(-num_units // columns)
        if scale == 1 or (wide <= width and rows * (scale + 1) <= height):
            break
    columns = min(columns, -(-num_units // rows))
    lines = rows if height < 2 * rows else min(height, rows * (2 * scale + 4))
    return Tiling(
        num_units=num_units,
        columns=columns,
        rows=rows,
        width=max(width, wide) if columns * wide <= width else wide * columns,
        height=lines,
        detail=Detail.SLOTS,
    )
