"""What is sent to a terminal makes it show the whole update, and is little."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.strip import Strip

from kvsim_tui.terminal import Link, ScreenContent

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 12, 3
CODE = re.compile(r"\x1b\[([0-9;]*)([HCm])")
NARROW = ["a", "bc", " ", "   ", "▀▀", "█", "x y"]
CASES = 300


def screen_of(rng: random.Random, texts: list[str]) -> list[list[Segment]]:
    """Return the lines of a screen, in colours at random."""

    def style() -> Style:
        return Style(
            color=rng.choice([None, "#ff0000", "#00ff00", "red"]),
            bgcolor=rng.choice([None, "#ff0000", "#0000ff"]),
            bold=rng.choice([None, True]),
            underline=rng.choice([None, True]),
        )

    return [[Segment(rng.choice(texts), style()) for _ in range(rng.randrange(5))] for _ in range(HEIGHT)]


def spans_of(rng: random.Random) -> list[tuple[int, int, int]]:
    """Return stretches of lines, from one column to another."""
    columns = [sorted(rng.sample(range(WIDTH + 1), 2)) for _ in range(3)]
    return [(rng.randrange(HEIGHT), begin, end) for begin, end in columns]


class Emulator:
    """A terminal that keeps, for each place, what a person sees there."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], tuple[str, ...]] = {}
        self.x = self.y = 0
        self.plain()

    def plain(self) -> None:
        """Forget the style."""
        self.attributes: set[str] = set()
        self.color, self.ground = "39", "49"

    def feed(self, codes: str) -> None:
        """Show what is sent."""
        at = 0
        while at < len(codes):
            code = CODE.match(codes, at)
            if code is None:
                self.show(codes[at])
                at += 1
                continue
            at = code.end()
            numbers = code[1].split(";")
            if code[2] == "H":
                line, column = (*numbers, "1")[:2]
                self.y, self.x = int(line) - 1, int(column) - 1
            elif code[2] == "C":
                self.x += int(numbers[0] or 1)
            else:
                self.style(numbers)

    def style(self, numbers: list[str]) -> None:
        """Change the style."""
        while numbers:
            first, *numbers = numbers
            value = first
            if first in ("38", "48"):
                value, numbers = ";".join([first, *numbers[:4]]), numbers[4:]
            if first == "0":
                self.plain()
            elif first in ("1", "4"):
                self.attributes.add(first)
            elif first[0] == "3":
                self.color = value
            else:
                self.ground = value

    def show(self, character: str) -> None:
        """Show one character, as it is seen: a space has no colour, and a full block is a space of its colour."""
        color, ground = self.color, self.ground
        if character == "█" and "4" not in self.attributes and color != "39":
            character, ground = " ", (f"4{color[1:]}")
        if color[1:] == ground[1:] and color != "39" and "4" not in self.attributes and cell_len(character) == 1:
            character = " "
        if character == " " and "4" not in self.attributes:
            looks: tuple[str, ...] = (" ", ground)
        else:
            looks = (character, color, ground, *sorted(self.attributes))
        for beside in range(cell_len(character)):
            self.seen[self.x + beside, self.y] = looks if not beside else ("", *looks[1:])
        self.x += cell_len(character)


def strips(lines: Sequence[Sequence[Segment]]) -> list[Strip]:
    """Return lines of the width of the terminal."""
    return [Strip(list(line)).adjust_cell_length(WIDTH, Style()) for line in lines]


def partial(lines: list[Strip], spans: list[tuple[int, int, int]]) -> ChopsUpdate:
    """Return an update of `spans` of a screen with one widget."""
    return ChopsUpdate([{0: line} for line in lines], spans, [[WIDTH] for _ in lines])


def whole(lines: list[Strip]) -> LayoutUpdate:
    """Return an update of everything."""
    from textual.geometry import Region

    return LayoutUpdate([[line] for line in lines], Region(0, 0, WIDTH, HEIGHT))  # type: ignore[list-item]


def plain(update: Any) -> Emulator:
    """Return a terminal that was sent everything."""
    terminal = Emulator()
    for y, strip in enumerate(update):
        terminal.x, terminal.y = 0, y
        terminal.feed(strip.render(CONSOLE).replace("\x1b[m", ""))
        terminal.plain()
    return terminal


CONSOLE = Console(force_terminal=True, color_system="truecolor", legacy_windows=False)


def test_the_terminal_shows_the_screen_after_a_full_and_a_partial_update() -> None:
    rng = random.Random(1)
    for _ in range(CASES):
        first, second = (strips(screen_of(rng, [*NARROW, "語"])) for _ in range(2))
        terminal, shown = Emulator(), ScreenContent(Link())
        terminal.feed(shown.update(whole(first)).render_segments(CONSOLE))
        assert terminal.seen == plain(first).seen
        lines = {y for y, _, _ in spans_of(rng)}
        terminal.feed(shown.update(partial(second, [(y, 0, WIDTH) for y in sorted(lines)])).render_segments(CONSOLE))
        assert terminal.seen == plain([second[y] if y in lines else first[y] for y in range(HEIGHT)]).seen


def test_what_is_shown_already_is_not_sent() -> None:
    rng = random.Random(2)
    for _ in range(CASES):
        lines = strips(screen_of(rng, NARROW))
        shown = ScreenContent(Link())
        shown.update(whole(lines)).render_segments(CONSOLE)
        assert shown.update(partial(lines, spans_of(rng))).render_segments(CONSOLE) == ""


def test_a_changed_digit_costs_a_movement_and_itself() -> None:
    shown = ScreenContent(Link())
    shown.update(whole(strips([[Segment("step 41")], [], []]))).render_segments(CONSOLE)
    codes = shown.update(partial(strips([[Segment("step 42")], [], []]), [(0, 0, WIDTH)])).render_segments(CONSOLE)
    assert codes == "\x1b[1;7H2"


def test_a_stretch_in_the_middle_of_a_line_is_drawn_there() -> None:
    shown = ScreenContent(Link())
    shown.update(whole(strips([[Segment("abcdef")], [], []]))).render_segments(CONSOLE)
    codes = shown.update(partial(strips([[Segment("xxxxxx")], [], []]), [(0, 2, 4)])).render_segments(CONSOLE)
    assert codes == "\x1b[1;3Hxx"


def test_a_full_update_is_sent_whole() -> None:
    shown = ScreenContent(Link())
    first = shown.update(whole(strips([[Segment("abc")], [], []]))).render_segments(CONSOLE)
    assert shown.update(whole(strips([[Segment("abc")], [], []]))).render_segments(CONSOLE) == first


def test_a_link_is_free_again_when_what_was_sent_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    link = Link(bytes_per_s=1000)
    assert link.is_free(100.0)
    link.send(500)
    assert not link.is_free(100.4)
    assert link.is_free(100.5)
    assert link.is_free(200.0)
    link.send(260)  # a long silence makes up for a quarter of a second
    assert not link.is_free(200.0)
    assert link.is_free(200.1)
