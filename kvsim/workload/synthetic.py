"""Workloads generated from an arrival process, two length distributions and shared prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import UsageError, shortened
from kvsim.setting_fields import check_instance, is_finite, is_whole, whole_number
from kvsim.workload.arrivals import AllAtOnce, check_arrivals
from kvsim.workload.columns import Numbered
from kvsim.workload.lengths import Fixed, check_lengths, check_tokens
from kvsim.workload.table import Workload

if TYPE_CHECKING:
    from kvsim.workload.arrivals import Arrivals
    from kvsim.workload.columns import Int64Array
    from kvsim.workload.lengths import Lengths


MOST_REQUESTS = 1 << 24
"""Limit for the number of generated requests. The columns of such a workload take a gigabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Texts with which prompts begin, such as system prompts. Each prompt begins with one text."""

    num_groups: int
    """Number of different texts. Requests whose prompts begin with the same text are a group."""
    tokens: int
    """Number of tokens in each text."""
    skew: float = 0.0
    """Exponent of the popularity: text `k`, from 0, is drawn with a probability proportional to (k + 1) ** -skew.

    0 gives equal popularity, and 1 gives Zipf's law.
    """

    def __post_init__(self) -> None:
        if whole_number("num_groups", self.num_groups) > MOST_REQUESTS:
            raise UsageError(f"num_groups is {shortened(self.num_groups)}; it must be at most {MOST_REQUESTS:,}.")
        check_tokens("the shared prefix", self.tokens)
        if not (is_finite(self.skew) and self.skew >= 0):
            raise UsageError(
                f"the skew of the groups is {shortened(self.skew)}; it must be a finite number, 0 or more."
            )

    def __str__(self) -> str:
        skewed = f", chosen with skew {self.skew:g}" if self.skew else ""
        return f"one of {self.num_groups:,} prefixes of {self.tokens:,} tokens{skewed}"

    def sample(self, n: int, rng: np.random.Generator) -> Int64Array:
        """Draw the number of the text with which each of `n` prompts begins, 0 to `num_groups - 1`: int64[n]."""
        weights = np.arange(1.0, self.num_groups + 1) ** -self.skew
        return rng.choice(self.num_groups, n, p=weights / weights.sum())

    def columns(self, group: Int64Array) -> dict[str, Any]:
        """Return the columns of a `Workload` for shared prefixes. `group` has the number of each request's text."""
        return {
            "prefix_group": group,
            "prefix_tokens": np.broadcast_to(self.tokens, len(group)),
            "prefix_names": Numbered("prefix", range(self.num_groups)),
        }


def generate(
    num_requests: int,
    *,
    arrivals: Arrivals | None = None,
    prompt: Lengths | int,
    output: Lengths | int,
    max_tokens: int | None = None,
    prefixes: SharedPrefixes | None = None,
    seed: int = 0,
    name: str = "generated",
) -> Workload:
    """Draw a workload; equal arguments give equal workloads.

    Arrivals, prompts, answers and prefixes have separate streams of random numbers, so another arrival rate does not
    change the lengths.

    Args:
        num_requests: number of requests, at least 1.
        arrivals: arrival process; by default, all requests arrive at second 0.
        prompt: lengths of prompts in tokens, to which the shared prefix is added; a number for equal lengths.
        output: lengths of answers in tokens; a number for equal lengths.
        max_tokens: largest length of an answer that every request allows; a longer answer is cut. By default, each
            request allows the length of its answer.
        prefixes: shared prefixes, with which the prompts begin.
        seed: seed of the random numbers, 0 or more.
        name: name of the workload.

    Raises:
        UsageError: `num_requests`, `max_tokens` or `seed` is out of range.
        WorkloadError: a drawn value is out of range, such as an infinite arrival time.
    """
    _check_numbers(num_requests, max_tokens, seed)
    arrivals = AllAtOnce() if arrivals is None else arrivals
    check_arrivals(arrivals)
    prompt, output = lengths_of("prompt", prompt), lengths_of("output", output)
    check_instance("prefixes", prefixes, SharedPrefixes | None, "SharedPrefixes")
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)]
    output_tokens = output.sample(num_requests, streams[2])
    if max_tokens is not None:
        output_tokens = output_tokens.clip(max=max_tokens)
    lengths = _in_words(prompt, output, prefixes, max_tokens)
    return Workload(
        arrival_s=arrivals.sample(num_requests, streams[0]),
        prompt_tokens=prompt.sample(num_requests, streams[1]) + (prefixes.tokens if prefixes else 0),
        output_tokens=output_tokens,
        max_tokens=None if max_tokens is None else np.broadcast_to(max_tokens, num_requests),
        **({} if prefixes is None else prefixes.columns(prefixes.sample(num_requests, streams[3]))),
        name=name,
        description=f"{num_requests:,} requests, {arrivals}; {lengths}; seed {seed}",
    )


def lengths_of(name: str, given: Lengths | int) -> Lengths:
    """Return the argument `name` as a distribution of lengths. A number of tokens gives equal lengths.

    Raises:
        UsageError: it is neither a valid number nor a distribution.
    """
    if isinstance(given, int | np.integer):
        check_tokens(name, given)
        return Fixed(int(given))
    check_lengths(name, given)
    return given


def _in_words(prompt: Lengths, output: Lengths, prefixes: SharedPrefixes | None, max_tokens: int | None) -> str:
    prompts = f"prompts of {prompt}{f' behind {prefixes}' if prefixes else ''}"
    return f"{prompts}, answers of {output}{f', cut at {max_tokens:,}' if max_tokens is not None else ''}"


def check_seed(seed: int) -> None:
    """Raise a `UsageError` if `seed` is no whole number from 0 on."""
    if not is_whole(seed) or seed < 0:
        raise UsageError(f"the seed is {shortened(seed)}; it must be a whole number, 0 or more.")


def _check_numbers(num_requests: int, max_tokens: int | None, seed: int) -> None:
    if not is_whole(num_requests) or num_requests < 1:
        raise UsageError(f"{shortened(num_requests)} requests were asked for; ask for at least 1.")
    if num_requests > MOST_REQUESTS:
        raise UsageError(f"{shortened(num_requests)} requests were asked for; ask for at most {MOST_REQUESTS:,}.")
    check_seed(seed)
    if max_tokens is not None:
        check_tokens("max_tokens", max_tokens)
