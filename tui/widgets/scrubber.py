"""Base class of the widgets with a time axis: it maps times to columns, and lets the mouse move the clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widget import Widget

from kvsim.display.palette import mixed
from kvsim.memory.waste import SlotState

from ..look.wording import pace

if TYPE_CHECKING:
    from textual import events

    from ..look.states import Symbols
    from ..playback.player import Player

GUTTER = 15
"""Number of characters left of the axis, for labels and current values."""
_TINT = 0.4


def under_cursor(cell: Segment, symbols: Symbols) -> Segment:
    """Return a character of a chart as it looks under the cursor: tinted with the cursor's colour.

    An empty character becomes a vertical line. Without colours, free memory also becomes a vertical line, and other
    characters become bold.
    """
    palette, style = symbols.palette, cell.style or RichStyle()
    grounded = style.bgcolor is not None and style.bgcolor.get_truecolor().hex != palette.void
    if not symbols.color or (cell.text == " " and not grounded):
        blank = cell.text in (" ", symbols.states[SlotState.FREE])
        line = "│" if symbols.color else "|"
        return Segment(line if blank else cell.text, RichStyle(color=palette.cursor, bold=True))

    ink, ground = (
        None if color is None else mixed(color.get_truecolor().hex, palette.cursor, _TINT)
        for color in (style.color, style.bgcolor if grounded else None)
    )
    return Segment(cell.text, RichStyle(color=ink, bgcolor=ground))


class Scrubber(Widget):
    """Time axis of `player`, right of a gutter for labels. The mouse moves the clock along the axis."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "timeline--text",
        "timeline--label",
        "timeline--value",
        "timeline--bar",
        "timeline--track",
    }

    @dataclass
    class Scrubbed(Message):
        """The user wants to see the time under the mouse."""

        time_s: float

    def __init__(self, player: Player, symbols: Symbols, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.player = player
        self.symbols = symbols
        self.following = False
        """True if the clock follows the end of a growing recording."""
        self._scrubbing = False
        self._title = Content("")

    def show_clock_title(self) -> None:
        """Show in the title whether the clock runs, its speed, and its position."""
        player = self.player
        state = "playing" if player.playing else "paused"
        marks = [
            Content.assemble("   ", Content(glyph).stylize(style), f" {meaning}")
            for glyph, style, meaning in self.legend_entries()
        ]
        paces = [""] if self.following else [re.sub(r"(er)$", r"\1 than it ran", self.pace), self.pace]
        if self.screen.has_class("-lesson"):  # its marks are part of the lesson
            paces.append("")
        begin = "following" if self.following else state
        titles = [self._joined(begin, pace, self.step_text()) for pace in paces]
        room = self.size.width - 2
        # The title that leaves room for most marks, and of several the one that says most.
        number, title = max((self._marked(each, marks, room) for each in titles), key=lambda found: found[0])
        if number < self.num_on_axis and not player.playing:  # while paused, the speed can be left out
            title = self._marked(self._joined(begin, self.step_text()), marks, room)[1]
        if title != self._title:
            self.border_title = self._title = title

    def _joined(self, *parts: str) -> Content:
        return Content(f" {self.symbols.dot} ".join(filter(None, parts)))

    @staticmethod
    def _marked(title: Content, marks: list[Content], room: int) -> tuple[int, Content]:
        """Return how many of `marks` fit after `title` into `room` columns, and the title with these marks."""
        number = 0
        for mark in marks:
            if title.cell_length + mark.cell_length <= room:
                title += mark
                number += 1
        return number, title

    def on_resize(self) -> None:
        self.show_clock_title()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self._title = Content("")
            self.show_clock_title()

    @property
    def pace(self) -> str:
        return pace(self.player.speed)

    def legend_entries(self) -> list[tuple[str, Style, str]]:
        """Return the entries of the title that explain marks: (glyph, its style, its meaning)."""
        return []

    @property
    def num_on_axis(self) -> int:
        """Number of leading entries of `legend_entries` whose marks are on the axis itself."""
        return len(self.legend_entries())

    def step_text(self) -> str:
        """Return the current step and the last one in words; empty for widgets without step numbers."""
        return f"step {self.player.frame:,} of {self.player.last_frame:,}"

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._scrubbing = True
        self.capture_mouse()
        self._scrub(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._scrubbing:
            self._scrub(event)

    def on_mouse_up(self) -> None:
        self._scrubbing = False
        self.release_mouse()

    @property
    def axis_begin(self) -> int:
        """Number of characters left of the axis."""
        return GUTTER

    @property
    def axis_width(self) -> int:
        """Width of the axis in columns."""
        return max(self.size.width - self.axis_begin - 1, 0)

    @property
    def cursor_column(self) -> int:
        """Column of the player's clock on the axis, from 0."""
        return int(self.column_of(np.array([self.player.clock_s]), self.axis_width)[0])

    def column_of(self, times_s: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.int64]:
        """Return the column, from 0, of each time on an axis of `width` columns.

        Times before the axis get the first column, times after it the last.
        """
        begin_s, span_s = self.begin_s, self._span_s
        return np.clip(((times_s - begin_s) / max(span_s, 1e-300) * width).astype(np.int64), 0, width - 1)

    def edges_s(self, width: int) -> npt.NDArray[np.float64]:
        """Return the times at the edges of the columns of an axis: `width` + 1 values."""
        return np.linspace(self.begin_s, self.begin_s + self._span_s, width + 1)

    @property
    def begin_s(self) -> float:
        """Time in seconds at which the axis begins."""
        return self.player.begin_s

    @property
    def _span_s(self) -> float:
        return self.player.duration_s - self.begin_s

    def _scrub(self, event: events.MouseEvent) -> None:
        offset = event.get_content_offset_capture(self)
        share = (offset.x - self.axis_begin + 0.5) / max(self.axis_width, 1)
        self.post_message(self.Scrubbed(self.begin_s + min(max(share, 0.0), 1.0) * self._span_s))
