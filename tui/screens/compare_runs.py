"""Screen that compares runs of the same requests under several policies, on one clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.binding import Binding
from textual.containers import Container, Vertical

from ..facts.headlines import comparison_headline
from ..facts.telling import gap_of, story_of_comparison
from ..pool.colors import next_color
from ..pool.paint import ColorBy
from ..widgets.host_map import HostMap
from ..widgets.lane import MOST_POOLS_NARROW, LaneFigures
from ..widgets.legend import Legend
from ..widgets.lesson_drawing import LessonDrawing, ScheduleChart
from ..widgets.pool_view import PoolView
from ..widgets.race_chart import DurationChart
from ..widgets.story_line import StoryLine
from .playback import PlaybackScreen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from ..lessons import Guided
    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRuns
    from ..playback.session import Session


_HEIGHT_OF_FOUR: Final = 23
"""Least height in lines of a narrow screen whose time axis has a row for each of four runs."""


class Compare(PlaybackScreen):
    """Plays a lane for each run. Lanes are beside each other if there is room, otherwise above each other."""

    compares = True
    PANELS = "HostMap, LaneFigures, ScheduleChart, LessonDrawing, Legend, DurationChart"
    BINDINGS: ClassVar[list[BindingType]] = [  # these need the screen of a single run, and say so
        Binding("v", "arrange", show=False, id="compare.arrange"),
        Binding("d", "diagnose", show=False, id="compare.diagnose"),
    ]

    def __init__(
        self,
        comparison: ComparedRuns,
        symbols: Symbols,
        guided: Guided | None = None,
        ample: Callable[[], Sequence[float]] | None = None,
    ) -> None:
        """`guided` is the lesson that the runs belong to; None outside lessons.

        `ample` returns the output tokens per second that each run would reach with unlimited memory; None if that is
        unknown. It is called in a thread.
        """
        super().__init__(comparison.player, symbols, guided)
        self.comparison = comparison
        self._ample = ample
        # With many requests, the colours of a pool are the states of its slots, as in the bars below.
        self._color_by = ColorBy.STATE if guided is None else guided.color_by
        story = story_of_comparison(comparison)
        self.story = story if guided is None and story.parts else None

    def compose_body(self) -> ComposeResult:
        num = len(self.comparison.lanes)
        with Container(id="lanes", classes=self._arrangement(num)):
            for number, lane in enumerate(self.comparison.lanes):
                with Vertical(classes="lane"):
                    pool = PoolView(
                        lane.session.replay,
                        self.symbols,
                        id=f"pool-{number}",
                        heading=lane.label,
                        color_by=self._color_by,
                        flash_s=self.app.flash_s,
                        longest_heading=max(len(other.label) for other in self.comparison.lanes),
                        most_units=self._most_units,
                        # All pools have the same levels: if one model has several block tables, none shows slots.
                        shows_slots=all(len(session.replay.groups) == 1 for session in self.sessions()),
                    )
                    yield pool
                    if any(session.host is not None for session in self.sessions()):
                        yield HostMap(lane.session, self.symbols, id=f"host-{number}")
                    yield LaneFigures(lane, self.symbols, pool=pool, num_lanes=num, id=f"figures-{number}")
                    if self.guided is not None and "schedule" in self.guided.draws:
                        yield ScheduleChart(self.guided, lane.session, self.symbols, id=f"schedule-{number}")
        if self.guided is not None and self.guided.draws_alone:
            yield LessonDrawing(self.guided, self.symbols)
        is_fleet = self.guided is not None and bool(self.guided.fleets)
        yield Legend(self.comparison, self.symbols, self._color_by, is_fleet=is_fleet)
        yield DurationChart(self.comparison, self.symbols)

    @property
    def _most_units(self) -> int:
        return max((each.replay.num_units for each in self.sessions() if each.replay.unit_tokens > 1), default=0)

    def _arrangement(self, num_lanes: int) -> str | None:
        """Return the CSS classes that place the lanes on a narrow screen; None if each lane is below the one before.

        Two lanes are side by side, in a lesson also three. A lesson shows four pools in two rows. A comparison outside
        lessons shows no pools if there are more than three lanes.
        """
        if num_lanes == 2 or (self.guided is not None and num_lanes == MOST_POOLS_NARROW):
            return "-two" if num_lanes == 2 else "-two -three"
        if num_lanes > MOST_POOLS_NARROW:
            return "-many" if self.guided is None else "-grid"
        return None

    def on_mount(self) -> None:
        for session, pool in zip(self.sessions(), self.query(PoolView), strict=True):
            pool.follow(session.followed)
        self._tell_gaps()
        if not self.comparison.ample_tokens_per_s and (ample := self._ample) is not None:
            self.call_after_refresh(lambda: self.run_worker(self._ask_ample_throughput(ample)))

    def on_resize(self) -> None:
        """Set the style classes for the new size, and give all lanes without pools the same height."""
        self.set_class(self.guided is None and self.size.height >= _HEIGHT_OF_FOUR, "-roomy")
        self.call_after_refresh(self._even_out)

    def _even_out(self) -> None:
        lanes = self.query_one("#lanes")
        if lanes.has_class("-many"):
            even = f"{lanes.size.height // len(self.comparison.lanes)}" if self.has_class("-narrow") else "1fr"
            for lane in self.query(".lane"):
                lane.styles.height = even

    async def _ask_ample_throughput(self, ample: Callable[[], Sequence[float]]) -> None:
        self.comparison.set_ample_throughput(await asyncio.to_thread(ample))
        if self.is_attached:
            self._tell_gaps()

    def _tell_gaps(self) -> None:
        if self.comparison.lanes[0].session.rows is not None:
            return
        for line in self.query(StoryLine):
            line.tell(story_of_comparison(self.comparison))
        ample = self.comparison.ample_tokens_per_s or (0.0,) * len(self.comparison.lanes)
        for number, (figures, tokens_per_s) in enumerate(zip(self.query(LaneFigures), ample, strict=True)):
            figures.set_gap(gap_of(self.comparison, number), tokens_per_s)
        self.query_one(DurationChart).show_clock_title()

    def headline(self) -> tuple[list[str], list[str]]:
        long, short = (comparison_headline(self.comparison, short=short) for short in (False, True))
        times = self._step_times()
        return [*long[:1], *times, *long[1:]], [*short[:1], *times, *short[1:]]

    def _step_times(self) -> list[str]:
        metas = [lane.session.recording.meta for lane in self.comparison.lanes]
        if any(meta.source != "simulation" or "row_tokens" in meta.policy for meta in metas):
            return []
        labels = {str(meta.engine.get("step_time")).partition(";")[0] for meta in metas}
        return ["one engine's step times" if len(labels) == 1 else "each its own engine's step times"]

    def sessions(self) -> Iterable[Session]:
        return (lane.session for lane in self.comparison.lanes)

    def show_picture(self) -> None:
        self.comparison.show()
        for pool in self.query(PoolView):
            pool.show_frame()

    def follow(self, request: int | None) -> None:
        """Follow, in all runs, the request that is row `request` of the first run; None for no request."""
        self.follow_name(None if request is None else self.comparison.lanes[0].session.request_name(request))

    def follow_name(self, name: str | None) -> None:
        self.comparison.follow(name)
        for session, pool in zip(self.sessions(), self.query(PoolView), strict=True):
            pool.follow(session.followed)
        self.show_panels()

    def file_name(self) -> str:
        """Return a file name with the time. The runs share no step number."""
        return f"kvsim-compare-{self.player.clock_s:.3f}s"

    def action_zoom(self, direction: int) -> None:
        for pool in self.query(PoolView):
            pool.zoom(direction)

    def action_color(self) -> None:
        color_by = next_color(self.query(PoolView).first().color_by, [session.replay for session in self.sessions()])
        for pool in self.query(PoolView):
            pool.color_by = color_by
        legend = self.query_one(Legend)
        legend.color_by = color_by
        legend.refresh()

    def action_diagnose(self) -> None:
        self.notify("Watch one run to see what would help it.", timeout=3)

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

    def show_found(self, found: tuple[str, int] | None) -> None:
        """Follow the request `found` in all runs. Do nothing if `found` is a block or None."""
        if found is not None and found[0] == "request":
            self.follow(found[1])
