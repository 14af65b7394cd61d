"""Find the part of a run with a steady rate, between warm-up and drain.

The decision uses only the requests, so that it is the same for a recording and for measured requests. The time between
the first and last arrival is split into quarters. Except in very long runs, the mean number of running requests must be
equal in the last two quarters. The queue may grow: an overloaded server has a steady rate too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.recording import RequestStatus

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import Requests

    Column = npt.NDArray[np.float64]

FEWEST_REQUESTS = 20
"""Smallest number of requests from which a rate is computed."""
_MIN_RUN_TIMES = 4.0
"""Smallest time from first to last arrival for a steady rate, in multiples of a request's mean run time."""
_DRIFT_RUN_TIMES = 40.0
"""Time from first to last arrival from which on a drift counts as chance and not as warm-up.

It is in multiples of a request's mean run time. The load of a server near its limit drifts by chance.
"""
_MIN_RUN_TIMES_IN_LOOP = 2.0
"""Value of `_MIN_RUN_TIMES` for a closed loop.

The number of requests in a closed loop is constant, so only their ages have to mix.
"""
_ALIKE = 0.1
"""Largest relative difference between the means of two quarters that count as equal."""
_CONSTANT = 0.02
"""Relative difference between quarters up to which the number of requests counts as constant, as in a closed loop."""
_SIGMAS = 2.0
"""Number of standard deviations up to which a difference counts as chance."""


class Steadiness(Enum):
    """Result of the check for a steady rate: `STEADY`, or the reason why a run has none."""

    STEADY = "steady"
    SHORT = "too short"
    """The run ended before the number of running requests settled."""
    VARYING = "varying"
    """The arrival rate changes."""
    AT_ONCE = "at once"
    """All requests arrive at once: a batch has a duration but no rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyPart:
    """Steady part of a run, with its time span and rates; or the reason why there is none.

    Without a steady part, span and rates are NaN.
    """

    steadiness: Steadiness
    begin_s: float = np.nan
    """Begin of the steady part in seconds from the first event."""
    end_s: float = np.nan
    """End of the steady part: the last arrival, in seconds from the first event."""
    output_tokens_per_s: float = np.nan
    requests_per_s: float = np.nan
    """Requests per second that finish in the steady part."""
    arriving_s: float = np.nan
    """Seconds from the first to the last arrival of the run."""
    running_s: float = np.nan
    """Seconds from the first step of a request to its end, mean over the requests."""

    @property
    def sentence(self) -> str:
        """Sentence about the steady part, or about the reason why there is none."""
        if self.steadiness is Steadiness.STEADY:
            return (
                f"Steady from {self.begin_s:,.1f} s to {self.end_s:,.1f} s: {self.output_tokens_per_s:,.0f} output "
                f"tokens/s, {self.requests_per_s:,.3g} requests/s."
            )
        if self.steadiness is Steadiness.SHORT:
            return (
                f"Too short to tell a steady rate: requests arrive for {self.arriving_s:,.1f} s, and one runs for "
                f"{self.running_s:,.1f} s."
            )
        if self.steadiness is Steadiness.VARYING:
            return "No steady rate: arrivals come faster and slower."
        return "No steady rate: requests arrive at once, and the last answers are counted in."

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON, with None in place of NaN."""
        figures = {name: getattr(self, name) for name in ("begin_s", "end_s", "output_tokens_per_s", "requests_per_s")}
        known = {name: None if value != value else value for name, value in figures.items()}
        return {"steadiness": self.steadiness.name.lower()} | known


def steady_part(requests: Requests) -> SteadyPart:
    """Return the steady part of the run of `requests`."""
    rows = requests.status != RequestStatus.REFUSED
    arrival_s = requests.arrival_s[rows]
    arriving_s = float(np.ptp(arrival_s)) if len(arrival_s) else 0.0
    if not arriving_s:
        return SteadyPart(steadiness=Steadiness.AT_ONCE)
    columns = [requests.first_scheduled_s[rows], requests.first_token_s[rows], requests.finished_s[rows]]
    last_s = float(np.nanmax(np.stack([arrival_s, *columns])))
    first_step_s, first_token_s, finished_s = (np.nan_to_num(column, nan=last_s) for column in columns)
    first_s = float(arrival_s.min())
    quarters = [(first_s + n * arriving_s / 4, first_s + (n + 1) * arriving_s / 4) for n in range(4)]
    running = [_mean_between(first_step_s, finished_s, *each) for each in quarters]
    means = [_mean_between(arrival_s, finished_s, *each) for each in quarters]
    running_s = float((finished_s - first_step_s).mean())
    facts = {"arriving_s": arriving_s, "running_s": running_s}
    if len(arrival_s) < FEWEST_REQUESTS:
        return SteadyPart(steadiness=Steadiness.SHORT, **facts)
    if _varies(arrival_s):
        return SteadyPart(steadiness=Steadiness.VARYING, **facts)
    is_loop = max(means[1:]) - min(means[1:]) <= _CONSTANT * max(means[1:])
    # The number of requests that come and go at random fluctuates by about its square root.
    chance = _SIGMAS * np.sqrt(min(8 * running_s / arriving_s, 1.0) * 2 * running[3])
    allowed = max(_ALIKE * running[3], 0.0 if is_loop else chance)
    apart = abs(running[3] - running[2]) if arriving_s < _DRIFT_RUN_TIMES * running_s else 0.0
    is_long = arriving_s >= (_MIN_RUN_TIMES_IN_LOOP if is_loop else _MIN_RUN_TIMES) * running_s
    if not is_long or apart > allowed:
        return SteadyPart(steadiness=Steadiness.SHORT, **facts)
    begin_s = quarters[1 if abs(running[3] - running[1]) <= allowed else 2][0]
    end_s = quarters[3][1]
    tokens = _tokens_between(first_token_s, finished_s, requests.output_tokens[rows], begin_s, end_s)
    num_finished = np.count_nonzero((finished_s > begin_s) & (finished_s <= end_s))
    return SteadyPart(
        steadiness=Steadiness.STEADY,
        begin_s=begin_s,
        end_s=end_s,
        output_tokens_per_s=tokens / (end_s - begin_s),
        requests_per_s=float(num_finished) / (end_s - begin_s),
        **facts,
    )


def _mean_between(begin_s: Column, end_s: Column, low_s: float, high_s: float) -> float:
    """Return the mean number of spans [begin_s, end_s) that cover a moment between `low_s` and `high_s`."""
    return float((np.clip(end_s, low_s, high_s) - np.clip(begin_s, low_s, high_s)).sum()) / (high_s - low_s)


def _varies(arrival_s: Column) -> bool:
    """Tell whether the arrival rate varies.

    It does if the number of arrivals in some half or eighth of the time differs from the mean by more than chance.
    """
    gaps_s = np.diff(np.sort(arrival_s))
    variation = max(float(gaps_s.std() / gaps_s.mean()), 1.0)
    for num_parts, alike in ((2, 0.2), (8, 0.4)):
        mean = len(arrival_s) / num_parts
        apart = np.abs(np.histogram(arrival_s, num_parts)[0] - mean).max()
        if apart > max(alike * mean, 2 * _SIGMAS * variation * np.sqrt(mean * (1 - 1 / num_parts))):
            return True
    return False


def _tokens_between(first_s: Column, last_s: Column, tokens: npt.NDArray[Any], low_s: float, high_s: float) -> float:
    """Count the output tokens between `low_s` and `high_s`.

    The tokens of a request after its first one are assumed to be evenly spaced.
    """
    firsts = np.count_nonzero((first_s > low_s) & (first_s <= high_s) & (tokens > 0))
    inside_s, later = np.clip(last_s, low_s, high_s) - np.clip(first_s, low_s, high_s), np.maximum(tokens - 1.0, 0.0)
    share = np.divide(inside_s, last_s - first_s, out=np.zeros(len(first_s)), where=last_s > first_s)
    return float(firsts + (share * later).sum())
