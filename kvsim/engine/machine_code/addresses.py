"""The table of addresses of an engine. Compiled code gets an engine as one pointer to this table.

The table holds the address and the length of each array of the engine, and the address of each single record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvsim.engine.arrays import Tables, dtype_of
from kvsim.engine.engine_settings import Settings, constants_of


@dataclass(frozen=True, slots=True)
class SingleRecord:
    """Type of a single record, in the layout of an engine."""

    dtype: np.dtype[Any]
    constants: tuple[tuple[str, int], ...] = ()
    """Names and values of the fields that are compiled as constants; empty except for `Settings`."""


Layout: TypeAlias = "tuple[tuple[str, np.dtype[Any] | SingleRecord | Any | Layout], ...]"
"""(name, type) of each field of an engine, in order.

The type of an array is its dtype, that of a single record a `SingleRecord`, and that of nested `Tables` their layout.
For a record of functions, the record itself is the type, because compiled code depends on the functions.
"""


def layout_of(engine: Tables) -> Layout:
    """Return the layout of an engine or of a part of it."""
    return tuple((name, _part_of(getattr(engine, name))) for name in engine.names())


def _part_of(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype
    if isinstance(value, np.void):
        return SingleRecord(value.dtype, constants_of(value) if value.dtype == dtype_of(Settings) else ())
    return layout_of(value) if isinstance(value, Tables) else value


def addresses_of(engine: Tables) -> npt.NDArray[np.int64]:
    """Return the table of addresses of an engine: for each field, in order, the address and the length of an array, or
    the address of a single record. Fields of nested `Tables` are included; records of functions have no entry.
    """
    return np.array(_words_of(engine), np.int64)


def _words_of(engine: Tables) -> list[int]:
    words: list[int] = []
    for name in engine.names():
        value = getattr(engine, name)
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous, name
            words += [value.ctypes.data, len(value)]
        elif isinstance(value, np.void):
            assert value.base is not None, name
            words += [value.base.ctypes.data]
        elif isinstance(value, Tables):
            words += _words_of(value)
    return words


@cache
def digest_of(layout: Layout) -> str:
    """Return a short hash of a layout, for the names of files."""
    return sha256(repr(layout).encode()).hexdigest()[:16]
