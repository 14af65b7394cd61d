"""Where the time of a run went: reading weights, reading keys and values, arithmetic, or neither.

Work over the whole run against the coefficients of its step times. Reading and arithmetic overlap, so the shares need
not add up; what none of them explains is the host, kernels that start, and waiting for requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.profiles.extrapolation import Watched
from kvsim.steptime import Roofline

if TYPE_CHECKING:
    from kvsim.simulation import Machine, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Parts of the duration of a run, 0 to about 1."""

    weights: float
    """Streaming the weights, once a step."""
    cache: float
    """Reading keys and values: those of full layers whole, those of windows as far as they reach."""
    arithmetic: float
    """Matrix products of all tokens."""

    @property
    def bandwidth(self) -> float:
        """Reading memory."""
        return self.weights + self.cache

    def as_dict(self) -> dict[str, float]:
        """As JSON has it."""
        return {"weights": self.weights, "cache": self.cache, "arithmetic": self.arithmetic}


def time_shares(run: Measured, machine: Machine) -> TimeShares | None:
    """The shares of one server's run; None where no time passes or the step times are a model of the caller's own."""
    times = machine.step_time.times if isinstance(machine.step_time, Watched) else machine.step_time
    summary = run.summary
    if not isinstance(times, Roofline) or not summary.duration_s:
        return None
    # A sequence that decodes reads its prompt and what it has put out so far, once a step.
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
