"""Types for step times: contents of a step, its times, the interface of models, and the throttling of a GPU.

A GPU throttles: it lowers its clock when long arithmetic exceeds its power limit.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple, Protocol

THROTTLE_S = 0.1
"""Time constant in seconds with which the clock falls and recovers."""


class StepShape(NamedTuple):
    """Contents of a step, as sums over its sequences. The times of a step depend on nothing else.

    A step schedules at least one token. Every field may be a NumPy array, for many steps at once:
    `StepShape._make(columns)`. Then the times are arrays, too.
    """

    num_seqs: int
    """Number of scheduled sequences."""
    num_tokens: int
    """Number of scheduled tokens."""
    num_prefill_tokens: int
    """Number of scheduled tokens in prompts, and in sequences that are recomputed after a preemption."""
    context_tokens: int
    """Number of KV slots that the step reads, summed over sequences."""
    attention_pairs: int
    """Number of pairs of a query and a key that the query reads, summed over prefilling sequences."""
    new_shape: float = 0.0
    """Time to choose or compile kernels for a new batch shape, in multiples of `Roofline.new_shape_s`; else 0."""
    new_kernels: float = 0.0
    """Time to build or load new kernels, in multiples of `Roofline.new_kernel_s`; else 0."""
    shared_tokens: int = 0
    """Number of reads of KV slots that another sequence has read in the same step."""
    num_new_seqs: int = 0
    """Number of sequences that join the batch in this step: new ones, and ones that resume after a preemption."""
    num_images: int = 0
    """Number of images that the encoder computes in this step."""
    image_tokens: int = 0
    """Number of prompt tokens of the images that the encoder computes in this step."""
    image_pairs: int = 0
    """Number of pairs of tokens of one image, summed over the images that the encoder computes in this step."""


class StepTime(NamedTuple):
    """Seconds in which a step keeps the host and the GPU busy."""

    prepare_s: float
    """Host time from scheduling to the launch of the first kernel."""
    launch_s: float
    """Host time from scheduling to the launch of the last kernel."""
    gpu_s: float
    """GPU time from the first kernel to the last, if no kernel waits for the host."""
    turnaround_s: float
    """Host time from the step's output to the next scheduling."""
    throttle_s: float = 0.0
    """Additional GPU time of the step on a fully throttled GPU; see `throttled_gpu_s`."""

    @property
    def alone_s(self) -> float:
        """Seconds of the step in an engine that waits for each output before it schedules the next step."""
        return larger(self.prepare_s + self.gpu_s, self.launch_s) + self.turnaround_s


NO_TIME = StepTime(0.0, 0.0, 0.0, 0.0)
"""Times of a step that schedules nothing."""


class StepTimeModel(Protocol):
    """Model that computes the times of steps."""

    @property
    def label(self) -> str:
        """Source of the times, as printed next to every result."""

    @property
    def calibrated(self) -> bool:
        """True if the times were fitted to recordings."""

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the times of a step of this shape."""

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the seconds in which the host receives one request."""


def larger(a: float, b: float) -> float:
    """Return the larger of two numbers; of two arrays, element by element."""
    return a * (a >= b) + b * (a < b)


def smaller(a: float, b: float) -> float:
    """Return the smaller of two numbers; of two arrays, element by element."""
    return a * (a <= b) + b * (a > b)


class PowerThrottle(NamedTuple):
    """State of the throttling of a GPU."""

    level: float
    """Degree of throttling: 0 after a long rest, 1 after long prefills."""
    at_s: float
    """Time in seconds at which the GPU had this degree. From then on, the degree decays."""


UNTHROTTLED = PowerThrottle(0.0, 0.0)
"""State of a GPU that has rested for long."""


def throttled_gpu_s(cost: StepTime, begin_s: float, throttle: PowerThrottle) -> tuple[float, PowerThrottle]:
    """Return the GPU time of a step that begins at `begin_s`, and the state of the throttling at the step's end.

    `throttle` is the state before the step. A step with `throttle_s` 0 takes its usual time and returns `throttle`
    unchanged.
    """
    if cost.throttle_s == 0.0 or cost.gpu_s == 0.0:
        return cost.gpu_s, throttle
    level_before = throttle.level * exp((throttle.at_s - begin_s) / THROTTLE_S)
    # During the step, the distance of the level from 1 decays exponentially.
    distance_after = (1.0 - level_before) * exp(-cost.gpu_s / THROTTLE_S)
    mean_level = 1.0 - (1.0 - level_before - distance_after) * THROTTLE_S / cost.gpu_s
    gpu_s = cost.gpu_s + cost.throttle_s * mean_level
    return gpu_s, PowerThrottle(1.0 - distance_after, begin_s + gpu_s)
