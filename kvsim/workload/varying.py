"""Arrival process of a generated workload with a rate that changes over time, as in a ramp or over a day."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError
from kvsim.workload.columns import LONGEST_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.workload.columns import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Varying:
    """Poisson process with a rate that follows a profile: points of time and rate, with straight lines between."""

    time_s: Sequence[float]
    """Times of the points in seconds: at least two, ascending, the first at 0."""
    rate_per_s: Sequence[float]
    """Rate at each point in requests per second, 0 or more."""
    repeats: bool = False
    """True if the profile begins again at its end, as a day does; False if its last rate continues."""

    def __post_init__(self) -> None:
        times, rates = [float(value) for value in self.time_s], [float(value) for value in self.rate_per_s]
        object.__setattr__(self, "time_s", tuple(times))
        object.__setattr__(self, "rate_per_s", tuple(rates))
        if len(times) != len(rates) or len(times) < 2:
            raise UsageError(
                f"a profile has {len(times)} times and {len(rates)} rates; it needs as many rates as times, at least "
                "two."
            )
        if times[0] != 0 or not all(later > earlier for earlier, later in pairwise(times)):
            raise UsageError("the times of a profile should begin at 0 and rise.")
        if not times[-1] <= LONGEST_S or not all(0 <= rate <= LONGEST_S for rate in rates):
            raise UsageError(f"a profile should have finite times, and rates of 0 or more, all at most {LONGEST_S:g}.")
        if not any(rates) or (not self.repeats and not rates[-1]):
            raise UsageError("the last rate of a profile should be above 0; of one that repeats, any rate.")

    def __str__(self) -> str:
        low, high = min(self.rate_per_s), max(self.rate_per_s)
        again = ", repeated" if self.repeats else ""
        hours = self.time_s[-1] / 3600
        span = f"{hours:g} h" if hours >= 1 else f"{self.time_s[-1]:g} s"
        return f"{low:g} to {high:g} a second in {span}{again} (Poisson)"

    @property
    def requests_in_profile(self) -> float:
        """Expected number of requests between the first and the last point of the profile."""
        return float(self._expected()[-1])

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw the arrival times of `n` requests in seconds, in ascending order from 0: float64[n]."""
        # Stretch a Poisson process of rate 1: move an arrival at `unit` to the time at which the profile expects `unit`
        # requests.
        unit = np.concatenate(([0.0], np.cumsum(rng.standard_exponential(n - 1))))
        expected, times, rates = self._expected(), np.array(self.time_s), np.array(self.rate_per_s)
        rounds = np.floor(unit / expected[-1]) if self.repeats else np.zeros(n)
        left = unit - rounds * expected[-1]
        piece = np.minimum(np.searchsorted(expected, left, side="right") - 1, len(times) - 2)
        # At t seconds of a piece, the rate is rate + slope * t, and rate * t + slope * t² / 2 requests are expected.
        # `inside` solves this for t, in the form that also holds for a slope of 0.
        slope = np.diff(rates)[piece] / np.diff(times)[piece]
        more, rate = left - expected[piece], rates[piece]
        root = np.sqrt(np.maximum(rate**2 + 2 * slope * more, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(more > 0, 2 * more / (rate + root), 0.0)
        beyond = (left > expected[-1]) & (not self.repeats)
        after = np.divide(left - expected[-1], rates[-1], out=np.zeros(n), where=np.array(rates[-1] > 0))
        arrival_s = np.where(beyond, times[-1] + after, times[piece] + inside) + rounds * times[-1]
        arrival_s = np.maximum.accumulate(arrival_s)  # rounding may put an arrival before the one before it
        from_zero: FloatArray = arrival_s - arrival_s[0]
        return from_zero

    def _expected(self) -> FloatArray:
        """Return the expected number of requests up to each point of the profile: float64[number of points]."""
        times, rates = np.array(self.time_s), np.array(self.rate_per_s)
        return np.concatenate(([0.0], np.cumsum(np.diff(times) * (rates[1:] + rates[:-1]) / 2)))
