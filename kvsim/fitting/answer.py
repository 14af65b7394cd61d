"""The answer to "does it fit": the verdict, what limits, and what would help, from simulations of one load."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.errors import BudgetError
from kvsim.fitting.search import Remedy, Search, helpful
from kvsim.fitting.words import limit_words, verdict_words

if TYPE_CHECKING:
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.load import Load
    from kvsim.fitting.outcome import Outcome
    from kvsim.fitting.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a load meets on a server, and what would help."""

    server: Server
    """As it starts: with a `max_model_len` that fits."""
    load: Load
    goal: Goal
    outcome: Outcome
    band: dict[str, tuple[float, float]]
    largest: float | None
    """The largest load that fits: users, or times the arrivals; None where none does, infinity beyond what was
    tried."""
    searched: bool
    """Whether the largest load was looked for."""
    remedies: tuple[Remedy, ...]
    """The best of them, with bands, best first."""
    tried: tuple[Remedy, ...]
    """All changes that were simulated."""
    shortened_from: int | None = None
    """The `max_model_len` that was asked for and does not start."""

    @property
    def fits(self) -> bool:
        """Whether the load fits the server as it is."""
        return self.goal.is_met(self.outcome)

    @property
    def verdict(self) -> str:
        """Whether the load fits, in a sentence or two."""
        return verdict_words(self)

    @property
    def limit(self) -> str:
        """What limits, in a sentence."""
        return limit_words(self)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "verdict": self.verdict,
            "fits": self.fits,
            "misses": self.goal.misses(self.outcome),
            "limit": self.limit,
            "largest": self.largest,
            "largest_in": "users" if self.load.users is not None else "times the arrivals",
            "load": {
                "requests": self.load.workload.description,
                "users": self.load.users,
                "think_s": self.load.think_s,
                "rate_per_s": self.load.rate_per_s,
            },
            "command": self.server.flags(),
            "outcome": self.outcome.as_dict() | {"band": bands(self.band)},
            "remedies": [remedy_dict(each) for each in self.remedies],
            "tried": [{"change": each.change.words, "fits": each.fits} | each.outcome.as_dict() for each in self.tried],
        }


def answer(
    server: Server, load: Load, goal: Goal, search: Search, *, most: int = 60, find_largest: bool = True
) -> Answer:
    """Simulate `load` on `server` and on up to `most` changes of it.

    Args:
        server: what there is; where vLLM would not start with its `max_model_len`, the longest that fits is taken.
        load: what is asked of it.
        goal: when the load fits.
        search: on how many cores, with which engine.
        most: changes to try.
        find_largest: whether to look for the largest load that fits.
    """
    try:
        starting = server.starting()
    except BudgetError:  # not one block: the outcome says why
        starting = server
    lengths = load.workload.prompt_tokens + load.workload.output_tokens
    [outcome] = search.outcomes([(starting, load, 1.0)])
    largest, tried = search.survey(
        starting, load, goal, longest_tokens=int(lengths.max()), most=most,
        find_largest=find_largest and not outcome.error,
    )  # fmt: skip
    return Answer(
        server=starting,
        load=load,
        goal=goal,
        outcome=outcome,
        band=search.band(starting, load, outcome),
        largest=largest,
        searched=find_largest,
        remedies=tuple(search.with_bands(helpful(tried, outcome, goal), load)),
        tried=tuple(tried),
        shortened_from=server.max_model_len if starting is not server else None,
    )


def bands(band: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    """Bands as JSON has them."""
    return {name: [low, high] for name, (low, high) in band.items() if not math.isnan(low)}


def remedy_dict(remedy: Remedy) -> dict[str, Any]:
    """A remedy as JSON has it."""
    return {
        "change": remedy.change.words,
        "kind": remedy.change.kind.name.lower(),
        "fits": remedy.fits,
        "num_gpus": remedy.change.server.num_gpus,
        "replicas": remedy.change.server.replicas,
        "command": remedy.change.server.flags(),
        "band": bands(remedy.band),
        **remedy.outcome.as_dict(),
    }
