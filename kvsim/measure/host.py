"""How fast a host is: the time that it takes to launch a kernel from Python.

An engine's host interprets Python and launches kernels, and this does both. A stretch of plain Python like a
scheduler's was tried beside it on three machines and told less: the host that interpreted it slowest served fastest.
"""

from __future__ import annotations

import time

import torch

_LASTING_S = 1.5
"""A host's pace comes and goes for tenths of a second, with its clock and its neighbours; one that is slow now may be
seen awake a second later."""
_LAUNCHES = 400


def launch_s() -> float:
    """Seconds that this host takes to launch one small kernel, with the GPU never behind; the best of many rounds,
    because a busy neighbour only ever adds.
    """
    x = torch.zeros(8, device="cuda")
    best, until = float("inf"), time.perf_counter() + _LASTING_S
    while time.perf_counter() < until:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_LAUNCHES):
            x.add_(1.0)
        best = min(best, (time.perf_counter() - begin) / _LAUNCHES)
    return best
