"""An engine as compiled code takes it: a table of addresses, and what stands at them.

The table says for each array of the engine where its records begin and how many they are.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Layout: TypeAlias = "tuple[tuple[str, np.dtype[Any] | int | Layout], ...]"
"""The parts of an engine, in order: names of arrays and their types, of tuples of which the length alone is known,
and of named tuples of the same.
"""


def layout_of(engine: Any) -> Layout:
    """What `engine`, a named tuple of arrays, consists of."""
    fields: list[tuple[str, Any]] = []
    for name in engine._fields:
        value = getattr(engine, name)
        if isinstance(value, np.ndarray):
            fields.append((name, value.dtype))
        else:
            fields.append((name, layout_of(value) if hasattr(value, "_fields") else len(value)))
    return tuple(fields)


def addresses_of(engine: Any) -> npt.NDArray[np.int64]:
    """Where the arrays of `engine` begin and how many elements they have: int64[2 * arrays]."""
    return np.array(_words_of(engine), np.int64)


def _words_of(engine: Any) -> list[int]:
    words: list[int] = []
    for name in engine._fields:
        value = getattr(engine, name)
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous, name
            words += [value.ctypes.data, len(value)]
        elif hasattr(value, "_fields"):
            words += _words_of(value)
    return words


@cache
def digest_of(layout: Layout) -> str:
    """A short text that differs where layouts do."""
    return sha256(repr(layout).encode()).hexdigest()[:16]
