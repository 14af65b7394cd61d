"""Screen that watches a running server: it shows the last step, and lets the user go back to earlier ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.display.text import message, printable
from kvsim.errors import KvsimError

from ..screens.watch import Watch
from ..widgets.below_pool import BelowPool
from ..widgets.event_list import EventList
from ..widgets.panel import Panel
from ..widgets.pool_view import PoolView
from ..widgets.timeline_chart import TimelineChart
from ..widgets.waste_bar import WasteBar
from .past import Past

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..look.states import Symbols
    from ..playback.session import Session
    from .feed import Feed

POLL_S: Final = 1.0
_REOPEN_GROWTH: Final = 1 / 8
"""Growth after which all kept steps are opened again while the user looks at earlier steps.

It is the number of new steps, divided by the number of steps of the session on the screen.
"""
QUIET_S: Final = 5.0
"""Seconds without an event after which the headline reports it. The server is then idle or gone."""


class Live(Watch):
    """Screen that shows the last step of `feed`, until the user goes back.

    While it shows the last step, the session covers only the last steps, and the charts also what came before. If the
    user goes back beyond these steps, the session covers all steps that the feed has kept.
    """

    def __init__(self, session: Session, symbols: Symbols, feed: Feed) -> None:
        super().__init__(session, symbols)
        self._feed, self._past = feed, Past(session)
        self._ended: str | None = None
        self._present = session
        """Newest session over the last steps."""
        self._go_to_present()

    def on_mount(self) -> None:
        self._polls = self.set_interval(POLL_S, self.poll)

    def headline(self) -> tuple[list[str], list[str]]:
        long, short = super().headline()
        name = printable(self._feed.name)
        if self._ended is not None:
            return [f"ENDED: {self._ended}", *long], [f"ENDED {name}", *short]
        quiet_s = self._feed.quiet_s
        quiet = [f"quiet for {quiet_s:.0f} s"] if quiet_s > QUIET_S else []
        return [f"LIVE {name}", *quiet, *long], [f"LIVE {name}", *quiet, *short]

    def update_clock_and_title(self) -> None:
        """Start or stop the clock, and show above the time axis whether the screen shows the server's last step."""
        if self._scrubber is not None:
            self._scrubber.following = self._is_paused_at_present() and self._ended is None
        super().update_clock_and_title()

    async def poll(self) -> None:
        """Get the newest steps from the feed, and show them if the user looks at the last step.

        Otherwise show all kept steps, if the session on the screen lacks earlier ones or many are new.
        """
        at_present = self._is_paused_at_present()
        try:
            session = await asyncio.to_thread(self._newer, at_present=at_present)
        except KvsimError as error:
            self._end(str(error))
            return
        if (
            session is not None and at_present == self._is_paused_at_present()
        ):  # the user may have moved in the meantime
            self._replace_session(session)
        self.show_headline()
        if self._feed.ended is not None:
            self._end(self._feed.ended)

    def action_go(self, share: int) -> None:
        self._go(lambda: super(Live, self).action_go(share), further_back=not share)

    def action_step(self, frames: int) -> None:
        self._go(lambda: super(Live, self).action_step(frames), further_back=self.player.frame + frames < 0)

    def action_event(self, direction: int) -> None:
        is_first = direction < 0 and not (self.player.notable < self.player.frame).any()
        self._go(lambda: super(Live, self).action_event(direction), further_back=is_first)

    def go_to_time(self, time_s: float) -> None:
        self._go(lambda: super(Live, self).go_to_time(time_s), further_back=time_s < self.player.begin_s)

    def _go(self, move: Callable[[], None], *, further_back: bool) -> None:
        """Call `move`. If it goes `further_back` than the session reaches, open all kept steps first."""
        if further_back and self._has_earlier_steps:
            self.run_worker(self._open_all(move), exclusive=True)
        else:
            move()

    async def _open_all(self, move: Callable[[], None]) -> None:
        try:
            session = await asyncio.to_thread(self._all_kept)
        except KvsimError as error:
            self._end(str(error))
            return
        if self._ready:
            self._replace_session(session)
            move()

    @property
    def _has_earlier_steps(self) -> bool:
        return self.session.before.charts is not None

    def _newer(self, *, at_present: bool) -> Session | None:
        """Return the session to show next; None to keep the current one.

        If the screen is `at_present`, the new session covers the last steps, otherwise all kept steps.
        """
        excerpt = self._feed.recent()
        if excerpt is not None and excerpt.end_step != self._present.end_step:
            self._present = self._past.open(excerpt)
        if at_present:
            return None if self.session is self._present else self._present
        num_new_steps = self._present.end_step - self.session.end_step
        has_grown = num_new_steps > len(self.session.recording.steps) * _REOPEN_GROWTH
        return self._all_kept() if self._has_earlier_steps or has_grown else None

    def _all_kept(self) -> Session:
        excerpt = self._feed.whole()
        return self.session if excerpt is None else Past().open(excerpt)

    def _end(self, sentence: str) -> None:
        """Stop polling, and show why the feed has ended. The last picture stays."""
        self._polls.stop()
        self._ended = message(sentence)
        self.show_headline()
        self.update_clock_and_title()
        self.notify(f"{self._ended[0].upper()}{self._ended[1:]} What was seen stays here.", timeout=10, markup=False)

    def _replace_session(self, session: Session) -> None:
        """Show `session` at its last step if the screen shows the last step, otherwise at the current time."""
        old, player = self.session, self.session.player
        at_present = self._is_paused_at_present()
        session.player.take_over(player)
        session.selected, session.hovered = old.selected, old.hovered
        session.followed = self._same_request(old, session)
        self.set_class(session.followed is not None, "-following")
        self.session, self.player = session, session.player
        if at_present:
            self._go_to_present()
        session.show()
        self.query_one(PoolView).open(session.replay)
        self.query_one(PoolView).follow(session.followed)
        for panel in self.query(self.PANELS):
            assert isinstance(panel, BelowPool | WasteBar | TimelineChart | Panel | EventList)
            panel.open(session)
        self.show_headline()
        self.show_frame(everything=True)

    def _is_paused_at_present(self) -> bool:
        return self.player.frame >= self.player.last_frame - 1 and not self.player.playing

    def _go_to_present(self) -> None:
        """Show the last step, not the frame after it, which has no content until the next step arrives."""
        self.player.go_to_frame(self.player.last_frame - 1)

    @staticmethod
    def _same_request(old: Session, new: Session) -> int | None:
        """Return the row in `new` of the request that `old` follows; None if `old` follows none, or it has left."""
        if old.followed is None:
            return None
        rows = np.flatnonzero(new.recording.requests.id == old.request_name(old.followed))
        return int(rows[0]) if len(rows) else None
