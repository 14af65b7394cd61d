"""Conversion of step-time models for the engine: compiled code reads the coefficients of each pipeline stage."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from kvsim.engine.arrays import Records
from kvsim.steptime import COEFFICIENTS, Roofline, Staged, StepTimeModel


def coefficients_of(step_time: StepTimeModel) -> tuple[Roofline, ...]:
    """Return the roofline model of each pipeline stage; an empty tuple if a stage has another kind of model."""
    times: Any = getattr(step_time, "times", step_time)  # a profile has its model in `times`
    stages = times.stages if isinstance(times, Staged) else (times,)
    return stages if all(type(stage) is Roofline for stage in stages) else ()


def step_times(step_time: StepTimeModel, *, compiled: bool) -> Records[Any]:
    """Return the model of each pipeline stage; with `compiled`, a record of its numeric coefficients."""
    stages = coefficients_of(step_time)
    if not compiled:
        interpreted: Any = list(stages or (step_time,))
        return interpreted  # type: ignore[no-any-return]
    assert stages, "the caller refuses custom models"
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
    """Return a model in which steps take almost no time, for runs in which only the order of events matters."""
    zeros: dict[str, Any] = {field.name: 0.0 for field in fields(Roofline) if field.default is MISSING}
    nearly_zero = {"weights_s": 1e-9, "active_weights_s": 1e-9, "full_seqs": 1.0}
    return Roofline(**zeros | nearly_zero | {"label": "no time", "max_captured_tokens": 0})
