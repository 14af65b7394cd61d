"""Carry a profile to another host with the same GPU.

What the host does, every launch above all, sets the pace of small models and of Hugging Face; and machines with the
same card differ by a third in how fast they do it. One short recording is enough to tell how fast a host is: a single
factor on everything that the profile has the host do. What the GPU does stays as it was fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.calibration.fit import engine_of, residual_of
from kvsim.calibration.observed import Observed, observe
from kvsim.calibration.predict import error_scale_s, machine_of, step_errors
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.models import Model
from kvsim.profiles import Profile, listed_name
from kvsim.recording import Recording
from kvsim.steptime import Roofline

HOST_COEFFICIENTS = (
    *("request_s", "request_token_s", "host_step_s", "host_sequence_s", "host_token_s"),
    *("turnaround_step_s", "turnaround_sequence_s"),
    *("piecewise_launch_s", "eager_launch_s", "uncompiled_launch_s", "masked_launch_s"),
    *("new_shape_s", "new_kernel_s"),
)
_REACH = 4.0
"""The largest factor between two hosts."""


def calibrate_host(profile: Profile, recordings: Sequence[Recording]) -> Profile:
    """`profile` on the host of `recordings`, which are of its GPU, model and engine.

    Raises:
        UsageError: there is no recording, or one is of something else than the profile.
    """
    if not recordings:
        raise UsageError("there is nothing to calibrate the host on; give at least one recording.")
    for item in recordings:
        shape = Model.from_shape(item.meta.model)
        of = (find_gpu(item.meta.gpu).name, listed_name(shape), engine_of(item))
        if item.meta.source == "simulation" or of != (profile.gpu, profile.model, profile.engine):
            raise UsageError(
                f"{item.name} is of {of[2]} with {of[1]} on {of[0]}, and the profile of {profile.engine} with "
                f"{profile.model} on {profile.gpu}; only the host may differ."
            )
    observed = [observe(item) for item in recordings]
    times = _scaled(profile.times, _factor(profile.times, observed))
    return replace(profile, times=times, residuals=tuple(residual_of(item, times) for item in observed))


def _factor(times: Roofline, observed: Sequence[Observed]) -> float:
    from scipy.optimize import minimize_scalar  # noqa: PLC0415  only a fit needs it

    scales = [error_scale_s(item) for item in observed]

    def cost(logarithm: float) -> float:
        scaled = _scaled(times, float(np.exp(logarithm)))
        errors = zip(observed, scales, strict=True)
        return sum(float(np.abs(step_errors(machine_of(scaled, item), item) / scale).sum()) for item, scale in errors)

    reach = float(np.log(_REACH))
    return float(np.exp(minimize_scalar(cost, bounds=(-reach, reach), method="bounded").x))


def _scaled(times: Roofline, factor: float) -> Roofline:
    scaled: dict[str, Any] = {name: getattr(times, name) * factor for name in HOST_COEFFICIENTS}
    return replace(times, **scaled)
