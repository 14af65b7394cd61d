"""Changes of good recordings that a hasty edit, a faulty writer or a liar would make.

Each keeps to the format, and most keep the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.metrics import summarize
from kvsim.recording import Recording
from kvsim.recording.tables import ColumnTable

Change = Callable[[np.random.Generator, Recording], Recording | None]
_TABLES = ("requests", "steps", "schedule", "memory", "copies")


def with_columns(recording: Recording, table: str, **columns: Any) -> Recording:
    """`recording` with other columns; a word of a file is one of those that there are."""
    for name, spec in getattr(recording, table).columns():
        if name in columns and spec.names is not None:
            columns[name] %= len(spec.names)
    return replace(recording, **{table: replace(getattr(recording, table), **columns)})


def numbers_of(table: ColumnTable | None) -> list[str]:
    """The columns of numbers that `table` has, if it is there."""
    return [] if table is None else [name for name, spec in table.columns()
            if spec.dtype not in ("str", "list<int64>") and getattr(table, name) is not None]  # fmt: skip


def single_numbers(rng: np.random.Generator, recording: Recording, *, most: int) -> Iterator[tuple[str, Recording]]:
    """Yield recordings in which one number alone is one more or less: of up to `most` rows of every column."""
    places = [(table, name) for table in _TABLES for name in numbers_of(getattr(recording, table))]
    for table, name in places:
        column = getattr(getattr(recording, table), name)
        for row in rng.permutation(len(column))[:most].tolist():
            for amount in (1, -1) if column.dtype.kind != "f" else (1e-4, -1e-4):
                values = column.copy()
                values[row] = max(int(column[row]) + amount, 0) if column.dtype.kind == "u" else column[row] + amount
                yield f"{table}.{name}[{row}] {amount:+}", with_columns(recording, table, **{name: values})


def one_value(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """Any number of any table becomes another that its column might have."""
    table, name, column, row = _any_number(rng, recording)
    if row is None:
        return None
    others = column[column != column[row]]
    new = [column[row] + 1, column[row] - 1, column[row] * 2, 0, *rng.choice(others, min(len(others), 3))]
    column[row] = new[rng.integers(len(new))]
    return with_columns(recording, table, **{name: column})


def two_values(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """One number rises by what another of its column falls."""
    table, name, column, row = _any_number(rng, recording)
    if row is None:
        return None
    other = int(rng.integers(len(column)))
    amount = rng.choice([1, 2, column[row] - column[other]])
    column[row] -= amount
    column[other] += amount
    return with_columns(recording, table, **{name: column})


def a_stretch(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """A column is shifted, scaled, put into another order, or made all alike in some rows."""
    table, name, column, row = _any_number(rng, recording)
    if row is None:
        return None
    rows = slice(row, row + int(rng.integers(1, 12)))
    kind = rng.integers(4)
    if kind == 0:
        column[rows] = column[rows] + rng.choice([1, -1, 10])
    elif kind == 1:
        column[rows] = column[rows] * 2
    elif kind == 2:
        column[rows] = column[rows][::-1].copy()
    else:
        column[rows] = column[row]
    return with_columns(recording, table, **{name: column})


def between_columns(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """What one column of a row loses another of the row gains, as prompts and answers of a step may."""
    pairs = (
        ("steps", "prefill_tokens", "decode_tokens"), ("steps", "running", "waiting"),
        ("steps", "waiting", "preempted"),
        ("steps", "free_units", "unusable_units"), ("steps", "swapped_in_units", "swapped_out_units"),
        ("requests", "prompt_tokens", "output_tokens"), ("requests", "prompt_tokens", "cached_tokens"),
        ("schedule", "computed_before", "tokens"), ("requests", "preemptions", "cached_tokens"),
    )  # fmt: skip
    table, one, other = pairs[rng.integers(len(pairs))]
    rows = getattr(recording, table)
    if not len(rows) or getattr(rows, one) is None or getattr(rows, other) is None:
        return None
    first, second = getattr(rows, one).copy(), getattr(rows, other).copy()
    row = rng.integers(len(rows))
    amount = rng.choice([1, -1, first[row], -second[row]])
    first[row] -= amount
    second[row] += amount
    return with_columns(recording, table, **{one: first, other: second})


def preemptions_in_both_tables(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """A request gave way once more, or less, and so says the step."""
    requests, steps = recording.requests.preemptions.copy(), recording.steps.preempted.copy()
    amount = int(rng.choice([1, -1, 5]))
    requests[rng.integers(len(requests))] += amount
    steps[rng.integers(len(steps))] += amount
    changed = with_columns(recording, "requests", preemptions=requests)
    return with_columns(changed, "steps", preempted=steps)


def times_of_a_request(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """All times of some requests move together."""
    names = ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s")
    begin = int(rng.integers(len(names)))
    moved = {name: getattr(recording.requests, name).copy() for name in names[begin : begin + int(rng.integers(1, 5))]}
    row = int(rng.integers(len(recording.requests)))
    amount = rng.choice([1e-3, -1e-3, 1.0, 2e-5])
    for column in moved.values():
        column[row : row + int(rng.integers(1, 9))] += amount
    return with_columns(recording, "requests", **moved)


def an_answer(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """An answer is a token longer or shorter, and another makes up for it."""
    requests = recording.requests
    output, limit = requests.output_tokens.copy(), requests.max_tokens.copy()
    one, other = rng.integers(len(requests), size=2)
    output[one] += 1
    output[other] -= 1
    limit[one] += 1
    return with_columns(recording, "requests", output_tokens=output, max_tokens=limit)


def how_it_ended(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """A request ended in another way."""
    status = recording.requests.status.copy()
    row = rng.integers(len(status))
    status[row] = rng.choice([other for other in range(4) if other != status[row]])
    times = {name: getattr(recording.requests, name).copy() for name in ("finished_s", "first_token_s")}
    if status[row] in (0, 3):
        times["finished_s"][row] = np.nan
    return with_columns(recording, "requests", status=status, **times)


def a_row_of_the_schedule(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """A hit is larger or smaller: the first row of a request computes as much less or more, and so says its step."""
    schedule, steps, requests = recording.schedule, recording.steps, recording.requests
    _, first = np.unique(schedule.request, return_index=True)
    row = int(rng.choice(first))
    amount = int(rng.integers(-20, 21))
    before, tokens = schedule.computed_before.copy(), schedule.tokens.copy()
    before[row] += amount
    tokens[row] -= amount
    prefill, cached = steps.prefill_tokens.copy(), requests.cached_tokens.copy()
    prefill[schedule.step[row]] -= amount
    cached[schedule.request[row]] += amount
    changed = with_columns(recording, "schedule", computed_before=before, tokens=tokens)
    changed = with_columns(changed, "steps", prefill_tokens=prefill)
    return with_columns(changed, "requests", cached_tokens=cached)


def free_units_of_all_steps(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """As many units more or less are free in every step, and the pool is so much larger."""
    pool = recording.meta.pool
    if pool.num_units is None:
        return None
    amount = int(rng.choice([1, 10, pool.num_units, -1]))
    free = recording.steps.free_units + (amount if rng.random() < 0.5 else 0)
    if rng.random() < 0.7:
        recording = replace(
            recording, meta=replace(recording.meta, pool=replace(pool, num_units=pool.num_units + amount))
        )
    return with_columns(recording, "steps", free_units=free.astype(np.int32))


def the_shape(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """The model has another shape, or a token other bytes, in one place or in all that say so."""
    meta, factor = recording.meta, int(rng.choice([2, 3]))
    model, pool = dict(meta.model), meta.pool
    kind = rng.integers(3)
    if kind == 0:
        name = str(rng.choice(["num_layers", "num_kv_heads", "head_dim"]))
        model[name] = model[name] * factor
    else:
        model["kv_bytes_per_token"] *= factor
        pool = replace(pool, bytes_per_unit=pool.bytes_per_unit * (factor if kind == 1 else 1))
    return replace(recording, meta=replace(meta, model=model, pool=pool))


def hashes_of_a_prompt(rng: np.random.Generator, recording: Recording) -> Recording | None:
    """A prompt begins like no other; no figure says so, but what it shares does."""
    hashes = recording.requests.prompt_hashes
    if not len(hashes.values):
        return None
    values = hashes.values.copy()
    values[rng.integers(len(values)) :] += 1
    return with_columns(recording, "requests", prompt_hashes=type(hashes)(values, hashes.offsets, np.int64))


CHANGES: Mapping[str, Change] = {
    function.__name__: function
    for function in (
        one_value, two_values, a_stretch, between_columns, preemptions_in_both_tables, times_of_a_request, an_answer,
        how_it_ended, a_row_of_the_schedule, free_units_of_all_steps, the_shape, hashes_of_a_prompt,
    )
}  # fmt: skip


def figures(recording: Recording) -> dict[str, Any]:
    """All figures that `kvsim info` prints."""
    pool, model = recording.meta.pool, recording.meta.model
    kv_bytes = None if pool.num_units is None else pool.num_units * pool.bytes_per_unit
    shape = {"kv_bytes": kv_bytes, "kv_bytes_per_token": model.get("kv_bytes_per_token")}
    return summarize(recording).as_row() | shape


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in one if not _is_same(one[name], other[name])]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-9, atol=1e-12))
    return bool(one == other)


def _any_number(rng: np.random.Generator, recording: Recording) -> tuple[str, str, Any, int | None]:
    tables = [name for name in _TABLES if getattr(recording, name) is not None]
    table = str(rng.choice(tables))
    rows = getattr(recording, table)
    name = str(rng.choice(numbers_of(rows)))
    column = getattr(rows, name).copy()
    return table, name, column, int(rng.integers(len(rows))) if len(rows) else None
