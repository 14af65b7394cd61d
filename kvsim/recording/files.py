"""Recordings on disk: a folder with `meta.json` and one Parquet file per table.

Nothing half-written is ever visible under the final name: a recording is written beside its target and renamed into
place.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kvsim.errors import RecordingError, RecordingVersionError
from kvsim.recording import eventlog
from kvsim.recording.check import check
from kvsim.recording.model import FORMAT, SOURCES, VERSION, Meta, Pool, Recording
from kvsim.recording.tables import Column, Memory, Requests, Schedule, Steps, Table
from kvsim.workload import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

AnyTable = TypeVar("AnyTable", Requests, Steps, Schedule, Memory)

_META_KEYS = frozenset(
    (
        "format",
        "version",
        "source",
        "engine",
        "gpu",
        "model",
        "policy",
        "pool",
        "initial_free",
        "command",
        "created",
        "notes",
    )
)


def read(path: str | os.PathLike[str]) -> Recording:
    """Read and check the recording in folder `path`.

    Raises:
        RecordingVersionError: its version is one this kvsim does not know. RecordingError: it is missing, truncated
        or inconsistent; the message names the file, and the row where there is one.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise RecordingError(f"{folder} {what}; a recording is a folder with meta.json and steps.parquet in it.")
    if (folder / eventlog.FILE_NAME).exists():
        return _read_log(folder)
    meta = _read_meta(folder / "meta.json")
    recording = Recording(
        meta=meta,
        requests=_read_table(folder, Requests),
        steps=_read_table(folder, Steps),
        schedule=_read_table(folder, Schedule),
        # An engine whose cache has no addresses, such as generate(), leaves this file out.
        memory=_read_table(folder, Memory) if (folder / "memory.parquet").exists() else Memory.empty(),
        name=folder.resolve().name,
    )
    check(recording, folder)
    return recording


def write(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Write `recording` as folder `path`, replacing a recording that is there already.

    Raises:
        RecordingError: `path` exists and is not a recording, or cannot be written.
    """
    target = Path(path)
    try:
        if target.exists() and not (target / "meta.json").is_file():
            raise RecordingError(
                f"{target} exists and is not a recording; choose another name, nothing was overwritten."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except (FileExistsError, NotADirectoryError) as error:
        raise RecordingError(f"cannot write {target}: a part of its path is a file, not a folder.") from error
    except OSError as error:
        raise RecordingError(f"cannot write {target}: {error.strerror}.") from error
    new, old = scratch / "new", scratch / "old"
    try:
        new.mkdir()
        (new / "meta.json").write_text(_meta_json(recording.meta), encoding="utf-8")
        for table in (recording.requests, recording.steps, recording.schedule, recording.memory):
            _write_table(table, new / f"{table.name}.parquet")
        try:
            if target.exists():
                target.rename(old)
            new.rename(target)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            raise
    except OSError as error:
        raise RecordingError(f"cannot write {target}: {error.strerror}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _read_log(folder: Path) -> Recording:
    """A recording that is still growing, or whose engine was killed."""
    file = folder / eventlog.FILE_NAME
    try:
        with file.open("rb") as log:
            document, builder = eventlog.replay(log, str(file))
    except OSError as error:
        raise RecordingError(f"{file} cannot be read: {error.strerror}.") from error
    recording = builder.finish(meta_from_document(document, file), name=folder.resolve().name)
    check(recording, folder)
    return recording


def _read_meta(file: Path) -> Meta:
    try:
        document = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise RecordingError(
            f"{file} is missing; a recording is a folder with meta.json and steps.parquet in it."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordingError(f"{file} cannot be read as JSON: {error}.") from error
    return meta_from_document(document, file)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def meta_from_document(document: Any, file: Path) -> Meta:
    """The provenance that stands in `meta.json`, or in the first line of a log.

    Raises:
        RecordingVersionError: its version is one this kvsim does not know.
        RecordingError: it is incomplete or wrong; the message names `file`.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordingError(f'{file} is not a kvsim recording: it should say "format": "{FORMAT}".')
    if document.get("version") != VERSION:
        raise RecordingVersionError(
            f"{file} has version {document.get('version')!r}, and this kvsim reads version {VERSION}; "
            "a newer kvsim may read it."
        )
    if document.get("source") not in SOURCES:
        raise RecordingError(f"{file} has source {document.get('source')!r}; it should be one of {', '.join(SOURCES)}.")
    return Meta(
        source=document["source"],
        engine=_mapping(document, "engine", file),
        gpu=str(document.get("gpu") or "unknown GPU"),
        model=_mapping(document, "model", file),
        policy=_mapping(document, "policy", file),
        pool=_pool(_mapping(document, "pool", file), file),
        initial_free=_initial_free(document.get("initial_free"), file),
        command=str(document.get("command") or ""),
        created=str(document.get("created") or ""),
        notes=str(document.get("notes") or ""),
        extra={key: value for key, value in document.items() if key not in _META_KEYS},
    )


def _mapping(document: Mapping[str, Any], key: str, file: Path) -> Mapping[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise RecordingError(f"{file}: {key!r} should be an object, not {value!r}.")
    return value


def _pool(value: Mapping[str, Any], file: Path) -> Pool:
    def integer(key: str, default: int | None, minimum: int) -> int:
        number = value.get(key, default)
        if not isinstance(number, int) or isinstance(number, bool) or number < minimum:
            raise RecordingError(f"{file}: pool.{key} should be an integer of at least {minimum}, not {number!r}.")
        return number

    return Pool(
        unit_tokens=integer("unit_tokens", None, 1),
        num_units=None if value.get("num_units") is None else integer("num_units", None, 1),
        first_unit=integer("first_unit", 0, 0),
        bytes_per_unit=integer("bytes_per_unit", None, 1),
    )


def _initial_free(value: object, file: Path) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(unit, int) and 0 <= unit < 1 << 63 for unit in value):
        raise RecordingError(f"{file}: initial_free should be a list of unit ids.")
    return np.asarray(value, np.int64)


def _meta_json(meta: Meta) -> str:
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "source": meta.source,
        "gpu": meta.gpu,
        "engine": dict(meta.engine),
        "model": dict(meta.model),
        "policy": dict(meta.policy),
        "pool": {
            "unit_tokens": meta.pool.unit_tokens,
            "num_units": meta.pool.num_units,
            "first_unit": meta.pool.first_unit,
            "bytes_per_unit": meta.pool.bytes_per_unit,
        },
        **meta.extra,
        "command": meta.command,
        "created": meta.created,
        "notes": meta.notes,
    }
    text = json.dumps(document, indent=1)
    if meta.initial_free is None:
        return text + "\n"
    # On one line: a pool has tens of thousands of units, and a person reads this file.
    return text.removesuffix("\n}") + f',\n "initial_free": {json.dumps(meta.initial_free.tolist())}\n}}\n'


def _read_table(folder: Path, table: type[AnyTable]) -> AnyTable:
    import pyarrow as pa  # noqa: PLC0415  imported where a file is touched: it costs more than the rest of kvsim together
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = folder / f"{table.name}.parquet"
    specs = dict(table.columns())
    try:
        with pq.ParquetFile(file) as parquet:
            present = parquet.schema_arrow.names
            missing = [name for name, spec in specs.items() if not spec.optional and name not in present]
            if missing:
                raise RecordingError(f"{file} lacks the column {', '.join(missing)}.")
            twice = [name for name in specs if present.count(name) > 1]
            if twice:
                raise RecordingError(f"{file} has the column {twice[0]} more than once.")
            data = parquet.read(columns=[name for name in specs if name in present])
    except FileNotFoundError:
        raise RecordingError(f"{file} is missing; the recording is incomplete.") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RecordingError(f"{file} is damaged or truncated: {reason}.") from error
    return table(**{name: _from_arrow(data[name], specs[name], file, name) for name in data.column_names})


def _from_arrow(data: pa.ChunkedArray, spec: Column, file: Path, name: str) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if data.null_count and spec.dtype != "float64":
        row = data.is_null().to_pylist().index(True)
        raise RecordingError(f"{file}, row {row}: {name} is empty.")
    try:
        if spec.dtype.startswith("list"):
            lists = data.combine_chunks()
            if isinstance(lists, pa.ChunkedArray):  # an empty table has no chunk to combine
                return Ragged.empty(0, np.int64)
            values = lists.values.cast(pa.int64())
            if values.null_count:
                raise RecordingError(f"{file}: a list of {name} has an empty element.")
            return Ragged(values.to_numpy(), np.asarray(lists.offsets, np.int64), np.int64)
        if spec.names is not None:
            codes = {member.name.lower(): member.value for member in spec.names}
            encoded = data.combine_chunks().dictionary_encode()
            words = encoded.dictionary.to_pylist() if hasattr(encoded, "dictionary") else []
            unknown = [word for word in words if word not in codes]
            if unknown:
                raise RecordingError(f"{file}: {name} {unknown[0]!r} is none of {', '.join(codes)}.")
            table = np.array([codes[word] for word in words], spec.dtype)
            indices = encoded.indices.to_numpy() if words else np.empty(0, np.int64)
            return table[indices]
        if spec.dtype == "str":
            return np.asarray(data.to_pylist(), dtype=np.str_)
        if spec.dtype == "float64":
            data = data.cast(pa.float64()).fill_null(float("nan"))
        return data.cast(pa.type_for_alias(spec.dtype)).to_numpy().astype(spec.dtype, copy=False)
    except (pa.ArrowException, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RecordingError(f"{file}: column {name} should be {spec.dtype}: {reason}.") from error


def _write_table(table: Table, file: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    arrays: dict[str, pa.Array] = {}
    for name, spec in table.columns():
        value = getattr(table, name)
        if value is None:
            continue
        if isinstance(value, Ragged):
            arrays[name] = pa.ListArray.from_arrays(
                pa.array(value.offsets, pa.int32()), pa.array(value.values, pa.int64())
            )
        elif spec.names is not None:
            words = [member.name.lower() for member in spec.names]
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(value, pa.int8()), words).cast(pa.string())
        elif spec.dtype == "str":
            arrays[name] = pa.array(value.tolist(), pa.string())
        else:
            arrays[name] = pa.array(value, pa.type_for_alias(spec.dtype))
    pq.write_table(pa.table(arrays), file, compression="zstd")
