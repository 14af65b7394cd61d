"""From codes to characters: what each cell of a picture is drawn with.

A key is a small integer that says all there is to say about one character of the pool: two codes for a half-block
character, one code for a glyph, a fill, or a letter on one. `Brush` turns it into a character and a style, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from rich.style import Style

from kvsim.memory.waste import NUM_STATES, SlotState

from .picture import EIGHTHS, EMPTY
from .states import STACK, Symbols, ink_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DIM = 8
"""Added to the code of a cell that is not part of the request being followed."""
CURSOR = 15
"""The code of the cell under the cursor, where half characters are drawn."""
_NUM_CODES = 16
_GLYPH, _FILL = 1 << 8, 1 << 10
_REVERSE = 1 << 16
"""Set in the key of a character under the cursor, where whole characters are drawn."""
_TEXT = 1 << 30


def half_keys(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Keys of characters that show two rows of `codes` each; an odd last row is paired with nothing."""
    if len(codes) % 2:
        codes = np.concatenate((codes, np.full((1, codes.shape[1]), EMPTY, np.uint8)))
    return codes[0::2].astype(np.int32) * _NUM_CODES + codes[1::2]


def glyph_keys(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Keys of characters that show one code each."""
    return codes.astype(np.int32) + _GLYPH


def fill_keys(
    dominant: npt.NDArray[np.uint8],
    rest: npt.NDArray[np.uint8],
    fill: npt.NDArray[np.uint8],
    dim: npt.NDArray[np.bool_],
    *,
    half_blocks: bool,
) -> npt.NDArray[np.int32]:
    """Keys of characters that show one unit each, and how much of it is written."""
    # What is written of a unit that is mostly not: tokens, because padding comes in whole extents.
    written = np.where(dominant == SlotState.PADDING, SlotState.PADDING, SlotState.TOKEN)
    plain = (fill == 0) | (fill == EIGHTHS)
    code = dominant + np.uint8(DIM) * dim
    whole = code.astype(np.int32) * (_NUM_CODES + 1) if half_blocks else glyph_keys(code)
    key = (((rest.astype(np.int32) * 2 + dim) * 16 + fill) * 8) + written + _FILL
    return np.where(plain, whole, key).astype(np.int32)


def reverse(keys: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The same characters under the cursor."""
    return keys | _REVERSE


def text_keys(text: str, under: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Keys of `text`, as far as there are characters `under` it; those under the cursor stay as they are."""
    under = under[: len(text)]
    halves = under < _GLYPH
    code = np.where(halves, under // _NUM_CODES, under - _GLYPH)
    partly = (under >= _FILL) & (under & _REVERSE == 0)
    code[partly] = _most_of(under[partly] - _FILL)
    letters = np.array([ord(letter) for letter in text[: len(under)]], np.int32)
    at_cursor = np.where(halves, code == CURSOR, under & _REVERSE > 0)
    return np.where(at_cursor, under, _TEXT + letters * _NUM_CODES + code).astype(np.int32)


def _most_of(fills: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The code of what more than half of each partly written unit is."""
    value, written = np.divmod(fills, 8)
    value, fill = np.divmod(value, 16)
    rest, dim = np.divmod(value, 2)
    most: npt.NDArray[np.int32] = np.where(fill > EIGHTHS // 2, written, rest) + DIM * dim
    return most


class Brush:
    """The character and the style of every key."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        colors = [glyph_color(state, symbols) for state in SlotState]

        palette = symbols.palette
        self._colors = [*colors, palette.void, *map(palette.dimmed, colors), palette.cursor]
        self._known: dict[int, tuple[str, Style]] = {}

    def __getitem__(self, key: int) -> tuple[str, Style]:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._draw(key)
        return found

    def _draw(self, key: int) -> tuple[str, Style]:
        if key >= _TEXT:
            return self._draw_letter(key - _TEXT)
        if key & _REVERSE:
            return self._draw_cursor(key & ~_REVERSE)
        if key >= _FILL:
            return self._draw_fill(key - _FILL)
        if key >= _GLYPH:
            return self._draw_glyph(key - _GLYPH)
        top, bottom = divmod(key, _NUM_CODES)
        return " " if top == bottom else "▀", self._style(top, bottom)

    def _draw_cursor(self, key: int) -> tuple[str, Style]:
        palette = self._symbols.palette
        if self._symbols.color:
            return "▇", Style(color=palette.cursor, bgcolor=palette.void)
        character, style = self._draw(key)
        character = character if character.strip() else "_"
        return character, style + Style(color=palette.void, bgcolor=palette.cursor, bold=True)

    def _draw_glyph(self, code: int) -> tuple[str, Style]:
        state = code % DIM
        if state >= NUM_STATES:
            return " ", self._style(EMPTY, EMPTY)
        if self._symbols.color:
            # Seven eighths, so that lines of units do not run into each other.
            return "▇", self._style(code, EMPTY)
        style = self._style(code, EMPTY)
        return self._symbols.states[state], style

    def _draw_letter(self, value: int) -> tuple[str, Style]:
        letter, code = divmod(value, _NUM_CODES)
        # On what nobody holds there is nothing to be read in the first place.
        if self._symbols.color and code < EMPTY and code != SlotState.FREE:
            return chr(letter), Style(color=ink_on(self._colors[code]), bgcolor=self._colors[code], bold=True)
        back = self._colors[code if self._symbols.color else EMPTY]
        return chr(letter), Style(color=self._symbols.palette.free_glyph, bgcolor=back)

    def _draw_fill(self, value: int) -> tuple[str, Style]:
        value, written = divmod(value, 8)
        value, fill = divmod(value, 16)
        rest, dim = divmod(value, 2)
        offset = DIM * dim
        if self._symbols.color:
            return self._symbols.up[fill], self._style(written + offset, rest + offset)
        return str(fill), self._style(written + offset, EMPTY)

    def _style(self, front: int, back: int) -> Style:
        return Style(color=self._colors[front], bgcolor=self._colors[back])


def stack_cells(layers: Iterable[tuple[int, int, int]], eighths: str, symbols: Symbols) -> Iterator[Segment]:
    """One character per cell of a bar of states, given as `stacked` returns them, layers being numbers in `STACK`.

    `eighths` are the nine characters that grow in the bar's direction.
    """
    palette = symbols.palette
    for low, high, part in layers:
        if symbols.color:
            style = Style(color=palette.states[STACK[low]], bgcolor=palette.states[STACK[high]])
            yield Segment(eighths[part], style)
        else:
            state = STACK[low] if part >= EIGHTHS // 2 else STACK[high]
            yield Segment(symbols.states[state], Style(color=glyph_color(state, symbols), bgcolor=palette.void))


def swatch(state: SlotState, symbols: Symbols) -> Segment:
    """One character that looks as the state does in the pictures."""
    character = symbols.right[EIGHTHS:] or symbols.states[state]
    return Segment(character, Style(color=glyph_color(state, symbols), bgcolor=symbols.palette.void))


def glyph_color(state: SlotState, symbols: Symbols) -> str:
    """The colour of a state, as an area or as a glyph."""
    palette = symbols.palette
    return palette.free_glyph if state is SlotState.FREE and not symbols.color else palette.states[state]
