"""Going through long columns: some rows at a time, and in the order of small whole numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import IntArray

ROWS_AT_ONCE = 1 << 16
"""Rows of a long table that are processed together, so that their intermediate results stay in a CPU cache."""
_DIGIT_BITS = 16
"""Largest number of bits for which numpy sorts by counting; longer numbers are sorted many times slower."""


def in_parts(num_rows: int) -> Iterator[slice]:
    """Yield the rows of a long table in parts."""
    for begin in range(0, num_rows, ROWS_AT_ONCE):
        yield slice(begin, min(begin + ROWS_AT_ONCE, num_rows))


def stable_order(keys: IntArray, bound: int) -> npt.NDArray[np.int32]:
    """Return `np.argsort(keys, kind="stable")` for fewer than 2**31 keys of at least 0 and below `bound`."""
    order = np.argsort(keys.astype(np.uint16), kind="stable").astype(np.int32)
    for shift in range(_DIGIT_BITS, max(bound - 1, 0).bit_length(), _DIGIT_BITS):
        order = order[np.argsort((keys >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def is_new(values: IntArray) -> npt.NDArray[np.bool_]:
    """Tell for each of `values` whether it differs from the one before; the first always does."""
    new = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new


def units_of_runs(length: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for every unit of runs of lengths `length`, the index of its run, and its offset in that."""
    run = np.repeat(np.arange(len(length), dtype=np.int32), length)
    begins = np.cumsum(length) - length
    return run, np.arange(len(run), dtype=np.int32) - begins.astype(np.int32)[run]
