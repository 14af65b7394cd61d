"""Box with the current caption of a lesson, above the pictures."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.text import Text
from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.geometry import Size

    from ..lessons.lesson import Caption
    from ..look.states import Symbols


class CaptionBox(Static):
    """Shows the current caption, and the key that continues the lesson."""

    def __init__(self, captions: Sequence[Caption], symbols: Symbols) -> None:
        super().__init__(id="caption")
        self._captions = captions
        self._symbols = symbols
        self._shown: int | None = None

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines of the longest caption, so that the pictures below never move."""
        del container, viewport
        texts = ((self._title(number, playing=False).plain, each.text) for number, each in enumerate(self._captions))
        return max(
            sum(len(textwrap.wrap(text, max(width, 1), break_on_hyphens=False)) for text in both) for both in texts
        )

    def show_frame(self, frame: int, *, playing: bool) -> Caption | None:
        """Show the caption of `frame`. Return the caption if it has changed, otherwise None.

        While `playing`, the box names no key that continues the lesson.
        """
        number = max((index for index, caption in enumerate(self._captions) if caption.frame <= frame), default=0)
        caption = self._captions[number]
        self.update(Text.assemble(self._title(number, playing=playing), "\n", Text(caption.text)))
        changed, self._shown = number != self._shown, number
        return caption if changed else None

    def _title(self, number: int, *, playing: bool) -> Text:
        last = number == len(self._captions) - 1
        how = "playing" if playing else "l for another lesson" if last else "space goes on"
        title = Text(f"{number + 1}/{len(self._captions)}  {self._captions[number].title}", "bold")
        return title.append(f"   {self._symbols.dot} {how}", "dim")
