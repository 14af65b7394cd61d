"""Panels with the drawings of a lesson: below the pool, or one for each compared run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.strip import Strip

from ..lessons.drawings import holders
from .panel import Panel

if TYPE_CHECKING:
    from textual.geometry import Size

    from ..lessons import Guided
    from ..look.states import Symbols
    from ..playback.session import Session


_MOST_HOLDERS: Final = 6
"""Largest number of lines about requests that hold memory, for captions without a drawing."""


class LessonDrawing(Panel):
    """Drawing of the current caption.

    A drawing beside the pool is as high as the highest one in the lesson.
    """

    def __init__(self, guided: Guided, symbols: Symbols) -> None:
        super().__init__(guided.sessions[0], symbols, id="drawing")
        self._guided = guided
        frame, self._most = guided.player.frame, min(len(guided.lesson.workload), _MOST_HOLDERS)
        for caption in guided.captions:
            if caption.draws is not None and caption.draws.stands_alone:
                continue
            guided.show(caption.frame)
            self._most = max([self._most, *(len(lines) for _, lines in guided.drawing(caption, 0, symbols))])
        guided.show(frame)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines of the highest drawing, so that the pictures never move."""
        del container, viewport, width
        return self._most

    def write(self) -> list[Strip]:
        """Return the lines of the caption's drawing, or else a drawing of the memory that each request holds."""
        caption, (width, height) = self._guided.caption_at(self._guided.player.frame), self.size
        drawn = self._guided.drawing(caption, width, self.symbols, height)
        if drawn:
            self.border_title, lines = drawn[0]
        else:
            self.border_title = "What each request holds"
            lines = holders(self.session, width, self.symbols, height)
        return [Strip(line) for line in lines]


class ScheduleChart(Panel):
    """A line for each request of a run, on a time axis for all runs."""

    def __init__(self, guided: Guided, session: Session, symbols: Symbols, *, id: str) -> None:  # noqa: A002
        super().__init__(session, symbols, id=id)
        self.add_class("schedule")
        self._guided = guided
        self.styles.height = len(session.recording.requests) + 1  # and the axis

    def write(self) -> list[Strip]:
        return [Strip(line) for line in self._guided.timetable(self.session, self.size.width, self.symbols)]
