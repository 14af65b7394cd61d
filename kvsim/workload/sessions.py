"""Generated sessions: conversations of several turns. The prompt of each turn begins with all turns before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError, shortened
from kvsim.setting_fields import check_instance, is_finite, is_whole
from kvsim.workload.arrivals import AllAtOnce, check_arrivals
from kvsim.workload.columns import LONGEST_S
from kvsim.workload.synthetic import MOST_REQUESTS, SharedPrefixes, check_seed, generate, lengths_of
from kvsim.workload.table import Workload
from kvsim.workload.turns import NONE, Turns

if TYPE_CHECKING:
    from kvsim.workload.arrivals import Arrivals
    from kvsim.workload.columns import FloatArray, Int64Array
    from kvsim.workload.lengths import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Distribution of the pause between two turns: log-normal, as when users read or tools run."""

    mean_s: float
    """Mean pause in seconds."""
    sigma: float = 0.0
    """Standard deviation of ln(seconds); 0 for pauses of equal length."""

    def __post_init__(self) -> None:
        if not (is_finite(self.mean_s) and 0 <= self.mean_s <= LONGEST_S):
            raise UsageError(
                f"the mean pause is {shortened(self.mean_s)}; it must be a number of seconds, 0 to {LONGEST_S:g}."
            )
        if not (is_finite(self.sigma) and 0 <= self.sigma <= 10):
            raise UsageError(f"the sigma of the pauses is {shortened(self.sigma)}; it must be 0 to 10.")

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
    """Draw the turns of sessions. Equal arguments give equal workloads.

    Args:
        num_sessions: number of sessions, at least 1.
        turns: number of turns in a session, at least 1; an int for equal sessions.
        pauses: seconds between the end of a turn and the arrival of the next; a float for equal pauses.
        arrivals: arrival process of the first turns; by default, all arrive at second 0.
        prompt: number of new tokens in each turn. They follow the history or, in a first turn, the shared prefix.
        output: lengths of answers in tokens; an int for equal lengths.
        max_tokens: largest length of an answer in tokens; longer answers are cut. By default, none is cut.
        prefixes: shared prefixes, with which the prompts of first turns begin.
        seed: seed of the random numbers, 0 or more.
        name: name of the workload.

    Raises:
        UsageError: a number is out of range.
        WorkloadError: a drawn session is too long.
    """
    _check_numbers(num_sessions, seed)
    turns, arrivals = lengths_of("turns", turns), AllAtOnce() if arrivals is None else arrivals
    check_arrivals(arrivals)
    check_instance("prefixes", prefixes, SharedPrefixes | None, "SharedPrefixes")
    pauses = pauses if isinstance(pauses, Pauses) else Pauses(mean_s=pauses)
    # The second number makes these streams differ from those of `generate`, which gets the same seed.
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence([seed, 1]).spawn(4)]
    sizes = _sizes(num_sessions, turns, streams[0])
    new = generate(int(sizes.sum()), prompt=prompt, output=output, max_tokens=max_tokens, seed=seed, name=name)
    session = np.repeat(np.arange(num_sessions), sizes)  # the rows of a session are consecutive
    first = (np.cumsum(sizes) - sizes)[session]
    return Workload(
        arrival_s=arrivals.sample(num_sessions, streams[2])[session],
        prompt_tokens=_prompt_tokens(new, first) + (prefixes.tokens if prefixes else 0),
        output_tokens=new.output_tokens,
        max_tokens=new.max_tokens,
        **({} if prefixes is None else prefixes.columns(prefixes.sample(num_sessions, streams[3])[session])),
        turns=_turns_of(first, pauses, streams[1]),
        name=name,
        description=f"{num_sessions:,} sessions of {_turn_words(turns)}, {_in_words(arrivals, pauses, prefixes, new)}",
    )


def _in_words(arrivals: Arrivals, pauses: Pauses, prefixes: SharedPrefixes | None, new: Workload) -> str:
    lengths = new.description.partition("; ")[2]
    return f"{arrivals}, pauses of {pauses}; {lengths}{f', behind {prefixes}' if prefixes else ''}"


def _sizes(num_sessions: int, turns: Lengths, rng: np.random.Generator) -> Int64Array:
    sizes = turns.sample(num_sessions, rng)
    if sizes.sum() > MOST_REQUESTS:
        raise UsageError(f"{num_sessions:,} sessions of {_turn_words(turns)} are more than {MOST_REQUESTS:,} requests.")
    return sizes


def _turns_of(first: Int64Array, pauses: Pauses, rng: np.random.Generator) -> Turns:
    """Return the turns of all sessions. Each waits for the row before it, except for first turns, which wait for none.

    `first` has, for each row, the row of the first turn of its session.
    """
    rows = np.arange(len(first))
    pause_s = pauses.sample(len(first), rng)
    pause_s[rows == first] = 0.0
    return Turns(after=np.where(rows == first, NONE, rows - 1), pause_s=pause_s)


def _check_numbers(num_sessions: int, seed: int) -> None:
    if not is_whole(num_sessions) or not 1 <= num_sessions <= MOST_REQUESTS:
        raise UsageError(f"{shortened(num_sessions)} sessions were asked for; ask for 1 to {MOST_REQUESTS:,}.")
    check_seed(seed)


def _prompt_tokens(new: Workload, first: Int64Array) -> Int64Array:
    """Return the number of tokens in each prompt: all earlier prompts and answers of its session, and its new tokens.
    Shared prefixes do not count.

    `new` has the new tokens of each turn. `first` has, for each row, the row of the first turn of its session.
    """
    through = np.cumsum(new.prompt_tokens.astype(np.int64) + new.output_tokens)
    return np.asarray(through - new.output_tokens - np.concatenate(([0], through))[first])


def _turn_words(turns: Lengths) -> str:
    return str(turns).replace("tokens", "turns")
