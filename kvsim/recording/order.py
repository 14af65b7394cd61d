"""Going through long columns: some rows at a time, and in the order of small whole numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import IntArray

ROWS_AT_ONCE = 1 << 16
"""Rows of a long table that are looked at together: what is computed of them stays in a processor's cache."""
_DIGIT_BITS = 16
"""numpy sorts numbers of so many bits by counting them; longer ones by comparing, many times slower."""


def in_parts(num_rows: int) -> Iterator[slice]:
    """The rows of a long table, some at a time."""
    for begin in range(0, num_rows, ROWS_AT_ONCE):
        yield slice(begin, min(begin + ROWS_AT_ONCE, num_rows))


def stable_order(keys: IntArray, bound: int) -> npt.NDArray[np.int32]:
    """What `np.argsort(keys, kind="stable")` returns, for less than 2**31 keys of at least 0 and below `bound`."""
    order = np.argsort(keys.astype(np.uint16), kind="stable").astype(np.int32)
    for shift in range(_DIGIT_BITS, max(bound - 1, 0).bit_length(), _DIGIT_BITS):
        order = order[np.argsort((keys >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def is_new(values: IntArray) -> npt.NDArray[np.bool_]:
    """Where each of `values` differs from the one before; the first always does."""
    new = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new


def units_of_runs(length: IntArray) -> tuple[IntArray, IntArray]:
    """For every unit of runs that are `length` long: the index of its run, and its offset in that."""
    run = np.repeat(np.arange(len(length), dtype=np.int32), length)
    begins = np.cumsum(length) - length
    return run, np.arange(len(run), dtype=np.int32) - begins.astype(np.int32)[run]
