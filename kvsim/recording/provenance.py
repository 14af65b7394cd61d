"""Read and write the provenance of a recording (`Meta`), as `meta.json` or as the first line of a log.

Such a file may come from anyone, so every field with which kvsim computes is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import RecordingError, RecordingVersionError, reason_of, shortened
from kvsim.files.contents import META_BYTES, content_of
from kvsim.files.identity import META
from kvsim.files.json_text import parse
from kvsim.files.values import is_integer
from kvsim.recording import unit_runs
from kvsim.recording.check_groups import with_groups
from kvsim.recording.check_meta import check_meta
from kvsim.recording.model import FORMAT, MAX_POOL_BYTES, MAX_UNITS, SOURCES, VERSION, Meta, Pool, WindowPool
from kvsim.recording.tables import IntArray

FILE_NAME = META
IDENTITY_KEY = b"kvsim_identity"
"""Key of the recording's identity in the metadata of a Parquet file."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LARGEST = {"num_units": MAX_UNITS, "unit_tokens": 1 << 24, "first_unit": MAX_UNITS, "bytes_per_unit": 1 << 40,
            "window_tokens": 1 << 24}  # fmt: skip
"""Largest value of each field of a pool. Sums of slots and bytes then fit into 64 bits."""
_GROUPS = "kv_cache_groups"
_MOST_TOKENS = 1 << 31
_META_KEYS = frozenset((
    "format", "version", "source", "engine", "gpu", "model", "policy", "pool", "initial_free", "initial_cached",
    "initial_computed", "command", "created", "notes", "identity",
))  # fmt: skip


def may_be_of_one_recording(identity: str, other: str) -> bool:
    """Tell whether two files may be of one recording. An empty identity (a file without one) fits any other."""
    return not identity or not other or identity == other


def source_of(file: Path) -> str:
    """Return the `source` in a `meta.json`, which is the kind of program that made the recording, such as "simulation".

    It is "an unknown source" if the file cannot be read.
    """
    try:
        return meta_from_document(read_document(file), file).source
    except RecordingError:
        return "an unknown source"


def identity_of(document: Any) -> str:
    """Return the identity in the content of a `meta.json`; empty for older recordings."""
    return str(document.get("identity") or "") if isinstance(document, dict) else ""


def read_document(file: Path) -> Any:
    """Return the content of `meta.json` as parsed JSON.

    Raises:
        RecordingError: the file is missing, or is not JSON.
    """
    try:
        text = _decoded(content_of(file, META_BYTES))
        return parse(text, parse_constant=refuse_constant, parse_float=_finite)
    except FileNotFoundError:
        raise RecordingError(
            f"{file} is missing; a recording is a folder with meta.json and steps.parquet in it."
        ) from None
    except (OSError, ValueError) as error:
        raise RecordingError(f"{file} cannot be read as JSON: {reason_of(error)}.") from error


def meta_from_document(document: Any, file: Path) -> Meta:
    """Return the provenance in `document`, the content of a `meta.json` or of the first line of a log.

    Raises:
        RecordingVersionError: this kvsim does not know the version.
        RecordingError: a field is missing or wrong; the message names `file`.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordingError(f'{file} is not a kvsim recording: it should say "format": "{FORMAT}".')
    if document.get("version") != VERSION:
        raise RecordingVersionError(
            f"{file} has version {shortened(document.get('version'))}, and this kvsim reads version {VERSION}; "
            "a newer kvsim may read it."
        )
    if document.get("source") not in SOURCES:
        source = shortened(document.get("source"))
        raise RecordingError(f"{file} has source {source}; it should be one of {', '.join(SOURCES)}.")
    engine, model, policy = (_mapping(document, name, file) for name in ("engine", "model", "policy"))
    check_meta(document, file)
    pool = _pool(_mapping(document, "pool", file), document.get(_GROUPS), file)
    return Meta(
        source=document["source"],
        engine=engine,
        gpu=str(document.get("gpu") or "unknown GPU"),
        model=model,
        policy=policy,
        pool=pool,
        initial_free=_units(document, "initial_free", file),
        initial_cached=_units(document, "initial_cached", file),
        initial_computed=_counts(document, "initial_computed", file),
        command=str(document.get("command") or ""),
        created=str(document.get("created") or ""),
        notes=str(document.get("notes") or ""),
        # One group of full attention adds nothing to the pool, and is kept unchanged.
        extra={
            key: value
            for key, value in document.items()
            if key not in _META_KEYS and not (key == _GROUPS and pool.groups)
        },
    )


def meta_as_text(meta: Meta, identity: str = "") -> str:
    """Return the text of `meta.json`. It states the recording's `identity` unless that is empty."""
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
            **({"windows": asdict(meta.pool.windows)} if meta.pool.windows else {}),
        },
        **({_GROUPS: [group.as_meta() for group in meta.pool.groups]} if meta.pool.groups else {}),
        **meta.extra,
        "command": meta.command,
        "created": meta.created,
        "notes": meta.notes,
        **({"identity": identity} if identity else {}),
    }
    text = json.dumps(document, indent=1)
    free, cached, computed = meta.initial_free, meta.initial_cached, meta.initial_computed
    for key, values in (
        ("initial_free", None if free is None else unit_runs.pack(free)),
        ("initial_cached", None if cached is None else unit_runs.pack(cached)),
        ("initial_computed", None if computed is None else computed.tolist()),
    ):
        if values is not None:
            # On one line: a pool has tens of thousands of units, and people read this file.
            text = text.removesuffix("\n}") + f',\n "{key}": {json.dumps(values)}\n}}'
    return text + "\n"


def refuse_constant(name: str) -> float:
    """Refuse NaN and Infinity, which Python's JSON reader accepts."""
    raise ValueError(f"{name} is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:20]} is larger than any number")
    return number


def _decoded(content: bytes) -> str:
    """Decode UTF-8. Refuse lone surrogates, which JSON can contain but which cannot be written to a file."""
    text = content.decode("utf-8")
    if _SURROGATE.search(text):
        json.dumps(parse(text), ensure_ascii=False).encode()  # raises an error for a surrogate without its other half
    return text


def _mapping(document: Mapping[str, Any], key: str, file: Path) -> Mapping[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise RecordingError(f"{file}: {key!r} should be an object, not {shortened(value)}.")
    return value


def _pool(value: Mapping[str, Any], groups: object, file: Path) -> Pool:
    integer = partial(_integer, value, file, "pool")
    num_units = None if value.get("num_units") is None else integer("num_units", minimum=1)
    pool = Pool(
        unit_tokens=integer("unit_tokens", minimum=1),
        num_units=num_units,
        first_unit=integer("first_unit", default=0, minimum=0),
        bytes_per_unit=integer("bytes_per_unit", minimum=1),
        windows=_window_pool(value, groups, file),
    )
    if num_units is not None and num_units * pool.bytes_per_unit > MAX_POOL_BYTES:
        raise RecordingError(
            f"{file}: a pool of {num_units:,} units of {pool.bytes_per_unit:,} bytes is larger than the "
            f"{MAX_POOL_BYTES >> 40} TiB that a server may have."
        )
    if groups is None:
        return pool
    try:
        return with_groups(pool, groups)
    except RecordingError as error:
        raise RecordingError(f"{file}: {error}") from error


def _window_pool(pool: Mapping[str, Any], groups: object, file: Path) -> WindowPool | None:
    """Return SGLang's second pool; None if there is none. A pool with KV-cache groups cannot have a second pool."""
    if pool.get("windows") is None:
        return None
    value, names = _mapping(pool, "windows", file), ("num_units", "bytes_per_unit", "window_tokens")
    if groups is not None or pool.get("num_units") is None:
        raise RecordingError(f"{file}: pool.windows is for a pool of units without kv_cache_groups.")
    return WindowPool(**{name: _integer(value, file, "pool.windows", name, minimum=1) for name in names})


def _integer(
    value: Mapping[str, Any], file: Path, where: str, key: str, *, default: int | None = None, minimum: int
) -> int:
    """Return the integer `value[key]`, which is required if `default` is None. Errors call `value` `where`."""
    number = value.get(key, default)
    if not is_integer(number, minimum):
        raise RecordingError(
            f"{file}: {where}.{key} should be an integer of at least {minimum}, not {shortened(number)}."
        )
    assert isinstance(number, int)
    if number > _LARGEST[key]:
        shown = f"{number:,}" if number < 1 << 64 else shortened(number)
        raise RecordingError(f"{file}: {where}.{key} should be at most {_LARGEST[key]:,}, not {shown}.")
    return number


def _units(document: Mapping[str, Any], key: str, file: Path) -> IntArray | None:
    """Return the unit addresses in the field `key`, a list or packed by `unit_runs.pack`; None if it is absent."""
    value = document.get(key)
    if value is None:
        return None
    try:
        return unit_runs.unpack(value)
    except ValueError as error:
        raise RecordingError(
            f"{file}: {key} should be a list of unit ids, or of pairs [first, last] of consecutive ids; {error}."
        ) from error


def _counts(document: Mapping[str, Any], key: str, file: Path) -> IntArray | None:
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(count) is int and 0 <= count < _MOST_TOKENS for count in value):
        raise RecordingError(f"{file}: {key} should be a list of numbers of tokens, not {shortened(value)}.")
    return np.array(value, np.int64)
