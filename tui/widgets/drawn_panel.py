"""Panel below the pool that draws cells: a brush in the colours of the theme, and a title that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..look.wording import shortened
from ..pool.brush import Brush
from .panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.geometry import Size

    from ..look.states import Symbols
    from ..playback.session import Session


class DrawnPanel(Panel):
    """Panel of cells, as high as the style sheet says."""

    def __init__(self, session: Session, symbols: Symbols, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(session, symbols, id=id)
        self._brush = Brush(symbols)

    def notify_style_update(self) -> None:
        """Draw in the colours of another theme."""
        super().notify_style_update()
        self._brush = Brush(self.symbols)
        self._lines = []

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height that the style sheet sets."""
        del container, viewport, width
        return 1

    def show_title(self, titles: Sequence[str]) -> None:
        """Show the first of `titles` that fits, or the last one, cut."""
        room = self.size.width - 2
        title = next((title for title in titles if len(title) <= room), titles[-1])
        self.border_title = shortened(title, room, self.symbols.cut)
