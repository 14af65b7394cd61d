"""What there is to look at while a recording is read, or a run simulated."""

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
    from ..playback.comparison import Comparison
    from ..playback.session import Session

_REFRESH_S = 0.1
_BAR_WIDTH = 40
"""Characters of the bar."""


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
    """What is done and how far it has come, until there is something to play. It is drawn by two widgets: whatever it
    takes to draw is taken from what is waited for.
    """

    def __init__(self, report: Report, symbols: Symbols) -> None:
        super().__init__()
        self._report, self._symbols = report, symbols
        self._told = ""

    def compose(self) -> ComposeResult:
        """A headline, and the report where the pool will be."""
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
