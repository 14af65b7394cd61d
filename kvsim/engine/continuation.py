"""Continue a run in another engine: in a compiled copy, or in the same engine with more room for rows of the schedule.

A long run begins interpreted, because compiling takes seconds. `moved` continues it in machine code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.engine.arrays import column, dtype_of
from kvsim.engine.state import Engine

_NOT_COPIED_BY_NAME = (
    *("memory", "scheduler", "rules", "step_time_models"),  # the same in both engines
    *("external", "host", "connector", "radix", "encoder"),  # in `_parts_of`
    *("steps", "outputs", "gaps", "memory_rows"),  # rows that the caller has read
)
"""Fields of `Engine` that `moved` does not copy by name. `Tables`, such as `host`, are here and in `_parts_of`."""


def moved(source: Engine, target: Engine) -> Engine:
    """Copy the state of the interpreted `source` into `target`, a compiled engine that has not begun; return the
    result. The caller has read all recorded rows, except rows of the schedule that may still change.
    """
    num_rows = source.state.num_schedule_rows
    target.settings.most_schedule_rows = source.settings.most_schedule_rows
    target = with_room_for_schedule(target, num_rows)
    for name in Engine.names():
        old, new = getattr(source, name), getattr(target, name)
        if name not in _NOT_COPIED_BY_NAME:
            _copy(old, new, num_rows if name == "schedule_rows" else None)
    parts: Any = zip(_parts_of(source), _parts_of(target), strict=True)
    for old, new in parts:
        _copy(old, new)
    return target


def _parts_of(engine: Engine) -> tuple[Any, ...]:
    """Return the state of the optional parts, such as the host tier, without rows that the caller has read."""
    encoder = (getattr(engine.encoder, name) for name in engine.encoder.names() if name != "rows")
    return (*engine.external, *engine.host, *engine.connector, *engine.radix, *encoder)


def _copy(old: Any, new: Any, end: int | None = None) -> None:
    """Copy a record, or the first `end` records or numbers (all if None), to a compiled engine."""
    if isinstance(new, np.void):  # a record
        for field in dtype_of(type(old)).names or ():
            new[field] = getattr(old, field)
        return
    end = len(old) if end is None else end
    if new.dtype.names is None:  # an array of numbers
        new[:end] = old[:end]
        return
    for field in new.dtype.names:  # an array of records
        new[field][:end] = column(old, field, end)


def with_room_for_schedule(engine: Engine, num_rows: int) -> Engine:
    """Return `engine`, with more room for rows of the schedule if needed. `num_rows` is the number of rows that may
    still change.

    If they fill more than half of the capacity, the capacity is doubled. In an interpreted engine, only the limit is
    raised, because its list grows by itself.
    """
    rows, settings = engine.schedule_rows, engine.settings
    if not settings.records_schedule:
        return engine
    if 2 * num_rows > settings.most_schedule_rows:
        settings.most_schedule_rows *= 2
    margin = len(engine.lists)  # for the rows that one more step may add, see `clock.has_room`
    if not isinstance(rows, np.ndarray) or len(rows) >= settings.most_schedule_rows + margin:
        return engine
    longer = np.zeros(settings.most_schedule_rows + margin, rows.dtype)
    longer[:num_rows] = rows[:num_rows]
    made: Any = longer
    return replace(engine, schedule_rows=made)
