"""Base class of the panels below the pool that draw cells: host memory, encoder cache, drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from ..look.wording import shortened
from ..pool.brush import Brush
from .panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.geometry import Size

    from ..look.states import Symbols
    from ..playback.session import Session
    from ..pool.array_types import KeyArray


class DrawnPanel(Panel):
    """Panel with a brush for cells, and a title that is shortened to fit. The style sheet sets its height."""

    def __init__(self, session: Session, symbols: Symbols, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(session, symbols, id=id)
        self._brush = Brush(symbols)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._brush = Brush(self.symbols)
        self._lines = []

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return 1, the height unless the style sheet sets another."""
        del container, viewport, width
        return 1

    def lines_of(self, keys: KeyArray, legend: Sequence[tuple[int, str]] = ()) -> list[Strip]:
        """Return the cells `keys` as lines of characters, then the `legend` if there is room below.

        An entry of the legend is a paint and its meaning.
        """
        strips = [Strip([Segment(*self._brush[key]) for key in row], len(row)).simplify() for row in keys.tolist()]
        if legend and self.size.height > len(strips):
            segments: list[Segment] = []
            for paint, words in legend:
                segments += [self.text("  ")] * bool(segments) + [self.sample(paint), self.text(f" {words}", "weak")]
            strips.append(Strip(segments))
        return strips

    def show_title(self, titles: Sequence[str]) -> None:
        """Show the first of `titles` that fits, or else the last one, shortened."""
        room = self.size.width - 2
        title = next((title for title in titles if len(title) <= room), titles[-1])
        self.border_title = shortened(title, room, self.symbols.cut)
