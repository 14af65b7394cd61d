"""Chart of the durations of compared runs, above their common time axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.style import Style as TextualStyle

from ..facts.telling import gap_of
from ..look.wording import duration, seconds, shortened
from ..widgets.scrubber import Scrubber

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRun, ComparedRuns
    from ..playback.session import Session

_LABEL, _LONGEST_LABEL = 14, 20
"""Smallest and largest width of the names of the runs, in columns."""
_LAST_TIME_WIDTH = 9
_RATIO_WIDTH = 7
"""Number of columns right of the duration of a run for its ratio to the fastest run, such as `, ×11.9`."""
_TICK_FACTORS = (1, 2, 5, 10)
"""The distance between two numbers on an axis is one of these, times a power of ten."""
_LEAST_TICK_DISTANCE = 12
_TITLE_WIDTH = 28
"""Columns of the title that are not available for the names of runs at their marks."""
_SHORTENED_AXIS = 4
"""Length of a shortened axis, as a multiple of the shortest run.

The axis is shortened if the longest run takes more than twice as long as that.
"""


class DurationChart(Scrubber):
    """The common time axis of the runs and, if there is room, a line above it for the duration of each run."""

    def __init__(self, comparison: ComparedRuns, symbols: Symbols) -> None:
        super().__init__(comparison.player, symbols, id="race")
        self._comparison = comparison
        # Rows of a training batch are filled without a clock, so there are no times to compare.
        timed = comparison.lanes[0].session.rows is None
        self.set_class(timed and len(comparison.lanes) == 2, "-two").set_class(not timed, "-untimed")
        self.set_class(timed and len(comparison.lanes) > 3, "-four")
        longest = max(len(lane.label) for lane in comparison.lanes) if timed else 0
        self._longest = min(max(longest, _LABEL), _LONGEST_LABEL)
        self._gaps = [gap_of(comparison, number) for number in range(len(comparison.lanes))]

    def show_frame(self) -> None:
        self.refresh()

    @property
    def _name_width(self) -> int:
        return self._longest if self._has_lines else _LABEL

    @property
    def axis_begin(self) -> int:
        """Number of characters left of the axis: a name and a space."""
        return self._name_width + 1

    @property
    def axis_width(self) -> int:
        more = _RATIO_WIDTH * (self._has_lines and self._comparison.fastest_first)
        return max(super().axis_width - (_LAST_TIME_WIDTH + more) * self._is_timed, 0)

    @property
    def _is_timed(self) -> bool:
        """True for runs with a clock; False for training batches, whose rows are filled without one."""
        return self._comparison.lanes[0].session.rows is None

    @property
    def _has_lines(self) -> bool:
        return self.size.height > 1

    @property
    def _span_s(self) -> float:
        """Length of the axis in seconds. It is shortened if one run takes many times as long as another."""
        durations_s = [lane.session.player.duration_s for lane in self._comparison.lanes]
        whole_s, shortened_s = super()._span_s, _SHORTENED_AXIS * min(durations_s)
        return shortened_s if whole_s > 2 * shortened_s else whole_s

    def legend_entries(self) -> list[tuple[str, TextualStyle, str]]:
        """Return the entries of the title. Marks at the ends of runs that have no lines bear the names of the runs."""
        if not self._is_timed:
            return []
        style = TextualStyle.from_rich_style(self._style("value"))
        lanes = sorted(self._comparison.lanes, key=lambda lane: lane.session.player.duration_s)
        inside, beyond = ([lane for lane in lanes if self._is_beyond(lane.session) is later] for later in (False, True))
        mark = "#" if self.symbols.ascii else "■"
        if self._has_lines:
            later = [(self._mark_beyond, style, "ends beyond the axis")] if beyond else []
            return [(self.symbols.held, style, "so far"), *later]
        named = [
            [(mark, style, _listed(inside, times=times)), (self.symbols.arrow, style, _listed(beyond, times=times))]
            for times in (True, False)
        ]
        short = [(mark, style, "a run ends"), (self.symbols.arrow, style, "ends later")]
        entries = next(
            (
                each
                for each in named
                if sum(len(words) + 5 for _, _, words in each if words) <= self.size.width - _TITLE_WIDTH
            ),
            short,
        )
        return entries[: 1 + bool(beyond)]

    @property
    def _mark_beyond(self) -> str:
        return "//" if self.symbols.ascii else "╱╱"

    @property
    def pace(self) -> str:
        """Speed of the playback in words; for a training batch, how fast its rows are filled."""
        if self._is_timed:
            return super().pace
        speed = self.player.speed
        return f"{speed:g} sequences a second" if speed > 1 else f"a sequence in {1 / speed:g} s"

    def step_text(self) -> str:
        """Return an empty text. The runs share no step number."""
        return ""

    def render_line(self, y: int) -> Strip:
        width, lanes = self.axis_width, self._comparison.lanes
        rest = self._style("text")
        if not width:
            return Strip.blank(self.size.width, rest)
        last = y == self.size.height - 1
        if not last and y >= len(lanes):
            return Strip.blank(self.size.width, rest)
        cells = self._scrubber_cells(width) if last else self._bar_cells(y, width)
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
        label = shortened(label, self._name_width, self.symbols.cut)
        gutter = [
            Segment(label, self._style("label")),
            Segment(value.rjust(self._name_width - len(label)) + " ", self._style("value")),
        ]
        return Strip([*gutter, *cells]).simplify().adjust_cell_length(self.size.width, rest)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"timeline--{name}")

    def _bar_cells(self, number: int, width: int) -> list[Segment]:
        session = self._comparison.lanes[number].session
        end = self._column_of_end(session, width)
        gone = min(self.cursor_column, end)
        # The blank before the time leaves room for the cursor at the end of the run.
        when = f" {', '.join(filter(None, (duration(session.player.duration_s), self._gaps[number].factor)))} "
        cells = [Segment(self.symbols.held, self._style("value"))] * (gone + 1)
        cells += [Segment(self.symbols.track, self._style("bar"))] * (end - gone)
        if self._is_beyond(session):
            cells[-len(self._mark_beyond) :] = [Segment(letter, self._style("value")) for letter in self._mark_beyond]
        over = self._comparison.lanes[number].over
        width += _LAST_TIME_WIDTH + _RATIO_WIDTH
        cells += [Segment(" ", self._style("text"))] * (width - len(cells))
        begin = max(min(end + 1, width - len(when)), 0)
        style = self._style("value" if over else "label")
        # The blanks around the time have another style, so the cursor may be drawn there.
        cells[begin + 1 : begin + len(when) - 1] = [Segment(letter, style) for letter in when[1:-1]]
        return cells[:width]

    def _is_beyond(self, session: Session) -> bool:
        return session.player.duration_s > self.player.begin_s + self._span_s * 1.001

    def _column_of_end(self, session: Session, width: int) -> int:
        return int(self.column_of(np.array([session.player.duration_s]), width)[0])

    def _scrubber_cells(self, width: int) -> list[Segment]:
        cells = [Segment(self.symbols.track, self._style("track")) for _ in range(width)]
        if not self._is_timed:
            return cells
        lanes = [] if self._has_lines else self._comparison.lanes  # the ends of lines need no marks
        ends = [self._column_of_end(lane.session, width) for lane in lanes]
        for column, words in self._round_times(width):
            begin = column - len(words) // 2
            if not any(begin - 1 <= mark <= begin + len(words) for mark in (*ends, self.cursor_column)):
                cells[begin : begin + len(words)] = [Segment(letter, self._style("label")) for letter in words]
        for lane, end in zip(lanes, ends, strict=True):
            if not self._is_beyond(lane.session):
                cells[end] = Segment("#" if self.symbols.ascii else "■", self._style("value"))
        if not self._has_lines and any(self._is_beyond(lane.session) for lane in self._comparison.lanes):
            cells[-1] = Segment(self.symbols.arrow, self._style("value"))
        return [*cells, Segment(f" {duration(self.begin_s + self._span_s)}", self._style("label"))]

    def _round_times(self, width: int) -> list[tuple[int, str]]:
        least_s = _LEAST_TICK_DISTANCE * self._span_s / max(width, 1)
        power = 10.0 ** math.floor(math.log10(max(least_s, 1e-9)))
        distance_s = next(each * power for each in _TICK_FACTORS if each * power >= least_s)
        times_s = np.arange(math.ceil(self.begin_s / distance_s + 0.5), self._span_s / distance_s, 1) * distance_s
        columns = self.column_of(times_s, width)
        inside = columns < width - _LEAST_TICK_DISTANCE // 2
        return [
            (int(column), f" {seconds(time_s, distance_s) if distance_s >= 1 else duration(time_s)} ")
            for column, time_s in zip(columns[inside].tolist(), times_s[inside].tolist(), strict=True)
        ]


def _listed(lanes: Sequence[ComparedRun], *, times: bool) -> str:
    return ", ".join(
        f"{lane.label} {duration(lane.session.player.duration_s)}" if times else lane.label for lane in lanes
    )
