"""Reduces what is sent to the terminal to the characters that changed, for slow links such as SSH.

Textual sends every changed region whole, with all attributes of each piece of text. `ScreenContent` remembers what the
terminal shows and leaves out the rest; `Link` limits the rate.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.segment import Segment

BYTES_PER_S: Final = 48_000
"""Mean number of bytes per second that may be sent. Frames are skipped as long as the mean is higher."""
_CREDIT_S: Final = 0.25
"""Seconds for which unused bytes of the rate are saved. A burst may send them in addition."""
_SHORTEST_MOVE: Final = 4
"""Bytes of the shortest code that moves the cursor. A gap of fewer unchanged characters is sent again instead."""
_SEEN_ON_BLANKS: Final = frozenset("4579")
"""ANSI codes of the attributes that are visible on a space: underline, blinking, reverse, strikethrough."""


class Ink(NamedTuple):
    """ANSI codes of a style: attributes, colour, background.

    An empty colour means that any colour looks the same, because the character is a space.
    """

    attributes: str
    color: str
    ground: str


_PLAIN: Final = Ink("", "39", "49")


class Link:
    """Counts the bytes sent to the terminal, to limit their rate."""

    def __init__(self, bytes_per_s: float = BYTES_PER_S) -> None:
        self._bytes_per_s = bytes_per_s
        self._credit, self._counted_s = 0.0, time.monotonic()

    def send(self, number: int) -> None:
        self._credit -= number

    def is_free(self, now_s: float) -> bool:
        """Tell whether the bytes sent until `now_s` (monotonic seconds) are within the rate, so that one may follow."""
        earned = (now_s - self._counted_s) * self._bytes_per_s
        self._credit, self._counted_s = min(self._credit + earned, self._bytes_per_s * _CREDIT_S), now_s
        return self._credit >= 0


class ScreenContent:
    """Characters and styles that the terminal shows, line by line."""

    def __init__(self, link: Link) -> None:
        self._lines: list[list[tuple[str, Ink]]] = []
        self._link = link

    def update(self, update: CompositorUpdate) -> CompositorUpdate:
        """Return `update` without the characters that the terminal shows already."""
        return PartialUpdate(update, self) if isinstance(update, ChopsUpdate | LayoutUpdate) else update

    def codes(self, update: ChopsUpdate | LayoutUpdate, console: Console) -> str:
        """Return the characters and codes that make the terminal show `update`, and count their bytes.

        A full update is sent whole, because another program may have written on the screen.
        """
        system = console._color_system or ColorSystem.TRUECOLOR
        pen = TerminalWriter()
        if isinstance(update, LayoutUpdate):
            self._lines = [[] for _ in update.strips]
            for y, line in enumerate(update.strips):
                self._draw(pen, 0, y, (segment for strip in line for segment in strip), system)
        else:
            for x, y, segments in _changed_pieces(update):
                self._draw(pen, x, y, segments, system)
        codes = pen.end()
        self._link.send(len(codes.encode()))
        return codes

    def _draw(self, pen: TerminalWriter, x: int, y: int, segments: Iterator[Segment], system: ColorSystem) -> None:
        if y >= len(self._lines):
            self._lines += [[] for _ in range(y + 1 - len(self._lines))]
        line = self._lines[y]
        for text, style, _ in segments:
            ink = _ink_of(style or Style.null(), system)
            for character in text:
                cell = _simplest(character, ink)
                if x >= len(line):
                    line += [("", _PLAIN)] * (x + 1 - len(line))
                if line[x] != cell:
                    pen.write(x, y, cell, line)
                    line[x] = cell
                if character.isascii():
                    x += 1
                    continue
                width = cell_len(character)
                for covered in range(x + 1, x + width):  # the right half of a wide character
                    line[covered : covered + 1] = [("", ink)]
                x += width


class TerminalWriter:
    """Collects characters for the terminal, with few codes for positions and styles."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._x, self._y = -1, -1
        self._ink = _PLAIN

    def write(self, x: int, y: int, cell: tuple[str, Ink], line: list[tuple[str, Ink]]) -> None:
        """Add the character `cell` at column `x` of line `y`.

        `line` is what the terminal shows in that line. A few unchanged characters left of `x` are sent again if that
        takes fewer bytes than to move the cursor.
        """
        if y != self._y or x < self._x:
            self._parts.append(f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H")
        elif x > self._x:
            gap = line[self._x : x]
            if len(gap) < _SHORTEST_MOVE and all(len(text) == 1 and self._has(ink) for text, ink in gap):
                self._parts.extend(text for text, _ in gap)
            else:
                self._parts.append(f"\x1b[{x - self._x}C" if x > self._x + 1 else "\x1b[C")
        character, ink = cell
        self._take(ink)
        self._parts.append(character)
        self._x, self._y = x + (1 if character.isascii() else cell_len(character)), y

    def end(self) -> str:
        """Return everything that was added, followed by the code for a plain style."""
        self._take(_PLAIN)
        return "".join(self._parts)

    def _has(self, ink: Ink) -> bool:
        return ink == self._ink or (not ink.color and self._on_blank(ink) == self._ink)

    def _on_blank(self, ink: Ink) -> Ink:
        """Return the style that looks like `ink` on a space and differs least from the current style."""
        attributes, color, _ = self._ink
        return Ink(attributes, color, ink.ground) if _unseen_on_blanks(attributes) else Ink("", color, ink.ground)

    def _take(self, ink: Ink) -> None:
        ink = ink if ink.color else self._on_blank(ink)
        if ink == self._ink:
            return
        attributes, color, ground = self._ink
        codes = []
        if ink.attributes != attributes:
            codes = ["0", ink.attributes]
            color, ground = _PLAIN.color, _PLAIN.ground
        codes += [code for code, before in ((ink.color, color), (ink.ground, ground)) if code != before]
        self._parts.append(f"\x1b[{';'.join(filter(None, codes))}m")
        self._ink = ink


class PartialUpdate(CompositorUpdate):
    """Update of the screen that sends only the characters that the terminal does not show yet."""

    def __init__(self, update: ChopsUpdate | LayoutUpdate, shown: ScreenContent) -> None:
        self._update, self._shown = update, shown

    def __rich_console__(self, console: Console, options: Any) -> Any:
        """Render the whole update, for a console that is not a terminal."""
        return self._update.__rich_console__(console, options)

    def render_segments(self, console: Console) -> str:
        return self._shown.codes(self._update, console)


def _changed_pieces(update: ChopsUpdate) -> Iterator[tuple[int, int, Iterator[Segment]]]:
    for y, begin, end in update.spans:
        for stop, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x >= end or stop <= begin:
                continue
            left, right = max(begin, x), min(end, stop)
            yield left, y, iter(strip if (left, right) == (x, stop) else strip.crop(left - x, right - x))


@lru_cache(maxsize=4096)
def _ink_of(style: Style, system: ColorSystem) -> Ink:
    attributes = Strip.render_ansi(style.without_color, system)
    color, ground = style.color, style.bgcolor
    return Ink(
        attributes,
        _PLAIN.color if color is None else ";".join(color.downgrade(system).get_ansi_codes()),
        _PLAIN.ground if ground is None else ";".join(ground.downgrade(system).get_ansi_codes(foreground=False)),
    )


@lru_cache(maxsize=1 << 14)
def _simplest(character: str, ink: Ink) -> tuple[str, Ink]:
    """Return the character and style that look like `character` in `ink` and need the fewest codes.

    A full block, or a character in the colour of its background, becomes a space, which needs no colour of its own.
    """
    if not _unseen_on_blanks(ink.attributes):
        return character, ink
    if character == "█" and ink.color != _PLAIN.color:
        return " ", Ink("", "", _as_ground(ink.color))
    if character == " " or (_as_ground(ink.color) == ink.ground != _PLAIN.ground and cell_len(character) == 1):
        return " ", Ink("", "", ink.ground)
    return character, ink


@lru_cache
def _unseen_on_blanks(attributes: str) -> bool:
    return _SEEN_ON_BLANKS.isdisjoint(attributes.split(";"))


def _as_ground(color: str) -> str:
    """Return the ANSI code of a background colour from that of the same text colour: its first number plus 10."""
    first, _, rest = color.partition(";")
    return f"{int(first) + 10};{rest}" if rest else str(int(first) + 10)
