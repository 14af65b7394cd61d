"""Times of one engine step: of the host that launches the step, and of the GPU that runs it.

The simulator advances its clock by these times. A few coefficients describe the GPU's work in a step:

- The weights are read once and multiplied with every token. Reading and arithmetic overlap, so the longer of the two
  counts.
- The keys and values of all tokens of context are read, and the attention of every new query is computed.
- Memory idles while kernels start and end.

At the same time, the host launches the kernels one by one, unless the step is a captured graph. An engine that waits
for its output needs the longer of host and GPU time. An engine that schedules ahead launches a step while the GPU
computes the step before.

- `Roofline` has the coefficients. For vLLM, they are fitted, or computed from a machine card and a model (`reduce`).
  For Hugging Face's `generate()`, they are fitted, or computed from a data sheet (`generate_times`).
- `Staged` has the times of all pipeline stages (`reduce_stages`).
- `RankTimes` has the times of data-parallel ranks that share experts (`reduce_ranks`).

This package does not depend on requests, blocks or scheduling.
"""

from kvsim.steptime.hf_generate import copy_bytes_per_s, generate_times, streamed_bytes_per_s
from kvsim.steptime.pace import TYPICAL, Pace, at_pace
from kvsim.steptime.ranks import RankTimes
from kvsim.steptime.reduction import reduce, reduce_ranks, reduce_stages
from kvsim.steptime.roofline import (
    COEFFICIENTS,
    Roofline,
    Staged,
    attention_times,
    encoder_times,
    host_times,
    overlapped,
    size_s,
    size_s_of_one,
)
from kvsim.steptime.shapes import (
    NO_TIME,
    UNTHROTTLED,
    PowerThrottle,
    StepShape,
    StepTime,
    StepTimeModel,
    larger,
    smaller,
    throttled_gpu_s,
)
from kvsim.steptime.sizes import ALL_ALIKE, NUM_LISTED, NUM_SIZES, captured_size, size_place
from kvsim.steptime.work import untimed

__all__ = [
    "ALL_ALIKE",
    "COEFFICIENTS",
    "NO_TIME",
    "NUM_LISTED",
    "NUM_SIZES",
    "TYPICAL",
    "UNTHROTTLED",
    "Pace",
    "PowerThrottle",
    "RankTimes",
    "Roofline",
    "Staged",
    "StepShape",
    "StepTime",
    "StepTimeModel",
    "at_pace",
    "attention_times",
    "captured_size",
    "copy_bytes_per_s",
    "encoder_times",
    "generate_times",
    "host_times",
    "larger",
    "overlapped",
    "reduce",
    "reduce_ranks",
    "reduce_stages",
    "size_place",
    "size_s",
    "size_s_of_one",
    "smaller",
    "streamed_bytes_per_s",
    "throttled_gpu_s",
    "untimed",
]
