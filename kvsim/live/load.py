"""What several looks at a server's metrics say together: rates, distributions of the last minute, and a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.live.metrics import HISTOGRAMS, Histogram, ServerMetrics

_RATE_S = 10.0
_MINUTE_S = 60.0
_TREND_S = 30.0
_LEAST_TREND_S = 8.0
"""Seconds of looks that a forecast needs."""
_LEAST_LOOKS = 5
_LEAST_RISE = 0.01
"""Share of the pool by which the usage must have risen, for noise not to be called a trend."""
_LEAST_FIT = 0.6
"""Share of the variance that the trend must explain."""
_FARTHEST_S = 1800.0
_FULL = 0.995


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A server's load now. What needs two looks is None after the first."""

    now: ServerMetrics
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    preemptions_per_min: float | None
    """Over the last minute, or since the first look where that is shorter; so are the following."""
    finished_per_min: float | None
    hit_share: float | None
    """Prompt tokens found in the prefix cache, of those looked up; None where none were."""
    seconds: float
    """Seconds that `preemptions_per_min` and `histograms` are of."""
    histograms: dict[str, Histogram]
    """Times of the last minute; since the server started, after the first look."""
    full_in_s: float | None
    """Seconds until the pool is full if its usage goes on to rise as it does; None where it does not rise."""

    @property
    def is_full(self) -> bool:
        """Whether the fullest pool has no block left, or next to none."""
        return self.now.fullest_usage >= _FULL


def load_of(looks: Sequence[ServerMetrics]) -> Load:
    """The load at the last of `looks`, which are in order of time and at least one."""
    now = looks[-1]
    before, recent = _first_since(looks, _MINUTE_S), _first_since(looks, _RATE_S)
    minutes, seconds = (now.time_s - before.time_s) / 60, now.time_s - recent.time_s
    queried = now.queried_tokens - before.queried_tokens
    return Load(
        now=now,
        prompt_tokens_per_s=_rate(now.prompt_tokens - recent.prompt_tokens, seconds),
        output_tokens_per_s=_rate(now.generation_tokens - recent.generation_tokens, seconds),
        preemptions_per_min=_rate(now.preemptions - before.preemptions, minutes),
        finished_per_min=_rate(now.finished - before.finished, minutes),
        hit_share=min((now.hit_tokens - before.hit_tokens) / queried, 1.0) if queried > 0 else None,
        seconds=now.time_s - before.time_s,
        histograms={
            key: now.histograms.get(key, Histogram()).since(
                before.histograms.get(key, Histogram()) if before is not now else Histogram()
            )
            for key in HISTOGRAMS
        },
        full_in_s=_full_in_s(looks),
    )


def _rate(count: int, time: float) -> float | None:
    return count / time if time > 0 else None


def _first_since(looks: Sequence[ServerMetrics], seconds: float) -> ServerMetrics:
    """The first of the looks of the last `seconds`."""
    return next(look for look in looks if look.time_s >= looks[-1].time_s - seconds)


def _full_in_s(looks: Sequence[ServerMetrics]) -> float | None:
    """A straight line through the usage of the last half minute, where it is one, and when it reaches the top."""
    times_s, usage = np.array(
        [(look.time_s, look.fullest_usage) for look in looks if look.time_s >= looks[-1].time_s - _TREND_S]
    ).T
    times_s = times_s - times_s[-1]
    if len(times_s) < _LEAST_LOOKS or -times_s[0] < _LEAST_TREND_S or usage[-1] >= _FULL:
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
