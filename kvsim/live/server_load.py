"""Present load of a server, from successive polls of its metrics.

Counters are totals since the server started. Differences between polls give rates, the distributions of the last
minute, and a forecast of when the pool is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.live.metrics import HISTOGRAMS, Histogram, ServerMetrics

_RATE_S = 10.0
"""Seconds before the last poll over which token rates are computed."""
_MINUTE_S = 60.0
_TREND_S = 30.0
"""Seconds before the last poll from which the forecast is made."""
_LEAST_TREND_S = 8.0
"""Least number of seconds between the first and the last poll of a forecast."""
_LEAST_POLLS = 5
"""Least number of polls of a forecast."""
_LEAST_RISE = 0.01
"""Least rise of the usage, as a share of the pool, that is a trend and not noise."""
_LEAST_FIT = 0.6
"""Least share of the variance that the trend must explain."""
_FARTHEST_S = 1800.0
"""Largest number of seconds that a forecast looks ahead."""
_FULL = 0.995
"""Least share in use of a pool that counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """Present load of a server. Rates are None as long as there is only one poll."""

    now: ServerMetrics
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    preemptions_per_min: float | None
    """Number of preemptions per minute over the last minute; since the first poll, if that is later.

    `finished_per_min` and `hit_share` cover the same time.
    """
    finished_per_min: float | None
    hit_share: float | None
    """Share of the prompt tokens looked up that were found in the prefix cache; None if none were looked up."""
    window_s: float
    """Seconds over which `preemptions_per_min` and `histograms` are computed."""
    histograms: dict[str, Histogram]
    """Histograms over `window_s`; as long as there is only one poll, over the time since the server started."""
    full_in_s: float | None
    """Seconds until the pool is full if its usage goes on to rise; None without a clear rise."""

    @property
    def is_full(self) -> bool:
        """True if the fullest pool has almost no free block."""
        return self.now.fullest_usage >= _FULL


def load_of(polls: Sequence[ServerMetrics]) -> ServerLoad:
    """Return the load at the last of `polls`, at least one in order of time."""
    now = polls[-1]
    before, recent = _first_since(polls, _MINUTE_S), _first_since(polls, _RATE_S)
    minutes, seconds = (now.time_s - before.time_s) / 60, now.time_s - recent.time_s
    queried = now.queried_tokens - before.queried_tokens
    before_histograms = {} if before is now else before.histograms
    return ServerLoad(
        now=now,
        prompt_tokens_per_s=_rate(now.prompt_tokens - recent.prompt_tokens, seconds),
        output_tokens_per_s=_rate(now.generation_tokens - recent.generation_tokens, seconds),
        preemptions_per_min=_rate(now.preemptions - before.preemptions, minutes),
        finished_per_min=_rate(now.finished - before.finished, minutes),
        hit_share=min((now.hit_tokens - before.hit_tokens) / queried, 1.0) if queried > 0 else None,
        window_s=now.time_s - before.time_s,
        histograms={
            key: now.histograms.get(key, Histogram()).since(before_histograms.get(key, Histogram()))
            for key in HISTOGRAMS
        },
        full_in_s=_full_in_s(polls),
    )


def _rate(count: int, time: float) -> float | None:
    return count / time if time > 0 else None


def _first_since(polls: Sequence[ServerMetrics], seconds: float) -> ServerMetrics:
    return next(poll for poll in polls if poll.time_s >= polls[-1].time_s - seconds)


def _full_in_s(polls: Sequence[ServerMetrics]) -> float | None:
    """Extrapolate a line through the usage of the last half minute to a full pool; None without a clear rise."""
    times_s, usage = np.array(
        [(poll.time_s, poll.fullest_usage) for poll in polls if poll.time_s >= polls[-1].time_s - _TREND_S]
    ).T
    times_s = times_s - times_s[-1]
    if len(times_s) < _LEAST_POLLS or -times_s[0] < _LEAST_TREND_S or usage[-1] >= _FULL:
        return None
    variance = usage.var()
    if variance == 0:
        return None
    slope, level = np.polyfit(times_s, usage, 1)
    explained = 1 - (usage - slope * times_s - level).var() / variance
    if slope * -times_s[0] < _LEAST_RISE or explained < _LEAST_FIT:
        return None
    left_s = float((1 - usage[-1]) / slope)
    return left_s if left_s <= _FARTHEST_S else None
