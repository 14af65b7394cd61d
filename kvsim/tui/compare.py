"""The screen on which several policies serve the same requests on one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.containers import Container, Vertical
from textual.strip import Strip

from .facts import comparison_headline
from .find import FindScreen
from .lane import LaneFigures, Legend
from .pool.colors import next_color
from .pool.paint import ColorBy
from .pool_view import PoolView
from .schedule_chart import ScheduleChart
from .scrubber import Scrubber
from .stage import Stage
from .story import story_of_comparison
from .words import seconds, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult

    from .comparison import Comparison
    from .lessons import Guided
    from .session import Session
    from .states import Symbols

_LABEL = 14
_MOST_TIMES = 4
"""How many times the fastest run's duration the axis shows at most, where the slowest takes more than twice as long."""


class Race(Scrubber):
    """How long each run takes, a line for each where there is room, above a scrubber."""

    def __init__(self, comparison: Comparison, symbols: Symbols) -> None:
        super().__init__(comparison.player, symbols, id="race")
        self._comparison = comparison
        # The clock of rows for training means nothing, so there are no times to compare.
        timed = comparison.lanes[0].session.rows is None
        self.set_class(timed and len(comparison.lanes) == 2, "-two").set_class(not timed, "-untimed")

    def show_frame(self) -> None:
        """Follow the comparison to its current frame."""
        self.refresh()

    @property
    def _span_s(self) -> float:
        """The part of time that the axis shows: where one run takes many times as long as another, not all of it."""
        durations_s = [lane.session.player.duration_s for lane in self._comparison.lanes]
        whole_s = super()._span_s
        return min(whole_s, _MOST_TIMES * min(durations_s)) if whole_s > 2 * _MOST_TIMES * min(durations_s) else whole_s

    def place(self) -> str:
        """Steps of several runs have no common number."""
        return ""

    def render_line(self, y: int) -> Strip:
        """A run's line, or the scrubber."""
        width, lanes = self.axis_width, self._comparison.lanes
        rest = self._style("text")
        if not width:
            return Strip.blank(self.size.width, rest)
        last = y == self.size.height - 1
        if not last and y >= len(lanes):
            return Strip.blank(self.size.width, rest)
        cells = self._track(width) if last else self._span(y, width)
        column = self.cursor_column
        line = self.symbols.knob if last else "│" if self.symbols.color else "|"
        cells[column : column + 1] = [Segment(line, Style(color=self.symbols.palette.cursor, bold=True))]
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
        """How long a run takes, as a bar: solid up to the clock, thin beyond it, and the time at its end."""
        session = self._comparison.lanes[number].session
        end = self._column_of_end(session, width)
        gone = min(self.cursor_column, end)
        beyond = session.player.duration_s > self.player.begin_s + self._span_s * 1.001
        when = f" {self.symbols.arrow}" if beyond else ""
        when += f" {seconds(session.player.duration_s, session.player.duration_s / 100)}"
        cells = [Segment(self.symbols.up[8], self._style("bar"))] * (gone + 1)
        cells += [Segment(self.symbols.track, self._style("bar"))] * (end - gone)
        over = self._comparison.lanes[number].over
        cells += [Segment(" ", self._style("text"))] * (width - len(cells))
        begin = max(min(end + 1, width - len(when) - 1), 0)
        style = self._style("value" if over else "label")
        cells[begin : begin + len(when)] = [Segment(letter, style) for letter in when]
        return cells[:width]

    def _column_of_end(self, session: Session, width: int) -> int:
        return int(self.column_of(np.array([session.player.duration_s]), width)[0])

    def _track(self, width: int) -> list[Segment]:
        """Where each run ends."""
        cells = [Segment(self.symbols.track, self._style("track")) for _ in range(width)]
        for lane in self._comparison.lanes:
            cells[self._column_of_end(lane.session, width)] = Segment(self.symbols.up[8], self._style("tick"))
        return cells


class Compare(Stage):
    """The pools above each other or, where there is room, beside each other."""

    PANELS = "LaneFigures, ScheduleChart, Race"

    def __init__(self, comparison: Comparison, symbols: Symbols, guided: Guided | None = None) -> None:
        super().__init__(comparison.player, symbols, guided)
        self.comparison = comparison
        story = story_of_comparison(comparison)
        self.story = story if guided is None and story.parts else None

    def compose_body(self) -> ComposeResult:
        """A lane for each run, what the colours mean, and the clock."""
        # Rows have names only where they have lines, and two pools have more of those beside each other.
        with Container(id="lanes", classes="-two" if len(self.comparison.lanes) == 2 else None):
            for number, lane in enumerate(self.comparison.lanes):
                with Vertical(classes="lane"):
                    yield PoolView(
                        lane.session.replay,
                        self.symbols,
                        id=f"pool-{number}",
                        heading=lane.label,
                        color_by=ColorBy.OWNER,
                        flash_s=self.app.flash_s,
                    )
                    yield LaneFigures(lane, self.symbols, id=f"figures-{number}")
                    if self.guided is not None and self.guided.lesson.shows_schedule:
                        yield ScheduleChart(self.comparison, lane, self.symbols, id=f"schedule-{number}")
        yield Legend(self.comparison, self.symbols)
        yield Race(self.comparison, self.symbols)

    def on_mount(self) -> None:
        """Show the first frame, and whom every run follows."""
        super().on_mount()
        for session, pool in zip(self.sessions(), self.query(PoolView), strict=True):
            pool.follow(session.followed)

    def headline(self) -> tuple[list[str], list[str]]:
        """What is the same for all, the engine's step times among it where they are."""
        long, short = (comparison_headline(self.comparison, short=short) for short in (False, True))
        times = self._step_times()
        return [*long[:1], *times, *long[1:]], [*short[:1], *times, *short[1:]]

    def _step_times(self) -> list[str]:
        """Whether the runs differ in their policies alone, or in their engines too."""
        metas = [lane.session.recording.meta for lane in self.comparison.lanes]
        if any(meta.source != "simulation" or "row_tokens" in meta.policy for meta in metas):
            return []
        labels = {str(meta.engine.get("step_time")) for meta in metas}
        return ["one engine's step times" if len(labels) == 1 else "each its own engine's step times"]

    def sessions(self) -> Iterable[Session]:
        """Those of all runs."""
        return (lane.session for lane in self.comparison.lanes)

    def show_picture(self) -> None:
        """Draw the pools."""
        self.comparison.show()
        for pool in self.query(PoolView):
            pool.show_frame()

    def follow(self, request: int | None) -> None:
        """Keep a request of the first run lit in all of them."""
        self.follow_name(None if request is None else self.comparison.lanes[0].session.request_name(request))

    def follow_name(self, name: str | None) -> None:
        """Keep the request of that id lit in all runs."""
        self.comparison.follow(name)
        for session, pool in zip(self.sessions(), self.query(PoolView), strict=True):
            pool.follow(session.followed)
        self.show_panels()

    def file_name(self) -> str:
        """The moment; the runs have no name in common."""
        return f"kvsim-compare-{self.player.clock_s:.3f}s"

    def action_zoom(self, direction: int) -> None:
        """Show all pools in more or less detail."""
        for pool in self.query(PoolView):
            pool.zoom(direction)

    def action_color(self) -> None:
        """Let colour mean something else in all pools."""
        color_by = next_color(self.query(PoolView).first().color_by)
        for pool in self.query(PoolView):
            pool.color_by = color_by
        legend = self.query_one(Legend)
        legend.color_by = color_by
        legend.refresh()

    def action_find(self) -> None:
        """Ask for a request."""
        self.app.push_screen(FindScreen(self.comparison.lanes[0].session), self._found)

    @on(PoolView.Selected)
    def _unit_selected(self, message: PoolView.Selected) -> None:
        self._session_of(message).selected = message.unit
        self.show_panels()

    @on(PoolView.Follow)
    def _pool_follows(self, message: PoolView.Follow) -> None:
        session = self._session_of(message)
        self.follow_name(None if message.request is None else session.request_name(message.request))

    def _session_of(self, message: PoolView.Selected | PoolView.Follow) -> Session:
        return self.comparison.lanes[list(self.query(PoolView)).index(message.pool)].session

    def _found(self, found: tuple[str, int] | None) -> None:
        if found is not None and found[0] == "request":
            self.follow(found[1])
