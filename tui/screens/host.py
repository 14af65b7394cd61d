"""The program as its screens see it: what they read of it, and what they ask it for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import Screen

    from ..look.states import Symbols

Result = TypeVar("Result")


class Host(App[None]):
    """Shows one screen that plays on top of another, and owns the clock."""

    symbols: Symbols
    """Symbols and colours to draw with."""
    flash_s: float
    """Wall seconds for which what has changed is lit up."""

    def plays(self, screen: Screen[Any]) -> bool:
        """Tell whether `screen` is the playing one, even under a dialog."""
        raise NotImplementedError

    def keep_time(self, *, running: bool) -> None:
        """Run the clock, or let it rest."""
        raise NotImplementedError

    def leave_playback(self) -> None:
        """Return to what was played before, where there is anything."""
        raise NotImplementedError

    def aside(self, job: Callable[[], Result], then: Callable[[Result], None], what: str) -> None:
        """Run `job` in a thread and pass its result to `then`; notify that `what` is under way, and of an error."""
        raise NotImplementedError

    def action_compare(self) -> None:
        """Compare the policies at this moment, or return from there."""
        raise NotImplementedError

    def action_lessons(self) -> None:
        """Choose a lesson and play it."""
        raise NotImplementedError
