"""Workloads as Parquet files, the output of `kvsim import`. Reading one restores the workload without loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.files.arrow_table import read_parquet
from kvsim.files.atomic import whole_file
from kvsim.files.json_text import parse
from kvsim.files.values import is_integer
from kvsim.workload import Images, Numbered, Ragged, Turns, Workload

if TYPE_CHECKING:
    import os

    import pyarrow as pa

FORMAT, VERSION = "kvsim-workload", 1
_TURNS = (("after", "int32"), ("pause_s", "float64"), ("history_tokens", "int32"))
_IMAGES = ("content", "place", "tokens", "width", "height")
"""Columns of images, with a list per request. Their names in the file begin with `image_`."""
_SCALARS = ("prompt_tokens", "output_tokens", "max_tokens", "priority", "prefix_group", "prefix_tokens")


def write_workload(workload: Workload, path: str | os.PathLike[str]) -> Path:
    """Write `workload` to the file `path`, which appears when it is complete.

    Raises:
        UsageError: the file cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415  slower to import than the rest of kvsim together
    import pyarrow.parquet as pq  # noqa: PLC0415

    from kvsim.files.arrow_columns import from_numpy, from_texts  # noqa: PLC0415

    columns: dict[str, pa.Array] = {"arrival_s": from_numpy(workload.arrival_s, pa.float64())}
    columns |= {name: from_numpy(getattr(workload, name), pa.int32()) for name in _SCALARS}
    if workload.adapter.any():
        columns["adapter"] = from_numpy(workload.adapter, pa.int32())
    columns["prompt_hashes"] = _lists(workload.prompt_hashes, pa.int64())
    if workload.prompt_token_ids is not None:
        columns["prompt_token_ids"] = _lists(workload.prompt_token_ids, pa.int32())
    if workload.images is not None:
        each = {name: Ragged(getattr(workload.images, name), workload.images.offsets, np.int64) for name in _IMAGES}
        columns |= {f"image_{name}": _lists(values, pa.int64()) for name, values in each.items()}
    if workload.turns is not None:
        if len(workload.turns.also_after.values):
            columns["also_after"] = _lists(workload.turns.also_after, pa.int64())
        columns |= {name: from_numpy(getattr(workload.turns, name), pa.type_for_alias(kind)) for name, kind in _TURNS}
    if not (isinstance(workload.ids, Numbered) and repr(workload.ids) == repr(Numbered("r", range(len(workload))))):
        columns["id"] = from_texts(list(workload.ids))
    about = {
        "format": FORMAT,
        "version": VERSION,
        "name": workload.name,
        "description": workload.description,
        "hash_unit_tokens": workload.hash_unit_tokens,
        "hash_ahead_tokens": workload.hash_ahead_tokens,
        "prefix_names": list(workload.prefix_names),
    }
    table = pa.table(columns).replace_schema_metadata({FORMAT: json.dumps(about)})
    with whole_file(path, made_by="import") as file:
        pq.write_table(table, file, compression="zstd")
    return Path(path)


def read(path: str | os.PathLike[str]) -> Workload:
    """Read the workload in the file `path`.

    Raises:
        WorkloadError: it is no such file, or it is damaged.
    """
    import pyarrow as pa  # noqa: PLC0415

    from kvsim.files.arrow_columns import to_numpy  # noqa: PLC0415

    file = Path(path)
    if not file.is_file():
        raise WorkloadError(f"{path} is no file; give a Parquet file of kvsim import.")
    wanted = {"arrival_s": pa.float64(), **dict.fromkeys(_SCALARS, pa.int32()), "prompt_hashes": pa.list_(pa.int64())}
    optional = {"prompt_token_ids": pa.list_(pa.int32()), "id": pa.string(), "adapter": pa.int32()}
    optional |= {name: pa.type_for_alias(kind) for name, kind in _TURNS} | {"also_after": pa.list_(pa.int64())}
    optional |= {f"image_{name}": pa.list_(pa.int64()) for name in _IMAGES}
    try:
        table = read_parquet(file, wanted | optional)
    except ValueError as error:
        raise WorkloadError(f"{path} is damaged or no Parquet file: {error}.") from error
    about = _about(table.schema.metadata or {}, path)
    for name, kind in (wanted | {name: kind for name, kind in optional.items() if name in table.column_names}).items():
        there = table.column_names.count(name) == 1 and table.schema.field(name).type == kind
        if not there or table[name].null_count or (pa.types.is_list(kind) and _flat(table[name]).null_count):
            raise WorkloadError(f"{path}: the column {name} should be there, be {kind} and have no empty field.")
    tokens, waiting = "prompt_token_ids" in table.column_names, [name in table.column_names for name, _ in _TURNS]
    if any(waiting) and not all(waiting):
        raise WorkloadError(f"{path}: the columns {', '.join(name for name, _ in _TURNS)} are all needed.")
    try:
        ids = table["id"].to_pylist() if "id" in table.column_names else None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: the column id should be text.") from error
    return Workload(
        arrival_s=to_numpy(table["arrival_s"]),
        **{name: to_numpy(table[name]) for name in _SCALARS},
        adapter=to_numpy(table["adapter"]) if "adapter" in table.column_names else None,
        prompt_hashes=_ragged(table["prompt_hashes"], np.int64),
        prompt_token_ids=_ragged(table["prompt_token_ids"], np.int32) if tokens else None,
        images=_images(table, path),
        turns=_turns(table) if all(waiting) else None,
        ids=ids,
        prefix_names=tuple(about["prefix_names"]),
        hash_unit_tokens=about["hash_unit_tokens"],
        hash_ahead_tokens=about.get("hash_ahead_tokens", 0),
        name=about["name"],
        description=about["description"],
    )


def _images(table: pa.Table, path: str | os.PathLike[str]) -> Images | None:
    there = [name for name in _IMAGES if f"image_{name}" in table.column_names]
    if not there:
        return None
    if len(there) < len(_IMAGES):
        raise WorkloadError(f"{path}: the columns {', '.join(f'image_{name}' for name in _IMAGES)} are all needed.")
    columns = {name: _ragged(table[f"image_{name}"], np.int64) for name in _IMAGES}
    offsets = columns["content"].offsets
    if any(not np.array_equal(each.offsets, offsets) for each in columns.values()):
        raise WorkloadError(f"{path}: the columns of images should have equally many in each row.")
    return Images(offsets=offsets, **{name: each.values for name, each in columns.items()})


def _turns(table: pa.Table) -> Turns:
    """Return the turns. Files of earlier versions lack the column `also_after`."""
    from kvsim.files.arrow_columns import to_numpy  # noqa: PLC0415

    also = _ragged(table["also_after"], np.int64) if "also_after" in table.column_names else None
    return Turns(**{name: to_numpy(table[name]) for name, _ in _TURNS}, also_after=also)


def _about(metadata: dict[bytes, bytes], path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        about = parse(metadata.get(FORMAT.encode(), b"{}"))
    except ValueError as error:
        raise WorkloadError(f"{path} is damaged: its metadata are no JSON.") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        raise WorkloadError(
            f"{path} is no workload of version {VERSION}; `kvsim import` writes one, and a recording is a folder."
        )
    unit, names = about.get("hash_unit_tokens"), about.get("prefix_names")
    texts = isinstance(about.get("name"), str) and isinstance(about.get("description"), str)
    named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    whole = is_integer(unit, 1, (1 << 31) - 1)
    ahead = is_integer(about.get("hash_ahead_tokens", 0), 0, (1 << 31) - 1)  # files of earlier versions lack it
    for name, holds in (
        ("name and description", texts),
        ("prefix_names", named),
        ("hash_unit_tokens", whole),
        ("hash_ahead_tokens", ahead),
    ):
        if not holds:
            raise WorkloadError(f"{path} is damaged: its {name} are missing or of another type.")
    return about


def _flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.combine_chunks().flatten()


def _lists(ragged: Ragged[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    from kvsim.files.arrow_columns import from_numpy  # noqa: PLC0415

    offsets, values = from_numpy(ragged.offsets, pa.int64()), from_numpy(ragged.values, kind)
    return pa.LargeListArray.from_arrays(offsets, values).cast(pa.list_(kind))


def _ragged(column: pa.ChunkedArray, dtype: type[Any]) -> Ragged[Any]:
    from kvsim.files.arrow_columns import to_numpy  # noqa: PLC0415

    lengths = to_numpy(column.combine_chunks().value_lengths())
    return Ragged(to_numpy(column.combine_chunks().flatten()), np.concatenate(([0], np.cumsum(lengths))), dtype)
