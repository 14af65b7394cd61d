"""A still as SVG: rectangles and a legend, without the fonts and frames of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from .states import COLOR, LOOKS, STACK, VOID_COLOR
from .still import still
from .words import percent

if TYPE_CHECKING:
    from rich.style import Style

    from .session import Session

_CELL_WIDTH, _CELL_HEIGHT = 9, 18
"""Pixels of one character."""
_TITLE_HEIGHT, _LEGEND_HEIGHT, _MARGIN = 26, 24, 10
_ENTRY_WIDTH = 150
_TEXT_COLOR: Final = "#d7dde5"
_FONT: Final = 'font-family="system-ui, sans-serif" font-size="13"'


def svg_of_stills(stills: list[tuple[str, Session]], width: int = 84, height: int = 10) -> str:
    """The pools of several runs above each other, each under its title, with the legend of their states."""
    pixels = width * _CELL_WIDTH + 2 * _MARGIN
    parts: list[str] = []
    top = _MARGIN
    for title, session in stills:
        parts.append(_text(_MARGIN, top + 15, title))
        top += _TITLE_HEIGHT
        lines = still(session, COLOR, width, height)
        for number, line in enumerate(lines):
            parts += _line(line, top + number * _CELL_HEIGHT)
        top += len(lines) * _CELL_HEIGHT + 8
        entries = [state for state in STACK if session.breakdown[state]]
        per_line = max(pixels // _ENTRY_WIDTH, 1)
        for index, state in enumerate(entries):
            x, y = _MARGIN + index % per_line * _ENTRY_WIDTH, top + index // per_line * _LEGEND_HEIGHT
            share = percent(int(session.breakdown[state]), session.capacity)
            parts.append(_rectangle(x, y, 14, 14, LOOKS[state].color))
            parts.append(_text(x + 20, y + 12, f"{LOOKS[state].name} {share}"))
        top += -(-len(entries) // per_line) * _LEGEND_HEIGHT + _MARGIN
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {pixels} {top}" width="{pixels}" height="{top}">\n'
        f'<rect width="100%" height="100%" fill="{VOID_COLOR}"/>\n{body}\n</svg>\n'
    )


def _line(line: list[tuple[str, Style]], top: int) -> list[str]:
    """Runs of equal characters, each as the one or two rectangles that it is drawn with."""
    found: list[str] = []
    begin = 0
    for end in range(1, len(line) + 1):
        if end < len(line) and line[end] == line[begin]:
            continue
        character, style = line[begin]
        x, wide = _MARGIN + begin * _CELL_WIDTH, (end - begin) * _CELL_WIDTH
        ink, ground = (color.name if color is not None else VOID_COLOR for color in (style.color, style.bgcolor))
        if ground != VOID_COLOR:
            found.append(_rectangle(x, top, wide, _CELL_HEIGHT, ground))
        if character == "▀":
            found.append(_rectangle(x, top, wide, _CELL_HEIGHT / 2, ink))
        elif character in COLOR.up:
            tall = COLOR.up.index(character) / 8 * _CELL_HEIGHT
            found.append(_rectangle(x, top + _CELL_HEIGHT - tall, wide, tall, ink))
        else:
            found.append(_text(x, top + 14, character * (end - begin), ink))
        begin = end
    return found


def _rectangle(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{color}"/>'


def _text(x: float, y: float, text: str, color: str = _TEXT_COLOR) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" {_FONT}>{escape(text)}</text>'
