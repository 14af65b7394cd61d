"""How long kernels take on a GPU, captured as a graph as an engine captures them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

_REPLAYS = 3
_LONG_S = 2e-3
"""A call that takes longer than this is timed once per replay."""


def seconds_per_call(calls: Sequence[Callable[[], Any]]) -> float:
    """The time of one of `calls` on the GPU, in seconds, when all are run one after the other inside a captured graph.

    The calls should touch different memory, so that none finds its inputs in the GPU's cache.
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
