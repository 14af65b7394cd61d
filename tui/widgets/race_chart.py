"""Chart of the durations of compared runs, above their common scrubber."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.style import Style as TextualStyle

from ..look.wording import duration, seconds, shortened
from ..widgets.scrubber import Scrubber

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRuns
    from ..playback.session import Session

_LABEL = 14
_TIME = 9
"""Number of columns right of the axis, for the duration of a run that is as long as the axis."""
_MOST_TIMES = 4
"""Length of a shortened axis, as a multiple of the shortest run; used if a run takes at least twice as long."""


class Race(Scrubber):
    """A scrubber, with a line above it for the duration of each run if there is room."""

    def __init__(self, comparison: ComparedRuns, symbols: Symbols) -> None:
        super().__init__(comparison.player, symbols, id="race")
        self._comparison = comparison
        # Rows of a training batch are filled without a clock, so there are no times to compare.
        timed = comparison.lanes[0].session.rows is None
        self.set_class(timed and len(comparison.lanes) == 2, "-two").set_class(not timed, "-untimed")
        self.set_class(timed and len(comparison.lanes) > 3, "-four")

    def on_resize(self) -> None:
        """Write the title for the new width."""
        self.show_transport()

    def show_frame(self) -> None:
        """Show the current frame of the comparison."""
        self.refresh()

    @property
    def axis_width(self) -> int:
        """Width of the axis in columns."""
        return max(super().axis_width - _TIME * self._has_lines, 0)

    @property
    def _has_lines(self) -> bool:
        """True if each run has a line."""
        return self.size.height > 1

    @property
    def _span_s(self) -> float:
        """Length of the axis in seconds: shortened if one run takes many times as long as another."""
        durations_s = [lane.session.player.duration_s for lane in self._comparison.lanes]
        whole_s = super()._span_s
        return min(whole_s, _MOST_TIMES * min(durations_s)) if whole_s > 2 * _MOST_TIMES * min(durations_s) else whole_s

    def marks(self) -> list[tuple[str, TextualStyle, str]]:
        """Return the entries of the title: marks at the ends of runs, and the figures beside the lanes."""
        style = TextualStyle.from_rich_style(self._style("value"))
        ending = [lane for lane in reversed(self._comparison.lanes) if not self._is_beyond(lane.session)]
        mark = "#" if self.symbols.ascii else "■"
        if self._comparison.lanes[0].session.rows is not None:
            return []
        if not self._has_lines:  # one entry for each end, in the order of the axis
            ending.sort(key=lambda lane: lane.session.player.duration_s)
            return [(mark, style, f"{lane.label} {duration(lane.session.player.duration_s)}") for lane in ending]
        marks = [(mark, style, "a run ends")]
        if any(self._is_beyond(lane.session) for lane in self._comparison.lanes):
            marks.append((self.symbols.arrow, style, "ends beyond the axis"))
        if self._comparison.ample_tokens_per_s:
            marks.append(("tokens/s", style, "of the whole run; ample: memory for all"))
        return marks

    @property
    def pace(self) -> str:
        """Speed of the playback in words; rows of a training batch are filled without a clock."""
        is_timed = self._comparison.lanes[0].session.rows is None
        return super().pace if is_timed else f"{self.player.speed:g} sequences a second"

    def place(self) -> str:
        """Return an empty text, because the runs share no step number."""
        return ""

    def render_line(self, y: int) -> Strip:
        """Render the line of a run, or the scrubber."""
        width, lanes = self.axis_width, self._comparison.lanes
        rest = self._style("text")
        if not width:
            return Strip.blank(self.size.width, rest)
        last = y == self.size.height - 1
        if not last and y >= len(lanes):
            return Strip.blank(self.size.width, rest)
        cells = self._track(width) if last else self._span(y, width)
        column = self.cursor_column
        lines = (self.symbols.held, self.symbols.track)
        line = self.symbols.knob if last else "│" if self.symbols.color else "|"
        # The cursor must not hide a duration.
        if last or cells[column].text in lines or cells[column].style == rest:
            cells[column] = Segment(line, Style(color=self.symbols.palette.cursor, bold=True))
        if last:
            rows = lanes[0].session.rows
            label, value = "time", seconds(self.player.clock_s, self.player.duration_s / 1000)
            if rows is not None:
                label, value = "sequences", f"{rows.num_placed:,}"
        else:
            label, value = lanes[y].label, ""
        label = shortened(label, _LABEL, self.symbols.cut)
        gutter = [
            Segment(label, self._style("label")),
            Segment(value.rjust(_LABEL - len(label)) + " ", self._style("value")),
        ]
        return Strip([*gutter, *cells]).simplify().adjust_cell_length(self.size.width, rest)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"timeline--{name}")

    def _span(self, number: int, width: int) -> list[Segment]:
        """Return the bar of a run's duration: solid up to the clock, thin after it, with the duration at its end."""
        session = self._comparison.lanes[number].session
        end = self._column_of_end(session, width)
        gone = min(self.cursor_column, end)
        when = f" {self.symbols.arrow}" if self._is_beyond(session) else ""
        # The blank before the time leaves room for the cursor at the end of the run.
        when += f" {duration(session.player.duration_s)} "
        cells = [Segment(self.symbols.held, self._style("value"))] * (gone + 1)
        cells += [Segment(self.symbols.track, self._style("bar"))] * (end - gone)
        over = self._comparison.lanes[number].over
        width += _TIME
        cells += [Segment(" ", self._style("text"))] * (width - len(cells))
        begin = max(min(end + 1, width - len(when)), 0)
        style = self._style("value" if over else "label")
        # The blanks around the time have another style, so the cursor may be drawn there.
        cells[begin + 1 : begin + len(when) - 1] = [Segment(letter, style) for letter in when[1:-1]]
        return cells[:width]

    def _is_beyond(self, session: Session) -> bool:
        """Tell whether a run ends after the end of the axis."""
        return session.player.duration_s > self.player.begin_s + self._span_s * 1.001

    def _column_of_end(self, session: Session, width: int) -> int:
        return int(self.column_of(np.array([session.player.duration_s]), width)[0])

    def _track(self, width: int) -> list[Segment]:
        """Return the scrubber with a mark at the end of each run."""
        cells = [Segment(self.symbols.track, self._style("track")) for _ in range(width)]
        for lane in self._comparison.lanes:
            if not self._is_beyond(lane.session):
                mark = "#" if self.symbols.ascii else "■"
                cells[self._column_of_end(lane.session, width)] = Segment(mark, self._style("value"))
        return cells
