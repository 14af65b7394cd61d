"""Output of `kvsim run`: the figures of each server as clients see them, and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cli.answer import band_notes, print_answer
from kvsim.cli.fleet_answer import print_fleet
from kvsim.cli.show import print_json, progress
from kvsim.cli.summary_lines import print_summaries, summary_document
from kvsim.experiments.bands import band_of, is_worth_a_band
from kvsim.simulation.front_end import http, with_delays

if TYPE_CHECKING:
    from kvsim.experiments.bands import Band
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Fleet, Machine, Options
    from kvsim.steptime.card import Card
    from kvsim.workload import Workload


class RunAnswer:
    """Figures and notes of one server, or of several servers behind one router."""

    def __init__(self, fleet: Fleet, *, shows_fleet: bool) -> None:
        """Prepare the figures of `fleet`. With `shows_fleet`, the figures of all servers together are printed first."""
        self._runs, self._summaries = fleet.servers, fleet.summaries()
        self._fleet = fleet if shows_fleet else None
        self._band: Band | None = None
        self._front_end_s: list[float] = []
        """Mean seconds that HTTP front ends add to TTFT and to the end-to-end time, by server; empty without any."""
        self.notes: list[str] = []
        """Sentences to print below the figures."""

    def add_band(self, workload: Workload, policy: AnyPolicy, machine: Machine, options: Options) -> None:
        """Add prediction intervals from further simulations of a single server, unless these would take too long."""
        [summary] = self._summaries
        if not is_worth_a_band(summary, len(workload)):
            return
        with progress("band") as options["progress"]:
            self._band = band_of(workload, policy, machine, summary, **options)
        self.notes += band_notes(self._band)

    def add_front_end(self, card: Card | None, workload: Workload) -> None:
        """Add the delay of an HTTP front end to the times that clients see.

        `card` is the machine card, which has the speed of the host. If it is None, a host of medium speed is assumed.
        """
        mean_prompt = float(workload.prompt_tokens.mean())
        self._summaries, self._front_end_s, note = with_delays(http(card), self._summaries, mean_prompt)
        self.notes.append(note)

    def show(self, requests: str, *, show_all: bool, as_json: bool) -> None:
        """Print the figures. `requests` describes the requests and their routing."""
        if as_json:
            print_json(self._document())
            return
        if self._fleet is None:
            print_answer(self._runs[0], self._summaries[0], requests, band=self._band, notes=self.notes)
        else:
            totals = self._fleet.totals(self._summaries)
            print_fleet(self._runs[0].meta, totals, self._summaries, requests, self.notes)
        if show_all:
            print_summaries("every figure", self._runs, self._summaries, lists_recordings=True)

    def _document(self) -> dict[str, object]:
        servers = [summary_document(run, summary) for run, summary in zip(self._runs, self._summaries, strict=True)]
        for server, front_end_s in zip(servers, self._front_end_s, strict=False):
            server["front_end_s"] = front_end_s
        if self._fleet is not None:
            return {"fleet": self._fleet.totals(self._summaries).as_dict(), "servers": servers}
        return servers[0] | ({"band": self._band.as_dict()} if self._band else {})
