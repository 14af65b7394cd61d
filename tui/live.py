"""The screen over a recording that is still growing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.errors import KvsimError

from .event_list import EventList
from .panels import Panel
from .pool_view import PoolView
from .session import Session
from .timeline import Timeline
from .waste_bar import WasteBar
from .watch import Watch

if TYPE_CHECKING:
    from .feed import Feed
    from .states import Symbols

POLL_S: Final = 1.0


class Live(Watch):
    """Follows `feed`: its last frame, unless somebody has gone back to look at something."""

    def __init__(self, session: Session, symbols: Symbols, feed: Feed) -> None:
        super().__init__(session, symbols)
        self._feed = feed
        self._ended: str | None = None
        self._num_steps = 0
        self._go_to_present()

    def on_mount(self) -> None:
        """Begin to follow."""
        super().on_mount()
        self._polls = self.set_interval(POLL_S, self.poll)

    def headline(self) -> tuple[list[str], list[str]]:
        """LIVE or COARSE in front, or that the server has hung up."""
        long, short = super().headline()
        kind = "COARSE" if self.session.recording.meta.extra.get("coarse") else "LIVE"
        if self._ended is not None:
            return [f"ENDED: {self._ended}", *long], [f"ENDED {self._feed.name}", *short]
        return [f"{kind} {self._feed.name}", *long], [f"{kind} {self._feed.name}", *short]

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
        if self._feed.ended is not None:
            self._end(self._feed.ended)

    def _newer(self) -> Session | None:
        """What the feed has now, opened; None where it has nothing new."""
        recording = self._feed.recording()
        if recording is None or len(recording.steps) == self._num_steps:
            return None
        self._num_steps = len(recording.steps)
        return Session(recording)

    def _end(self, sentence: str) -> None:
        self._polls.stop()
        self._ended = sentence
        self.show_headline()
        self.show_transport()
        self.notify(f"{sentence[0].upper()}{sentence[1:]} What was seen stays here.", timeout=10, markup=False)

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
