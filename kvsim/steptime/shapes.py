"""What a step holds, what it takes, and anything that can tell."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StepShape(NamedTuple):
    """What a step holds. Costs follow from these sums alone; a step schedules at least one token.

    For many steps at once, every field may be a NumPy array: `StepShape._make(columns)`. The times are arrays then.
    """

    num_seqs: int
    """Sequences scheduled."""
    num_tokens: int
    """Tokens scheduled, over all sequences."""
    num_prefill_tokens: int
    """Scheduled tokens that belong to prompts (or to sequences being recomputed)."""
    context_tokens: int
    """KV slots that the step reads, summed over sequences."""
    attention_pairs: int
    """Pairs of a query and a key it attends to, summed over the sequences being prefilled."""
    new_shape: float = 0.0
    """Time to choose or compile kernels for a batch of this size and length, as a multiple of that of a usual decode
    step; 0 where it is not the first such batch.
    """
    new_kernels: float = 0.0
    """Kernels that the step needs and its process has not built or loaded yet, in those of a usual decode step."""
    shared_tokens: int = 0
    """KV slots of the context that are read more than once, because sequences share a prefix: all but one reading."""
    num_new_seqs: int = 0
    """Sequences that join the batch with this step: new ones, and preempted ones that come back."""


class StepTime(NamedTuple):
    """How long a step occupies each of the two clocks, in seconds."""

    prepare_s: float
    """Host: from the decision to schedule until the first kernel is launched."""
    launch_s: float
    """Host: from the decision to schedule until everything is launched."""
    gpu_s: float
    """GPU: from the first kernel to the last, if no kernel waited for the host."""
    turnaround_s: float
    """Host: from an output that has been processed until the next step can be scheduled."""
    throttle_s: float = 0.0
    """GPU: how much longer the step takes where arithmetic like its own has been going on for long; see
    `throttled_gpu_s`.
    """

    @property
    def alone_s(self) -> float:
        """The step in an engine that awaits every output before it goes on."""
        return larger(self.prepare_s + self.gpu_s, self.launch_s) + self.turnaround_s


NO_TIME = StepTime(0.0, 0.0, 0.0, 0.0)
"""The step that schedules nothing."""


class StepTimeModel(Protocol):
    """Anything that can say how long a step takes."""

    @property
    def label(self) -> str:
        """Where the times come from, to be printed beside every result."""

    @property
    def calibrated(self) -> bool:
        """Whether the times were fitted to recordings."""

    def step_time(self, shape: StepShape) -> StepTime:
        """How long a step of that shape takes."""

    def entry_s(self, prompt_tokens: int) -> float:
        """How long the host takes to let one request in, seconds."""


def larger(a: float, b: float) -> float:
    """The larger of two times, in operators that numbers and arrays share."""
    return a * (a >= b) + b * (a < b)


def smaller(a: float, b: float) -> float:
    """The smaller of two times, in operators that numbers and arrays share."""
    return a * (a <= b) + b * (a > b)
