"""Which of the two clocks step times miss: a recording's steps, one by one, by its own decisions.

A whole simulation adds up what each step misses, and queues amplify it. Followed step by step, a recording tells
whether its GPU or its host was slower than the step times say, and a host that others use tells when.
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
"""Parts of a run, equally long, in which a host may be in another mood."""
_ENOUGH_STEPS = 5
_MOODY = 1.25
"""A host whose slowest part takes so many times as long as its quickest changed its pace."""


class ClockError(NamedTuple):
    """How far off the steps are that waited for one clock."""

    clock: str
    """GPU or host."""
    time_share: float
    """Their share of the recorded time."""
    error_percent: float
    """Predicted minus recorded time, as a percentage of the recorded."""
    host_paces: tuple[float, ...] = ()
    """Multiples of the predicted time that they took, in each part of the run with enough of such steps."""


def clock_errors(times: Roofline, observed: Observed) -> tuple[ClockError, ...]:
    """The errors of `times` by the clock that each step waited for; a clock that none waited for is left out.

    A step on several GPUs that is no longer than a worker process takes to launch it waited for a host, too.
    """
    followed, lasted_s = predict(times, observed), step_durations(observed)
    error_s = followed.end_s - observed.end_s
    by_host = (followed.launch >= 0) | _launched_by_a_worker(times, observed)
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


def _launched_by_a_worker(times: Roofline, observed: Observed) -> Any:
    launched_at_once = replace(times, piecewise_floor_s=0.0, eager_floor_s=0.0)
    return launched_at_once.step_time(observed.shape).gpu_s < times.step_time(observed.shape).gpu_s


def _paces(end_s: FloatArray, steps: Any, lasted_s: FloatArray, error_s: FloatArray) -> Iterator[float]:
    part = np.minimum((_PARTS * end_s / end_s[-1]).astype(np.intp), _PARTS - 1)
    for number in range(_PARTS):
        there = steps & (part == number)
        if there.sum() >= _ENOUGH_STEPS:
            yield float(lasted_s[there].sum() / (lasted_s + error_s)[there].sum())


def in_words(errors: Sequence[ClockError]) -> str:
    """The errors as sentences."""
    parts = [
        f"{item.error_percent:+.1f} % where the {item.clock} was waited for ({item.time_share:.0%} of the time)"
        for item in errors
    ]
    paces = [pace for item in errors for pace in item.host_paces]
    words = f"step by step, by the recorded decisions: {', '.join(parts)}"
    if paces and max(paces) > _MOODY * min(paces):
        words += (
            f". Its host changed its pace: from {min(paces):.2f} to {max(paces):.2f} times as long as these times say, "
            f"{paces[0]:.2f} at first"
        )
    return words
