"""Still pictures of the pools of several runs as one SVG with titles and legends."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from rich.segment import Segment

from ..look.states import COLOR, VOID_COLOR
from ..pool.host_blocks import title_of
from ..pool.paint import ColorBy, paint_colors
from .still import host_legend, host_still, pool_legend, still
from .svg import CELL, rectangle, shapes_of_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.style import Style

    from ..playback.session import Session

_TITLE_HEIGHT, _LEGEND_HEIGHT, _MARGIN = 26, 24, 12
_LETTER_PX = 7.6
_TITLE_BASELINE, _LEGEND_BASELINE = 15, 12
"""Distances in pixels from the upper edge of a title, or of a legend's line, to the baseline of its text."""
_SWATCH_PX, _SWATCH_PITCH = 14, 16
"""Size of a sample of a colour in a legend, and distance between the left edges of two samples, in pixels."""
_TEXT_GAP, _ENTRY_GAP = 4, 22
"""Distances in pixels from the last sample of an entry to its text, and from there to the next entry."""
_HOST_LINES = 2
COLUMNS: Final = 84
"""Default width of the pool in a figure, in characters."""
_LINES = 10


def svg_of_stills(
    stills: list[tuple[str, Session]],
    color_by: ColorBy,
    drawn: Sequence[tuple[str, list[list[Segment]]]] = (),
    *,
    width: int = COLUMNS,
    height: int = _LINES,
) -> str:
    """Return the pools of several runs as one SVG, each with title and legend.

    Args:
        stills: titles, and runs at their current frames.
        color_by: the meaning of colour.
        drawn: titles and lines of drawings, which follow the pools.
        width: characters in a line of a pool.
        height: lines of a pool.
    """
    pixels = width * CELL[0] + 2 * _MARGIN
    parts: list[str] = []
    top: float = _MARGIN
    for title, session in stills:
        parts.append(_text(_MARGIN, top + _TITLE_BASELINE, title))
        top += _TITLE_HEIGHT
        top = _shapes(parts, still(session, COLOR, width, height, color_by=color_by), top)
        top = _legend(parts, pool_legend(session, color_by), top, pixels)
        if session.host is not None:
            parts.append(_text(_MARGIN, top + _TITLE_BASELINE, title_of(session)))
            top = _shapes(parts, host_still(session, COLOR, width, _HOST_LINES), top + _TITLE_HEIGHT)
            top = _legend(parts, host_legend(session), top, pixels)
    for title, lines in drawn:
        parts.append(_text(_MARGIN, top + _TITLE_BASELINE, title))
        top = _lines(parts, lines, top + _TITLE_HEIGHT) + _MARGIN
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {pixels} {top}" width="{pixels}" height="{top}">\n'
        "<style>.m text{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:16.6px}.b{font-weight:bold}"
        "rect{shape-rendering:crispEdges}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{VOID_COLOR}"/>\n<g class="m">\n{body}\n</g>\n</svg>\n'
    )


def _shapes(parts: list[str], picture: list[list[tuple[str, Style]]], top: float) -> float:
    return _lines(parts, [[Segment(*cell) for cell in line] for line in picture], top)


def _lines(parts: list[str], lines: list[list[Segment]], top: float) -> float:
    parts.append(f'<g transform="translate({_MARGIN} {top})">{shapes_of_lines(lines, VOID_COLOR)}</g>')
    return top + len(lines) * CELL[1] + 8


def _legend(parts: list[str], entries: Iterable[tuple[Sequence[int], str]], top: float, pixels: float) -> float:
    colors, x = paint_colors(COLOR.palette), float(_MARGIN)
    for paints, words in entries:
        samples_px = len(paints) * _SWATCH_PITCH
        wide = samples_px + _TEXT_GAP + len(words) * _LETTER_PX + _ENTRY_GAP
        if x + wide > pixels and x > _MARGIN:
            x, top = float(_MARGIN), top + _LEGEND_HEIGHT
        for number, paint in enumerate(paints):
            parts.append(rectangle(x + number * _SWATCH_PITCH, top, _SWATCH_PX, _SWATCH_PX, colors[paint]))
        parts.append(_text(x + samples_px + _TEXT_GAP, top + _LEGEND_BASELINE, words))
        x += wide
    return top + _LEGEND_HEIGHT + _MARGIN


def _text(x: float, y: float, text: str, color: str = COLOR.palette.ink) -> str:
    # Some viewers draw no text if only generic font families are named.
    style = "font:13px system-ui,'DejaVu Sans',Arial,sans-serif"
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" style="{style}">{escape(text, quote=False)}</text>'
