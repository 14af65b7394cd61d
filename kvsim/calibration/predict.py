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
    time, num_steps = model.step_time(observed.shape), len(observed)
    prepare_s, launch_s, alone_s, _, slowed_s = (np.broadcast_to(values, num_steps) for values in time)
    # The host attends to copies first, then prepares and launches.
    start_s = observed.start_s + observed.offload_s
    launch_end_s, busy_with = start_s + launch_s, observed.launched_before_output
    throttling = (slowed_s != 0.0) & (alone_s != 0.0)
    times_s = (start_s + prepare_s, launch_end_s, launch_end_s[busy_with], observed.end_s, alone_s, slowed_s)
    steps = zip(*(column.tolist() for column in (*times_s, busy_with, throttling)), strict=True)
    predicted, waited_for = [0.0] * num_steps, [-1] * num_steps
    gpu_free_s, throttle = float("-inf"), UNTHROTTLED
    # A fit comes here thousands of times, for as many steps: to ask which of two is larger costs less than max and min.
    for step, (ready_s, launched_s, host_free_s, end_s, gpu_s, throttle_s, other, throttles) in enumerate(steps):
        begin_s = gpu_free_s if gpu_free_s > ready_s else ready_s
        slow_s = gpu_s
        if throttles:
            slow_s, throttle = throttled_gpu_s(StepTime(0.0, 0.0, gpu_s, 0.0, throttle_s), begin_s, throttle)
        computed_s = begin_s + slow_s
        done_s = launched_s if launched_s > computed_s else computed_s
        if done_s >= host_free_s:
            predicted[step], gpu_free_s = done_s, end_s
            if done_s == launched_s:
                waited_for[step] = step
        else:
            predicted[step], gpu_free_s = host_free_s, end_s if end_s < done_s else done_s
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
