"""Sessions out of a random generator: numbers of turns, pauses between them, and histories that grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError, shortened
from kvsim.workload.arrivals import AllAtOnce
from kvsim.workload.columns import LONGEST_S, Numbered
from kvsim.workload.lengths import Fixed
from kvsim.workload.synthetic import MOST_REQUESTS, generate
from kvsim.workload.table import Workload
from kvsim.workload.turns import Turns

if TYPE_CHECKING:
    from kvsim.workload.arrivals import Arrivals
    from kvsim.workload.columns import FloatArray, Int64Array
    from kvsim.workload.lengths import Lengths
    from kvsim.workload.synthetic import SharedPrefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Seconds from the end of a turn to the next one, in which a person reads or a tool runs: log-normal."""

    mean_s: float
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0 where all pauses are equally long."""

    def __post_init__(self) -> None:
        if not 0 <= self.mean_s <= LONGEST_S:
            raise UsageError(f"the mean pause is {self.mean_s}; it must be a number of seconds, 0 to {LONGEST_S:g}.")
        if not 0 <= self.sigma <= 10:
            raise UsageError(f"the sigma of the pauses is {self.sigma}; it must be 0 to 10.")

    def __str__(self) -> str:
        return f"{self.mean_s:g} s" + (f" on average (sigma {self.sigma:g})" if self.sigma else "")

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw `n` pauses in seconds: float64[n]."""
        drawn = self.mean_s * np.exp(self.sigma * rng.standard_normal(n) - self.sigma**2 / 2)
        return np.minimum(drawn, LONGEST_S)


def converse(
    num_sessions: int,
    *,
    turns: Lengths | int,
    pauses: Pauses | float = 0.0,
    arrivals: Arrivals | None = None,
    prompt: Lengths | int,
    output: Lengths | int,
    max_tokens: int | None = None,
    prefixes: SharedPrefixes | None = None,
    seed: int = 0,
    name: str = "generated",
) -> Workload:
    """Draw sessions; the same arguments give the same bytes.

    Args:
        num_sessions: how many, at least 1.
        turns: turns of a session, at least 1.
        pauses: between the end of a turn and the arrival of the next; a number of seconds where all are equally long.
        arrivals: when the first turns arrive; left out, all at second 0.
        prompt: new tokens of every turn, which follow the history, or the shared prefix in a first turn.
        output: lengths of answers in tokens.
        max_tokens: the limit that every turn asks for, at which a longer answer is cut.
        prefixes: what the first prompts begin with.
        seed: 0 or more.
        name: for provenance.

    Raises:
        UsageError: a number is out of range.
        WorkloadError: a drawn session is too long.
    """
    _check_numbers(num_sessions, seed)
    turns = Fixed(turns) if isinstance(turns, int) else turns
    pauses = pauses if isinstance(pauses, Pauses) else Pauses(mean_s=pauses)
    arrivals = arrivals or AllAtOnce()
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence([seed, 1]).spawn(4)]
    sizes = turns.sample(num_sessions, streams[0])
    if sizes.sum() > MOST_REQUESTS:
        raise UsageError(f"{num_sessions:,} sessions of {_turn_words(turns)} are more than {MOST_REQUESTS:,} requests.")
    said = generate(int(sizes.sum()), prompt=prompt, output=output, max_tokens=max_tokens, seed=seed, name=name)
    session = np.repeat(np.arange(num_sessions), sizes)
    first = np.cumsum(sizes) - sizes
    turn = np.arange(len(session)) - first[session]
    shared = prefixes.tokens if prefixes else 0
    pause_s = pauses.sample(len(session), streams[1])
    pause_s[turn == 0] = 0.0
    return Workload(
        arrival_s=arrivals.sample(num_sessions, streams[2])[session],
        prompt_tokens=_through_prompts(said, first[session]) + shared,
        output_tokens=said.output_tokens,
        max_tokens=said.max_tokens,
        prefix_group=prefixes.sample(num_sessions, streams[3])[session] if prefixes else None,
        prefix_tokens=np.broadcast_to(shared, len(session)),
        prefix_names=Numbered("prefix", range(prefixes.num_groups if prefixes else 0)),
        turns=Turns(after=np.where(turn == 0, -1, np.arange(len(session)) - 1), pause_s=pause_s),
        name=name,
        description=(
            f"{num_sessions:,} sessions of {_turn_words(turns)}, {arrivals}, pauses of {pauses}; "
            f"{said.description.partition('; ')[2]}"
            f"{f', behind {prefixes}' if prefixes else ''}"
        ),
    )


def _check_numbers(num_sessions: int, seed: int) -> None:
    """Raise a `UsageError` for a number that is out of range."""
    if not 1 <= num_sessions <= MOST_REQUESTS:
        raise UsageError(f"{shortened(num_sessions)} sessions were asked for; ask for 1 to {MOST_REQUESTS:,}.")
    if seed < 0:
        raise UsageError(f"the seed is {seed}; it must be 0 or more.")


def _through_prompts(said: Workload, first: Int64Array) -> Int64Array:
    """Return the tokens from the beginning of each session, whose `first` turn is in that row, through each prompt."""
    through = np.cumsum(said.prompt_tokens.astype(np.int64) + said.output_tokens)
    return np.asarray(through - said.output_tokens - np.concatenate(([0], through))[first])


def _turn_words(turns: Lengths) -> str:
    return str(turns).replace("tokens", "turns")
