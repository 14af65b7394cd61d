"""Sustained arithmetic slows a GPU down: its power is limited, and its clock gives way."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from kvsim.steptime.shapes import StepTime

THROTTLE_S = 0.1
"""Within about so many seconds the clock gives way, and it recovers in as many."""


class PowerThrottle(NamedTuple):
    """How far a GPU's clock has given way to sustained arithmetic."""

    level: float
    """Level of the throttle, from 0 after a rest towards 1 in prefill upon prefill."""
    at_s: float
    """Time of that level, in seconds; it fades from then on."""


UNTHROTTLED = PowerThrottle(0.0, 0.0)
"""The state of a GPU that has had nothing to do for a second."""


def throttled_gpu_s(cost: StepTime, begin_s: float, throttle: PowerThrottle) -> tuple[float, PowerThrottle]:
    """How long the GPU takes for a step of `cost` that it begins at `begin_s`, and how far it is throttled afterwards.

    Steps that are not bound by arithmetic neither suffer from throttling nor add to it.
    """
    if cost.throttle_s == 0.0 or cost.gpu_s == 0.0:
        return cost.gpu_s, throttle
    before = throttle.level * exp((throttle.at_s - begin_s) / THROTTLE_S)
    rest = (1.0 - before) * exp(-cost.gpu_s / THROTTLE_S)
    mean = 1.0 - (1.0 - before - rest) * THROTTLE_S / cost.gpu_s
    gpu_s = cost.gpu_s + cost.throttle_s * mean
    return gpu_s, PowerThrottle(1.0 - rest, begin_s + gpu_s)
