"""Explain a recorded server: from the recording, and from simulations of its own requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.diagnosis.diagnosis import Diagnosis
from kvsim.diagnosis.losses import losses_of, spells_of
from kvsim.diagnosis.subject import load_of, server_of
from kvsim.fitting import Goal, Outcome, Search
from kvsim.fitting.outcome import outcome_of
from kvsim.fitting.search import figures_of, helpful
from kvsim.metrics import summarize
from kvsim.simulation import Measured

if TYPE_CHECKING:
    from kvsim.recording import Recording


def diagnose(
    recording: Recording, search: Search, *, goal: Goal | None = None, times: str | None = None, most: int = 40
) -> Diagnosis:
    """Explain `recording`, and simulate up to `most` changes of its server on its own requests.

    Args:
        recording: of a vLLM server, or a simulation of one.
        search: on how many cores, with which engine.
        goal: what a remedy should reach, beside that nothing waits and nothing is preempted.
        times: a profile or a machine card; None for the best that ships.
        most: changes to try.

    Raises:
        UsageError: it is of another engine, or does not say its settings.
        WorkloadError: none of its requests put out anything.
    """
    server, load, wanted = server_of(recording, times), load_of(recording), goal or Goal()
    measured = replace(
        outcome_of(load, [Measured.of(recording)], server.machine()), num_blocks=recording.meta.pool.num_units or 0
    )
    [simulated] = search.outcomes([(server, load, 1.0)])
    # What a prediction misses of this very run, it will miss of its remedies.
    missed = missed_by(measured, simulated)
    base = search.band(server, load, simulated, least=missed)
    lengths = load.workload.prompt_tokens + load.workload.output_tokens
    tried = search.remedies(server, load, wanted, longest_tokens=int(lengths.max()), most=most)
    return Diagnosis(
        recording=recording,
        summary=summarize(recording),
        spells=tuple(spells_of(recording, losses_of(recording))),
        server=server,
        load=load,
        measured=measured,
        simulated=simulated,
        band=base,
        remedies=tuple(search.with_bands(helpful(tried, simulated, wanted), load, least=missed)),
        tried=tuple(tried),
    )


def missed_by(measured: Outcome, simulated: Outcome) -> dict[str, float]:
    """Return the relative error of each simulated figure."""
    before, after = figures_of(measured), figures_of(simulated)
    return {
        name: abs(after[name] - value) / after[name]
        for name, value in before.items()
        if value == value and after[name] == after[name] and after[name] > 0
    }
