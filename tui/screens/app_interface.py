"""The part of the application that screens use. They cannot import `app.py`, which imports the screens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App

from kvsim.display.text import message
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import Screen

    from ..look.states import Symbols
    from ..playback.session import Session

Result = TypeVar("Result")


class AppInterface(App[None]):
    """Application with a stack of playing screens, and a clock that drives the topmost."""

    symbols: Symbols
    flash_s: float
    """Wall seconds for which changes are highlighted."""
    _busy = False

    def plays(self, screen: Screen[Any]) -> bool:
        """Tell whether `screen` is the playing screen: the topmost `PlaybackScreen`, even if a dialog covers it."""
        raise NotImplementedError

    def run_clock(self, *, running: bool) -> None:
        """Start or stop the regular calls that advance the playing screen."""
        raise NotImplementedError

    def leave_playback(self) -> None:
        """Return to the playing screen below the current one, if there is one."""
        raise NotImplementedError

    def run_in_thread(self, job: Callable[[], Result], then: Callable[[Result], None], what: str) -> None:
        """Run `job` in a thread, and pass its result to `then`. Do nothing while another job runs.

        A notification states `what` the job does. If the job fails, a second notification states the error.
        """
        if self._busy:
            return

        async def work() -> None:
            try:
                result = await asyncio.to_thread(job)
            except KvsimError as error:
                self.notify(message(str(error)), severity="error", timeout=10, markup=False)
            else:
                then(result)
            finally:
                self._busy = False

        self._busy = True
        self.notify(f"{what}.", timeout=3, markup=False)
        self.run_worker(work())

    def play_session(self, session: Session) -> None:
        raise NotImplementedError

    def action_compare(self) -> None:
        """Compare the policies at the current time, or leave the comparison."""
        raise NotImplementedError

    def action_lessons(self) -> None:
        raise NotImplementedError
