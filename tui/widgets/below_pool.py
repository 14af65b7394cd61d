"""Lines below the picture of the pool: its owners, the legend of its colours, and the changes of the last step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from kvsim.metrics.names import tells_owners

from ..facts.last_step import last_step
from ..facts.owners import holdings, scatter_lines
from ..pool.legend_entries import legend_entries, owner_entries
from ..pool.swatches import paint_swatch
from .entries import num_that_fit, whole_entries
from .owner_strips import OwnerStrips

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Session
    from .pool_view import PoolView


_SAMPLE = 2
"""Width of a sample of a colour, including the gap after it."""
_LONGEST_ENTRY = 30
"""Largest usual width of an entry of the legend."""


class BelowPool(Widget):
    """Legend and last step: one line each, or two lines if needed and if the screen is tall enough."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"below--text", "below--weak", "below--strong"}

    def __init__(self, session: Session, pool: PoolView, symbols: Symbols) -> None:
        super().__init__(id="below")
        self._pool, self._symbols = pool, symbols
        self._lines: list[Strip] = []
        self._width = self._most_legend = self._most_owners = 0
        self.open(session)

    def open(self, session: Session) -> None:
        """Show `session` from now on."""
        self._session = session

    def on_resize(self) -> None:
        """Write the lines for this width."""
        if self.size.width != self._width:  # not when the lines themselves have changed the height
            self._width, self._most_legend, self._most_owners = self.size.width, 0, 0
        self.show_frame()

    def show_frame(self) -> None:
        """Show the session's current frame."""
        if not self.size.width:
            return
        roomy = self.screen.has_class("-tall") or self.screen.has_class("-xtall")
        legend = self._packed(*self._legend(num_lines=1), num_lines=1 + roomy)
        if len(legend) > 1:  # two lines have room for longer texts
            legend = self._packed(*self._legend(num_lines=2), num_lines=2)
        change = self._packed(*self._change(), num_lines=1 + roomy, others="changes")
        # The number of lines must not change from step to step, because that would move the picture. So the legend
        # never gives back a line, and the changes always have the same number of lines.
        legend += [Strip([])] * (self._most_legend - len(legend))
        self._most_legend = len(legend)
        owners = self._owners(num_lines=1 + roomy)
        owners += [Strip([])] * (self._most_owners - len(owners))
        self._most_owners = len(owners)
        self._lines = owners + legend + change
        self.styles.height = len(owners) + len(legend) + 1 + roomy
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render a line of the legend, or of the changes below it."""
        rest = self._style("text")
        line = self._lines[y] if y < len(self._lines) else Strip([])
        return line.adjust_cell_length(self.size.width, rest)

    def _packed(
        self, label: Segment, entries: list[list[Segment]], num_lines: int, others: str = "more"
    ) -> list[Strip]:
        """Return at most `num_lines` lines of whole entries after `label`; the last counts entries without room.

        `others` is the noun for these entries.
        """
        room, strips = self.size.width - label.cell_length, list[Strip]()
        while not strips or entries:
            last = len(strips) == num_lines - 1
            kept = len(entries) if last else num_that_fit(entries, room)
            begin = label if not strips else Segment(" " * label.cell_length, self._style("text"))
            line = whole_entries(entries[:kept], room, self._style("weak"), self._symbols.cut, others)
            strips.append(Strip.join([Strip([begin]), line]))
            entries = entries[kept:]
            if entries:  # the first entry of a line needs no gap before it
                entries[0] = entries[0][1:]
        return strips

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"below--{name}")

    def _legend(self, num_lines: int) -> tuple[Segment, list[list[Segment]]]:
        label = Segment("" if self.screen.has_class("-narrow") else "colours    ", self._style("weak"))
        # Entries are not split, so the first line may have up to an entry's width left.
        room = num_lines * (self.size.width - label.cell_length) - (num_lines - 1) * _LONGEST_ENTRY
        pool, style = self._pool, self._style("weak")
        if self.screen.has_class("-by-owner"):
            strips = self.screen.query_one(OwnerStrips)
            return label, owner_entries(self._session, self._symbols, style, strips.shows, strips.scale)
        entries = legend_entries(
            pool.color_by,
            [self._session],
            self._symbols,
            style,
            room,
            lit=pool.lit_name,
            shows=pool.shows,
            counts_holders=pool.counts_holders,
        )
        return label, entries

    def _owners(self, num_lines: int) -> list[Strip]:
        """Return lines about the requests that hold memory, if the colours of the pool do not identify them."""
        session = self._session
        if self.screen.has_class("-by-owner") or tells_owners(session.recording):
            self._most_owners = 0
            return []
        label = Segment("" if self.screen.has_class("-narrow") else "owners     ", self._style("weak"))
        room = self.size.width - label.cell_length
        texts = scatter_lines(session, holdings(session), room, self._symbols.dot, num_lines=num_lines)
        labels = [label, *[Segment(" " * label.cell_length, self._style("text"))] * (len(texts) - 1)]
        return [Strip([begin, Segment(text, self._style("strong"))]) for begin, text in zip(labels, texts, strict=True)]

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
