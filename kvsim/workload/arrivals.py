"""Arrival processes of generated workloads. The first request always arrives at second 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsim.errors import UsageError, described, shortened
from kvsim.setting_fields import is_finite

if TYPE_CHECKING:
    from kvsim.workload.columns import FloatArray


class Arrivals(Protocol):
    """Distribution of the arrival times of generated requests."""

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw the arrival times of `n` requests (at least 1) in seconds, in ascending order from 0: float64[n]."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Poisson process: independent users, with exponential gaps between arrivals."""

    rate_per_s: float
    """Mean number of requests per second."""

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} a second (Poisson)"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw the arrival times of `n` requests in seconds, in ascending order from 0: float64[n]."""
        return _at_rate(_after_gaps(rng.standard_exponential(n - 1)), self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma-distributed gaps between arrivals.

    With a `cv` above 1, requests come in bursts; below 1, they come steadily. A `cv` of 1 is a Poisson process.
    """

    rate_per_s: float
    """Mean number of requests per second."""
    cv: float
    """Standard deviation of the gaps divided by their mean, 0.001 to 1000. Real services have 1 to 13."""

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)
        if not (is_finite(self.cv) and 1e-3 <= self.cv <= 1e3):
            raise UsageError(
                f"cv of the gaps is {shortened(self.cv)}; it must be 0.001 to 1000 (for even gaps use Constant)."
            )

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} a second in bursts (variation of the gaps {self.cv:.3g})"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw the arrival times of `n` requests in seconds, in ascending order from 0: float64[n]."""
        shape = self.cv**-2.0
        return _at_rate(_after_gaps(rng.standard_gamma(shape, n - 1) / shape), self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Constant:
    """Arrivals with equal gaps."""

    rate_per_s: float
    """Number of requests per second."""

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} a second, evenly"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """Return the arrival times of `n` requests in seconds, in ascending order from 0: float64[n]."""
        return _at_rate(np.arange(float(n)), self.rate_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAtOnce:
    """Arrival of all requests at second 0, as in an offline batch."""

    def __str__(self) -> str:
        return "all at once"

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """Return zeros, because all `n` requests arrive at second 0: float64[n]."""
        return np.zeros(n)


def _after_gaps(gaps: FloatArray) -> FloatArray:
    """Return arrival times: 0, then one after each gap."""
    return np.concatenate(([0.0], np.cumsum(gaps)))


def _at_rate(times: FloatArray, rate_per_s: float) -> FloatArray:
    """Convert arrival times for one request per second to arrival times for `rate_per_s`."""
    with np.errstate(over="ignore"):  # `Workload` refuses infinite times with a better message
        return times / rate_per_s


def _check_rate(rate_per_s: float) -> None:
    if not (is_finite(rate_per_s) and rate_per_s > 0):
        raise UsageError(
            f"the arrival rate (--rate) is {shortened(rate_per_s)} requests per second; "
            "it must be a finite number above 0."
        )


def check_arrivals(arrivals: object) -> None:
    """Raise a `UsageError` if `arrivals` is no arrival process."""
    if isinstance(arrivals, type) or not hasattr(arrivals, "sample"):
        raise UsageError(f"arrivals should be a process such as Poisson(rate_per_s=2), not {described(arrivals)}.")
