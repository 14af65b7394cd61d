"""Lines below the pool: the meaning of its colours, and the changes of the last step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from ..facts.last_step import last_step
from ..pool.legend_entries import legend_entries, owner_entries
from ..pool.swatches import paint_swatch
from .entries import num_that_fit, whole_entries

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Session
    from .pool_view import PoolView


_SAMPLE = 2
"""Characters of a sample of a colour, with the gap behind it."""
_LONGEST_ENTRY = 30
"""Characters of an entry of the legend."""


class BelowPool(Widget):
    """Meaning of the colours, and the last step: two lines for each if the screen has room and they are needed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"below--text", "below--weak", "below--strong"}

    def __init__(self, session: Session, pool: PoolView, symbols: Symbols) -> None:
        super().__init__(id="below")
        self._pool, self._symbols = pool, symbols
        self._lines: list[Strip] = []
        self._most_legend = 0
        self.open(session)

    def open(self, session: Session) -> None:
        """Show `session` from now on."""
        self._session = session

    def on_resize(self) -> None:
        """Write the lines for this width."""
        self._most_legend = 0
        self.show_frame()

    def show_frame(self) -> None:
        """Follow the session to its current frame."""
        if not self.size.width:
            return
        roomy = self.screen.has_class("-tall") or self.screen.has_class("-xtall")
        legend = self._packed(*self._legend(num_lines=1), num_lines=1 + roomy)
        if len(legend) > 1:  # then there is room for long words
            legend = self._packed(*self._legend(num_lines=2), num_lines=2)
        change = self._packed(*self._change(), num_lines=1 + roomy, others="changes")
        # The legend seldom grows. The changes of a step must not move the picture, so they keep their lines.
        # It keeps the lines that it has taken.
        legend += [Strip([])] * (self._most_legend - len(legend))
        self._most_legend = len(legend)
        self.styles.height = len(legend) + 1 + roomy
        self._lines = legend + change
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render a line of the legend, or of the change below it."""
        rest = self._style("text")
        line = self._lines[y] if y < len(self._lines) else Strip([])
        return line.adjust_cell_length(self.size.width, rest)

    def _packed(
        self, label: Segment, entries: list[list[Segment]], num_lines: int, others: str = "more"
    ) -> list[Strip]:
        """Pack whole entries behind `label` into at most `num_lines` lines, and the number of the `others`."""
        room, strips = self.size.width - label.cell_length, list[Strip]()
        while not strips or entries:
            last = len(strips) == num_lines - 1
            kept = len(entries) if last else num_that_fit(entries, room)
            begin = label if not strips else Segment(" " * label.cell_length, self._style("text"))
            line = whole_entries(entries[:kept], room, self._style("weak"), self._symbols.cut, others)
            strips.append(Strip.join([Strip([begin]), line]))
            entries = entries[kept:]
            if entries:  # only an entry behind another has a gap
                entries[0] = entries[0][1:]
        return strips

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"below--{name}")

    def _legend(self, num_lines: int) -> tuple[Segment, list[list[Segment]]]:
        key = Segment("o ", self._style("strong"))
        # Entries are not broken, so a line may end early.
        room = num_lines * (self.size.width - key.cell_length) - (num_lines - 1) * _LONGEST_ENTRY
        pool, style = self._pool, self._style("weak")
        if self.screen.has_class("-by-owner"):
            return Segment("  ", style), owner_entries(self._session, self._symbols, style)
        return key, legend_entries(pool.color_by, [self._session], self._symbols, style, room, lit=pool.lit_name)

    def _change(self) -> tuple[Segment, list[list[Segment]]]:
        entries = list[list[Segment]]()
        label = "last step  "
        for change, text in last_step(self._session, self.size.width - len(label) - _SAMPLE):
            entry = [Segment("  ", self._style("text"))] if entries else []
            if change is not None and self._pool.lights_changes:
                swatch = paint_swatch(change, self._symbols)
                entry.append(Segment(f"{swatch.text} ", self._style("text") + (swatch.style or Style())))
            entries.append([*entry, Segment(text, self._style("strong" if "preempted" in text else "text"))])
        return Segment(label if entries else "", self._style("weak")), entries
