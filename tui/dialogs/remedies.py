"""Page with the verdict of `kvsim diagnose`, and the remedies with their predicted effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType

from ..look.wording import bytes_text, milliseconds
from .modal import Page

if TYPE_CHECKING:
    from kvsim.diagnosis import Diagnosis
    from kvsim.fitting import Outcome
    from kvsim.recording import Recording

MAX_CHANGES: Final = 24
"""Largest number of changes to the server's settings that are simulated.

`kvsim diagnose` simulates more. Here a user waits at the screen for the result.
"""
_COLUMNS: Final = ("", "tokens/s", "TTFT p99", "TPOT p99", "preempted/min")
_ENOUGH: Final = "Enough: hardly any request is preempted, and hardly any waits."
_TERMS: Final = "TTFT: first token, TPOT: each further one; p99: 99 of 100 are faster."
_WATERMARK: Final = "Watermark: the share of the pool that an admission must leave free."
_SIMULATED: Final = "Simulations replay the same requests; kvsim diagnose says how sure they are."


def diagnosed(recording: Recording) -> Diagnosis:
    """Diagnose `recording`: simulate its requests on servers with changed settings."""
    from kvsim.diagnosis import diagnose, engine_of  # noqa: PLC0415 - they bring the simulator along
    from kvsim.fitting import Search  # noqa: PLC0415

    return diagnose(recording, Search(engine=engine_of(recording, MAX_CHANGES)), most=MAX_CHANGES)


class RemediesScreen(Page):
    """A page with the verdict, the cause, and a line for each remedy."""

    PAGE_ID = "remedies"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,d,q", "close", "Close")]

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__()
        self._diagnosis = diagnosis

    def _page(self) -> Group:
        found = self._diagnosis
        verdict = Text(found.verdict.replace(" %", "%"), "bold")  # percentages as on the screens
        if not found.remedies:
            return Group(verdict, "", "No change that was tried would help.", "", found.cause)
        command = Text.assemble(("First remedy: ", "bold"), found.remedies[0].change.server.command())
        terms = [_TERMS] + [_WATERMARK] * any("watermark" in each.change.words for each in found.remedies)
        # The cause comes last, because a low screen shows the first lines alone.
        return Group(verdict, self._table(), *self._price(), _ENOUGH, command, *terms, "", found.cause, "", _SIMULATED)

    def _price(self) -> tuple[str, ...]:
        pool = self._diagnosis.recording.meta.pool
        blocks = getattr(self._diagnosis.remedies[0].change.server, "num_blocks", None)
        if not isinstance(blocks, int) or pool.num_units is None or blocks <= pool.num_units + pool.first_unit:
            return ()
        now, then = bytes_text(pool.num_bytes), bytes_text(blocks * pool.bytes_per_unit)
        return (f"The larger pool takes {then} instead of {now} of GPU memory.",)

    def _table(self) -> Table:
        found = self._diagnosis
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        for nth, name in enumerate(_COLUMNS):
            table.add_column(name, justify="right" if nth else "left", no_wrap=nth > 0)
        if found.recording.meta.source != "simulation":
            table.add_row("measured", *_cells(found.measured))
        table.add_row("simulated, as it is", *_cells(found.simulated))
        for heading, fits in (("enough, simulated", True), ("not enough, simulated", False)):
            remedies = [each for each in found.remedies if each.fits is fits]
            if remedies:
                table.add_row(Text(heading, "bold"))
            for remedy in remedies:
                table.add_row(Padding(remedy.change.words, (0, 0, 0, 1)), *_cells(remedy.outcome))
        return table


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        f"{outcome.output_tokens_per_s:,.0f}",
        milliseconds(outcome.ttft_s.p99),
        milliseconds(outcome.tpot_s.p99),
        f"{outcome.preemptions_per_min:,.0f}",
    )
