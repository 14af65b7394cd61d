"""Shares of the time of a run: reading weights, reading keys and values, arithmetic, and the rest.

The share of one kind of work is its time in the whole run, by the coefficients of the step times, divided by the
duration of the run. Reading and arithmetic overlap, so the shares may add up to more than 1. The rest is the host, the
starts of kernels, and waiting for requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.steptime import Roofline

if TYPE_CHECKING:
    from kvsim.simulation import Machine, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Shares of the duration of a run that three kinds of work take, each 0 to about 1."""

    weights: float
    """Share of the duration in which the weights are read, once per step."""
    cache: float
    """Share of the duration in which keys and values are read: all in full layers, those of windows in other layers."""
    arithmetic: float
    """Share of the duration in which the matrix products of all tokens are computed."""

    @property
    def reading(self) -> float:
        """Share of the duration in which memory is read: weights, keys and values."""
        return self.weights + self.cache


def time_shares(run: Measured, machine: Machine) -> TimeShares | None:
    """Return the shares for one server's run; None if it takes no time or has a custom model of step times."""
    times = machine.step_time.times if isinstance(machine.step_time, WatchedProfile) else machine.step_time
    summary = run.summary
    if not isinstance(times, Roofline) or not summary.duration_s:
        return None
    # A decoding sequence reads its prompt and its outputs so far, once per step.
    prompt, steps = run.requests.prompt_tokens.astype(float), np.maximum(run.requests.output_tokens - 1.0, 0.0)
    read = steps * (prompt + steps / 2)
    in_windows = np.minimum(read, steps * times.window_tokens)
    cache_s = float(read.sum() * times.context_token_s + in_windows.sum() * times.window_token_s)
    steps_per_s = summary.num_steps / summary.duration_s
    return TimeShares(
        weights=steps_per_s * times.weights_s,
        cache=cache_s / summary.duration_s,
        arithmetic=summary.computed_tokens / summary.duration_s * times.token_s,
    )
