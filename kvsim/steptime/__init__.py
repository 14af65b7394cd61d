"""How long one step of an engine takes: on the host that launches it, and on the GPU that runs it.

The model is physical and small. A step streams the weights once and multiplies them with every token, whichever takes
longer; reads the keys and values of every token of context; attends from every new query; and pays for starting
kernels. Meanwhile the host pays for every launch, unless the step is a captured graph. The two clocks run side by side:
an engine that waits for its output sees the longer of the two, one that schedules ahead hides the launch behind the
step before.

`Roofline` takes its coefficients from a fit or, by `reduce`, from a machine card and a model's shape; those of
`generate()` of Hugging Face come from a fit or, by `generate_times`, from a data sheet. `Staged` has those of every
stage of a pipeline, by `reduce_stages`. Nothing here knows of requests, blocks or scheduling.
"""

from kvsim.steptime.generate import copy_bytes_per_s, generate_times, streamed_bytes_per_s
from kvsim.steptime.pace import TYPICAL, Pace, at_pace
from kvsim.steptime.power_throttle import UNTHROTTLED, PowerThrottle, throttled_gpu_s
from kvsim.steptime.reduction import reduce, reduce_stages
from kvsim.steptime.roofline import COEFFICIENTS, Roofline, overlapped, size_s
from kvsim.steptime.shapes import NO_TIME, StepShape, StepTime, StepTimeModel, larger, smaller
from kvsim.steptime.sizes import (
    ALL_ALIKE,
    NUM_LISTED,
    NUM_SIZES,
    captured_size,
    size_place,
)
from kvsim.steptime.staged import Staged
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
    "Roofline",
    "Staged",
    "StepShape",
    "StepTime",
    "StepTimeModel",
    "at_pace",
    "captured_size",
    "copy_bytes_per_s",
    "generate_times",
    "larger",
    "overlapped",
    "reduce",
    "reduce_stages",
    "size_place",
    "size_s",
    "smaller",
    "streamed_bytes_per_s",
    "throttled_gpu_s",
    "untimed",
]
