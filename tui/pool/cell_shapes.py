"""Draws the two paints of a cell in its characters, in eighths from the left, with thin gaps between cells and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..look.stack import EIGHTHS
from .brush import BLANK, CORNER, GLYPH, HAIR, LEDGE, RIGHT, keys_of, parts_of
from .paint import EMPTY

if TYPE_CHECKING:
    from .array_types import IndexArray, KeyArray, PaintArray
    from .tiling import Tiling

_NARROWEST: Final = 2
"""Width in characters of the narrowest cell with a gap: one character, and the gap."""


def spread(tiling: Tiling, first: PaintArray, second: PaintArray, eighths: PaintArray, *, hairlines: bool) -> KeyArray:
    """Return the character keys of rows of cells: shape (rows, characters).

    The first paint fills the left `eighths` of each cell, the second paint the rest. With `hairlines`, a thin gap
    follows each cell whose last character has one paint.
    """
    front, back, filled, offset, width = _by_character(tiling, first, second, eighths)
    shape = RIGHT + np.where(front == back, EIGHTHS, filled)
    if hairlines:
        shape = np.where((offset == width - 1) & (front == back), HAIR, shape)
    keys = keys_of(shape, front, back)
    keys[front == EMPTY] = BLANK
    return keys


def cut_apart(tiling: Tiling, first: PaintArray, second: PaintArray, eighths: PaintArray) -> KeyArray:
    """Return the character keys of rows of equally wide cells with gaps between cells: shape (rows, characters).

    The gap is half a character wide. If the rows are one line high, the gap is a whole character, and a thin line above
    each row is empty.

    The first paint fills the left `eighths` of each cell, the second paint the rest. If names are written on the cells,
    the border between the paints is at the edge of a character, and never inside a name. Only a cell of one character
    and one line, which has no name, is divided inside the character.
    """
    wide, edges = tiling.wide, tiling.column_edges
    column = np.arange(tiling.columns).repeat(np.diff(edges))
    offset = np.arange(tiling.width) - edges[column]
    front, back, share = (values.reshape(-1, tiling.columns)[:, column] for values in (first, second, eighths))
    filled = share.astype(np.int64) * (2 * wide - 1) // 2
    if tiling.margin and wide == _NARROWEST and tiling.tall == 1:
        filled = share.astype(np.int64)
    elif tiling.margin:
        filled = EIGHTHS * np.clip((filled + EIGHTHS // 2) // EIGHTHS, max(tiling.label, 1), wide - 1)
    filled = np.where(
        share == 0, 0, np.where(share == EIGHTHS, EIGHTHS * wide, np.clip(filled, 1, EIGHTHS * (wide - 1)))
    )
    part = np.clip(filled - EIGHTHS * offset, 0, EIGHTHS)
    front, back = np.where(part == 0, back, front), np.where(part == EIGHTHS, front, back)
    is_end = offset == wide - 1
    shape = np.where(front == back, EIGHTHS if tiling.tall > 1 else GLYPH - RIGHT, part)
    keys = keys_of(RIGHT + np.where(is_end, EIGHTHS // 2, shape), front, np.where(is_end, EMPTY, back))
    keys[(front == EMPTY) | (is_end & (tiling.tall == 1))] = BLANK
    return keys


def keys_of_narrow_cells(tiling: Tiling, paints: PaintArray) -> KeyArray:
    """Return the character keys of rows of cells, each `tiling.eighths` wide: shape (rows, characters).

    A character shows at most two cells, because no cell is narrower than six eighths.
    """
    begins = EIGHTHS * np.arange(tiling.width)
    column = begins // tiling.eighths
    border = (column + 1) * tiling.eighths - begins
    rows = np.pad(paints.reshape(-1, tiling.columns), ((0, 0), (0, 2)), constant_values=EMPTY)
    front, back = rows[:, column], rows[:, column + (border < EIGHTHS)]
    keys = keys_of(RIGHT + np.where(front == back, EIGHTHS, np.minimum(border, EIGHTHS)), front, back)
    keys[(front == EMPTY) & (back == EMPTY)] = BLANK
    return keys


def spread_glyphs(tiling: Tiling, first: PaintArray, second: PaintArray, eighths: PaintArray) -> KeyArray:
    """Return the character keys of rows of cells for terminals without colours: shape (rows, characters).

    The arguments are those of `spread`. Each character is the glyph of the paint that fills most of it.
    """
    front, back, filled, _, _ = _by_character(tiling, first, second, eighths)
    mostly = np.where(filled >= EIGHTHS // 2, front, back)
    keys = keys_of(GLYPH, mostly, mostly)
    keys[front == EMPTY] = BLANK
    return keys


def _by_character(
    tiling: Tiling, first: PaintArray, second: PaintArray, eighths: PaintArray
) -> tuple[PaintArray, PaintArray, IndexArray, IndexArray, IndexArray]:
    """Return five arrays about the characters of rows of cells. The first three have the shape (rows, characters):
    front paint, back paint, eighths of the front paint. The others have the shape (characters): index of the character
    in its cell, width of that cell in characters.
    """
    edges = tiling.column_edges
    wide = np.diff(edges)
    column = np.arange(tiling.columns).repeat(wide)
    offset, width = np.arange(tiling.width) - edges[column], wide[column]
    front, back, share = (values.reshape(-1, tiling.columns)[:, column] for values in (first, second, eighths))
    filled = np.clip(share.astype(np.int64) * width - EIGHTHS * offset, 0, EIGHTHS)
    front, back = np.where(filled == 0, back, front), np.where(filled == EIGHTHS, front, back)
    return front, back, filled, offset, width


def with_straight_borders(keys: KeyArray) -> KeyArray:
    """Return `keys` with each border between two paints moved to the nearest edge of a character.

    A row of half height shows one paint per character, so a border inside a character would not be straight. A border
    is moved only if the character left of it ends with the border's left paint, and the one right of it begins with the
    border's right paint.
    """
    shape, first, second = parts_of(keys)
    mixed = (shape > RIGHT) & (shape < RIGHT + EIGHTHS) & (first != second) & (keys < 1 << 24)
    at_right = np.where(mixed, second, first)
    continues = np.zeros_like(mixed)
    continues[:, 1:-1] = (at_right[:, :-2] == first[:, 1:-1]) & (first[:, 2:] == second[:, 1:-1])
    paint = np.where(shape >= RIGHT + EIGHTHS // 2, first, second)
    return np.where(mixed & continues, keys_of(RIGHT + EIGHTHS, paint, paint), keys).astype(np.int32)


def hairlines_above(keys: KeyArray, *, mixed: bool) -> KeyArray:
    """Return `keys` with a thin gap above cells of one paint, to separate rows.

    The gap is the eighth of a line above a `GLYPH`, which is seven eighths high. With `mixed`, characters of two paints
    get a gap, too, and show only the paint of their larger part.
    """
    shape, first, second = parts_of(keys)
    paint = np.where((shape > RIGHT) & (shape <= RIGHT + EIGHTHS // 2), second, first)
    lined = keys_of(GLYPH, paint.astype(np.uint8), EMPTY) | (keys & ~0xFFFFFF)
    return np.where((first == second) | ((keys != BLANK) & mixed), lined, keys).astype(np.int32)


def ledges(keys: KeyArray) -> KeyArray:
    """Return `keys` with the paints in the upper half of the line only.

    The empty lower half separates rows of cells.
    """
    shape, first, second = parts_of(keys)
    is_end = (shape == RIGHT + EIGHTHS // 2) & (second == EMPTY)
    paint = np.where((shape > RIGHT) & (shape <= RIGHT + EIGHTHS // 2) & ~is_end, second, first)
    shape = np.where(is_end, CORNER, LEDGE)
    return np.where(keys == BLANK, BLANK, (shape << 16) | (EMPTY << 8) | paint | keys & ~0xFFFFFF).astype(np.int32)
