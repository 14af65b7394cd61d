"""Draws the pool as lines of characters, at the chosen level of detail, with the cursor and the followed request.

Only visible lines are drawn, so that the cost does not grow with the pool. Characters are integers, see `brush.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState

from ..look.stack import EIGHTHS
from .brush import BLANK, DIGIT, GLYPH, RIGHT, UP, half_keys, keys_of, reverse
from .cell_shapes import (
    cut_apart,
    hairlines_above,
    keys_of_narrow_cells,
    ledges,
    spread,
    spread_glyphs,
    with_straight_borders,
)
from .cells import Cells
from .labels import names_every_line, write_names
from .paint import DIM, EMPTY, ColorBy
from .picture import DrawnUnits, Paints, dimmed, with_one_owner_lit
from .slots import paints_of_slots
from .tiling import Detail, Tiling

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay

    from .array_types import IndexArray, KeyArray, MaskArray, PaintArray
    from .unit_changes import Lights

_MOST_DIGIT_WIDTH = 4
"""Largest width in characters of a cell that shows its written eighths as a digit, without colours.

A wider cell shows them with glyphs.
"""


class Canvas:
    """Draws the pool of `replay` at the replay's current frame."""

    def __init__(self, replay: Replay, tiling: Tiling, *, half_blocks: bool, color_by: ColorBy = ColorBy.STATE) -> None:
        self._replay = replay
        self._half_blocks = half_blocks
        self._states = DrawnUnits(replay)
        self._paints = Paints(replay, self._states, color_by)
        self._followed: int | None = None
        self.cursor: int | None = None
        """Unit under the cursor, counted from 0 in address order. None without a cursor."""
        self.tiling = tiling

    @property
    def tiling(self) -> Tiling:
        """Division of the pool into the cells of the picture."""
        return self._tiling

    @tiling.setter
    def tiling(self, tiling: Tiling) -> None:
        self._tiling = tiling
        self._cells = Cells(tiling, self._paints.whole) if tiling.detail is Detail.MIX else None

    @property
    def followed(self) -> int | None:
        """Request that the user follows: its row in `requests`, or None.

        The picture marks this request by its colour, or by its name if each line of the pool has a name.
        """
        return self._followed

    @followed.setter
    def followed(self, request: int | None) -> None:
        self._followed = request
        self._repaint(self._paints.follow(request))

    @property
    def color_by(self) -> ColorBy:
        """Meaning of the units' colours."""
        return self._paints.by

    @color_by.setter
    def color_by(self, color_by: ColorBy) -> None:
        self._paints = Paints(self._replay, self._states, color_by)
        self._paints.follow(self._followed)
        self.tiling = self._tiling

    @property
    def lines_per_character(self) -> int:
        """Number of lines of the tiling in one line of characters: 2 for `Detail.HALF`, otherwise 1."""
        return 2 if self.tiling.detail is Detail.HALF else 1

    @property
    def height(self) -> int:
        """Number of lines of characters in the whole picture."""
        return -(-self.tiling.height // self.lines_per_character)

    def update(self) -> None:
        """Update the picture to the replay's current frame."""
        self._repaint(self._paints.update(self._states.update()))

    def light_up(self, lights: Lights) -> None:
        """Highlight the changed units of `lights`, and end older highlights."""
        self._repaint(self._paints.light_up(lights))

    @property
    def has_lights(self) -> bool:
        """True if a changed unit is highlighted."""
        return self._paints.has_lights

    @property
    def counts_holders(self) -> bool:
        """True if the number of holders is written on each shared unit."""
        return self.tiling.detail is Detail.FILL and not self.tiling.gap and not self.tiling.separates_units

    def _repaint(self, units: IndexArray) -> None:
        if self._cells is not None and len(units):
            self._cells.update(units, self._paints.whole)

    def shows(self, paint: int) -> bool:
        """Tell whether a cell shows `paint`, the paint of a state or of a mark.

        A cell of many units may hide a rare state. At the level of single slots, return True for every paint.
        """
        paints, fill = self._paints, self._states.fill
        match self.tiling.detail:
            case Detail.SLOTS:
                return True
            case Detail.PART | Detail.HALF:
                return bool((paints.whole == paint).any())
            case Detail.FILL:
                shown = ((paints.written == paint) & (fill > 0)) | ((paints.rest == paint) & (fill < EIGHTHS))
                return bool(shown.any())
            case Detail.MIX:
                assert self._cells is not None  # the tiling's setter made them
                return bool((self._cells.first == paint).any() or (self._cells.second == paint).any())

    def unit_at(self, x: int, y: int) -> int | None:
        """Return the first unit of the cell at character `x` of line `y`; None outside the pool."""
        tiling, line = self.tiling, y * self.lines_per_character
        x = max(x - tiling.margin, 0)
        if not (0 <= x < tiling.width and 0 <= line < tiling.height):
            return None
        row = int(np.searchsorted(tiling.row_edges, line, side="right")) - 1
        column = int(np.searchsorted(tiling.column_edges, x, side="right")) - 1
        if tiling.eighths:  # the cell in the middle of the character
            column = min((EIGHTHS * x + EIGHTHS // 2) // tiling.eighths, tiling.columns - 1)
        units = tiling.units_of(row * tiling.columns + column)
        return int(units[0]) if len(units) else None

    def place_of(self, unit: int) -> tuple[int, int]:
        """Return the column and the line of characters at which the cell of `unit` begins.

        For a cell narrower than a character, return the character that has its middle.
        """
        tiling = self.tiling
        row, column = divmod(self._cell(unit), tiling.columns)
        x = (2 * column + 1) * tiling.eighths // (2 * EIGHTHS) if tiling.eighths else int(tiling.column_edges[column])
        return tiling.margin + x, int(tiling.row_edges[row]) // self.lines_per_character

    def moved(self, unit: int, right: int, down: int) -> int:
        """Return the first unit of the cell that is `right` columns and `down` rows from the cell of `unit`.

        A move beyond the left or right edge ends in the outermost column. A move to a row outside the picture, or to a
        cell without units, returns `unit`.
        """
        tiling = self.tiling
        row, column = divmod(self._cell(unit), tiling.columns)
        column = min(max(column + right, 0), tiling.columns - 1)
        if not 0 <= row + down < tiling.rows:
            return unit
        units = tiling.units_of((row + down) * tiling.columns + column)
        return int(units[0]) if len(units) else unit

    def draw(self, top: int, height: int) -> KeyArray:
        """Return the character keys of up to `height` lines of the picture from `top` on: shape (lines, characters)."""
        tiling, per_character = self.tiling, self.lines_per_character
        begin, end = top * per_character, min((top + height) * per_character, tiling.height)
        line = np.arange(begin, max(end, begin))
        row = np.searchsorted(tiling.row_edges, line, side="right") - 1
        rows = np.arange(row[0], row[-1] + 1) if len(row) else row
        if not len(rows):
            return np.empty((0, tiling.span), np.int32)
        cells = np.add.outer(rows * tiling.columns, np.arange(tiling.columns)).ravel()
        draw = {
            Detail.MIX: self._mix,
            Detail.PART: self._parts,
            Detail.HALF: self._halves,
            Detail.FILL: self._fill,
            Detail.SLOTS: self._slots,
        }
        lines: KeyArray = draw[tiling.detail](cells)[row - rows[0]]
        last = line == tiling.row_edges[row + 1] - 1
        # Keep rows of cells apart: by an empty line, by a last line of half height, or by a thin line at the top.
        if tiling.gap:
            lines[last] = EMPTY if per_character == 2 else BLANK
        elif tiling.detail in (Detail.FILL, Detail.MIX) and tiling.tall >= 2 and self._half_blocks:
            lines = lines if tiling.separates_units else with_straight_borders(lines)
            lines[last] = ledges(lines[last])
        elif self._has_hairlines:
            lines = with_straight_borders(lines)
            first = line == tiling.row_edges[row]
            lines[first] = hairlines_above(lines[first], mixed=tiling.tall >= 2)
        picture = half_keys(lines.astype(np.uint8)) if per_character == 2 else lines
        if tiling.margin:
            picture = np.pad(picture, ((0, 0), (tiling.margin, 0)), constant_values=BLANK)
        if self.cursor is not None and tiling.detail in (Detail.PART, Detail.HALF):
            x, y = self.place_of(self.cursor)
            if 0 <= y - top < len(picture):
                picture[y - top, x] = reverse(picture[y - top, x])
        write_names(
            picture,
            top,
            rows,
            cells,
            tiling,
            self._replay,
            self.color_by,
            half_blocks=self._half_blocks,
            marked=self.followed,
        )
        return picture

    @property
    def _has_hairlines(self) -> bool:
        tiling = self.tiling
        return tiling.stride is not None and tiling.detail is Detail.MIX and tiling.down <= 1 and self._half_blocks

    def _mix(self, cells: IndexArray) -> KeyArray:
        assert self._cells is not None  # the tiling's setter made them
        lit, request = self._lit(cells), self.lit_request
        first, second, eighths = (part[cells] for part in (self._cells.first, self._cells.second, self._cells.eighths))
        if request is not None and self.color_by is ColorBy.OWNER:
            first, second, eighths = with_one_owner_lit(first, second, eighths, lit, request)
        else:
            first, second = dimmed(first, lit), dimmed(second, lit)
        beside = self._spread(cells, first, second, eighths, hairlines=False)
        if self.tiling.down == 1 or not self._half_blocks:
            return beside
        sideways = self._cells.sideways[cells].reshape(-1, self.tiling.columns)
        above = self._piled(cells, first, second, eighths)
        return np.where(sideways.repeat(np.diff(self.tiling.column_edges), axis=1), beside, above)

    def _piled(self, cells: IndexArray, first: PaintArray, second: PaintArray, eighths: PaintArray) -> KeyArray:
        shape = UP + np.where(first == second, EIGHTHS, EIGHTHS - eighths.astype(np.int32))
        keys = keys_of(shape, second, first)
        keys[first == EMPTY] = BLANK
        at_cursor = self._at_cursor(cells)
        keys[at_cursor] = reverse(keys[at_cursor])
        return keys.reshape(-1, self.tiling.columns).repeat(np.diff(self.tiling.column_edges), axis=1)

    def _parts(self, cells: IndexArray) -> KeyArray:
        return keys_of_narrow_cells(self.tiling, self._one_paint(cells))

    def _halves(self, cells: IndexArray) -> KeyArray:
        rows = self._one_paint(cells).reshape(-1, self.tiling.columns).astype(np.int32)
        return rows.repeat(np.diff(self.tiling.column_edges), axis=1)

    def _one_paint(self, cells: IndexArray) -> PaintArray:
        """Return the paint of each cell, for levels of detail at which a cell is one unit in one paint."""
        paints = dimmed(self._paints.whole[np.minimum(cells, self.tiling.num_units - 1)], self._lit(cells))
        paints[cells >= self.tiling.num_units] = EMPTY
        paints[self._at_cursor(cells)] = EMPTY  # one of its characters shows the cursor, see `draw`
        return paints

    def _fill(self, cells: IndexArray) -> KeyArray:
        """Draw each cell, which is one unit, filled as far as the unit is written."""
        tiling, lit = self.tiling, self._lit(cells)
        units = np.minimum(cells, tiling.num_units - 1)
        first, second = (dimmed(paints[units], lit) for paints in (self._paints.written, self._paints.rest))
        fill = self._states.fill[units].copy()
        first, second = (np.where(cells < tiling.num_units, paints, EMPTY) for paints in (first, second))
        if self._half_blocks:  # expired slots come first: they precede the tokens that are still read
            swapped = (self._states.rest[units] == SlotState.EXPIRED) & (fill > 0) & (fill < EIGHTHS)
            first, second = np.where(swapped, second, first), np.where(swapped, first, second)
            fill = np.where(swapped, EIGHTHS - fill, fill)
        if tiling.wide > (1 if self._half_blocks else _MOST_DIGIT_WIDTH):
            return self._spread(cells, first, second, fill, hairlines=True)
        shape: KeyArray = UP + fill.astype(np.int32)
        if not self._half_blocks:
            # A unit without an owner's letter shows a digit instead: the eighths that are written.
            shape = np.where((fill > 0) & (fill < EIGHTHS) & (first % DIM < EMPTY), DIGIT + fill, GLYPH)
            first = np.where((fill == 0) | ((fill < EIGHTHS) & (first % DIM >= EMPTY)), second, first)
        first, second = np.where(fill == 0, second, first), np.where(fill == EIGHTHS, first, second)
        keys = keys_of(shape, first, second)
        at_cursor = self._at_cursor(cells)
        keys[at_cursor] = reverse(keys[at_cursor])
        keys[cells >= tiling.num_units] = BLANK
        edges = tiling.column_edges
        lines: KeyArray = keys.reshape(-1, tiling.columns).repeat(np.diff(edges), axis=1)
        return lines

    def _spread(
        self, cells: IndexArray, first: PaintArray, second: PaintArray, eighths: PaintArray, *, hairlines: bool
    ) -> KeyArray:
        """Draw each cell in all its characters: the left `eighths` in the first paint, the rest in the second.

        With `hairlines`, a thin gap separates cells.
        """
        tiling = self.tiling
        if tiling.separates_units:
            keys = cut_apart(tiling, first, second, eighths)
        elif self._half_blocks:
            keys = spread(tiling, first, second, eighths, hairlines=hairlines)
        else:
            keys = spread_glyphs(tiling, first, second, eighths)
        column = np.arange(tiling.columns).repeat(np.diff(tiling.column_edges))
        if hairlines:
            keys[(cells >= tiling.num_units).reshape(-1, tiling.columns)[:, column]] = BLANK
        at_cursor = self._at_cursor(cells).reshape(-1, tiling.columns)[:, column]
        keys[at_cursor] = reverse(keys[at_cursor])
        return keys

    def _slots(self, cells: IndexArray) -> KeyArray:
        tiling, num_slots = self.tiling, self._replay.unit_slots
        units = np.minimum(cells, tiling.num_units - 1)
        written = self._paints.written[units]
        slots = paints_of_slots(self._replay, units, written, self.color_by, self._lit(cells))
        # If a gap separates rows, the lines of a unit touch each other. Otherwise, each line ends in a seam.
        keys = keys_of(RIGHT + EIGHTHS if self._half_blocks and tiling.gap else GLYPH, slots, slots)
        keys = keys.repeat((tiling.wide - 1 - tiling.gutter) // num_slots, axis=1)
        keys[cells >= tiling.num_units] = BLANK
        at_cursor = self._at_cursor(cells)
        keys[at_cursor] = reverse(keys[at_cursor])
        picture = np.full((len(cells) // tiling.columns, tiling.width), BLANK, np.int32)
        for column, begin in enumerate((tiling.column_edges[:-1] + tiling.gutter).tolist()):
            picture[:, begin : begin + keys.shape[1]] = keys[column :: tiling.columns]
        return picture

    @property
    def colors_only_followed(self) -> bool:
        """True if only the followed request has its own colour, because there are too few hues for all requests.

        Colours of other units mean states.
        """
        return self._paints.colors_only_followed

    @property
    def lit_request(self) -> int | None:
        """The request whose units alone keep their colours while all others are grey: the followed one with memory.

        None if no request is followed, if the followed one holds no memory, if all lines have names, or if
        `colors_only_followed`.
        """
        if self.followed is None or self._paints.colors_only_followed or names_every_line(self.tiling, self._replay):
            return None
        return self.followed if len(self._replay.block_table(self.followed)[1]) else None

    def _lit(self, cells: IndexArray) -> MaskArray:
        """Mark the cells with units of `lit_request`, or all cells if that is None."""
        lit: MaskArray = np.ones(len(cells), np.bool_)
        request = self.lit_request
        if request is not None:
            _, addresses = self._replay.block_table(request)
            lit = np.isin(cells, self.tiling.cell_of(addresses - self._replay.first_unit))
        return lit

    def _at_cursor(self, cells: IndexArray) -> MaskArray:
        at_cursor: MaskArray = cells == (-1 if self.cursor is None else self._cell(self.cursor))
        return at_cursor

    def _cell(self, unit: int) -> int:
        return int(self.tiling.cell_of(np.array([unit]))[0])
