"""Line below the headline: the story of the run, and the most useful keys until the user presses a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Story

HINTS: Final = (
    "space plays or pauses, o changes colours, enter follows a request",
    "space play, o colours, enter follow",
)
"""Hints of the screens with a pool, the longest first."""


_LEAST_GAP: Final = 6


class StoryLine(Widget):
    """The parts of the story that fit and, until a key is pressed, a hint about keys at the right."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"story--text", "story--hint"}

    def __init__(self, story: Story, symbols: Symbols, hints: tuple[str, ...] = HINTS) -> None:
        super().__init__(id="story")
        self._story, self._separator = story, f" {symbols.dot} "
        self._hints, self._hinting = hints, True

    def tell(self, story: Story) -> None:
        self._story = story
        self.refresh()

    def stop_hinting(self) -> None:
        if self._hinting:
            self._hinting = False
            self.refresh()

    def render_line(self, y: int) -> Strip:
        del y
        text_style, hint_style = (self.get_component_rich_style(f"story--{name}") for name in ("text", "hint"))
        width, parts = self.size.width, list(self._story.parts)
        while len(parts) > 1 and len(self._text(parts)) > width - 1:
            parts.pop()
        used = len(self._text(parts))
        short = next((text for text in self._story.shorter if len(text) < width), "".join(self._story.shorter[-1:]))
        if short and len(parts) == 1 and (used > width - 1 or used < len(short) < width):
            parts = [short]
        text = self._text(parts)
        hint = (
            next((hint for hint in self._hints if len(text) + len(hint) + _LEAST_GAP <= width), "")
            if self._hinting
            else ""
        )
        return Strip(
            [Segment(f" {text}".ljust(width - len(hint) - 1), text_style), Segment(hint, hint_style)]
        ).adjust_cell_length(width, text_style)

    def _text(self, parts: list[str]) -> str:
        text = self._separator.join(parts)
        return text[:1].upper() + text[1:]
