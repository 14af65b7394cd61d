"""Step times as the engine takes them: the coefficients of each stage of a pipeline."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from kvsim.engine.arrays import Records
from kvsim.steptime import COEFFICIENTS, Roofline, Staged, StepTimeModel


def coefficients_of(step_time: StepTimeModel) -> tuple[Roofline, ...]:
    """Return the coefficients of each stage from which all times follow; empty for a model without such."""
    times: Any = getattr(step_time, "times", step_time)  # of a profile, or of one that is watched
    stages = times.stages if isinstance(times, Staged) else (times,)
    return stages if all(type(stage) is Roofline for stage in stages) else ()


def step_times(step_time: StepTimeModel, *, compiled: bool) -> Records[Any]:
    """Return the model of each stage, or, compiled, the numbers among its coefficients under their names."""
    stages = coefficients_of(step_time)
    if not compiled:
        interpreted: Any = list(stages or (step_time,))
        return interpreted  # type: ignore[no-any-return]
    assert stages, "the caller refuses models of its own"
    kinds: list[Any] = [
        (name, np.int64 if name == "max_captured_tokens" else np.float64, np.shape(getattr(stages[0], name)))
        for name in COEFFICIENTS
    ]
    made: Any = np.zeros(len(stages), np.dtype(kinds))
    for index, stage in enumerate(stages):
        for name in COEFFICIENTS:
            made[name][index] = getattr(stage, name)
    return made  # type: ignore[no-any-return]


def no_times() -> Roofline:
    """Return step times near zero, for runs in which only the order counts."""
    zeros: dict[str, Any] = {field.name: 0.0 for field in fields(Roofline) if field.default is MISSING}
    hardly_any = {"weights_s": 1e-9, "active_weights_s": 1e-9, "full_seqs": 1.0}
    return Roofline(**zeros | hardly_any | {"label": "no time", "max_captured_tokens": 0})
