"""Panel with the map of host memory, below the pool: the owner of each slot, and blocks in transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from ..pool.host_blocks import legend_now, map_keys, slots_per_cell, titles_of
from .drawn_panel import DrawnPanel

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Session


class HostMap(DrawnPanel):
    """Map of the slots of host memory in order, with a legend below if there is room."""

    def __init__(self, session: Session, symbols: Symbols, *, id: str = "host") -> None:  # noqa: A002 - Textual's name
        super().__init__(session, symbols, id=id)

    def show_frame(self) -> None:
        """Show the session's current frame; the title states how full host memory is."""
        host = self.session.host
        if host is None:
            self.border_title = "no host memory"
        elif self.size.width:
            self.show_title(titles_of(host, self.session.replay.frame))
        super().show_frame()

    def write(self) -> list[Strip]:
        """Return the map, then its legend."""
        host, frame, (width, height) = self.session.host, self.session.replay.frame, self.size
        if host is None:
            return []
        lines = height - 1 if height > 2 else height
        half_blocks = self.symbols.color
        keys = map_keys(host, frame, width, lines, half_blocks=half_blocks)
        strips = self.drawn(keys)
        if lines < height:
            together = slots_per_cell(host.num_slots, width * lines * (2 if half_blocks else 1))
            strips.append(self._legend(legend_now(self.session), together))
        return strips

    def _legend(self, entries_now: list[tuple[list[int], str]], together: int) -> Strip:
        """Return the leading entries that fit, and the size of a cell if there is room."""
        cell = f"1 cell = {together:,} blocks" if together > 1 else "1 cell = 1 block"
        entries = [([self.sample(paint) for paint in paints], f" {words}") for paints, words in entries_now]
        segments: list[Segment] = []
        for samples, words in (*entries, ([], cell)):
            entry = [self.text("  ")] * bool(segments) + [*samples, self.text(words, "weak")]
            if sum(segment.cell_length for segment in segments + entry) > self.size.width:
                break
            segments += entry
        return Strip(segments)
