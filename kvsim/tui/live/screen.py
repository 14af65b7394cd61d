"""The screen over a recording that is still growing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.display.text import message, printable
from kvsim.errors import KvsimError

from ..playback.session import Session
from ..screens.watch import Watch
from ..widgets.event_list import EventList
from ..widgets.panel import Panel
from ..widgets.pool_view import PoolView
from ..widgets.timeline import Timeline
from ..widgets.waste_bar import WasteBar

if TYPE_CHECKING:
    from ..look.states import Symbols
    from .feed import Feed

POLL_S: Final = 1.0
QUIET_S: Final = 5.0
"""Seconds without an event from which on it is said: an idle server, or one that is no more."""


class Live(Watch):
    """Follows `feed`: its last frame, unless the user has gone back to look at something."""

    def __init__(self, session: Session, symbols: Symbols, feed: Feed) -> None:
        super().__init__(session, symbols)
        self._feed = feed
        self._ended: str | None = None
        self._last = (0.0, 0)
        """Time at which the window that is shown begins, and how many steps it has."""
        self._go_to_present()

    def on_mount(self) -> None:
        """Begin to follow."""
        self._polls = self.set_interval(POLL_S, self.poll)

    def headline(self) -> tuple[list[str], list[str]]:
        """LIVE in front, and for how long nothing was heard; or that the server has hung up, or is not followed."""
        long, short = super().headline()
        name = printable(self._feed.name)
        if self._ended is not None:
            return [f"ENDED: {self._ended}", *long], [f"ENDED {name}", *short]
        quiet_s = self._feed.quiet_s
        quiet = [f"quiet for {quiet_s:.0f} s"] if quiet_s > QUIET_S else []
        return [f"LIVE {name}", *quiet, *long], [f"LIVE {name}", *quiet, *short]

    def show_transport(self) -> None:
        """That it follows the server, while it does."""
        if self._scrubber is not None:
            self._scrubber.following = self._is_at_present() and self._ended is None
        super().show_transport()

    async def poll(self) -> None:
        """Take over what has been recorded since the last time."""
        try:
            session = await asyncio.to_thread(self._newer)
        except KvsimError as error:
            self._end(str(error))
            return
        if session is not None:
            self._take(session)
        self.show_headline()
        if self._feed.ended is not None:
            self._end(self._feed.ended)

    def _newer(self) -> Session | None:
        """What the feed has now, opened; None where it has nothing new."""
        recording = self._feed.recording()
        if recording is None:
            return None
        last = (float(recording.steps.start_s[0]), len(recording.steps))
        if last == self._last:
            return None
        self._last = last
        return Session(recording)

    def _end(self, sentence: str) -> None:
        self._polls.stop()
        self._ended = message(sentence)
        self.show_headline()
        self.show_transport()
        self.notify(f"{self._ended[0].upper()}{self._ended[1:]} What was seen stays here.", timeout=10, markup=False)

    def _take(self, session: Session) -> None:
        """Show `session` in place of the present one, at the same moment or at its end."""
        old, player = self.session, self.session.player
        follows = self._is_at_present()
        session.player.take_over(player)
        session.selected, session.hovered = old.selected, old.hovered
        session.followed = self._same_request(old, session)
        self.session, self.player = session, session.player
        if follows:
            self._go_to_present()
        session.show()
        self.query_one(PoolView).open(session.replay)
        self.query_one(PoolView).follow(session.followed)
        for panel in self.query("WasteBar, Timeline, Panel, EventList"):
            assert isinstance(panel, WasteBar | Timeline | Panel | EventList)
            panel.open(session)
        self.show_headline()
        self.show_frame(everything=True)

    def _is_at_present(self) -> bool:
        return self.player.frame >= self.player.last_frame - 1 and not self.player.playing

    def _go_to_present(self) -> None:
        """Show the last step: the frame after it stands for an end that has not come."""
        self.player.go_to_frame(self.player.last_frame - 1)

    @staticmethod
    def _same_request(old: Session, new: Session) -> int | None:
        """The followed request in the new recording, which may have begun afresh without it."""
        if old.followed is None:
            return None
        rows = np.flatnonzero(new.recording.requests.id == old.request_name(old.followed))
        return int(rows[0]) if len(rows) else None
