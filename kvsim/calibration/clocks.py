"""Errors of step times, separately for steps that waited for the GPU and for the host.

Each step is predicted from its recorded start, with the recorded scheduling decisions, so that errors of different
steps do not add up. The errors show whether the GPU or the host was slower than predicted, and when a shared host
changed its speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kvsim.calibration.observed import Observed
from kvsim.calibration.predict import predict, step_durations
from kvsim.recording.tables import FloatArray
from kvsim.steptime import Roofline

_PARTS = 8
"""Number of equally long parts of a run, for each of which the host's speed is computed."""
_ENOUGH_STEPS = 5
"""Smallest number of steps of a part from which the host's speed in this part is computed."""
_CHANGING = 1.25
"""Ratio of the host's largest to its smallest pace in the parts of a run, above which its speed counts as changing. A
pace is the recorded time divided by the predicted time.
"""


class ClockError(NamedTuple):
    """Error of step times for the steps that waited for the GPU, or for those that waited for the host."""

    clock: str
    """Name of what the steps waited for: "GPU" or "host"."""
    time_share: float
    """Share of the recorded time that these steps took, 0 to 1."""
    error_percent: float
    """Predicted minus recorded time of the steps, in percent of the recorded time."""
    host_paces: tuple[float, ...] = ()
    """Recorded time divided by predicted time of these steps, one number for each of the eight parts of the run that
    has enough steps; empty for the GPU.
    """


def clock_errors(times: Roofline, observed: Observed) -> tuple[ClockError, ...]:
    """Return the errors of `times` for the steps that waited for the GPU, and for those that waited for the host.

    If no step waited for one of these two clocks, it is left out. On several GPUs, a step whose launch by a worker
    process takes longer than its kernels counts as waiting for the host.
    """
    predicted, lasted_s = predict(times, observed), step_durations(observed)
    error_s = predicted.end_s - observed.end_s
    by_host = (predicted.awaited_launch >= 0) | _waits_for_worker(times, observed)
    return tuple(
        ClockError(
            clock,
            float(lasted_s[steps].sum() / lasted_s.sum()),
            float(100 * error_s[steps].sum() / lasted_s[steps].sum()),
            tuple(_paces(observed.end_s, steps, lasted_s, error_s)) if clock == "host" else (),
        )
        for clock, steps in (("GPU", ~by_host), ("host", by_host))
        if steps.any()
    )


def _waits_for_worker(times: Roofline, observed: Observed) -> Any:
    """Return bool[steps]: True where a worker process takes longer to launch a step than the kernels take.

    The launch then determines the step's GPU time.
    """
    launched_at_once = replace(times, piecewise_floor_s=0.0, eager_floor_s=0.0)
    return launched_at_once.step_time(observed.shape).gpu_s < times.step_time(observed.shape).gpu_s


def _paces(end_s: FloatArray, steps: Any, lasted_s: FloatArray, error_s: FloatArray) -> Iterator[float]:
    part = np.minimum((_PARTS * end_s / end_s[-1]).astype(np.intp), _PARTS - 1)
    for number in range(_PARTS):
        there = steps & (part == number)
        if there.sum() >= _ENOUGH_STEPS:
            yield float(lasted_s[there].sum() / (lasted_s + error_s)[there].sum())


def in_words(errors: Sequence[ClockError]) -> str:
    """Describe the errors in one sentence for the user."""
    parts = [
        f"{item.error_percent:+.1f} % where the {item.clock} was waited for ({item.time_share:.0%} of the time)"
        for item in errors
    ]
    paces = [pace for item in errors for pace in item.host_paces]
    text = f"step by step, by the recorded decisions: {', '.join(parts)}"
    if paces and max(paces) > _CHANGING * min(paces):
        text += (
            f". Its host changed its pace: from {min(paces):.2f} to {max(paces):.2f} times as long as these times say, "
            f"{paces[0]:.2f} at first"
        )
    return text
