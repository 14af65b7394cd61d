"""Screen that plays one run: the pool, its slots by state, the charts over time, requests, queue and events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Horizontal, Vertical
from textual.content import Content

from kvsim.display.text import file_stem

from ..facts.headlines import headline
from ..facts.telling import judged
from ..facts.units import unit_summary
from ..playback.run_events import EventFilter
from ..pool.colors import next_color
from ..widgets.below_pool import BelowPool
from ..widgets.block_table import BlockTable
from ..widgets.draft_strip import DraftStrip
from ..widgets.encoder_strip import EncoderStrip
from ..widgets.event_list import EventList
from ..widgets.host_map import HostMap
from ..widgets.inspector import Inspector
from ..widgets.lesson_drawing import LessonDrawing
from ..widgets.owner_strips import MAX_IN_PHYSICAL_ORDER, OwnerStrips
from ..widgets.panel import Panel
from ..widgets.pool_view import PoolView
from ..widgets.story_line import StoryLine
from ..widgets.timeline_chart import TimelineChart
from ..widgets.waiting_list import Queue
from ..widgets.waste_bar import WasteBar
from .keys import PANEL_BINDINGS
from .playback import PlaybackScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from ..lessons import Guided
    from ..look.states import Symbols
    from ..playback.session import Session


class Watch(PlaybackScreen):
    """Plays one session. The style sheet shows the panels that fit, unless the user shows or hides some by key."""

    BINDINGS: ClassVar[list[BindingType]] = [*PANEL_BINDINGS]
    PANELS = "BelowPool, WasteBar, TimelineChart, Panel, EventList"

    def __init__(self, session: Session, symbols: Symbols, guided: Guided | None = None) -> None:
        super().__init__(session.player, symbols, guided)
        self.session = session
        self.story = session.story if guided is None else None
        self.set_class(session.followed is not None, "-following")
        self.set_class(guided is not None and guided.draws_beside, "-draws-beside")

    def compose_body(self) -> ComposeResult:
        session, symbols = self.session, self.symbols
        with Horizontal(id="body"):
            with Vertical(id="main"):
                color_by = None if self.guided is None else self.guided.color_by
                pool = PoolView(session.replay, symbols, color_by=color_by, flash_s=self.app.flash_s)
                yield pool
                yield OwnerStrips(session, symbols)
                yield BelowPool(session, pool, symbols)
                if session.host is not None:
                    yield HostMap(session, symbols)
                if session.encoder is not None:
                    yield EncoderStrip(session, symbols)
                if session.recording.has_drafts and len(session.replay.groups) == 1:
                    yield DraftStrip(session, symbols)
                yield WasteBar(session, symbols)
                if self.guided is not None and self.guided.draws:
                    yield LessonDrawing(self.guided, symbols)
                yield TimelineChart(session, symbols)
            with Vertical(id="side"):
                yield Inspector(session, symbols)
                yield BlockTable(session, symbols)
                yield Queue(session, symbols)
            with Vertical(id="far"):
                yield EventList(session, symbols)

    def on_mount(self) -> None:
        """Show the followed request. Count the slots by state in a thread, if the session has not done so."""
        # In a static batch, each line of the pool is one request already.
        has_lines = self.session.recording.meta.policy_name == "static"
        exceeds_hues = len(self.session.replay.live_requests()) > MAX_IN_PHYSICAL_ORDER
        self.set_class(exceeds_hues and self.guided is None and not has_lines, "-by-owner")
        if self.session.followed is not None:
            self.query_one(PoolView).follow(self.session.followed)
        if not self.session.added_up:
            self.run_worker(self._add_up())

    async def _add_up(self) -> None:
        await asyncio.to_thread(self.session.add_up)
        if self.story is not None:
            self.story = await asyncio.to_thread(judged, self.session, self.story)
        if self.is_attached:
            if self.story is not None:
                self.query_one(StoryLine).tell(self.story)
            self.query_one(WasteBar).open(self.session)
            self.query_one(TimelineChart).open(self.session)
            self.show_frame(everything=True)

    def show_verdict(self) -> None:
        if self.story is not None:
            self.story = judged(self.session, self.story)
            self.query_one(StoryLine).tell(self.story)

    def headline(self) -> tuple[list[str], list[str]]:
        return headline(self.session, short=False), headline(self.session, short=True)

    def sessions(self) -> Iterable[Session]:
        return (self.session,)

    def show_picture(self) -> None:
        self.session.show()
        self.query_one(PoolView).show_frame()

    def follow(self, request: int | None) -> None:
        self.session.followed = self.session.marked = request
        self.set_class(request is not None, "-following")
        self.query_one(PoolView).follow(request)
        self.show_panels()

    def follow_name(self, name: str | None) -> None:
        self.follow(None if name is None else self.session.recording.row_of(name))

    def file_name(self) -> str:
        return f"{file_stem(self.session.recording.name)}-step{self.session.step_number(self.player.frame)}"

    def action_filter(self) -> None:
        """List the events of the next `EventFilter` that selects any event.

        Keys that jump to events stop at the listed ones; if all events are listed, only at the notable ones.
        """
        filters = [each for each in EventFilter if each is EventFilter.ALL or len(self.session.events_through(each))]
        current = filters.index(self.session.event_filter) if self.session.event_filter in filters else -1
        self.session.filter_events(filters[(current + 1) % len(filters)])
        number = len(self.session.listed_events)
        self.notify(f"{self.session.event_filter.value}: {number:,}; [ and ] jump along them.", timeout=3, markup=False)
        self.show_panels()

    def action_toggle_panel(self, name: str) -> None:
        """Show or hide a panel, regardless of the terminal's size."""
        panel = self.query_one(f"#{name}")
        shown = bool(panel.size.area)
        panel.set_class(shown, "-off").set_class(not shown, "-on")
        for column in self.query("#side, #far"):
            children = list(column.children)
            column.set_class(any(child.has_class("-on") for child in children), "-on")
            column.set_class(all(child.has_class("-off") for child in children), "-off")

    def action_maximise(self) -> None:
        """Show the focused panel, or else the pool, on the whole screen. From there, return to all panels."""
        if self.maximized is not None:
            self.minimize()
        else:
            pool = self.query_one("#owners" if self.has_class("-by-owner") else "#pool")
            self.maximize(self.focused or pool, container=False)

    def action_zoom(self, direction: int) -> None:
        self.remove_class("-by-owner")
        if not self.query_one(PoolView).zoom(direction):
            self.notify("This is the most detail." if direction > 0 else "This is the whole pool.", timeout=3)

    def action_color(self) -> None:
        """Let the colours of the pool mean the next property, such as owner, state or age.

        If the screen shows memory by owner, show the pool instead, with the same meaning of colour.
        """
        pool = self.query_one(PoolView)
        if self.has_class("-by-owner"):
            self.action_arrange()
            return
        pool.color_by = next_color(pool.color_by, [self.session.replay])
        self.query_one(BelowPool).show_frame()

    def action_arrange(self) -> None:
        self.toggle_class("-by-owner")
        self.show_frame(everything=True)

    @on(PoolView.Tiled)
    @on(OwnerStrips.BarsChanged)
    def _pool_tiled(self) -> None:
        self.query_one(BelowPool).show_frame()

    @on(PoolView.Selected)
    def _unit_selected(self, message: PoolView.Selected) -> None:
        self.session.selected = message.unit
        self.show_panels()

    @on(PoolView.Hovered)
    def _unit_hovered(self, message: PoolView.Hovered) -> None:
        self.session.hovered = message.unit
        message.pool.tooltip = None if message.unit is None else Content(unit_summary(self.session, message.unit))
        self.query_one(Inspector).show_frame()

    @on(PoolView.Follow)
    def _pool_follows(self, message: PoolView.Follow) -> None:
        self.follow(message.request)

    @on(Panel.Picked)
    def _request_picked(self, message: Panel.Picked) -> None:
        self.follow(message.request)

    @on(EventList.Jumped)
    def _jumped(self, message: EventList.Jumped) -> None:
        self.player.step(message.frame - self.player.frame)
        self.show_frame(everything=True)
        self.follow(message.request)

    def show_found(self, found: tuple[str, int] | None) -> None:
        if found is None:
            return
        kind, number = found
        if kind == "request":
            self.follow(number)
        else:
            self.remove_class("-by-owner")
            self.query_one(PoolView).select(number)
