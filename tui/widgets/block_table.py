"""Panel with the block table of the followed request, or with a row for each kind of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.strip import Strip

from ..facts.group_tables import AHEAD, HELD, RELEASED, block_extents, table_rows, uniform_words
from ..look.wording import plural
from .panel import Panel

if TYPE_CHECKING:
    from textual import events

    from ..look.states import Symbols
    from ..playback.session import Session


class BlockTable(Panel, can_focus=True, inherit_bindings=False):
    """Blocks of the followed request, numbered in its table and in the pool, the newest last. The user can scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_lines(-1)", "Up", show=False, id="table.up"),
        Binding("down,j", "scroll_lines(1)", "Down", show=False, id="table.down"),
        Binding("escape", "leave", "Leave table", show=False, id="table.leave"),
    ]

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="table")
        unit = session.unit_name
        several = len(session.replay.groups) > 1
        self.border_title = (
            f"{unit} tables, by kind of layers" if several else f"{unit} table: logical {symbols.arrow} physical"
        )
        self._lines_back = 0

    def allow_focus(self) -> bool:
        """Accept the focus only if there are lines to scroll to."""
        return self.num_lines > self.size.height

    def action_scroll_lines(self, lines: int) -> None:
        """Show earlier (-1) or later (1) lines."""
        self._lines_back -= lines
        self.show_frame()

    def action_leave(self) -> None:
        self.screen.set_focus(None)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_scroll_lines(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_scroll_lines(1)

    def write(self) -> list[Strip]:
        """Return the lines that fit.

        If lines are left out at the beginning or the end, the first or the last line states the number of units that
        are not shown there.
        """
        lines = self._lines_of_table()
        self.num_lines, height = len(lines), max(self.size.height, 1)
        hidden = max(len(lines) - height, 0)
        self._lines_back = min(max(self._lines_back, 0), hidden)
        begin = hidden - self._lines_back
        end = min(begin + height, len(lines))
        shown = [line for line, _ in lines[begin:end]]
        # A line with a count replaces a line of the table, so the count includes the units of that line.
        if begin:
            shown[0] = self._hint(sum(size for _, size in lines[: begin + 1]), "before")
        if end < len(lines) and height > 1:
            shown[-1] = self._hint(sum(size for _, size in lines[end - 1 :]), "after")
        return shown

    def _hint(self, number: int, where: str) -> Strip:
        noun = "line" if len(self.session.replay.groups) > 1 else self.session.unit_name
        return Strip([self.text(f"{self.symbols.cut} {plural(number, noun)} {where}, scroll", "weak")])

    def _lines_of_table(self) -> list[tuple[Strip, int]]:
        """Return every line, with the number of units on it: 1 for a line about a kind of layers, 0 for a hint."""
        session = self.session
        if session.followed is None:
            return [(Strip([self.text("follow a request to see its table", "weak")]), 0)]
        positions, addresses = session.replay.block_table(session.followed)
        if not len(positions):
            return [(Strip([self.text("it holds no memory now", "weak")]), 0)]
        if len(session.replay.groups) > 1:
            return [(line, 1) for line in self._group_rows(session.followed)]
        extents = block_extents(positions, addresses)
        entries = [extent.words(self.symbols) for extent in extents]
        width = max(map(len, entries)) + 2
        per_line = max(self.size.width // width, 1)
        return [
            (
                Strip([self.text("".join(entry.ljust(width) for entry in entries[at : at + per_line]))]),
                sum(extent.length for extent in extents[at : at + per_line]),
            )
            for at in range(0, len(extents), per_line)
        ]

    def _group_rows(self, request: int) -> list[Strip]:
        width = max(self.size.width - 2, 8)
        glyphs = {RELEASED: self.symbols.dot, HELD: self.symbols.up[-1], AHEAD: " "}
        strips = []
        for row in table_rows(self.session, request, width):
            sample = self.sample(row.kind.paint)
            let_go = f", {row.num_missing_before:,} let go" if row.num_missing_before else ""
            strips += [
                Strip([sample, self.text(f" {row.kind.words}", "strong")]),
                Strip([Segment("".join(glyphs[part] for part in row.parts), sample.style)]),
                Strip([self.text(f"{row.num_held:,} held{let_go}", "weak")]),
            ]
        if words := uniform_words(self.session, request):
            strips.append(Strip([self.text(words, "weak")]))
        return strips
