"""Model the time of one engine step: on the host that launches it, and on the GPU that runs it.

The model is physical and small. A step reads the weights once and multiplies them with every token, whichever takes
longer. It reads the keys and values of every token of context, computes the attention of every new query, and pays for
starting kernels. Meanwhile the host pays for every launch, unless the step is a captured graph. The two clocks run in
parallel: an engine that waits for its output sees the longer of the two; one that schedules ahead hides the launch
behind the step before.

`Roofline` gets its coefficients from a fit, or through `reduce` from a machine card and a model's shape. For
`generate()` of Hugging Face they come from a fit, or through `generate_times` from a data sheet. `Staged` has the times
of every stage of a pipeline, by `reduce_stages`; `RankTimes` has those of data-parallel ranks that share experts, by
`reduce_ranks`. This room knows no requests, blocks or scheduling.
"""

from kvsim.steptime.hf_generate import copy_bytes_per_s, generate_times, streamed_bytes_per_s
from kvsim.steptime.pace import TYPICAL, Pace, at_pace
from kvsim.steptime.ranks import RankTimes
from kvsim.steptime.reduction import reduce, reduce_ranks, reduce_stages
from kvsim.steptime.roofline import COEFFICIENTS, Roofline, Staged, attention_times, host_times, overlapped, size_s
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
    "generate_times",
    "host_times",
    "larger",
    "overlapped",
    "reduce",
    "reduce_ranks",
    "reduce_stages",
    "size_place",
    "size_s",
    "smaller",
    "streamed_bytes_per_s",
    "throttled_gpu_s",
    "untimed",
]
