"""The lines below the pool: what its colours mean, and what the last step changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from ..facts.last_step import last_step
from ..pool.legend import legend_entries
from ..pool.swatches import paint_swatch
from .entries import whole_entries

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Session
    from .pool_view import PoolView


class BelowPool(Widget):
    """One line where the screen is low, about the last step where it changed something; else two."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"below--text", "below--weak", "below--strong"}

    def __init__(self, session: Session, pool: PoolView, symbols: Symbols) -> None:
        super().__init__(id="below")
        self._pool, self._symbols = pool, symbols
        self.open(session)

    def open(self, session: Session) -> None:
        """Show `session` from now on."""
        self._session = session

    def show_frame(self) -> None:
        """Follow the session to its current frame."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The legend, then the change."""
        label, entries = self._legend() if y == 0 else self._change()
        style = self._style("weak")
        begin = Strip([label])
        room = self.size.width - begin.cell_length
        line = Strip.join([begin, whole_entries(entries, room, style, self._symbols.cut)])
        return line.adjust_cell_length(self.size.width, self._style("text"))

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"below--{name}")

    def _legend(self) -> tuple[Segment, list[list[Segment]]]:
        key = Segment("o ", self._style("strong"))
        room = self.size.width - key.cell_length
        pool, style = self._pool, self._style("weak")
        outlines = pool.draws_outlines
        return key, legend_entries(pool.color_by, self._session, self._symbols, style, room, outlines=outlines)

    def _change(self) -> tuple[Segment, list[list[Segment]]]:
        entries = list[list[Segment]]()
        for change, text in last_step(self._session):
            gap = "  " if entries else ""
            entry = [Segment(gap, self._style("text"))]
            if change is not None:
                swatch = paint_swatch(change, self._symbols)
                entry.append(Segment(f"{swatch.text} ", self._style("text") + (swatch.style or Style())))
            entries.append([*entry, Segment(text, self._style("strong" if "preempted" in text else "text"))])
        return Segment("last step  " if entries else "", self._style("weak")), entries
