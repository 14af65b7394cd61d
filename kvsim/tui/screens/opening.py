"""What there is to look at while a recording is read, or a run simulated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from textual.containers import Center, Middle
from textual.screen import Screen
from textual.widgets import Footer, Label, ProgressBar

from ..widgets.headline import Headline

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ..lessons import Guided
    from ..look.states import Symbols
    from ..playback.comparison import Comparison
    from ..playback.session import Session

_REFRESH_S = 0.1


class Job(Protocol):
    """Makes what is shown. It tells how far it has come, and runs in a thread."""

    def __call__(self, report: Report) -> Session | Comparison | Guided:
        """Do it."""
        ...


class Report:
    """What a job says about itself; the screen looks at it now and then."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done, self.total = 0, 0

    def begin(self, what: str) -> None:
        """Say what is done now."""
        self.what, self.done, self.total = what, 0, 0

    def __call__(self, done: int, total: int) -> None:
        """Say how much of it is done."""
        self.done, self.total = done, total
        time.sleep(0)  # so that the screen gets its turn


class Opening(Screen[None]):
    """One line and a bar, until there is something to play."""

    def __init__(self, report: Report, symbols: Symbols) -> None:
        super().__init__()
        self._report, self._symbols = report, symbols
        self._shown = ""

    def compose(self) -> ComposeResult:
        """The line and the bar, where the pool will be."""
        yield Headline(self._symbols)
        with Middle(), Center():
            yield Label("", id="opening-what")
            yield ProgressBar(id="opening-bar", show_eta=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Look at the report from time to time."""
        self.query_one(Headline).tell(["opening"], ["opening"])
        self._show()
        self.set_interval(_REFRESH_S, self._show)

    def _show(self) -> None:
        report = self._report
        bar = self.query_one(ProgressBar)
        # Every change lays the screen out anew, which takes its time from what is waited for.
        if report.what != self._shown:
            self._shown = report.what
            self.query_one("#opening-what", Label).update(report.what)
        bar.display = report.total > 0
        if report.total:
            bar.update(total=report.total, progress=report.done)
