"""Prediction of the end of each recorded step from the recorded time at which the step was scheduled.

The difference from the recorded end is the error of the step times. Each start is the recorded one, so an error does
not carry over to the next step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.calibration.observed import Observed
from kvsim.recording.tables import FloatArray, IntArray
from kvsim.steptime import UNTHROTTLED, Roofline, StepTime, StepTimeModel, at_pace, throttled_gpu_s

_SCALE_S = 0.1e-3
"""Constant part of `error_scale_s`, in seconds."""
_SCALE_SHARE = 0.02
"""Part of `error_scale_s` that grows with the step, as a share of the step's duration."""


class Prediction(NamedTuple):
    """Predicted end of each step, and whether the step waited for the host or for the GPU."""

    end_s: FloatArray
    awaited_launch: IntArray
    """Index of the step whose launch kept the host busy until the predicted end; -1 if the step waited for the GPU."""


def machine_of(times: Roofline, observed: Observed) -> Roofline:
    """Return `times` at the pace of the machine of `observed`; without captured graphs if the engine captured none."""
    of_engine = times.uncaptured() if observed.eager else times
    return at_pace(observed.pace, of_engine)


def predict(model: StepTimeModel, observed: Observed) -> Prediction:
    """Predict the end of each step of `observed` from its recorded start and from the host and GPU times of `model`."""
    time, num_steps = model.step_time(observed.shape), len(observed)
    prepare_s, launch_s, alone_s, _, slowed_s = (np.broadcast_to(values, num_steps) for values in time)
    # The host submits copies first, then prepares and launches.
    start_s = observed.start_s + observed.offload_s
    launch_end_s, busy_with = start_s + launch_s, observed.last_launched_before_output
    throttling = (slowed_s != 0.0) & (alone_s != 0.0)
    times_s = (start_s + prepare_s, launch_end_s, launch_end_s[busy_with], observed.end_s, alone_s, slowed_s)
    steps = zip(*(column.tolist() for column in (*times_s, busy_with, throttling)), strict=True)
    predicted, waited_for = [0.0] * num_steps, [-1] * num_steps
    gpu_free_s, throttle = float("-inf"), UNTHROTTLED
    # Fits run this loop thousands of times over thousands of steps: a comparison is cheaper than max and min.
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
    """Return the predicted minus the recorded end of each step, in seconds."""
    return predict(model, observed).end_s - observed.end_s


def step_durations(observed: Observed) -> FloatArray:
    """Return the seconds that each step took: from its start, or from the end of the previous step if that is later, to
    its end.
    """
    return np.minimum(np.diff(observed.end_s, prepend=-np.inf), observed.end_s - observed.start_s)


def scaled_errors(times: Roofline, observed: Observed) -> FloatArray:
    """Return the error of each step on the machine of `observed`, divided by its `error_scale_s`."""
    return step_errors(machine_of(times, observed), observed) / error_scale_s(observed)


def error_scale_s(observed: Observed) -> FloatArray:
    """Return the number of seconds by which the error of each step is divided in a fit."""
    return _SCALE_S + _SCALE_SHARE * step_durations(observed)
