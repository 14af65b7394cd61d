"""What happened to a recorded server, why, and what would have helped: from the recording, and from simulations of its
own requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvsim.diagnosis.losses import Spell, losses_of, spells_of
from kvsim.diagnosis.subject import load_of, server_of
from kvsim.diagnosis.words import cause_words, moments, sureness
from kvsim.fitting import Goal, Load, Outcome, Remedy, Search, Server
from kvsim.fitting.answer import bands, remedy_dict
from kvsim.fitting.outcome import outcome_of
from kvsim.fitting.search import figures_of, helpful
from kvsim.metrics import Summary, summarize
from kvsim.simulation import Measured
from kvsim.verdict import verdict_of, wasted_percent

if TYPE_CHECKING:
    from kvsim.recording import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A recording, explained."""

    recording: Recording
    summary: Summary
    """Of what was measured."""
    spells: tuple[Spell, ...]
    """Of preemptions, in order of time."""
    server: Server
    load: Load
    measured: Outcome
    """The recording in the figures of an outcome."""
    simulated: Outcome
    """What kvsim makes of the same requests on the same server."""
    band: dict[str, tuple[float, float]]
    """Around the simulated figures."""
    remedies: tuple[Remedy, ...]
    tried: tuple[Remedy, ...]

    @property
    def verdict(self) -> str:
        """What happened, in a sentence or two."""
        return verdict_of(self.summary).sentence

    @property
    def cause(self) -> str:
        """Why, in a sentence."""
        return cause_words(self)

    @property
    def moments(self) -> list[str]:
        """When, and to whom: a sentence each."""
        return moments(self)

    @property
    def sureness(self) -> str:
        """How near the simulation of the recording's own requests came, in a sentence."""
        return sureness(self)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        names = self.recording.requests.id
        return {
            "verdict": verdict_of(self.summary).as_dict(),
            "cause": self.cause,
            "moments": self.moments,
            "sureness": self.sureness,
            "command": self.server.flags(),
            "measured": self.summary.as_dict(),
            "wasted": {
                "computed_tokens": self.summary.computed_tokens,
                "vain_tokens": self.summary.vain_tokens,
                "pool_percent": wasted_percent(self.summary),
            },
            "simulated": self.simulated.as_dict() | {"band": bands(self.band)},
            "spells": [
                {
                    "begin_s": spell.begin_s,
                    "end_s": spell.end_s,
                    "preemptions": len(spell.losses),
                    "lost_tokens": spell.lost_tokens,
                    "most_lost_by": str(names[spell.worst.request]),
                    "admitted_before": None if spell.cause is None else str(names[spell.cause.request]),
                }
                for spell in self.spells
            ],
            "remedies": [remedy_dict(each) for each in self.remedies],
        }


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
    """By which share of itself each simulated figure is off what was measured."""
    before, after = figures_of(measured), figures_of(simulated)
    return {
        name: abs(after[name] - value) / after[name]
        for name, value in before.items()
        if value == value and after[name] == after[name] and after[name] > 0
    }
