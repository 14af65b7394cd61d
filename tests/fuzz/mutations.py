"""What can happen to a file: to its bytes, to its lines, to a value of its JSON or TOML, to a column of its Parquet."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.seeds import NASTY, NASTY_NUMBERS, NASTY_TEXTS

if TYPE_CHECKING:
    from pathlib import Path

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def mutate_bytes(file: Path, rng: random.Random) -> None:
    """Cut, flip, insert or repeat some bytes, or pack the whole file with gzip."""
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data) + 1)
    match rng.randrange(6):
        case 0:
            del data[at:]
        case 1 | 2:
            for _ in range(rng.choice((1, 1, 8))):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
        case 3:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        case 4:
            data[at:at] = data[at : at + rng.choice((4, 100, 1000))]
        case _:
            data = bytearray(gzip.compress(bytes(data)))
    file.write_bytes(data)


def mutate_text(file: Path, rng: random.Random) -> None:
    """Drop, repeat, swap or change a line, a field or a number."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        case 2:
            lines[at] = rng.choice(NASTY_TEXTS)
        case 3:
            separator = rng.choice((",", ":", " = ", " "))
            parts = lines[at].split(separator)
            parts[rng.randrange(len(parts))] = str(rng.choice(NASTY))
            lines[at] = separator.join(parts)
        case _:
            numbers = list(_NUMBER.finditer(lines[at]))
            if numbers:
                found = rng.choice(numbers)
                lines[at] = lines[at][: found.start()] + _written(rng.choice(NASTY)) + lines[at][found.end() :]
    file.write_text("\n".join(lines), encoding="utf-8", errors="replace")


def _written(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    with suppress(ValueError, TypeError):
        return json.dumps(value)
    return str(value)


def mutate_json(document: Any, rng: random.Random) -> Any:
    """A document with one value changed, removed, doubled or nested, wherever it stands."""
    places = [place for place in _places(document) if place]
    if not places:
        return rng.choice(NASTY)
    path = rng.choice(places)
    part = document
    for key in path[:-1]:
        part = part[key]
    key = path[-1]
    match rng.randrange(8):
        case 0:
            del part[key]
        case 1 if isinstance(part, list):
            part.insert(rng.randrange(len(part) + 1), part[key])
        case 2:
            part[key] = [part[key]]
        case 3:
            other = document
            for step in rng.choice(places):
                other = other[step]
            part[key] = json.loads(json.dumps(other))
        case 4 if isinstance(part[key], int | float):
            part[key] = rng.choice((part[key] + 1, part[key] - 1, -part[key], part[key] * 2, part[key] + 0.5))
        case 5 if isinstance(part[key], int | float):
            part[key] = rng.choice(NASTY_NUMBERS)
        case _:
            part[key] = rng.choice(NASTY)
    return document


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(document, dict):
        for key, value in document.items():
            found += _places(value, (*path, key))
    elif isinstance(document, list):
        for index in range(min(len(document), 20)):
            found += _places(document[index], (*path, index))
    return found


def mutate_json_file(file: Path, rng: random.Random) -> None:
    """Change one value of a file that is one JSON document, or one in every line."""
    text = file.read_text(encoding="utf-8", errors="replace")
    with suppress(ValueError):
        file.write_text(json.dumps(mutate_json(json.loads(text), rng)), encoding="utf-8")
        return
    lines = text.splitlines() or [""]
    at = rng.randrange(len(lines))
    try:
        lines[at] = json.dumps(mutate_json(json.loads(lines[at]), rng))
    except ValueError:
        lines[at] = rng.choice(NASTY_TEXTS)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")


def mutate_parquet(file: Path, rng: random.Random) -> None:
    """Change values of a column, its type or its name, the order or the number of rows, or the metadata."""
    with suppress(pa.ArrowException, OSError, ValueError, TypeError, OverflowError, IndexError):
        table = _mutated(pq.read_table(file), rng)
        codec = rng.choice(("zstd", "snappy", "none"))
        pq.write_table(table, file, compression=codec, row_group_size=rng.choice((3, 1000)))


def _mutated(table: pa.Table, rng: random.Random) -> pa.Table:
    name = rng.choice(table.column_names)
    nth = table.column_names.index(name)
    num_rows = len(table)
    match rng.randrange(12):
        case 0:
            return table.drop_columns([name])
        case 1:
            return table.rename_columns([rng.choice(("x", *table.column_names)) if n == name else n
                                         for n in table.column_names])  # fmt: skip
        case 2:
            rows = sorted(rng.randrange(num_rows) for _ in range(rng.choice((0, 1, num_rows, num_rows * 2))))
            return table.take(pa.array(rows, pa.int64()))
        case 3:
            rows = list(range(num_rows))
            one, other = rng.randrange(num_rows), rng.randrange(num_rows)
            rows[one], rows[other] = rows[other], rows[one]
            return table.take(pa.array(rows, pa.int64()))
        case 4:
            kind = rng.choice((pa.string(), pa.int64(), pa.float64(), pa.float32(), pa.bool_(), pa.null(), pa.int8()))
            return table.set_column(nth, name, table[name].cast(kind, safe=False))
        case 5:
            metadata = dict(table.schema.metadata or {})
            for key, value in tuple(metadata.items()):
                with suppress(ValueError):
                    metadata[key] = json.dumps(mutate_json(json.loads(value), rng)).encode()
            return table.replace_schema_metadata(metadata)
        case 6:
            values: list[Any] = [rng.choice(NASTY)] * num_rows
        case 7:
            values = table[name].to_pylist()
            other = rng.choice(table.column_names)
            values = table[other].to_pylist()
        case _:
            values = table[name].to_pylist()
            for _ in range(rng.choice((1, 1, 1, 5))):
                row = rng.randrange(num_rows)
                values[row] = _changed(values[row], rng)
    try:
        array = pa.array(values, table.schema.field(name).type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        array = pa.array(values)
    return table.set_column(nth, name, array)


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, str) and rng.random() < 0.5:
            return rng.choice(("append", "share", "release", "evict", "finished", "aborted", "refused", "unfinished"))
        return rng.choice(NASTY)
    near = (value + 1, value - 1, -value, value * 2, value * 1000, 0)
    return rng.choice(near) if rng.random() < 0.6 else rng.choice(NASTY)
