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


class OpeningJob(Protocol):
    """Function that loads or simulates the recordings to play. It runs in a thread."""

    def __call__(self, report: OpeningProgress) -> Session | ComparedRuns | FleetServers | Guided:
        """Return what was loaded, opened for playing. Report progress to `report`."""
        ...


class OpeningProgress:
    """Progress of an opening job, which runs in a thread. The screen reads it a few times a second."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done, self.total = 0, 0

    def begin(self, what: str) -> None:
        """Begin the activity `what`, whose progress is not known yet."""
        self.what, self.done, self.total = what, 0, 0

    def __call__(self, done: int, total: int) -> None:
        """Set the progress: `done` of `total` units of work of the activity. It is unknown if `total` is 0."""
        self.done, self.total = done, total
        time.sleep(0)  # yield to the thread that draws the screen


class Opening(Screen[None]):
    """Shows the current activity and its progress. It draws little, because drawing slows down the job."""

    def __init__(self, report: OpeningProgress, symbols: Symbols) -> None:
        super().__init__()
        self._report, self._symbols = report, symbols
        self._shown_text = ""

    def compose(self) -> ComposeResult:
        yield Headline(self._symbols)
        yield Static(id="opening", markup=False)

    def on_mount(self) -> None:
        self.query_one(Headline).tell(["opening"], ["opening"])
        self._show()
        self.set_interval(_REFRESH_S, self._show)

    def _show(self) -> None:
        report, symbols = self._report, self._symbols
        text = report.what
        if report.total:
            done = min(report.done / report.total, 1.0)
            filled = int(done * _BAR_WIDTH)
            text += f"\n\n{symbols.up[-1] * filled}{symbols.dot * (_BAR_WIDTH - filled)} {100 * done:3.0f}%"
        if text != self._shown_text:
            self._shown_text = text
            self.query_one("#opening", Static).update(text)
