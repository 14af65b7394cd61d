"""Bars of states, and samples of colours for legends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from kvsim.memory.waste import SlotState

from ..look.stack import EIGHTHS
from ..look.states import STACK
from .brush import glyph_paint_color
from .paint import DIM, paint_colors, paint_glyphs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..look.states import Symbols


def stack_cells(layers: Iterable[tuple[int, int, int]], eighths: str, symbols: Symbols) -> Iterator[Segment]:
    """Yield the characters of a bar of states.

    An item of `layers` describes a character: two indices in `STACK`, and the eighths of the first, see `stacked`.
    `eighths` are the nine characters, from empty to full, that grow in the direction of the bar.
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
    """Return a sample of the colour or glyph of `state`."""
    character = symbols.right[EIGHTHS:] or symbols.states[state]
    return Segment(character, Style(color=glyph_color(state, symbols), bgcolor=symbols.palette.void))


def paint_swatch(paint: int, symbols: Symbols) -> Segment:
    """Return a sample of the colour or glyph of `paint`."""
    glyph = "■" if symbols.color else paint_glyphs(symbols)[paint % DIM]
    color = paint_colors(symbols.palette)[paint] if symbols.color else glyph_paint_color(paint, symbols)
    return Segment(glyph, Style(color=color))


def glyph_color(state: SlotState, symbols: Symbols) -> str:
    """Return the colour of a sample of `state`. Free memory has a stronger colour where states are drawn as glyphs."""
    palette = symbols.palette
    return palette.free_glyph_color if state is SlotState.FREE and not symbols.color else palette.states[state]
