"""Chart of the waiting requests of a fleet, below the strips of its servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style as TextualStyle

from ..facts.fleet_telling import about_all
from ..look.stack import columns
from ..look.wording import duration, seconds
from .pool_wall import columns_right_of_axis
from .scrubber import GUTTER, Scrubber, under_cursor

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..look.states import Symbols
    from ..playback.fleet_servers import FleetServers


class FleetQueueChart(Scrubber):
    """Chart of the waiting requests of all servers, above the time axis, which is also that of the strips."""

    def __init__(self, fleet: FleetServers, symbols: Symbols) -> None:
        super().__init__(fleet.player, symbols, id="fleet-clock")
        self._fleet = fleet
        self._column = -1
        self._drawn: tuple[int, int, npt.NDArray[np.int64], int] = (0, 0, np.empty(0, np.int64), 1)
        """Width and height of the last computed chart, then the result of `_queue`."""

    def show_frame(self) -> None:
        self.refresh()

    def move(self) -> None:
        """Redraw the line of the time axis, or all lines if the cursor is in another column."""
        column = self.cursor_column if self.axis_width else 0
        if column != self._column:
            self._column = column
            self.refresh()
        else:
            self.refresh(Region(0, self.size.height - 1, self.size.width, 1))

    @property
    def axis_width(self) -> int:
        return max(self.size.width - GUTTER - columns_right_of_axis(self.size.width), 0)

    def legend_entries(self) -> list[tuple[str, TextualStyle, str]]:
        most = self._fleet.most_waiting
        if not self.axis_width or self.size.height < 2 or not most:
            return []
        style = TextualStyle.from_rich_style(self.get_component_rich_style("timeline--bar"))
        return [("#" if self.symbols.ascii else "■", style, f"full bar: {most:,} waiting")]

    def step_text(self) -> str:
        """Return an empty text. The servers share no step number."""
        return ""

    def render_line(self, y: int) -> Strip:
        width, height = self.axis_width, self.size.height
        rest = self.get_component_rich_style("timeline--text")
        if not width:
            return Strip.blank(self.size.width, rest)
        last, column, clock_s = y == height - 1, self.cursor_column, self.player.clock_s
        label_style, value_style, bar_style, track_style = (
            self.get_component_rich_style(f"timeline--{name}") for name in ("label", "value", "bar", "track")
        )
        if last:
            label, value = "time", seconds(clock_s, self.player.duration_s / 1000)
            cells = [Segment(self.symbols.track, track_style)] * width
        else:
            now = self._fleet.waiting_at(np.array([clock_s]))
            label, value = ("waiting", f"{now[0]:,}") if y == 0 else ("", "")
            queue, most = self._queue(width, height - 1)
            cells = [Segment(self.symbols.up[eighths], bar_style) for eighths in queue[y]]
            here = Segment(self.symbols.up[columns(now, most, height - 1)[y, 0]], bar_style)
            cells[column] = under_cursor(here, self.symbols)
            room = columns_right_of_axis(self.size.width) - 2
            texts = about_all(self._fleet, self._fleet.at(clock_s), room)[y : y + 1]
            cells += [Segment(f"  {text}", label_style if y else rest) for text in texts]
        if last:
            cells[column] = Segment(self.symbols.knob, Style(color=self.symbols.palette.cursor, bold=True))
            cells.append(Segment(f" {duration(self.player.duration_s)}", label_style))
        gutter = [Segment(label, label_style), Segment(value.rjust(GUTTER - 1 - len(label)) + " ", value_style)]
        return Strip([*gutter, *cells]).simplify().adjust_cell_length(self.size.width, rest)

    def _queue(self, width: int, height: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return the bars of waiting requests in eighths, shape (height, width), and the number that fills a bar."""
        if self._drawn[:2] != (width, height):
            edges_s = self.edges_s(width)
            waiting = np.maximum.reduce(
                [self._fleet.waiting_at(edges_s[:-1] + shift * np.diff(edges_s)) for shift in (0, 0.5)]
            )
            most = self._fleet.most_waiting
            self._drawn = (width, height, columns(waiting, most, height), most)
        return self._drawn[2:]
