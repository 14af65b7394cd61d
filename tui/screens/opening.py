"""Screen that reports progress while a recording is read, or a run simulated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from textual.screen import Screen
from textual.widgets import Static

from ..widgets.headline import Headline

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ..lessons import Guided
    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRuns
    from ..playback.fleet_servers import FleetServers
    from ..playback.session import Session

_REFRESH_S = 0.1
_BAR_WIDTH = 40
"""Characters of the bar."""


class OpeningJob(Protocol):
    """Makes a playback, runs in a thread and reports its progress."""

    def __call__(self, report: OpeningProgress) -> Session | ComparedRuns | FleetServers | Guided:
        """Run the job, reporting its progress."""
        ...


class OpeningProgress:
    """Progress of a job; the screen reads it now and then."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done, self.total = 0, 0

    def begin(self, what: str) -> None:
        """Name the current activity."""
        self.what, self.done, self.total = what, 0, 0

    def __call__(self, done: int, total: int) -> None:
        """Set the progress of the current activity."""
        self.done, self.total = done, total
        time.sleep(0)  # so that the screen gets its turn


class Opening(Screen[None]):
    """Shows the current activity and its progress. Kept minimal: drawing competes with loading for CPU."""

    def __init__(self, report: OpeningProgress, symbols: Symbols) -> None:
        super().__init__()
        self._report, self._symbols = report, symbols
        self._told = ""

    def compose(self) -> ComposeResult:
        """Compose a headline, and the progress in the place of the pool."""
        yield Headline(self._symbols)
        yield Static(id="opening", markup=False)

    def on_mount(self) -> None:
        """Look at the report from time to time."""
        self.query_one(Headline).tell(["opening"], ["opening"])
        self._show()
        self.set_interval(_REFRESH_S, self._show)

    def _show(self) -> None:
        report, symbols = self._report, self._symbols
        told = report.what
        if report.total:
            done = min(report.done / report.total, 1.0)
            filled = int(done * _BAR_WIDTH)
            told += f"\n\n{symbols.up[-1] * filled}{symbols.dot * (_BAR_WIDTH - filled)} {100 * done:3.0f}%"
        if told != self._told:
            self._told = told
            self.query_one("#opening", Static).update(told)
