"""Conversion of columns between NumPy arrays, Python lists and pyarrow arrays, without pandas.

pyarrow's own conversions import pandas if it is installed, which takes half a second. Columns of numbers are copied
only for another type, several chunks, or missing values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def from_numpy(values: npt.NDArray[Any], data_type: pa.DataType, *, nan_is_missing: bool = False) -> pa.Array:
    """Convert numbers to a pyarrow array of type `data_type`, an integer or floating-point type.

    NaN stays NaN; with `nan_is_missing`, it becomes null.
    """
    values = np.ascontiguousarray(values, data_type.to_pandas_dtype())
    unknown = np.isnan(values) if nan_is_missing and values.dtype.kind == "f" else np.zeros(0, bool)
    present = _bits(~unknown) if unknown.any() else None
    return pa.Array.from_buffers(data_type, len(values), [present, pa.py_buffer(values)])


def from_values(values: Sequence[str | int | float | bool | None]) -> pa.Array:
    """Convert values to a pyarrow array. They must all be texts, all truth values, or all numbers. None becomes null.
    If any number is a float, all become floats.

    Raises:
        TypeError: the values are of several of these kinds, or of another type.
    """
    there = [value for value in values if value is not None]
    kinds = {_kind_of(value) for value in there}
    present = None if len(there) == len(values) else _bits([value is not None for value in values])
    if not kinds:
        return pa.Array.from_buffers(pa.null(), len(values), [None])
    if kinds == {str}:
        return from_texts(["" if value is None else str(value) for value in values], present)
    if kinds == {bool}:
        return pa.Array.from_buffers(pa.bool_(), len(values), [present, _bits([bool(value) for value in values])])
    if not kinds <= {int, float}:
        raise TypeError(f"a column of {' and '.join(sorted(kind.__name__ for kind in kinds))}")
    kind = pa.float64() if float in kinds else pa.int64()
    numbers: npt.NDArray[Any] = np.array([0 if value is None else value for value in values], kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(numbers)])


def from_texts(texts: Sequence[str], present: pa.Buffer | None = None) -> pa.Array:
    """Convert texts to a pyarrow array. `present` has a bit for each text, 0 for null; None if no text is null.

    Raises:
        OverflowError: the texts have more than 2**31 - 1 bytes.
    """
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("texts of more than two billion bytes in a column")
    parts = [present, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), parts)


def _kind_of(value: object) -> type:
    return next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), type(value))


def _bits(flags: Sequence[bool] | npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.asarray(flags, bool), bitorder="little"))


def to_numpy(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Convert pyarrow integers or floats to NumPy. A null float becomes NaN.

    Raises:
        TypeError: the values are no numbers, or an integer is null.
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
