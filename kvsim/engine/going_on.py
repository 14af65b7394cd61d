"""Continuation of a run: in a compiled engine, or with more room for its records."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.engine.arrays import column, dtype_of
from kvsim.engine.state import Engine

_LEFT_OUT = (
    *("memory", "scheduler", "rules", "host", "connector", "radix", "encoder", "step_times"),
    *("steps", "outputs", "memory_rows"),
)
"""Parts of an engine that are the same in another, are copied one by one, or were taken away."""


def moved(source: Engine, target: Engine) -> Engine:
    """Copy the state of the interpreted `source` into `target`, a compiled engine that has not begun; return it.

    What was recorded has been taken away, but for the rows of the schedule that may still change.
    """
    num_rows = source.state.num_schedule_rows
    target.settings.most_schedule_rows = source.settings.most_schedule_rows
    target = with_room_for_schedule(target, num_rows)
    for name in Engine._fields:
        old, new = getattr(source, name), getattr(target, name)
        if name in _LEFT_OUT:
            continue
        end = num_rows if name == "schedule_rows" else len(old) if isinstance(new, np.ndarray) else 1
        _copy(old, new, end)
    parts: Any = zip(_parts_of(source), _parts_of(target), strict=True)
    for old, new in parts:
        _copy(old, new, len(old) if isinstance(new, np.ndarray) else 1)
    return target


def _parts_of(engine: Engine) -> tuple[Any, ...]:
    """Return the records of what not every engine has, without the rows that were taken away."""
    encoder = (part for name, part in engine.encoder._asdict().items() if name != "rows")
    return (*engine.host, *engine.connector, *engine.radix, *encoder)


def _copy(old: Any, new: Any, end: int) -> None:
    """Copy a record, or the first `end` records or numbers, of an interpreted engine into a compiled one."""
    if isinstance(new, np.void):
        for field in dtype_of(type(old)).names or ():
            new[field] = getattr(old, field)
        return
    if new.dtype.names is None:
        new[:end] = old[:end]
        return
    for field in new.dtype.names:
        new[field][:end] = column(old, field, end)


def with_room_for_schedule(engine: Engine, num_rows: int) -> Engine:
    """Return `engine` with more rows for the schedule, if the `num_rows` that may still change fill half of it."""
    rows, settings = engine.schedule_rows, engine.settings
    if not settings.records_schedule:
        return engine
    if 2 * num_rows > settings.most_schedule_rows:
        settings.most_schedule_rows *= 2
    margin = len(engine.lists)
    if not isinstance(rows, np.ndarray) or len(rows) >= settings.most_schedule_rows + margin:
        return engine
    longer = np.zeros(settings.most_schedule_rows + margin, rows.dtype)
    longer[:num_rows] = rows[:num_rows]
    made: Any = longer
    return engine._replace(schedule_rows=made)
