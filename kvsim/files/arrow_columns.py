"""Columns of numbers between numpy and pyarrow, without a copy and without pandas.

pyarrow's own conversions import pandas wherever it is installed, which takes half a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def from_numpy(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Numbers as an array of `kind`, one of pyarrow's whole or floating-point types; NaN stays NaN."""
    values = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def to_numpy(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Whole or floating-point numbers; a missing one, which only the latter may have, is NaN.

    Raises:
        TypeError: they are something else, or a whole number is missing.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise TypeError(f"these are {values.type}, not numbers")
    kind = np.dtype(values.type.to_pandas_dtype())
    present, numbers = values.buffers()
    if numbers is None:
        return np.zeros(len(values), kind)
    column = np.frombuffer(numbers, kind, count=values.offset + len(values))[values.offset :]
    if not values.null_count:
        return column
    if not pa.types.is_floating(values.type):
        raise TypeError("a whole number is missing")
    bits = np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")
    return np.where(bits[values.offset : values.offset + len(values)], column, np.nan)
