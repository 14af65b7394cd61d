"""A workload as one Parquet file: what `kvsim import` writes, and every bit of it comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.atomic import whole_file
from kvsim.errors import WorkloadError
from kvsim.overwriting import MARK_KEY, mark
from kvsim.workload import Numbered, Ragged, Workload

if TYPE_CHECKING:
    import os

    import pyarrow as pa

FORMAT, VERSION = "kvsim-workload", 1
_SCALARS = ("prompt_tokens", "output_tokens", "max_tokens", "priority", "prefix_group", "prefix_tokens")
_MAGIC = b"PAR1"


def looks_like(path: Path) -> bool:
    """Whether the file begins as Parquet does."""
    with path.open("rb") as file:
        return file.read(4) == _MAGIC


def write(workload: Workload, path: str | os.PathLike[str]) -> Path:
    """Write `workload` as the file `path`, which appears when it is whole.

    Raises:
        UsageError: it cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415  costs more than the rest of kvsim together
    import pyarrow.parquet as pq  # noqa: PLC0415

    columns: dict[str, pa.Array] = {"arrival_s": pa.array(workload.arrival_s, pa.float64())}
    columns |= {name: pa.array(getattr(workload, name), pa.int32()) for name in _SCALARS}
    columns["prompt_hashes"] = _lists(workload.prompt_hashes, pa.int64())
    if workload.prompt_token_ids is not None:
        columns["prompt_token_ids"] = _lists(workload.prompt_token_ids, pa.int32())
    if not (isinstance(workload.ids, Numbered) and repr(workload.ids) == repr(Numbered("r", range(len(workload))))):
        columns["id"] = pa.array(list(workload.ids), pa.string())
    about = {
        "format": FORMAT,
        "version": VERSION,
        "name": workload.name,
        "description": workload.description,
        "hash_unit_tokens": workload.hash_unit_tokens,
        "prefix_names": list(workload.prefix_names),
    }
    table = pa.table(columns).replace_schema_metadata({FORMAT: json.dumps(about), MARK_KEY: mark("import")})
    with whole_file(path) as file:
        pq.write_table(table, file, compression="zstd")
    return Path(path)


def read(path: str | os.PathLike[str]) -> Workload:
    """Read the workload in the file `path`.

    Raises:
        WorkloadError: it is none, is damaged, or holds a request that cannot be right.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise WorkloadError(f"{path} is damaged or no Parquet file: {reason}.") from error
    about = json.loads((table.schema.metadata or {}).get(FORMAT.encode(), b"{}"))
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise WorkloadError(
            f"{path} is no workload of version {VERSION}; `kvsim import` writes one, and a recording is a folder."
        )
    wanted = {"arrival_s": pa.float64(), **dict.fromkeys(_SCALARS, pa.int32()), "prompt_hashes": pa.list_(pa.int64())}
    optional = {"prompt_token_ids": pa.list_(pa.int32()), "id": pa.string()}
    for name, kind in (wanted | {name: kind for name, kind in optional.items() if name in table.column_names}).items():
        if name not in table.column_names or table.schema.field(name).type != kind or table[name].null_count:
            raise WorkloadError(f"{path}: the column {name} should be there, be {kind} and have no empty field.")
    tokens = "prompt_token_ids" in table.column_names
    return Workload(
        arrival_s=table["arrival_s"].to_numpy(),
        **{name: table[name].to_numpy() for name in _SCALARS},
        prompt_hashes=_ragged(table["prompt_hashes"], np.int64),
        prompt_token_ids=_ragged(table["prompt_token_ids"], np.int32) if tokens else None,
        ids=table["id"].to_pylist() if "id" in table.column_names else None,
        prefix_names=tuple(about["prefix_names"]),
        hash_unit_tokens=about["hash_unit_tokens"],
        name=about["name"],
        description=about["description"],
    )


def _lists(ragged: Ragged[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    return pa.LargeListArray.from_arrays(pa.array(ragged.offsets, pa.int64()), pa.array(ragged.values, kind)).cast(
        pa.list_(kind)
    )


def _ragged(column: pa.ChunkedArray, dtype: type[Any]) -> Ragged[Any]:
    lengths = np.asarray(column.combine_chunks().value_lengths(), np.int64)
    return Ragged(column.combine_chunks().flatten().to_numpy(), np.concatenate(([0], np.cumsum(lengths))), dtype)
