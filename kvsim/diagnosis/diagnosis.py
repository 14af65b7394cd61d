"""Diagnosis of a recorded server in sentences: causes, times, affected requests, and the error of the simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.diagnosis.losses import losses_of, spells_of
from kvsim.diagnosis.subject import load_of, server_of
from kvsim.fitting import Goal, Outcome, Search
from kvsim.fitting.load_answer import bands, command_dict, remedy_dict
from kvsim.fitting.outcome import outcome_of
from kvsim.fitting.search import figures_of, helpful
from kvsim.metrics import summarize
from kvsim.metrics.hit_rate import repeated_tokens
from kvsim.metrics.run_verdict import Limit, limit_of, verdict_of, wasted_percent
from kvsim.metrics.summary import hit_words
from kvsim.simulation import Measured

if TYPE_CHECKING:
    from kvsim.diagnosis.losses import Spell
    from kvsim.fitting import Load, Remedy, Server
    from kvsim.metrics import Summary
    from kvsim.recording import Recording

_MOST = 5
"""Largest number of spells of preemptions that are described: those with most lost tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of `diagnose`: a recording, its preemptions, and the simulated changes to the settings of its server."""

    recording: Recording
    summary: Summary
    spells: tuple[Spell, ...]
    """Groups of preemptions that follow each other closely, in order of time."""
    server: Server
    load: Load
    measured: Outcome
    """Latencies, throughput and preemptions of the recorded run."""
    simulated: Outcome
    """The same values of a simulation of the same requests on the same server."""
    band: dict[str, tuple[float, float]]
    """Prediction interval (low, high) of each value of `simulated`, by the name of the value."""
    remedies: tuple[Remedy, ...]
    """Changes of the server that help, the best first."""
    tried: tuple[Remedy, ...]
    """All changes that were simulated."""

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.recording.name!r}: {self.verdict}>"

    @property
    def verdict(self) -> str:
        """One or two sentences on how the run went."""
        return verdict_of(self.summary).sentence

    @property
    def cause(self) -> str:
        """Sentence on why requests waited or were preempted."""
        summary, server = self.summary, self.server
        limit = limit_of(summary)
        pool = self.recording.meta.pool
        demand = _demand_words(self)
        if limit is Limit.MEMORY:
            since = f" since {self.spells[0].begin_s:,.1f} s" if self.spells else ""
            of = f" for {len(pool.groups)} KV-cache groups" if pool.groups else f" of {pool.unit_tokens} tokens"
            usable = f" ({pool.num_units or 0:,} usable)" if pool.first_unit else ""
            blocks = f"{(pool.num_units or 0) + pool.first_unit:,} blocks{usable}"
            return (
                f"The pool of {blocks}{of} is too small{since}: {demand}. "
                "Admission asks for room for a prompt, not for the answer that follows; when running sequences need "
                f"another block and none is free, the one admitted last gives all of its own back.{_cascade(server)}"
            )
        if limit is Limit.BATCH:
            return f"max_num_seqs of {server.max_num_seqs:,} keeps requests waiting while blocks are free: {demand}."
        if limit is Limit.TOKENS:
            return f"Steps of at most {server.max_num_batched_tokens:,} tokens are full of prompts while others wait."
        if limit is Limit.ADAPTERS:
            return f"max_loras of {server.max_loras:,} keeps requests waiting for a slot of their adapter: {demand}."
        return f"Neither memory nor a limit of the scheduler held anything back: {demand}."

    @property
    def moments(self) -> list[str]:
        """Sentences on the `_MOST` spells that lost most computed tokens, in order of time."""
        costliest = sorted(self.spells, key=lambda spell: -spell.lost_tokens)[:_MOST]
        return [_spell_words(self, spell) for spell in sorted(costliest, key=lambda spell: spell.begin_s)]

    @property
    def hits(self) -> str:
        """Sentence on the share of prompt tokens found in the prefix cache, and in a cache without limit."""
        requests = self.recording.requests
        repeated, whole = (
            repeated_tokens(self.recording.meta, requests),
            int(requests.prompt_tokens.sum(dtype=np.int64)),
        )
        endless = f"; an endless cache would find {100 * repeated / whole:.1f} %" if repeated else ""
        return hit_words(self.summary) + endless

    @property
    def sureness(self) -> str:
        """Sentence on the error of the simulation, as compared with the recorded run."""
        before, after = figures_of(self.measured), figures_of(self.simulated)
        labels = {
            "output_tokens_per_s": ("output", "tokens/s", 1.0),
            "ttft_p99_s": ("TTFT p99", "ms", 1000.0),
            "tpot_p99_s": ("TPOT p99", "ms", 1000.0),
            "preemptions_per_min": ("preemptions", "a minute", 1.0),
        }
        said = [
            f"{label} {after[name] * scale:,.0f} {unit} ({before[name] * scale:,.0f} measured)"
            for name, (label, unit, scale) in labels.items()
        ]
        return f"Simulated on the same server: {', '.join(said)}. What is missed here widens the brackets below."

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis for JSON."""
        names = self.recording.requests.id
        return {
            "verdict": verdict_of(self.summary).as_dict(),
            "cause": self.cause,
            "moments": self.moments,
            "sureness": self.sureness,
            "prefix_hits": self.hits,
            **command_dict(self.server),
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


def _cascade(server: Server) -> str:
    if not (server.cache.kv_offloading_size and server.async_scheduling):
        return ""
    return " With host memory and asynchronous scheduling they are not free in that very step, so several lose theirs."


def _demand_words(diagnosis: Diagnosis) -> str:
    summary, requests, pool = diagnosis.summary, diagnosis.recording.requests, diagnosis.recording.meta.pool
    full = requests.prompt_tokens + requests.output_tokens
    present = summary.mean_batch + summary.mean_waiting
    if pool.groups:
        needed = present * float(np.mean([sum(group.held_blocks(size) for group in pool.groups) for size in full]))
    else:
        needed = present * float(full.mean()) / pool.unit_tokens
    return (
        f"{present:,.1f} requests of {full.mean():,.0f} tokens are there on average, which at full length take "
        f"{needed:,.0f} blocks"
    )


def _spell_words(diagnosis: Diagnosis, spell: Spell) -> str:
    names = diagnosis.recording.requests.id
    worst, cause = spell.worst, spell.cause
    said = ""
    if cause is not None:
        said = (
            f"at {cause.at_s:,.2f} s {names[cause.request]} was admitted, took {cause.num_blocks:,} blocks and left "
            f"{cause.free_blocks:,} free; "
        )
    number, again = len(spell.losses), Counter(loss.request for loss in spell.losses)
    often, times = again.most_common(1)[0]
    most = f"; {names[often]} was preempted {times:,} times" if times > 1 else ""
    many = f"{number:,} preemptions until {spell.end_s:,.2f} s lost" if number > 1 else "one preemption lost"
    back = f", and went on at {worst.back_s:,.2f} s" if worst.back_s == worst.back_s else ""
    return (
        f"{said}from {spell.begin_s:,.2f} s on {many} {spell.lost_tokens:,} computed tokens; {names[worst.request]} "
        f"lost {worst.lost_tokens:,} at {worst.at_s:,.2f} s{back}{most}"
    )


def diagnose(
    recording: Recording, search: Search, *, goal: Goal | None = None, times: str | None = None, most: int = 40
) -> Diagnosis:
    """Diagnose `recording`, and simulate up to `most` changes of its server with the recorded requests.

    Args:
        recording: a recording of a vLLM server, or of a simulation of the paged policy.
        search: runs the simulations.
        goal: latencies that a remedy should reach, besides that no request waits or is preempted.
        times: a profile or a machine card for step times; None for the best that comes with kvsim.
        most: largest number of changes to simulate.

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
    """Return |measured - simulated| / simulated of each value, by its name.

    Values that are NaN, or 0 in the simulation, are left out.
    """
    before, after = figures_of(measured), figures_of(simulated)
    return {
        name: abs(after[name] - value) / after[name]
        for name, value in before.items()
        if value == value and after[name] == after[name] and after[name] > 0
    }
