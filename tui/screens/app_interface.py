"""Interface of the application to its screens."""

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
    """Shows one playing screen on top of another, and owns the clock."""

    symbols: Symbols
    """Symbols and colours to draw with."""
    flash_s: float
    """Wall seconds for which changes are lit."""
    _busy = False

    def plays(self, screen: Screen[Any]) -> bool:
        """Tell whether `screen` is the playing one, even under a dialog."""
        raise NotImplementedError

    def keep_time(self, *, running: bool) -> None:
        """Run or stop the clock."""
        raise NotImplementedError

    def leave_playback(self) -> None:
        """Return to the playback below, if there is one."""
        raise NotImplementedError

    def run_in_thread(self, job: Callable[[], Result], then: Callable[[Result], None], what: str) -> None:
        """Run `job` in a thread and pass its result to `then`; notify that `what` is under way, and of an error."""
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
        """Play one run on top of the current playback."""
        raise NotImplementedError

    def action_compare(self) -> None:
        """Compare the policies at this moment, or return from there."""
        raise NotImplementedError

    def action_lessons(self) -> None:
        """Choose a lesson and play it."""
        raise NotImplementedError
