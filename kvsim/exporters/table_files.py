"""Export recordings as folders of CSV or Parquet tables, for spreadsheets and data frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvsim.files.atomic import whole_folder
from kvsim.memory.waste import SlotState
from kvsim.metrics import latencies, waste
from kvsim.workload import Ragged

if TYPE_CHECKING:
    import os

    import pyarrow as pa

    from kvsim.recording import Recording
    from kvsim.recording.tables import ColumnTable


def write_tables(recording: Recording, path: str | os.PathLike[str], *, form: Literal["csv", "parquet"]) -> Path:
    """Write the folder `path` with the tables `requests`, `steps`, `schedule`, `memory` and `pool`.

    The first four are tables of the recording, with latencies added to `requests`. `pool` has the number of slots in
    each of the eight states over time. It has a row per step; a time between steps has a row, too, if its numbers
    differ from those of the step before it. In CSV files, a list is written as numbers separated by spaces, and a text
    that a spreadsheet would run as a formula begins with an apostrophe.

    Raises:
        RecordingError: the recording has no steps.
        UsageError: the folder exists, or cannot be written.
    """
    tables = {
        "requests": _columns(recording.requests) | _latencies(recording),
        **{table.name: _columns(table) for table in (recording.steps, recording.schedule, recording.memory)},
        "pool": _pool(recording),
    }
    with whole_folder(path) as folder:
        folder.mkdir()
        for name, columns in tables.items():
            _write(columns, folder / f"{name}.{form}")
    return Path(path)


def _columns(table: ColumnTable) -> dict[str, Any]:
    columns = {}
    for name, spec in table.columns():
        value = getattr(table, name)
        if value is not None:
            names = spec.names
            columns[name] = value if names is None else np.array([member.name.lower() for member in names])[value]
    return columns


def _latencies(recording: Recording) -> dict[str, Any]:
    times = latencies(recording)
    columns = {}
    for name in ("wait_s", "ttft_s", "tpot_s", "e2e_s"):
        columns[name] = np.full(len(recording.requests), np.nan)
        columns[name][times.request] = getattr(times, name)
    return columns


def _pool(recording: Recording) -> dict[str, Any]:
    slots = waste(recording).with_gaps()
    return {"time_s": slots.time_s} | {f"{state.name.lower()}_slots": slots.slots[:, state] for state in SlotState}


def _write(columns: dict[str, Any], file: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415  slower to import than the rest of kvsim together
    import pyarrow.csv as pa_csv  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    as_csv = file.suffix == ".csv"
    table = pa.table({name: _array(values, as_text=as_csv) for name, values in columns.items()})
    if as_csv:
        pa_csv.write_csv(table, file)
    else:
        pq.write_table(table, file, compression="zstd")


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of cells that spreadsheets run as formulas."""


def _array(values: Any, *, as_text: bool) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    from kvsim.files.arrow_columns import from_numpy, from_texts  # noqa: PLC0415

    if isinstance(values, Ragged):
        if as_text:
            return from_texts([" ".join(map(str, values[row].tolist())) for row in range(len(values))])
        return pa.ListArray.from_arrays(from_numpy(values.offsets, pa.int32()), from_numpy(values.values, pa.int64()))
    if values.dtype.kind == "U":
        texts = values.tolist()
        if as_text:
            texts = [f"'{text}" if text.startswith(_FORMULA) else text for text in texts]
        return from_texts(texts)
    # Unknown times are empty cells.
    return from_numpy(values, pa.from_numpy_dtype(values.dtype), nan_is_missing=True)
