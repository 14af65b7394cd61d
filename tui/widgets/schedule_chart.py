"""Schedule of one lane: waiting, running and idle requests, with the clock as a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from kvsim.memory.waste import SlotState

from ..facts.schedule import Doing, schedule
from ..pool.paint import OWNER, hue_of, paint_colors, paint_glyphs

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRuns, Lane

_NAME = 3


class ScheduleChart(Widget):
    """A line for each request of a lane, on the time axis that all lanes share."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"schedule--text", "schedule--weak"}

    def __init__(self, comparison: ComparedRuns, lane: Lane, symbols: Symbols, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id, classes="schedule")
        self._session, self._symbols = lane.session, symbols
        self._end_s = max(other.session.player.duration_s for other in comparison.lanes)
        self._clock = comparison.player
        self.styles.height = len(lane.session.recording.requests)

    def show_frame(self) -> None:
        """Follow the clock."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render one request."""
        width = max(self.size.width - _NAME, 1)
        line = schedule(self._session, width, self._end_s)[y].tolist()
        colors, glyphs = paint_colors(self._symbols.palette), paint_glyphs(self._symbols)
        paints = {
            Doing.NOTHING: None,
            Doing.WAITING: SlotState.FREE,
            Doing.RUNNING: OWNER + hue_of(y),
            Doing.IDLE: SlotState.PADDING,
        }
        clock = min(int(self._clock.clock_s / self._end_s * width), width - 1)
        name = self._session.request_name(y)[:_NAME].ljust(_NAME)
        segments = [Segment(name, self.get_component_rich_style("schedule--text"))]
        for column, doing in enumerate(line):
            paint = paints[Doing(doing)]
            if column == clock:
                segments.append(Segment("│" if self._symbols.color else "|", Style(color=self._symbols.palette.cursor)))
            elif paint is None:
                segments.append(Segment(" "))
            elif self._symbols.color:
                segments.append(Segment("▬" if paint == SlotState.FREE else "▆", Style(color=colors[paint])))
            else:
                segments.append(Segment(glyphs[paint]))
        return Strip(segments).simplify().adjust_cell_length(self.size.width)
