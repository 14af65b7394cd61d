"""A model whose layers are dealt out among the stages of a pipeline: the step times of every stage."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.steptime.roofline import Roofline
from kvsim.steptime.shapes import StepShape, StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Step times of every stage. An engine sends a step from one to the next, and has others in flight meanwhile."""

    label: str
    calibrated: bool
    stages: tuple[Roofline, ...]
    """Times in the order in which a step passes the stages; the host's times are those of the first."""

    def step_time(self, shape: StepShape) -> StepTime:
        """How long a step of that shape takes alone, through all stages."""
        first = self.stages[0].step_time(shape)
        gpu_s, throttle_s = first.gpu_s, first.throttle_s
        for stage in self.stages[1:]:
            cost = stage.step_time(shape)
            gpu_s += stage.passing_s(shape.num_tokens) + cost.gpu_s
            throttle_s += cost.throttle_s
        return first._replace(gpu_s=gpu_s, throttle_s=throttle_s)

    def entry_s(self, prompt_tokens: int) -> float:
        """How long the host takes to let one request in, seconds."""
        return self.stages[0].entry_s(prompt_tokens)
