"""Read and write the history of PyTorch's CUDA allocator during `generate()`, which is stored beside a recording.

`kvsim.hf_memory` was checked against such histories, tensor by tensor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError, reason_of
from kvsim.files.atomic import whole_file
from kvsim.recording import provenance
from kvsim.recording.provenance import IDENTITY_KEY
from kvsim.recording.tables import IntArray

FILE_NAME = "allocator.parquet"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocatorHistory:
    """Events of PyTorch's allocator, one row each, in order of time."""

    action: npt.NDArray[np.str_]
    """PyTorch's name of the event: `alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, ..."""
    address: IntArray
    size_bytes: IntArray
    stream: IntArray
    time_us: IntArray
    """Time of the event in microseconds since the Unix epoch."""
    step: IntArray
    """Number, from 0, of the first step that had not ended before the event; the number of steps if all had."""

    def __len__(self) -> int:
        return len(self.action)


def read_allocator(folder: str | os.PathLike[str]) -> AllocatorHistory | None:
    """Return the allocator's history beside the recording in `folder`; None if there is none.

    Raises:
        RecordingError: the file is damaged, lacks a column, or is part of another recording.
    """
    import pyarrow as pa  # noqa: PLC0415  only where a file is touched
    import pyarrow.parquet as pq  # noqa: PLC0415

    from kvsim.recording.parquet import identity_in  # noqa: PLC0415

    file = Path(folder) / FILE_NAME
    if not file.exists():
        return None
    names = [item.name for item in fields(AllocatorHistory)]
    try:
        with pq.ParquetFile(file) as parquet:
            identity_of_file = identity_in(parquet.metadata)
            data = parquet.read(columns=names)
        meta = file.with_name(provenance.FILE_NAME)
        identity = provenance.identity_of(provenance.read_document(meta)) if meta.exists() else ""
        if not provenance.may_be_of_one_recording(identity_of_file, identity):
            raise RecordingError(f"{file} is not of the recording beside it.")
        if any(data[name].null_count for name in names):
            raise RecordingError(f"{file} is damaged: a value is missing.")
        columns: dict[str, Any] = {name: data[name].cast(pa.int64()).to_numpy() for name in names if name != "action"}
        action = np.asarray(data["action"].cast(pa.string()).to_pylist(), np.str_)
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        raise RecordingError(f"{file} is damaged or lacks a column: {reason_of(error)}.") from error
    return AllocatorHistory(action=action, **columns)


def write_allocator(history: AllocatorHistory, folder: str | os.PathLike[str]) -> None:
    """Write `history` beside the recording in `folder`.

    Raises:
        RecordingError: `folder` has no `meta.json`, or it is damaged.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = Path(folder) / FILE_NAME
    arrays = {item.name: pa.array(getattr(history, item.name).tolist()) for item in fields(history)}
    identity = provenance.identity_of(provenance.read_document(file.with_name(provenance.FILE_NAME)))
    table = pa.table(arrays).replace_schema_metadata({IDENTITY_KEY: identity})
    with whole_file(file) as scratch:
        pq.write_table(table, scratch, compression="zstd")
