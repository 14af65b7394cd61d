"""Base classes of the panels: boxes of text lines about the current frame, which are redrawn only if a line changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ..look.wording import shortened
from ..pool.swatches import paint_swatch

if TYPE_CHECKING:
    from textual.geometry import Size

    from ..look.states import Symbols
    from ..playback.session import Session

LABEL_WIDTH: Final = 12
"""Width of the labels of facts, in characters."""


class LineBox(Widget):
    """A box of lines about the current frame."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "panel--text",
        "panel--label",
        "panel--strong",
        "panel--weak",
        "panel--track",
        "panel--cursor",
    }

    def __init__(self, symbols: Symbols, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.symbols = symbols
        self._lines: list[Strip] = []
        self.num_lines = 0
        """Number of lines that the content needs, also those without room."""
        self._laid_out = 0
        """Value of `num_lines` at the last layout."""

    def on_resize(self) -> None:
        self.show_frame()

    def show_frame(self) -> None:
        """Write the lines again, and redraw if a line has changed."""
        if not self.size.area:
            return
        rest = self.get_component_rich_style("panel--text")
        self.num_lines = 0
        lines = [line.adjust_cell_length(self.size.width, rest) for line in self.write()]
        self.num_lines = max(self.num_lines, len(lines))
        # Compare with the last layout, not with the last lines: the style sheet may have changed the height since.
        resized = self.styles.is_auto_height and self.num_lines != self._laid_out
        if resized or lines != self._lines:
            self._lines = lines
            self.refresh(layout=resized)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines, at least 1. Textual asks for it if the style sheet sets no height."""
        del container, viewport, width
        self._laid_out = self.num_lines
        return max(self._laid_out, 1)

    def render_line(self, y: int) -> Strip:
        return self._lines[y] if y < len(self._lines) else self.blank()

    def write(self) -> list[Strip]:
        """Return the lines of the current frame, at most as many as fit."""
        raise NotImplementedError

    def text(self, text: str, kind: str = "text") -> Segment:
        """Return `text` in the style `kind`: "text", "label", "strong", "weak", "track" or "cursor"."""
        return Segment(text, self.get_component_rich_style(f"panel--{kind}"))

    def sample(self, paint: int) -> Segment:
        """Return a sample of the colour or glyph of `paint`."""
        swatch = paint_swatch(paint, self.symbols)
        return Segment(swatch.text, self.get_component_rich_style("panel--text") + (swatch.style or Style()))

    def blank(self) -> Strip:
        return Strip([self.text(" " * self.size.width)], self.size.width)

    def labelled(self, lines: list[tuple[str, str]]) -> list[Strip]:
        """Return `lines`, pairs of a label and a value, in two columns. Long values are shortened."""
        width = max(self.size.width - LABEL_WIDTH, 1)
        cut = self.symbols.cut
        return [
            Strip([self.text(label.ljust(LABEL_WIDTH), "label"), self.text(shortened(value, width, cut))])
            for label, value in lines
        ]


class Panel(LineBox):
    """A box of lines about the session's current frame."""

    @dataclass
    class Picked(Message):
        """The user chose a request."""

        request: int

    def __init__(self, session: Session, symbols: Symbols, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(symbols, id=id)
        self.session = session

    def open(self, session: Session) -> None:
        self.session = session
