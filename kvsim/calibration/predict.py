"""When each recorded step should have ended, given when the engine scheduled it.

The two clocks are followed step by step. Decisions are taken from the recording, so an error does not travel from one
step to the next; where the GPU was the slower clock, its clock is set by what was recorded.
"""

from __future__ import annotations

import numpy as np

from kvsim.calibration.observed import Observed
from kvsim.recording.tables import FloatArray
from kvsim.steptime import StepTimeModel


def predict_ends(model: StepTimeModel, observed: Observed) -> FloatArray:
    """Seconds at which the output of each step of `observed` would be there."""
    time = model.step_time(observed.shape)
    num_steps = len(observed)
    prepare, launch, gpu = (
        np.broadcast_to(values, num_steps).tolist() for values in (time.prepare_s, time.launch_s, time.gpu_s)
    )
    start, end = observed.start_s.tolist(), observed.end_s.tolist()
    busy_with = observed.launched_before_output.tolist()
    predicted = [0.0] * num_steps
    gpu_free_s = float("-inf")
    for step in range(num_steps):
        done_s = max(max(start[step] + prepare[step], gpu_free_s) + gpu[step], start[step] + launch[step])
        host_free_s = start[busy_with[step]] + launch[busy_with[step]]
        if done_s >= host_free_s:
            predicted[step], gpu_free_s = done_s, end[step]
        else:
            predicted[step], gpu_free_s = host_free_s, min(done_s, end[step])
    return np.array(predicted)


def step_errors(model: StepTimeModel, observed: Observed) -> FloatArray:
    """Predicted minus recorded end of each step, seconds."""
    return predict_ends(model, observed) - observed.end_s


def step_durations(observed: Observed) -> FloatArray:
    """What each step took, seconds: from the end of the one before, or from its own decision where the engine was
    idle.
    """
    return np.minimum(np.diff(observed.end_s, prepend=-np.inf), observed.end_s - observed.start_s)
