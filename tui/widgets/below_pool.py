"""Lines below the picture of the pool: its owners, the legend of its colours, and the changes of the last step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from kvsim.metrics.names import tells_owners

from ..facts.free_units import free_line
from ..facts.last_step import last_step
from ..facts.owners import holdings, largest_owner, scatter_lines
from ..facts.units import unit_summary
from ..pool.legend_entries import legend_entries, owner_entries
from ..pool.swatches import paint_swatch
from .entries import num_that_fit, whole_entries
from .owner_strips import OwnerStrips

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Session
    from .pool_view import PoolView


_SAMPLE_WIDTH = 2
_LEAST_HEIGHT_FOR_OWNERS = 20
_RAGGED = 20
"""Number of characters that may stay empty at the end of a line before its last, as entries are never cut."""


class BelowPool(Widget):
    """Owners, legend and last step: one line each, or more if the screen is tall enough.

    If there are too few hues for all requests, this widget also chooses the one request that has its own colour in the
    pool.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"below--text", "below--weak", "below--strong"}

    def __init__(self, session: Session, pool: PoolView, symbols: Symbols) -> None:
        super().__init__(id="below")
        self._pool, self._symbols = pool, symbols
        self._lines: list[Strip] = []
        self._width = self._most_legend = self._most_owners = 0
        self.open(session)

    def open(self, session: Session) -> None:
        self._session = session

    def on_resize(self) -> None:
        if self.size.width != self._width:  # not when the lines themselves have changed the height
            self._width, self._most_legend, self._most_owners = self.size.width, 0, 0
        self.show_frame()

    def show_frame(self) -> None:
        if not self.size.width:
            return
        roomy = self.screen.has_class("-tall") or self.screen.has_class("-xtall")
        owners = self._owners(roomy=roomy)
        scattered = not self.screen.has_class("-by-owner") and not tells_owners(self._session.recording)
        legend = self._packed(*self._legend(num_lines=1 + (roomy and scattered)), num_lines=1 + roomy)
        if len(legend) > 1 and not scattered:  # two lines have room for longer texts
            legend = self._packed(*self._legend(num_lines=2), num_lines=2)
        change = self._packed(*self._change(), num_lines=1 + roomy, others="changes")
        # The number of lines must not change from step to step, because that would move the picture. So the legend
        # never gives back a line, and the changes always have the same number of lines.
        legend += [Strip([])] * (self._most_legend - len(legend))
        self._most_legend = len(legend)
        owners += [Strip([])] * (self._most_owners - len(owners))
        self._most_owners = len(owners)
        self._lines = owners + legend + change
        self.styles.height = len(owners) + len(legend) + 1 + roomy
        self.refresh()

    def render_line(self, y: int) -> Strip:
        rest = self._style("text")
        line = self._lines[y] if y < len(self._lines) else Strip([])
        return line.adjust_cell_length(self.size.width, rest)

    def _packed(
        self, label: Segment, entries: list[list[Segment]], num_lines: int, others: str = "more"
    ) -> list[Strip]:
        """Return at most `num_lines` lines of whole entries after `label`.

        If entries are left out, the last line ends with their number and the noun `others`.
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
        room = self.size.width - label.cell_length
        pool, style = self._pool, self._style("weak")
        if self.screen.has_class("-by-owner"):
            strips = self.screen.query_one(OwnerStrips)
            return label, owner_entries(self._session, self._symbols, style, room, strips.shows, strips.scale)
        followed, words = self._session.followed, ""
        if followed is not None and self._holds_nothing and pool.colors_only_followed:
            words = f"{self._session.request_name(followed)} holds nothing now  "
        entries = legend_entries(
            pool.color_by,
            [self._session],
            self._symbols,
            style,
            room,
            lit=pool.lit_name,
            marked=self._marked_words(),
            num_lines=num_lines,
            shows=pool.shows,
            counts_holders=pool.counts_holders,
        )
        used = sum(segment.cell_length for entry in entries for segment in entry)
        if words and used + len(words) <= num_lines * (room - _RAGGED) + _RAGGED:  # the inspector says it, too
            entries[0].insert(0, Segment(words, style))
        return label, entries

    @property
    def _holds_nothing(self) -> bool:
        followed = self._session.followed
        return followed is not None and not len(self._session.replay.block_table(followed)[1])

    def _marked_words(self) -> str | None:
        """Describe the request that has a colour of its own in the pool; None if there is none."""
        name = self._pool.marked_name
        if name is None:
            return None
        return f"{name}, followed" if self._pool.followed == self._session.followed else f"{name}, which holds most"

    def _owners(self, *, roomy: bool) -> list[Strip]:
        """Return lines about the requests that hold memory. A `roomy` (tall) screen has more lines.

        Return no line if the screen shows memory by owner, or if there are enough hues to show all requests. If there
        are too few, give one request its own colour in the pool: the followed one. If none is followed, give it to the
        request that holds most memory.
        """
        session = self._session
        if tells_owners(session.recording):
            return []
        followed = session.followed
        session.marked = None if self._holds_nothing else followed
        if self.screen.has_class("-by-owner"):
            self._most_owners = 0
            return []
        found = holdings(session)
        if followed is None and (largest := largest_owner(found)) is not None:
            session.marked = largest.request
        alone = session.marked if self._pool.colors_only_followed else followed
        if alone != self._pool.followed:
            self._pool.follow(alone)
        labels = ["", "", ""] if self.screen.has_class("-narrow") else ["owners     ", "           ", "free queue "]
        room = self.size.width - len(labels[0])
        one, every = scatter_lines(session, found, session.marked, room, self._symbols.dot)
        is_in_title = self.screen.has_class("-narrow")  # of the bar
        if session.selected is not None and not roomy and not is_in_title:  # there is no inspector
            one = unit_summary(session, session.selected)
        texts = [one, every, free_line(session, room)]
        shown = range(3) if roomy else (0, 2) if self.screen.size.height >= _LEAST_HEIGHT_FOR_OWNERS else (0,)
        return [
            Strip([Segment(labels[at], self._style("weak")), Segment(texts[at], self._style("strong"))]) for at in shown
        ]

    def _change(self) -> tuple[Segment, list[list[Segment]]]:
        entries = list[list[Segment]]()
        label = "last step  "
        room = self.size.width - len(label) - _SAMPLE_WIDTH
        parts = last_step(self._session, room)
        if self.screen.has_class("-narrow") and sum(len(text) + 2 for _, text in parts) > room:
            parts = last_step(self._session, room, short=True)
        for change, text in parts:
            entry = [Segment("  ", self._style("text"))] if entries else []
            if change is not None and self._pool.lights_changes:
                swatch = paint_swatch(change, self._symbols)
                entry.append(Segment(f"{swatch.text} ", self._style("text") + (swatch.style or Style())))
            entries.append([*entry, Segment(text, self._style("strong" if "preempted" in text else "text"))])
        return Segment(label if entries else "", self._style("weak")), entries
