"""Sustained arithmetic slows a GPU down: its power is limited, and its clock gives way."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from kvsim.steptime.shapes import StepTime

STRAIN_S = 0.1
"""Within about so many seconds the clock gives way, and it recovers in as many."""


class Strain(NamedTuple):
    """How far a GPU's clock has given way to sustained arithmetic."""

    level: float
    """From 0 after a rest towards 1 in prefill upon prefill."""
    at_s: float
    """When it was so; it fades from then on."""


RESTED = Strain(0.0, 0.0)
"""Of a GPU that has had nothing to do for a second."""


def strained_gpu_s(cost: StepTime, begin_s: float, strain: Strain) -> tuple[float, Strain]:
    """How long the GPU takes for a step of `cost` that it begins at `begin_s`, and its strain afterwards.

    Steps that are not bound by arithmetic neither suffer from strain nor add to it.
    """
    if cost.strain_s == 0.0:
        return cost.gpu_s, strain
    before = strain.level * exp((strain.at_s - begin_s) / STRAIN_S)
    rest = (1.0 - before) * exp(-cost.gpu_s / STRAIN_S)
    mean = 1.0 - (1.0 - before - rest) * STRAIN_S / cost.gpu_s
    gpu_s = cost.gpu_s + cost.strain_s * mean
    return gpu_s, Strain(1.0 - rest, begin_s + gpu_s)
