"""Contents of a step, its times, the protocol of models that compute them, and power throttling.

Sustained arithmetic exceeds a GPU's power limit, and the GPU lowers its clock."""

from __future__ import annotations

from math import exp
from typing import NamedTuple, Protocol

THROTTLE_S = 0.1
"""Time constant in seconds in which the clock falls and recovers."""


class StepShape(NamedTuple):
    """Contents of a step. Its costs follow from these sums alone; a step schedules at least one token.

    For many steps at once, every field may be a NumPy array: `StepShape._make(columns)`. The times are arrays then.
    """

    num_seqs: int
    """Number of scheduled sequences."""
    num_tokens: int
    """Number of scheduled tokens of all sequences."""
    num_prefill_tokens: int
    """Scheduled tokens that belong to prompts (or to sequences being recomputed)."""
    context_tokens: int
    """KV slots that the step reads, summed over sequences."""
    attention_pairs: int
    """Pairs of a query and a key that it attends to, summed over prefilling sequences."""
    new_shape: float = 0.0
    """Time to choose or compile kernels for a batch of this size and length, relative to a usual decode step; 0 if it
    is not the first such batch."""
    new_kernels: float = 0.0
    """Kernels that the process has to build or load for this step, relative to a usual decode step."""
    shared_tokens: int = 0
    """KV slots of the context that are read more than once because sequences share a prefix: all but one reading."""
    num_new_seqs: int = 0
    """Sequences that join the batch in this step: new or resumed after a preemption."""


class StepTime(NamedTuple):
    """Times in which a step occupies each of the two clocks, in seconds."""

    prepare_s: float
    """Host: from scheduling to the launch of the first kernel."""
    launch_s: float
    """Host: from scheduling to the launch of the last kernel."""
    gpu_s: float
    """GPU: from the first kernel to the last, if no kernel waited for the host."""
    turnaround_s: float
    """Host: from the end of output processing to the next scheduling."""
    throttle_s: float = 0.0
    """GPU: additional time of the step after long arithmetic like its own; see `throttled_gpu_s`."""

    @property
    def alone_s(self) -> float:
        """Return the duration of the step in an engine that waits for every output."""
        return larger(self.prepare_s + self.gpu_s, self.launch_s) + self.turnaround_s


NO_TIME = StepTime(0.0, 0.0, 0.0, 0.0)
"""Times of a step that schedules nothing."""


class StepTimeModel(Protocol):
    """A model that computes the times of steps."""

    @property
    def label(self) -> str:
        """Return the source of the times, to be printed next to every result."""

    @property
    def calibrated(self) -> bool:
        """Tell whether the times were fitted to recordings."""

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the time of a step of that shape."""

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the host time in seconds to receive one request."""


def larger(a: float, b: float) -> float:
    """Return the larger of two times, in operators that numbers and arrays share."""
    return a * (a >= b) + b * (a < b)


def smaller(a: float, b: float) -> float:
    """Return the smaller of two times, in operators that numbers and arrays share."""
    return a * (a <= b) + b * (a > b)


class PowerThrottle(NamedTuple):
    """State of a GPU's throttling."""

    level: float
    """Level of the throttle, from 0 after a rest to 1 after long prefills."""
    at_s: float
    """Time of that level, in seconds; it decays from then on."""


UNTHROTTLED = PowerThrottle(0.0, 0.0)
"""State of a GPU that has been idle for a second."""


def throttled_gpu_s(cost: StepTime, begin_s: float, throttle: PowerThrottle) -> tuple[float, PowerThrottle]:
    """Return the GPU time of a step of `cost` that begins at `begin_s`, and the throttle afterwards.

    Steps that are not limited by arithmetic neither slow down nor add to the throttle.
    """
    if cost.throttle_s == 0.0 or cost.gpu_s == 0.0:
        return cost.gpu_s, throttle
    before = throttle.level * exp((throttle.at_s - begin_s) / THROTTLE_S)
    rest = (1.0 - before) * exp(-cost.gpu_s / THROTTLE_S)
    mean = 1.0 - (1.0 - before - rest) * THROTTLE_S / cost.gpu_s
    gpu_s = cost.gpu_s + cost.throttle_s * mean
    return gpu_s, PowerThrottle(1.0 - rest, begin_s + gpu_s)
