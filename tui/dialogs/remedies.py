"""Page with the verdict of `kvsim diagnose`, and the remedies with their predicted effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType

from ..look.wording import milliseconds
from .modal import Page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvsim.diagnosis import Diagnosis
    from kvsim.fitting import Outcome
    from kvsim.recording import Recording

NUM_CHANGES: Final = 24
"""Number of changes of the server that are simulated: fewer than `kvsim diagnose` tries, because the user waits."""
_COLUMNS: Final = ("", "tokens/s", "TTFT p99", "TPOT p99", "preempted/min")


def diagnosed(recording: Recording) -> Diagnosis:
    """Return the diagnosis of `recording`: simulate changes of its server with the recorded requests."""
    from kvsim.diagnosis import diagnose, engine_of  # noqa: PLC0415 - they bring the simulator along
    from kvsim.fitting import Search  # noqa: PLC0415

    return diagnose(recording, Search(engine=engine_of(recording, NUM_CHANGES)), most=NUM_CHANGES)


class RemediesScreen(Page):
    """A page with the verdict, the cause, and a line for each remedy."""

    PAGE_ID = "remedies"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,d,q", "close", "Close")]

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__()
        self._diagnosis = diagnosis

    def _page(self) -> Group:
        found = self._diagnosis
        parts: list[RenderableType] = [Text(found.verdict, "bold"), "", found.cause, ""]
        if not found.remedies:
            return Group(*parts, "No change that was tried would help.")
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        for nth, name in enumerate(_COLUMNS):
            table.add_column(name, justify="right" if nth else "left", no_wrap=nth > 0)
        table.add_row(Text("as it is", "bold"), *_cells(found.simulated))
        for remedy in found.remedies:
            enough = "" if remedy.fits else " (not enough)"
            table.add_row(f"{remedy.change.words}{enough}", *_cells(remedy.outcome))
        command = Text.assemble(("The first remedy: ", "bold"), found.remedies[0].change.server.flags())
        simulated = "All lines are simulations of the same requests; kvsim diagnose says how sure they are."
        return Group(*parts, Text("What would help, nearest first", "bold"), table, "", command, "", simulated)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        f"{outcome.output_tokens_per_s:,.0f}",
        milliseconds(outcome.ttft_s.p99),
        milliseconds(outcome.tpot_s.p99),
        f"{outcome.preemptions_per_min:,.0f}",
    )
