"""Time kernels on a GPU, captured as a graph as engines do, and their launch from Python.

An engine's host interprets Python and launches kernels; the launch time covers both. On three machines, the time of
plain Python alone was a worse measure: the host that interpreted it slowest served fastest."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_REPLAYS = 3
_LONG_S = 2e-3
"""Duration above which a call is timed once per replay, in seconds."""

_LAUNCHES_S = 1.5
"""Seconds of repeated launches. A host's speed changes for tenths of a second, with its clock and other processes."""
_LAUNCHES = 400


def seconds_per_call(calls: Sequence[Callable[[], Any]]) -> float:
    """Return the seconds of one of `calls` on the GPU when all run one after the other in a captured graph.

    The calls should use different memory, so that none finds its inputs in the GPU's cache.
    """
    calls[0]()  # libraries choose and load their kernels at the first call
    torch.cuda.synchronize()
    if _elapsed_s(calls[0]) > _LONG_S:
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
    """Return the seconds that this host takes to launch one small kernel with the GPU idle.

    The best of many rounds counts, because other processes can only slow a round down.
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
