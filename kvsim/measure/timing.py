"""Measure the time of kernels in a captured graph, as engines run them, and the time to launch one from Python.

The launch time is the measure of a host's speed, because an engine's host interprets Python and launches kernels. The
time of plain Python alone was a worse measure: of three machines, the one with the slowest Python served fastest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_REPLAYS = 3
_LONG_CALL_S = 2e-3
"""If one call takes more seconds than this, the captured graph has a single call."""

_LAUNCHES_S = 1.5
"""Seconds for which launches are repeated. In this time, other processes do not slow down every launch."""
_LAUNCHES = 400


def seconds_per_call(calls: Sequence[Callable[[], Any]]) -> float:
    """Return the mean seconds of a call on the GPU, when all `calls` run one after the other in a captured graph. Calls
    should use different memory, so that no call finds its inputs in the GPU's cache.
    """
    calls[0]()  # libraries choose and load their kernels at the first call
    torch.cuda.synchronize()
    if _elapsed_s(calls[0]) > _LONG_CALL_S:
        calls = calls[:1]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return statistics.median(_elapsed_s(graph.replay) for _ in range(_REPLAYS)) / len(calls)


def _elapsed_s(call: Callable[[], Any]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def launch_s() -> float:
    """Return the seconds in which this host launches one small kernel while the GPU is idle. The fastest of many rounds
    counts, because other processes can only slow a round down.
    """
    x = torch.zeros(8, device="cuda")
    best, until = float("inf"), time.perf_counter() + _LAUNCHES_S
    while time.perf_counter() < until:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_LAUNCHES):
            x.add_(1.0)
        best = min(best, (time.perf_counter() - begin) / _LAUNCHES)
    return best
