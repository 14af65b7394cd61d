"""Read the requests of a recording that comes with kvsim from JSON: loading pyarrow takes longer than serving them.

A file in the folder `request_files` has the name of a recording. It contains the columns of the recording's
`requests.parquet`, and a digest of that file. The JSON file is used only if the digest is right.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.recording.tables import Requests
from kvsim.workload import Ragged

_FOLDER = Path(__file__).parent / "request_files"
_DIGEST = "requests.parquet"


def file_of(name: str) -> Path:
    """Return the path of the JSON file with the requests of the recording `name`."""
    return _FOLDER / f"{name}.json"


def read_shipped_requests(folder: Path) -> Requests | None:
    """Return the requests of the shipped recording in `folder`; None if it has no valid JSON file."""
    file = file_of(folder.resolve().name)
    try:
        document = json.loads(file.read_bytes())
        if document[_DIGEST] != _digest(folder):
            return None
    except (OSError, ValueError, KeyError):  # missing or damaged
        return None
    return Requests(
        **{name: _column(document[name], spec.dtype) for name, spec in Requests.columns() if name in document}
    )


def as_text(requests: Requests, folder: Path) -> str:
    """Return the content of the JSON file with `requests`, those of the recording in `folder`."""
    columns = {
        name: _plain(column) for name, _ in Requests.columns() if (column := getattr(requests, name)) is not None
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {_DIGEST: _digest(folder), **columns}.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _digest(folder: Path) -> str:
    return hashlib.blake2b((folder / "requests.parquet").read_bytes(), digest_size=16).hexdigest()


def _column(values: list[Any], dtype: str) -> Any:
    return Ragged.from_rows(values, np.int64) if dtype.startswith("list") else np.array(values, dtype)


def _plain(column: Any) -> list[Any]:
    return [column[row].tolist() for row in range(len(column))] if isinstance(column, Ragged) else column.tolist()
