"""Arrival processes of generated workloads. The first request always arrives at second 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.workload.columns import FloatArray


class Arrivals(Protocol):
    """An arrival process, from which the arrival times of generated requests are drawn."""

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw the arrival times of `n` requests (at least 1) in seconds, in ascending order from 0: float64[n]."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Poisson process, as from independent users: exponential gaps with a coefficient of variation of 1."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} a second (Poisson)"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds at which `n` requests arrive: float64[n]."""
        return _at_rate(_after_gaps(rng.standard_exponential(n - 1)), self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma-distributed gaps: burstier than a Poisson process for a `cv` above 1, and steadier for a `cv` below 1."""

    rate_per_s: float
    cv: float
    """Standard deviation of the gaps over their mean, 0.001 to 1000. Real services show 1 to 13."""

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)
        if not 1e-3 <= self.cv <= 1e3:
            raise UsageError(f"cv of the gaps is {self.cv}; it must be 0.001 to 1000 (for even gaps use Constant).")

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} a second in bursts (variation of the gaps {self.cv:.3g})"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds at which `n` requests arrive: float64[n]."""
        shape = self.cv**-2.0
        return _at_rate(_after_gaps(rng.standard_gamma(shape, n - 1) / shape), self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced arrivals."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} a second, evenly"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """Draw the seconds at which `n` requests arrive: float64[n]."""
        return _at_rate(np.arange(float(n)), self.rate_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAtOnce:
    """Arrival of all requests at second 0, as in an offline batch."""

    def __str__(self) -> str:
        return "all at once"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """Draw the seconds at which `n` requests arrive: float64[n]."""
        return np.zeros(n)


def _after_gaps(gaps: FloatArray) -> FloatArray:
    """Return the arrival times, from 0 on, with these gaps between them."""
    return np.concatenate(([0.0], np.cumsum(gaps)))


def _at_rate(times: FloatArray, rate_per_s: float) -> FloatArray:
    """Convert arrival times at a rate of one request per second to `rate_per_s`."""
    with np.errstate(over="ignore"):  # `Workload` refuses infinite times with a better message
        return times / rate_per_s


def _check_rate(rate_per_s: float) -> None:
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise UsageError(f"the arrival rate is {rate_per_s} requests per second; it must be a finite number above 0.")
