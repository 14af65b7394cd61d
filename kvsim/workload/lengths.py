"""Length distributions of prompts and answers in generated workloads. Lengths are whole tokens, at least 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsim.errors import UsageError, described, shortened
from kvsim.setting_fields import is_finite
from kvsim.workload.columns import MAX_TOKENS, int_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.workload.columns import Int64Array


class Lengths(Protocol):
    """Distribution of the lengths of prompts or answers."""

    def sample(self, n: int, rng: np.random.Generator) -> Int64Array:
        """Draw `n` lengths in tokens, each from 1 to `MAX_TOKENS`: int64[n]."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Equal lengths of `tokens` tokens."""

    tokens: int

    def __post_init__(self) -> None:
        check_tokens("tokens", self.tokens)

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens"

    def sample(self, n: int, rng: np.random.Generator) -> Int64Array:  # noqa: ARG002 - nothing is drawn
        """Return `n` equal lengths in tokens: int64[n]."""
        return np.full(n, self.tokens, np.int64)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal distribution, as is usual in chats: many lengths are short, and a few are very long."""

    mean_tokens: float
    """Mean length in tokens (not the mean of the logarithm), before rounding and clipping."""
    sigma: float
    """Standard deviation of ln(tokens), above 0 and at most 10. In chats, it is about 1."""
    minimum: int = 1
    """Smallest length in tokens; shorter ones are raised to it."""
    maximum: int = MAX_TOKENS
    """Largest length in tokens; longer ones are lowered to it, which may change the mean."""

    def __post_init__(self) -> None:
        if not (is_finite(self.mean_tokens) and self.mean_tokens > 0):
            raise UsageError(f"mean_tokens is {shortened(self.mean_tokens)}; it must be a finite number above 0.")
        if not (is_finite(self.sigma) and 0 < self.sigma <= 10):
            raise UsageError(
                f"sigma is {shortened(self.sigma)}; as the deviation of ln(tokens) it must be above 0, at most 10."
            )
        _check_range("minimum", self.minimum, "maximum", self.maximum)

    def __str__(self) -> str:
        return f"{self.mean_tokens:g} tokens on average (log-normal, sigma {self.sigma:g})"

    def sample(self, n: int, rng: np.random.Generator) -> Int64Array:
        """Draw `n` lengths in tokens, from `minimum` to `maximum`: int64[n]."""
        mean_of_ln = math.log(self.mean_tokens) - self.sigma**2 / 2
        drawn = rng.lognormal(mean_of_ln, self.sigma, n)
        return np.clip(np.rint(drawn), self.minimum, self.maximum).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform distribution over the whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range("low", self.low, "high", self.high)

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,} tokens"

    def sample(self, n: int, rng: np.random.Generator) -> Int64Array:
        """Draw `n` lengths in tokens, from `low` to `high`: int64[n]."""
        return rng.integers(self.low, self.high, n, dtype=np.int64, endpoint=True)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Measured lengths, from which new ones are drawn with replacement."""

    values: Sequence[int]
    """Lengths in tokens, one or more."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(int_column("values", self.values, np.int64).tolist()))
        if not self.values:
            raise UsageError("there are no lengths to resample; give at least one.")
        check_tokens("the smallest length", min(self.values))
        check_tokens("the largest length", max(self.values))

    def sample(self, n: int, rng: np.random.Generator) -> Int64Array:
        """Draw `n` of the measured lengths in tokens: int64[n]."""
        return rng.choice(np.array(self.values, np.int64), n)

    def __repr__(self) -> str:
        return f"Empirical({len(self.values)} lengths, mean {sum(self.values) / len(self.values):g})"

    def __str__(self) -> str:
        return f"{sum(self.values) / len(self.values):g} tokens on average (drawn from {len(self.values):,} lengths)"


def check_lengths(name: str, lengths: object) -> None:
    """Raise a `UsageError` about the argument `name` if `lengths` is no distribution of lengths."""
    if isinstance(lengths, type) or not hasattr(lengths, "sample"):
        raise UsageError(
            f"{name} should be a whole number, or a distribution such as LogNormal(mean_tokens=200, sigma=1), not "
            f"{described(lengths)}."
        )


def check_tokens(name: str, tokens: int) -> None:
    """Raise a `UsageError` about `name` if `tokens` is no whole number from 1 to `MAX_TOKENS`."""
    if not (is_finite(tokens) and tokens == tokens // 1 and 1 <= tokens <= MAX_TOKENS):
        raise UsageError(
            f"{name} is {shortened(tokens)}; it must be a whole number of tokens from 1 to {MAX_TOKENS:,}."
        )


def _check_range(low_name: str, low: int, high_name: str, high: int) -> None:
    check_tokens(low_name, low)
    check_tokens(high_name, high)
    if low > high:
        raise UsageError(f"{low_name} is {low} and {high_name} {high}; {low_name} must not be above {high_name}.")
