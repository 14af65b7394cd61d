"""Latencies of requests, and their distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording import Recording, RequestStatus

if TYPE_CHECKING:
    from kvsim.recording.tables import FloatArray, IntArray, Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and percentiles of some values. All are NaN if there are no values."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: FloatArray) -> Distribution:
        """Return the distribution of those `values` that are not NaN. Percentiles are interpolated linearly."""
        values = values[~np.isnan(values)]
        if not len(values):
            return cls(mean=np.nan, p50=np.nan, p90=np.nan, p99=np.nan)
        p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
        return cls(mean=float(values.mean()), p50=p50, p90=p90, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Latencies:
    """Latencies of the finished requests, one entry each, in the order of `requests.parquet`."""

    request: IntArray
    """Row of the request in `requests.parquet`."""
    ttft_s: FloatArray
    """Time to first token in seconds, from `Requests.received_s` to the first output token."""
    tpot_s: FloatArray
    """Seconds per output token after the first; NaN for a single output token."""
    e2e_s: FloatArray
    """End-to-end time in seconds, from `Requests.received_s` to the end of the request."""
    wait_s: FloatArray
    """Seconds in the queue, from `Requests.received_s` until the request is first scheduled."""


def latencies(recording: Recording) -> Latencies:
    """Return the latencies of the finished requests of a recording."""
    return latencies_of(recording.requests)


def latency_origin(requests: Requests) -> str:
    """Return a clause for messages that names the moment from which latencies count."""
    if requests.sent_s is not None:
        return "TTFT and end to end count from when the server got a request"
    return "TTFT and end to end count from when the engine took a request; when it was sent was not recorded"


def latencies_of(requests: Requests) -> Latencies:
    """Return the latencies of those of `requests` that have finished."""
    rows = np.flatnonzero(requests.status == RequestStatus.FINISHED)
    return Latencies(
        request=rows,
        ttft_s=requests.ttft_s[rows],
        tpot_s=requests.tpot_s[rows],
        e2e_s=requests.e2e_s[rows],
        wait_s=requests.wait_s[rows],
    )
