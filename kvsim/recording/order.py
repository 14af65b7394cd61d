"""Functions for columns of tens of millions of rows: process them in parts, sort and search them, expand extents."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import IntArray

ROWS_AT_ONCE = 1 << 16
"""Number of rows that are processed together, so that intermediate results stay in a CPU cache."""
SORT_KEY_LIMIT = 1 << 32
"""Number above all sequence numbers, steps, rows and token counts, so that `sort_key` can combine two numbers."""
_DIGIT_BITS = 16
"""Largest number of bits for which NumPy has a radix sort. Sorting longer numbers takes many times longer."""


def in_parts(num_rows: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `ROWS_AT_ONCE` rows that cover a table of `num_rows` rows."""
    for begin in range(0, num_rows, ROWS_AT_ONCE):
        yield slice(begin, min(begin + ROWS_AT_ONCE, num_rows))


def stable_order(keys: IntArray, bound: int) -> npt.NDArray[np.int32]:
    """Return `np.argsort(keys, kind="stable")`, but faster.

    There must be fewer than 2**31 keys, each from 0 to `bound` - 1.
    """
    # Sort by the lowest 16 bits, then by the next 16 bits: each sort keeps the order of the sort before.
    order = np.argsort(keys.astype(np.uint16), kind="stable").astype(np.int32)
    for shift in range(_DIGIT_BITS, max(bound - 1, 0).bit_length(), _DIGIT_BITS):
        order = order[np.argsort((keys >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def sort_key(first: IntArray, then: IntArray | int) -> npt.NDArray[np.int64]:
    """Return one integer for each pair of numbers, such as a request and an event number. It sorts by `first`, and then
    by `then`.

    `then` must be below `SORT_KEY_LIMIT`.
    """
    return first.astype(np.int64) * SORT_KEY_LIMIT + then


def is_new(values: IntArray) -> npt.NDArray[np.bool_]:
    """Tell, for each of `values`, whether it differs from the value before it. True for the first value."""
    new = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new


def expanded(length: IntArray) -> tuple[IntArray, IntArray]:
    """Expand extents to units. `length` has the number of units of each extent.

    Return two arrays with an entry for each unit: the index of its extent, and its offset in the extent.
    """
    extent = np.repeat(np.arange(len(length), dtype=np.int32), length)
    begins = (np.cumsum(length) - length).astype(np.int32)
    return extent, np.arange(len(extent), dtype=np.int32) - np.repeat(begins, length)
