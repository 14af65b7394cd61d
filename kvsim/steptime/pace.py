"""Step times for another machine, whose host or GPU is slower or faster by a factor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from kvsim.steptime.roofline import Roofline

WORKER_COEFFICIENTS = ("worker_step_s", "worker_sequence_s", "worker_token_s", "piecewise_floor_s", "eager_floor_s")
"""Names of the coefficients that are times of worker processes."""
HOST_COEFFICIENTS = (
    *("request_s", "request_token_s", "host_step_s", "host_sequence_s", "host_token_s", "new_sequence_s"),
    *("turnaround_step_s", "turnaround_sequence_s", "verified_token_s"),
    *("piecewise_launch_s", "eager_launch_s", "uncompiled_launch_s", "masked_launch_s", "new_shape_s", "new_kernel_s"),
    *("encoder_step_s", "encoder_image_s", "encoder_image_token_s"),
    *WORKER_COEFFICIENTS,
)
"""Names of the coefficients that are times of the host."""
GPU_COEFFICIENTS = (
    *("step_s", "weights_s", "active_weights_s", "shared_weights_s", "token_s", "logits_s", "sequence_s"),
    *("context_token_s", "window_token_s", "window_pair_s", "piecewise_s", "attention_pair_s"),
    *("encoder_token_s", "encoder_pair_s"),
)
"""Names of the coefficients that are times of the GPU."""


class Pace(NamedTuple):
    """Factors on the host times and on the GPU times of a machine. Above 1 is slower."""

    host: float = 1.0
    gpu: float = 1.0


TYPICAL = Pace()


def at_pace(pace: Pace, times: Roofline) -> Roofline:
    """Return `times` with host and GPU coefficients multiplied by the factors of `pace`."""
    if pace == TYPICAL:
        return times
    scaled: dict[str, Any] = {name: getattr(times, name) * pace.host for name in HOST_COEFFICIENTS}
    scaled |= {name: getattr(times, name) * pace.gpu for name in GPU_COEFFICIENTS}
    scaled["of_size_s"] = tuple(value * pace.gpu for value in times.of_size_s)
    return replace(times, **scaled)
