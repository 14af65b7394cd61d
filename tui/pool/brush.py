"""Character keys: integers that encode the characters of a picture, so that pictures can be computed as arrays.

A character key holds two paints and the shape that divides the character between them, or a letter and the paint below
it. `Brush` turns a character key into a character and a style.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from rich.style import Style

from kvsim.display.palette import mixed
from kvsim.memory.waste import SlotState

from ..look.states import ink_on
from .paint import DIM, EMPTY, paint_colors, paint_glyphs

if TYPE_CHECKING:
    from rich.style import Style as RichStyle

    from ..look.states import Symbols
    from .array_types import KeyArray, PaintArray

HALF: Final = 0
"""Shape of a character: the first paint in the upper half, the second in the lower half."""
UP: Final = 0
"""Shapes `UP + n` of a character, n from 1 to 8: the first paint fills n eighths from below, the second the rest."""
RIGHT: Final = 8
"""Shapes `RIGHT + n` of a character, n from 1 to 8: the first paint fills n eighths from the left, another the rest."""
GLYPH: Final = 17
"""Shape of a character: the first paint in the lower seven eighths. Without colours, the paint's glyph."""
HAIR: Final = 18
"""Shape of a character: the first paint, with a gap of one eighth at the right, in the background's colour."""
LEDGE: Final = 19
"""Shape of a character: the first paint in the upper half; the lower half is the gap between two rows of cells."""
DIGIT: Final = 20
"""Shapes `DIGIT + n` of a character, n from 0 to 8: the digit n, for terminals without colours.

n is the number of written eighths.
"""
CORNER: Final = 29
"""Shape of a character: the first paint in the upper left quarter, nothing elsewhere.

It is the last character of a unit that has gaps at its right and below it.
"""
_GREY_GLYPH_BACKGROUND_SHARE: Final = 0.5
_SHAPE_SHIFT: Final = 16
_REVERSE = 1 << 24
"""Bit of a key: the character is under the cursor."""
_TEXT = 1 << 30
"""Bit of a key: the character is a letter. Its code point is in bits 8 to 28, the paint below it in bits 0 to 7. In the
key of a letter, `_REVERSE` is a bit of the code point: letters are not written over characters under the cursor.
"""
_STRONG = 1 << 29
"""Bit of a letter's key: the letter is beside the pool, bold and in the colour of text."""
_BYTE = 0xFF


def keys_of(shape: KeyArray | int, first: PaintArray, second: PaintArray | int) -> KeyArray:
    """Encode characters as keys: paint `first` in bits 0 to 7, `second` in bits 8 to 15, `shape` from bit 16 on."""
    found: KeyArray = (
        (np.asarray(shape, np.int32) << _SHAPE_SHIFT)
        | (np.asarray(second).astype(np.int32) << 8)
        | first.astype(np.int32)
    )
    return found


def parts_of(keys: KeyArray) -> tuple[KeyArray, KeyArray, KeyArray]:
    """Return the shape, the first paint and the second paint of each key."""
    return (keys >> _SHAPE_SHIFT) & _BYTE, keys & _BYTE, (keys >> 8) & _BYTE


def is_divided(key: int) -> bool:
    """Tell whether two different paints share the character of `key`, one left of the other."""
    shape, second, first = (key >> _SHAPE_SHIFT) & _BYTE, (key >> 8) & _BYTE, key & _BYTE
    return RIGHT < shape < RIGHT + 8 and first != second


BLANK: Final = int(keys_of(GLYPH, np.array([EMPTY], np.uint8), EMPTY)[0])
"""Key of a character outside the pool."""


def half_keys(paints: PaintArray) -> KeyArray:
    """Encode pairs of rows of paints as half-block characters: the upper row is the character's upper half.

    If the number of rows is odd, `EMPTY` is below the last row.
    """
    if len(paints) % 2:
        paints = np.concatenate((paints, np.full((1, paints.shape[1]), EMPTY, np.uint8)))
    return keys_of(HALF, paints[0::2], paints[1::2])


def reverse(keys: KeyArray) -> KeyArray:
    """Return `keys` as they are drawn under the cursor."""
    return keys | _REVERSE


def text_keys(text: str, under: KeyArray) -> KeyArray:
    """Return the character keys of `text` written over the characters `under`. A `text` longer than `under` is cut.

    All letters have one background, the most frequent paint of `under`. Characters under the cursor stay.
    """
    under = under[: len(text)]
    letters = np.array([ord(letter) for letter in text[: len(under)]], np.int32)
    shape, first, second = parts_of(under)
    # Shapes of at most half the eighths show mostly the second paint.
    mostly_second = ((shape > UP) & (shape <= UP + 4)) | ((shape > RIGHT) & (shape <= RIGHT + 4))
    mostly_second |= (shape >= DIGIT) & (shape <= DIGIT + 4)
    paint = np.where(mostly_second, second, first)
    if len(paint):
        paint = np.full_like(paint, np.bincount(paint).argmax())
    taken = ((under & _REVERSE) > 0) & (under < _TEXT)
    return np.where(taken, under, _TEXT | (letters << 8) | paint).astype(np.int32)


def strong(keys: KeyArray) -> KeyArray:
    """Return `keys` of letters beside the pool with the bit that draws them bold, in the colour of text."""
    return keys | _STRONG


def glyph_paint_color(paint: int, symbols: Symbols) -> str:
    """Return the colour of a glyph of `paint`, a number of `paint.py`. Grey glyphs are darker than grey areas."""
    palette = symbols.palette
    color = paint_colors(palette)[paint]
    if paint % DIM == SlotState.FREE:
        return palette.free_glyph_color
    in_shade = paint >= DIM and color != paint_colors(palette)[paint % DIM]
    return mixed(palette.free_glyph_color, palette.void, _GREY_GLYPH_BACKGROUND_SHARE) if in_shade else color


class Brush:
    """Map from a character key to a character and its style."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        self._colors = paint_colors(symbols.palette)
        self._glyphs = paint_glyphs(symbols)
        self._shapes = {HALF: "▀", HAIR: "▉", LEDGE: "▀", CORNER: "▘"}
        for eighth in range(1, 9):
            self._shapes[UP + eighth], self._shapes[RIGHT + eighth] = symbols.up[eighth], symbols.right[eighth:][:1]
        self._known: dict[int, tuple[str, RichStyle]] = {}

    def __getitem__(self, key: int) -> tuple[str, RichStyle]:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._draw(key)
        return found

    def _draw(self, key: int) -> tuple[str, RichStyle]:
        if key >= _TEXT:
            return self._draw_letter((key & (_STRONG - 1)) >> 8, key & _BYTE, strong=bool(key & _STRONG))
        if key & _REVERSE:
            return self._draw_cursor(key & ~_REVERSE)
        shape, second, first = key >> _SHAPE_SHIFT, (key >> 8) & _BYTE, key & _BYTE
        if not self._symbols.color:
            return self._draw_glyph(shape, first)
        if (shape == GLYPH and first == EMPTY) or (shape < GLYPH and first == second):
            return " ", self._style(first, first)
        # A glyph takes seven eighths, so that lines of units do not run into each other.
        character = self._shapes.get(shape, "▇")
        return character, self._style(first, EMPTY if shape in (GLYPH, HAIR, LEDGE, CORNER) else second)

    def _draw_glyph(self, shape: int, first: int) -> tuple[str, RichStyle]:
        paint = first % DIM
        style = Style(color=glyph_paint_color(first, self._symbols), bgcolor=self._symbols.palette.void)
        if shape in (LEDGE, CORNER) or paint == EMPTY:
            return " ", style
        if DIGIT < shape < DIGIT + 8 and paint < EMPTY:
            return str(shape - DIGIT), style
        return self._glyphs[paint], style

    def _draw_cursor(self, key: int) -> tuple[str, RichStyle]:
        palette = self._symbols.palette
        if self._symbols.color:
            # A small square on the background, because shared units are nearly as bright as the cursor.
            return "■", Style(color=palette.cursor, bgcolor=palette.void)
        character, style = self._draw(key)
        character = character if character.strip() else "_"
        return character, style + Style(color=palette.void, bgcolor=palette.cursor, bold=True)

    def _draw_letter(self, letter: int, paint: int, *, strong: bool) -> tuple[str, RichStyle]:
        palette = self._symbols.palette
        if strong:
            return chr(letter), Style(color=palette.ink, bgcolor=palette.void, bold=True)
        # A name on a free unit has a weak colour.
        if self._symbols.color and paint % DIM not in (EMPTY, SlotState.FREE):
            color = self._colors[paint]
            return chr(letter), Style(color=ink_on(color), bgcolor=color, bold=True)
        back = self._colors[paint if self._symbols.color else EMPTY]
        return chr(letter), Style(color=palette.free_glyph_color, bgcolor=back)

    def _style(self, front: int, back: int) -> RichStyle:
        return Style(color=self._colors[front], bgcolor=self._colors[back])
