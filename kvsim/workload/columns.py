"""Read-only arrays for the columns of a `Workload`, with checks of types and shapes.

`kvsim.workload.request_rules` checks the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvsim.errors import UsageError, WorkloadError

MAX_TOKENS = 2**31 - 1
"""Limit for the number of tokens of a request, prompt and answer together. The columns of a workload are int32."""

LONGEST_S = 1e12
"""Latest valid arrival time in seconds (30,000 years). Sums of later times would lose precision."""

Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]

Scalar = TypeVar("Scalar", bound=np.generic)
Integer = TypeVar("Integer", np.int32, np.int64)


def frozen(column: NDArray[Scalar]) -> NDArray[Scalar]:
    """Make `column` read-only, and return it."""
    column.flags.writeable = False
    return column


def float_column(name: str, values: ArrayLike, num_rows: int | None = None) -> NDArray[np.float64]:
    """Return a new, read-only float64 column with `num_rows` rows, or any number of rows if that is None.

    Raises:
        UsageError: `values` is not one number per row. The message calls the column `name`.
    """
    return frozen(_one_dimensional(name, values, "number", "iuf", num_rows).astype(np.float64))


def int_column(name: str, values: ArrayLike, dtype: type[Integer], num_rows: int | None = None) -> NDArray[Integer]:
    """Return a new, read-only column with `num_rows` integers, or any number if that is None.

    Raises:
        UsageError: `values` is not one integer per row; floats are refused, not rounded.
        WorkloadError: an integer does not fit into `dtype`; the message names the row.
    """
    column = _one_dimensional(name, values, "integer", "iu", num_rows)
    limits = np.iinfo(dtype)
    outside = (column < limits.min) | (column > limits.max)
    if outside.any():
        row = int(outside.argmax())
        raise WorkloadError(f"{name} of row {row} is {column[row]}; it must fit into {limits.bits} bits with a sign.")
    return frozen(column.astype(dtype))


def _one_dimensional(name: str, values: ArrayLike, what: str, kinds: str, num_rows: int | None) -> NDArray[Any]:
    try:
        column = np.asarray(values)
    except ValueError as error:
        raise UsageError(f"{name} must be a column with one {what} per request; its rows differ in shape.") from error
    if column.ndim != 1 or (column.size and column.dtype.kind not in kinds):
        shape = f"{column.ndim}-dimensional with elements of type {column.dtype}"
        raise UsageError(f"{name} must be a column with one {what} per request, but it is {shape}.")
    if num_rows is not None and column.size != num_rows:
        raise UsageError(f"{name} has {column.size} rows; it must have {num_rows}, as the other columns do.")
    return column


class Ragged(Generic[Integer]):
    """Read-only rows of different lengths in one array. Row `i` is `values[offsets[i]:offsets[i + 1]]`."""

    __slots__ = ("offsets", "values")

    def __init__(self, values: ArrayLike, offsets: ArrayLike, dtype: type[Integer]) -> None:
        self.values: NDArray[Integer] = int_column("values", values, dtype)
        """Values of all rows, row by row, of type `dtype`."""
        self.offsets: Int64Array = int_column("offsets", offsets, np.int64)
        """Index in `values` at which each row begins, then the number of values: int64[num_rows + 1]."""
        _check_offsets(self.offsets, self.values.size)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]], dtype: type[Integer]) -> Ragged[Integer]:
        """Return a ragged array with `rows`, whose values have type `dtype`."""
        values: list[int] = []
        offsets = [0]
        for row in rows:
            values.extend(row)
            offsets.append(len(values))
        return cls(values, offsets, dtype)

    @classmethod
    def empty(cls, num_rows: int, dtype: type[Integer]) -> Ragged[Integer]:
        """Return a ragged array of `num_rows` empty rows."""
        return cls([], np.zeros(num_rows + 1, np.int64), dtype)

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, row: int) -> NDArray[Integer]:
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Int64Array:
        """Number of values in each row: int64[num_rows]."""
        return np.diff(self.offsets)

    def take(self, rows: Int64Array) -> Ragged[Integer]:
        """Return a ragged array with `rows`, which are indices, in this order."""
        lengths = self.lengths[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return Ragged(self.values[positions], offsets, self.values.dtype.type)

    def cut(self, lengths: NDArray[Any]) -> Ragged[Integer]:
        """Return the first `lengths[row]` values of each row, or all if there are fewer. `lengths` is int[num_rows]."""
        kept = np.minimum(self.lengths, lengths)
        in_row = np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.lengths)
        is_kept = in_row < np.repeat(kept, self.lengths)
        return Ragged(self.values[is_kept], np.concatenate(([0], np.cumsum(kept))), self.values.dtype.type)


def _check_offsets(offsets: Int64Array, num_values: int) -> None:
    if offsets.size == 0 or offsets[0] != 0 or offsets[-1] != num_values:
        ends = f"run from {offsets[0]} to {offsets[-1]}" if offsets.size else "are empty"
        raise WorkloadError(f"the offsets of a ragged column {ends}; they must run from 0 to its {num_values} values.")
    falling = np.diff(offsets) < 0
    if falling.any():
        row = int(falling.argmax())
        fall = f"from {offsets[row]} to {offsets[row + 1]}"
        raise WorkloadError(f"the offsets of a ragged column fall {fall} at row {row}; they must never fall.")


class Numbered(Sequence[str]):
    """Sequence of the names `r0`, `r1`, ... (`r` is the stem). Names are created when read, and take no memory."""

    __slots__ = ("_numbers", "_stem")

    def __init__(self, stem: str, numbers: range) -> None:
        self._stem = stem
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Numbered: ...
    def __getitem__(self, index: int | slice) -> str | Numbered:
        if isinstance(index, slice):
            return Numbered(self._stem, self._numbers[index])
        return f"{self._stem}{self._numbers[index]}"

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.str_]:
        """Return all names as one array, for `np.asarray`."""
        digits = len(str(max(self._numbers, default=0)))
        # Faster than `np.array(self._numbers)`, which reads a range number by number.
        numbers = np.arange(self._numbers.start, self._numbers.stop, self._numbers.step)
        return np.strings.add(self._stem, numbers.astype(f"<U{digits}"))

    def __repr__(self) -> str:
        return f"Numbered({self._stem!r}, {self._numbers})"
