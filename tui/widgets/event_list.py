"""List of the events of a run: it scrolls with the clock, and the user can jump to an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kvsim.replay.unfolding import NO_OWNER

from ..look.wording import ending, plural, seconds, shortened
from ..playback.run_events import EVENT_NAMES, NOTABLE, EventFilter, EventKind

if TYPE_CHECKING:
    from textual import events

    from ..look.states import Symbols
    from ..playback.run_events import Events
    from ..playback.session import Session

_NAME_WIDTH = 10


class EventList(ScrollView, can_focus=True, inherit_bindings=False):
    """The events that the session's filter selects. Events after the current frame are grey."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"events--past", "events--future", "events--now"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Previous event", show=False, id="events.up"),
        Binding("down,j", "move(1)", "Next event", show=False, id="events.down"),
        Binding("enter", "jump", "Jump to event", id="events.jump"),
        Binding("escape", "leave", "Leave events", show=False, id="events.leave"),
    ]

    @dataclass
    class Jumped(Message):
        """The user chose an event. `request` is None for an eviction."""

        frame: int
        request: int | None

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(id="events")
        self._symbols = symbols
        self._shown: tuple[Events, int, int] | None = None
        """State that was drawn last; None if nothing was drawn since the size changed.

        It has the events, the index of the current event, and the number of events up to the current frame.
        """
        self.open(session)

    def open(self, session: Session) -> None:
        self._session = session
        ids = session.recording.requests.id
        self._name_width = min(int(np.char.str_len(ids).max(initial=0)), _NAME_WIDTH)
        self._take_events()

    def _take_events(self) -> None:
        session = self._session
        self._events = session.listed_events
        self._line = max(self._events.up_to(session.player.frame) - 1, 0)
        title = "events" if session.event_filter is EventFilter.ALL else session.event_filter.value
        title = title if session.before.charts is None else f"recent {title}"
        self.border_title = f"{title} ({len(self._events):,}), f filters"
        self.virtual_size = Size(self.size.width, len(self._events))

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._events))
        self._shown = None
        self._show_line()

    def show_frame(self) -> None:
        if self._events is not self._session.listed_events:
            self._take_events()
        events, frame = self._events, self._session.player.frame
        # If several events have the same frame, the event that the user jumped to stays the current one.
        if len(events) and int(events.frame[self._line]) != frame:
            self._line = max(events.up_to(frame) - 1, 0)
        self._show_line()

    def action_move(self, lines: int) -> None:
        """Jump by `lines` events: later if positive, earlier if negative."""
        self._jump_to(min(max(self._line + lines, 0), len(self._events) - 1))

    def action_jump(self) -> None:
        """Jump to the current event and follow its request."""
        self._jump_to(self._line)

    def action_leave(self) -> None:
        self.screen.set_focus(None)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is not None:
            self._jump_to(at.y + self.scroll_offset.y)

    def render_line(self, y: int) -> Strip:
        session, row = self._session, y + self.scroll_offset.y
        width = self.size.width
        if not 0 <= row < len(self._events):
            return Strip.blank(width, self.get_component_rich_style("events--past"))
        kind = EventKind(int(self._events.kind[row]))
        frame = int(self._events.frame[row])
        time = seconds(float(session.times_s[frame]), session.player.duration_s / 1000).rjust(9)
        text = shortened(f"{time}  {self._who(row)} {EVENT_NAMES[kind]}", width, self._symbols.cut).ljust(width)
        if frame > session.player.frame:
            look = "future"
        elif row == self._line:
            look = "now"
        else:
            look = "past"
        style = self.get_component_rich_style(f"events--{look}")
        if look == "past" and kind in NOTABLE:  # as on the axis of time
            style += Style(color=self._symbols.palette.changes[1])
        return Strip([Segment(text, style)])

    def _who(self, row: int) -> str:
        request = int(self._events.request[row])
        if request == NO_OWNER:
            return plural(int(self._events.count[row]), self._session.unit_name)
        return ending(self._session.request_name(request), _NAME_WIDTH, self._symbols.cut).ljust(self._name_width)

    def _jump_to(self, line: int) -> None:
        events = self._events
        if not 0 <= line < len(events):
            return
        self._line = line
        request = int(events.request[line])
        self.post_message(self.Jumped(int(events.frame[line]), None if request == NO_OWNER else request))
        self._show_line()

    def _show_line(self) -> None:
        shown = (self._events, self._line, self._events.up_to(self._session.player.frame))
        if shown != self._shown:
            self._shown = shown
            self.scroll_to(y=max(self._line - self.size.height // 2, 0), animate=False, force=True)
            self.refresh()
