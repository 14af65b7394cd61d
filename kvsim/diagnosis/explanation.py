"""Diagnosis of a recorded server, from the recording and from simulated changes with the same requests."""

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
    """Diagnose `recording`, and simulate up to `most` changes of its server with the recorded requests.

    Args:
        recording: a recording of a vLLM server, or of a simulation of the paged policy.
        search: runs the simulations.
        goal: latencies that a remedy should reach, besides that no request waits or is preempted.
        times: a profile or a machine card for step times; None for the best that is part of kvsim.
        most: maximum number of changes to simulate.

    Raises:
        UsageError: the recording is of another engine, or lacks the settings of its server.
        WorkloadError: no request has an output.
    """
    server, load, wanted = server_of(recording, times), load_of(recording), goal or Goal()
    measured = replace(
        outcome_of(load, [Measured.of(recording)], server.machine()), num_blocks=recording.meta.pool.num_units or 0
    )
    [simulated] = search.outcomes([(server, load, 1.0)])
    # The simulation of the recorded server can be checked; its error is the least error of the predicted remedies.
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
