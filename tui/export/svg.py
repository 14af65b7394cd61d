"""Lines of styled characters as SVG that looks the same in every viewer.

Block and line characters are drawn as rectangles, independent of the font. Each word begins at its column, so that a
font of another width shifts only the letters within a word.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.color import Color, blend_rgb
from rich.terminal_theme import DIMMED_MONOKAI

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.segment import Segment
    from rich.style import Style

CELL: Final = (10, 20)
"""Width and height of a character in pixels."""
_FONT_PX: Final = 16.6
"""Font size in pixels. A letter of `_FONTS` is 0.602 times as wide, so it fills its cell."""
_BASELINE: Final = 15
_MARGIN: Final = 12
_FONTS: Final = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
_INK, _GROUND = "#d7dde5", "#12151a"

_UP, _RIGHT = "▁▂▃▄▅▆▇█", "▏▎▍▌▋▊▉█"


class _Character(NamedTuple):
    """A character of a line, with its column, counted from 0, its colours and its weight."""

    column: int
    text: str
    ink: str
    ground: str
    bold: bool


def svg_of_lines(lines: Sequence[Iterable[Segment]], ground: str) -> str:
    """Return an SVG document of `lines` on the background colour `ground`."""
    columns = max((sum(segment.cell_length for segment in line) for line in lines), default=0)
    width, height = columns * CELL[0] + 2 * _MARGIN, len(lines) * CELL[1] + 2 * _MARGIN
    body = shapes_of_lines(lines, ground)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>text{{font-family:{_FONTS};font-size:{_FONT_PX}px;white-space:pre}}"
        ".b{font-weight:bold}rect{shape-rendering:crispEdges}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{ground}"/>\n'
        f'<g transform="translate({_MARGIN} {_MARGIN})">\n{body}\n</g>\n</svg>\n'
    )


def shapes_of_lines(lines: Sequence[Iterable[Segment]], ground: str) -> str:
    """Return the SVG rectangles and texts of `lines`, with the upper left corner at (0, 0)."""
    grounds: list[str] = []
    marks: list[str] = []
    for row, line in enumerate(lines):
        characters, y = _characters(line, ground), row * CELL[1]
        grounds += _grounds_of_line(characters, y, ground)
        marks += _marks_of_line(characters, y)
    return "\n".join([*grounds, *marks])


def _characters(line: Iterable[Segment], ground: str) -> list[_Character]:
    characters: list[_Character] = []
    for segment in line:
        ink, back, bold = _colors(segment.style, ground)
        for text in segment.text:
            characters.append(_Character(len(characters), text, ink, back, bold))
    return characters


def _grounds_of_line(characters: list[_Character], y: float, ground: str) -> Iterator[str]:
    """Yield a rectangle for each run of characters whose background is not `ground`."""
    for back, run in groupby(characters, key=lambda character: character.ground):
        begin, length = _extent(run)
        if back != ground:
            yield rectangle(begin * CELL[0], y, length * CELL[0], CELL[1], back)


def _marks_of_line(characters: list[_Character], y: float) -> Iterator[str]:
    """Yield rectangles for block and line characters, then texts for the words."""
    for (text, ink), run in groupby(characters, key=lambda each: (each.text if _is_drawn(each.text) else "", each.ink)):
        begin, length = _extent(run)
        if text:
            yield from _rectangles(text, begin * CELL[0], y, length, ink)
    for (ink, bold), run in groupby(characters, key=lambda each: (each.ink, each.bold)):
        yield from _word_texts(list(run), y, ink, bold=bold)


@lru_cache(maxsize=4096)
def _colors(style: Style | None, ground: str) -> tuple[str, str, bool]:
    """Return (colour of the text, of the background, whether bold). If `style` is None: plain, on `ground`."""
    if style is None:
        return _INK, ground, False
    ink, back = _hex(style.color, _INK), _hex(style.bgcolor, ground)
    if style.reverse:
        ink, back = back, ink
    if style.dim:
        light, dark = (Color.parse(color).get_truecolor() for color in (ink, back))
        ink = blend_rgb(light, dark).hex
    return ink, back, bool(style.bold)


def _hex(color: Color | None, otherwise: str) -> str:
    return otherwise if color is None or color.is_default else color.get_truecolor(DIMMED_MONOKAI).hex


def _extent(run: Iterable[_Character]) -> tuple[int, int]:
    """Return the first column of consecutive characters, and their number."""
    columns = [character.column for character in run]
    return columns[0], len(columns)


def _is_drawn(character: str) -> bool:
    return character in _SHAPES or character == "□"


def _parts_of_cell() -> dict[str, tuple[float, float, float, float]]:
    """Return the part of a cell that each drawn character fills: (left, top, right, bottom), 0 to 1."""
    shapes = {character: (0.0, 1 - eighth / 8, 1.0, 1.0) for eighth, character in enumerate(_UP, start=1)}
    shapes |= {character: (0.0, 0.0, eighth / 8, 1.0) for eighth, character in enumerate(_RIGHT, start=1)}
    shapes |= {
        "▀": (0.0, 0.0, 1.0, 0.5),
        "▘": (0.0, 0.0, 0.5, 0.5),
        "■": (0.1, 0.25, 0.9, 0.65),
        "▇": (0.0, 0.125, 1.0, 1.0),
    }
    shapes |= {"─": (0.0, 0.45, 1.0, 0.52), "━": (0.0, 0.42, 1.0, 0.56), "│": (0.42, 0.0, 0.58, 1.0)}
    return shapes


_SHAPES: Final = _parts_of_cell()


def _rectangles(character: str, x: float, y: float, length: int, ink: str) -> list[str]:
    """Return the rectangles of `length` equal characters: one in all if the character fills the cell's width."""
    wide, tall = CELL
    if character == "□":
        inside = f'y="{y + 5.5:g}" width="{wide - 3}" height="{tall - 11}" fill="none" stroke="{ink}"'
        return [f'<rect x="{x + number * wide + 1.5:g}" {inside}/>' for number in range(length)]
    left, top, right, bottom = _SHAPES[character]
    if (left, right) == (0.0, 1.0):
        return [rectangle(x, y + top * tall, length * wide, (bottom - top) * tall, ink)]
    return [
        rectangle(x + (number + left) * wide, y + top * tall, (right - left) * wide, (bottom - top) * tall, ink)
        for number in range(length)
    ]


def _word_texts(alike: list[_Character], y: float, ink: str, *, bold: bool) -> list[str]:
    """Return a text for each word of consecutive characters of one style, at the column where the word begins."""
    text = "".join(" " if _is_drawn(character.text) else character.text for character in alike)
    weight = ' class="b"' if bold else ""
    return [
        f'<text x="{(alike[0].column + found.start()) * CELL[0]}" y="{y + _BASELINE}" fill="{ink}"{weight}>'
        f"{escape(found[0], quote=False)}</text>"
        for found in re.finditer(r"\S+", text)
    ]


def rectangle(x: float, y: float, width: float, height: float, color: str) -> str:
    """Return a filled SVG rectangle. Lengths are in pixels."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{color}"/>'
