"""Host memory below the pool: a map of its slots, and how many blocks are on their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from ..look.words import shortened
from ..pool.brush import Brush
from ..pool.host_map import LEGEND, map_keys, slots_per_cell, title_of
from .panel import Panel

if TYPE_CHECKING:
    from textual.geometry import Size

    from ..look.states import Symbols
    from ..playback.session import Session


class HostMap(Panel):
    """The slots of host memory in order, and below them, where there is room, what the colours mean."""

    def __init__(self, session: Session, symbols: Symbols, *, id: str = "host") -> None:  # noqa: A002 - Textual's name
        super().__init__(session, symbols, id=id)
        self._brush = Brush(symbols)

    def notify_style_update(self) -> None:
        """Draw in the colours of another theme."""
        super().notify_style_update()
        self._brush = Brush(self.symbols)
        self._lines = []

    def show_frame(self) -> None:
        """Follow the session to its current frame; the title says how full host memory is."""
        host = self.session.host
        if host is None:
            self.border_title = "no host memory"
        elif self.size.width:
            title = title_of(host, self.session.replay.frame)
            self.border_title = shortened(title, self.size.width - 2, self.symbols.cut)
        super().show_frame()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The style sheet decides."""
        del container, viewport, width
        return 1

    def write(self) -> list[Strip]:
        """The map, then its legend."""
        host, (width, height) = self.session.host, self.size
        if host is None:
            return []
        lines = height - 1 if height > 2 else height
        half_blocks = self.symbols.color
        keys = map_keys(host, self.session.replay.frame, width, lines, half_blocks=half_blocks)
        strips = [Strip([Segment(*self._brush[key]) for key in row], width).simplify() for row in keys.tolist()]
        if lines < height:
            strips.append(self._legend(slots_per_cell(host.num_slots, width * lines * (2 if half_blocks else 1))))
        return strips

    def _legend(self, together: int) -> Strip:
        segments = []
        for paints, words in LEGEND:
            segments += [*(self.sample(paint) for paint in paints), self.text(f" {words}  ", "weak")]
        cell = f"a cell is {together:,} blocks" if together > 1 else "a cell is one block"
        return Strip([*segments, self.text(cell, "weak")]).crop(0, self.size.width)
