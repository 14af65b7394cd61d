"""Derive from successive metrics of a server: rates, distributions of the last minute, and a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.live.metrics import HISTOGRAMS, Histogram, ServerMetrics

_RATE_S = 10.0
_MINUTE_S = 60.0
_TREND_S = 30.0
_LEAST_TREND_S = 8.0
"""Minimum seconds of metrics for a forecast."""
_LEAST_LOOKS = 5
_LEAST_RISE = 0.01
"""Minimum rise of the usage, as a share of the pool, to distinguish a trend from noise."""
_LEAST_FIT = 0.6
"""Minimum share of the variance explained by the trend."""
_FARTHEST_S = 1800.0
_FULL = 0.995


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """Current load of a server. Rates are None after the first look."""

    now: ServerMetrics
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    preemptions_per_min: float | None
    """Preemptions per minute, over the last minute or since the first look; the same holds for the next figures."""
    finished_per_min: float | None
    hit_share: float | None
    """Share of the queried prompt tokens found in the prefix cache; None without queries."""
    seconds: float
    """Seconds covered by `preemptions_per_min` and `histograms`."""
    histograms: dict[str, Histogram]
    """Times of the last minute; after the first look, of the time since the server started."""
    full_in_s: float | None
    """Seconds until the pool is full at the current rise of its usage; None without a rise."""

    @property
    def is_full(self) -> bool:
        """Whether the fullest pool has almost no free block."""
        return self.now.fullest_usage >= _FULL


def load_of(looks: Sequence[ServerMetrics]) -> ServerLoad:
    """Return the load at the last of `looks`, at least one in order of time."""
    now = looks[-1]
    before, recent = _first_since(looks, _MINUTE_S), _first_since(looks, _RATE_S)
    minutes, seconds = (now.time_s - before.time_s) / 60, now.time_s - recent.time_s
    queried = now.queried_tokens - before.queried_tokens
    return ServerLoad(
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
    """Return the first look of the last `seconds`."""
    return next(look for look in looks if look.time_s >= looks[-1].time_s - seconds)


def _full_in_s(looks: Sequence[ServerMetrics]) -> float | None:
    """Fit a line to the usage of the last half minute, and extrapolate it to a full pool."""
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
