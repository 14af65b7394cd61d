"""Step times of data-parallel ranks that share experts, so that their steps wait for each other.

All ranks exchange tokens before and after the experts of each layer. So each step takes as long as that of the slowest
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kvsim.steptime.roofline import Roofline
from kvsim.steptime.shapes import UNTHROTTLED, PowerThrottle, StepShape, StepTime, throttled_gpu_s

GROUP_SIZES = tuple(sorted({*range(1, 65), *(2**power for power in range(7, 21)), *(3 * 2**p for p in range(5, 19))}))
"""Numbers of tokens of all ranks together for which `RankTimes.group_s` has times.

For other numbers, times are interpolated.
"""
IDLE_STEP = StepShape(num_seqs=1, num_tokens=1, num_prefill_tokens=0, context_tokens=0, attention_pairs=0)
"""Step of a rank without work: it computes one token without context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Step times of data-parallel ranks that share experts."""

    label: str
    calibrated: bool = False
    own: Roofline
    """Times of one rank without the experts."""
    num_ranks: int
    group_s: tuple[float, ...]
    """Seconds of the experts and exchanges in all layers, for each number of tokens in `GROUP_SIZES`."""
    unequal_s: float = 0.0
    """Additional host seconds to exchange the tokens of all layers, if the ranks have different numbers of tokens.

    With captured graphs, no such exchange is needed, because the steps of all ranks are padded to one number of tokens.
    """

    def uncaptured(self) -> RankTimes:
        """Return the times for an engine without graphs and compilation (vLLM's `enforce_eager`)."""
        return replace(self, own=self.own.uncaptured())

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the seconds in which the host receives one request."""
        return self.own.entry_s(prompt_tokens)

    def experts_s(self, num_tokens: int) -> float:
        """Return the seconds of experts and exchanges in all layers, for `num_tokens` of all ranks together."""
        excess: float = max(num_tokens / GROUP_SIZES[-1], 1.0)  # proportional beyond the largest size
        return excess * float(np.interp(num_tokens, GROUP_SIZES, self.group_s))

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the times of a step of this shape on one rank, if all other ranks take an `IDLE_STEP`."""
        (cost, *_), experts_s = self._costs([shape] + [IDLE_STEP] * (self.num_ranks - 1))
        return cost._replace(gpu_s=cost.gpu_s + experts_s)

    def together(self, steps: Sequence[RankStep], free_s: float) -> list[RankStep]:
        """Return `steps`, one per rank, with `launched_s`, `done_s` and `throttle` filled in.

        The kernels of all ranks start when the last rank has prepared its step, but not before the GPUs are free at
        `free_s`. If all steps are captured graphs, each is padded to the size of the largest.
        """
        costs, experts_s = self._costs([step.shape for step in steps])
        kernels_begin_s = max(free_s, *(step.begin_s + cost.prepare_s for step, cost in zip(steps, costs, strict=True)))
        on_gpu = [
            throttled_gpu_s(cost, kernels_begin_s, step.throttle) for step, cost in zip(steps, costs, strict=True)
        ]
        kernels_end_s = kernels_begin_s + max(gpu_s for gpu_s, _ in on_gpu) + experts_s
        launched = [
            max(kernels_begin_s - cost.prepare_s, step.begin_s) + cost.launch_s
            for step, cost in zip(steps, costs, strict=True)
        ]
        done_s = max(kernels_end_s, *launched)
        return [
            step._replace(done_s=done_s, launched_s=launched_s, throttle=throttle)
            for step, launched_s, (_, throttle) in zip(steps, launched, on_gpu, strict=True)
        ]

    def _costs(self, shapes: Sequence[StepShape]) -> tuple[list[StepTime], float]:
        """Return the times of the ranks' steps without experts and exchanges, and the seconds of these."""
        sizes = [int(shape.num_tokens) for shape in shapes]
        if max(sizes) <= self.own.max_captured_tokens:
            padded = [shape._replace(num_tokens=max(sizes)) for shape in shapes]
            return [self.own.step_time(shape) for shape in padded], self.experts_s(max(sizes) * len(sizes))
        costs = [self.own.step_time(shape) for shape in shapes]
        if min(sizes) < max(sizes):
            costs = [cost._replace(launch_s=cost.launch_s + self.unequal_s) for cost in costs]
        return costs, self.experts_s(sum(sizes))


class RankStep(NamedTuple):
    """Step of one rank, with its times in seconds since the start of the simulation."""

    shape: StepShape
    begin_s: float
    """Time at which the rank's host begins to launch the step."""
    throttle: PowerThrottle = UNTHROTTLED
    """State of the GPU's throttling before the step. In results of `RankTimes.together`: after the step."""
    has_batch: bool = True
    """False for an `IDLE_STEP`, which the rank takes because another one has a batch."""
    has_requests: bool = True
    """True if the rank has unfinished requests, even if the step computes none."""
    launched_s: float = 0.0
    """Time at which the host has launched the step."""
    done_s: float = 0.0
    """Time at which the kernels of all ranks have ended."""
