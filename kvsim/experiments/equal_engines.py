"""Recognize, before they run, simulations that make the same decisions: their engines are equal at the beginning.

An engine knows no release of vLLM, only settings and records that follow from it. So a changed rule that changes
none has no effect on a run.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.arrays import Growing, Lazy, column, dtype_of
from kvsim.profiles.extrapolation import WatchedProfile

if TYPE_CHECKING:
    from kvsim.engine.state import Engine
    from kvsim.steptime import StepTimeModel

_FUNCTIONS = ("memory", "scheduler", "rules")
"""Fields of `Engine` that hold functions."""
_EMPTY = ("steps", "outputs", "gaps", "memory_rows", "schedule_rows")
"""Fields of `Engine` for recorded rows, of which there are none at the beginning."""


def beginning_of(engine: Engine, step_time: StepTimeModel) -> tuple[Any, ...]:
    """Return a value that is equal for two engines that make the same decisions at the same times.

    `engine` has not begun, and its steps have the times `step_time`. All requests come from the same workload. Two such
    engines may have different values if one is compiled and the other is not.
    """
    times = step_time.times if isinstance(step_time, WatchedProfile) else step_time
    content = [
        _content(part)
        for name, part in zip(engine.names(), engine, strict=True)
        if name not in (*_FUNCTIONS, *_EMPTY, "step_time_models")
    ]
    digest = hashlib.blake2b(repr(content).encode()).digest()
    return (*(getattr(engine, name) for name in _FUNCTIONS), _content(times), digest)


def _content(part: Any) -> Any:
    """Return the numbers in records, arrays and tuples of an engine as tuples and bytes."""
    if isinstance(part, np.ndarray | np.generic):
        return part.tobytes()
    if isinstance(part, Lazy):
        names = dtype_of(type(part[0])).names if len(part) else ()
        return tuple(column(part, name).tobytes() for name in names or ())
    if isinstance(part, tuple | list | Growing):
        return tuple(map(_content, part))
    if is_dataclass(part) and not isinstance(part, type):
        return tuple(_content(getattr(part, each.name)) for each in fields(part))
    return part
