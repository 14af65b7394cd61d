"""The first line: the name of the recording and its setup."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from ..look.states import Symbols


class Headline(Widget):
    """One line of parts. If the long form does not fit, the short form is used, without the last parts if necessary."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"headline--name", "headline--text"}

    def __init__(self, symbols: Symbols) -> None:
        super().__init__(id="headline")
        self._separator = f" {symbols.dot} "
        self._long: list[str] = []
        self._short: list[str] = []

    def tell(self, long: list[str], short: list[str]) -> None:
        """Set the parts in a long and a short form, the most important part first."""
        if (long, short) != (self._long, self._short):
            self._long, self._short = long, short
            self.refresh()

    def render_line(self, y: int) -> Strip:
        del y
        name, rest = self.get_component_rich_style("headline--name"), self.get_component_rich_style("headline--text")
        room = self.size.width - len(" kvsim ") - 1
        parts = self._long if len(self._separator.join(self._long)) <= room else self._short
        while len(parts) > 1 and len(self._separator.join(parts)) > room:
            parts = parts[:-1]
        text = " " + self._separator.join(parts)
        return Strip([Segment(" kvsim ", name), Segment(text, rest)]).adjust_cell_length(self.size.width, rest)
