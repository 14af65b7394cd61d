"""The time at which each recorded step should have ended, given the time at which the engine scheduled it.

The two clocks are followed step by step. Decisions are taken from the recording, so an error does not travel from one
step to the next; where the GPU was the slower clock, its clock is set by what was recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.calibration.observed import Observed
from kvsim.recording.tables import FloatArray, IntArray
from kvsim.steptime import UNTHROTTLED, Roofline, StepTime, StepTimeModel, at_pace, throttled_gpu_s

SCALE_S, SCALE_SHARE = 0.1e-3, 0.02
"""An error of so many seconds, and of this share of the step, counts as one in a fit."""


class Prediction(NamedTuple):
    """The predicted times at which the outputs of the steps are there, and what each step waited for."""

    end_s: FloatArray
    launch: IntArray
    """The step whose launch the host was busy with until then; -1 where the GPU was the slower clock."""


def machine_of(times: Roofline, observed: Observed) -> Roofline:
    """`times` in the engine of `observed`, which may have captured no graphs, and on its machine."""
    of_engine = times.uncaptured() if observed.eager else times
    return at_pace(observed.pace, of_engine)


def predict(model: StepTimeModel, observed: Observed) -> Prediction:
    """Follow both clocks through `observed`."""
    time = model.step_time(observed.shape)
    num_steps = len(observed)
    costs = list(map(StepTime, *(np.broadcast_to(values, num_steps).tolist() for values in time)))
    # The host attends to copies first, then prepares and launches.
    start, end = (observed.start_s + observed.offload_s).tolist(), observed.end_s.tolist()
    busy_with = observed.launched_before_output.tolist()
    predicted, waited_for = [0.0] * num_steps, [-1] * num_steps
    gpu_free_s, throttle = float("-inf"), UNTHROTTLED
    for step, cost in enumerate(costs):
        begin_s = max(start[step] + cost.prepare_s, gpu_free_s)
        gpu_s, throttle = throttled_gpu_s(cost, begin_s, throttle)
        launched_s = start[step] + cost.launch_s
        done_s = max(begin_s + gpu_s, launched_s)
        other = busy_with[step]
        host_free_s = start[other] + costs[other].launch_s
        if done_s >= host_free_s:
            predicted[step], gpu_free_s = done_s, end[step]
            if done_s == launched_s:
                waited_for[step] = step
        else:
            predicted[step], gpu_free_s = host_free_s, min(done_s, end[step])
            waited_for[step] = other
    return Prediction(np.array(predicted), np.array(waited_for))


def step_errors(model: StepTimeModel, observed: Observed) -> FloatArray:
    """Predicted minus recorded end of each step, seconds."""
    return predict(model, observed).end_s - observed.end_s


def step_durations(observed: Observed) -> FloatArray:
    """What each step took, seconds: from the end of the one before, or from its own decision where the engine was
    idle.
    """
    return np.minimum(np.diff(observed.end_s, prepend=-np.inf), observed.end_s - observed.start_s)


def counted_errors(times: Roofline, observed: Observed) -> FloatArray:
    """The error of each step on the machine of `observed`, 1 where it counts as one."""
    return step_errors(machine_of(times, observed), observed) / error_scale_s(observed)


def error_scale_s(observed: Observed) -> FloatArray:
    """The error of each step that counts as one, seconds."""
    return SCALE_S + SCALE_SHARE * step_durations(observed)
