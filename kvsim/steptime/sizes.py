"""The sizes that vLLM captures as graphs, and tables with a figure for each.

A library of matrix products has a kernel for every range of sizes, and the ranges show: on an H200 a step of 40 or 48
sequences of Llama-3-8B takes 2% longer than its neighbours on both sides say, in every recording.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_GRAIN = 8
_LARGER = 512 // _GRAIN + 1
NUM_SIZES = _LARGER + 1
ALL_ALIKE = (0.0,) * NUM_SIZES
"""A table for where nothing was measured."""


def captured_size(num_tokens: int) -> int:
    """The captured size that a step is padded to: 1, 2, 4, then steps of 8, and of 16 above 256."""
    grain = 8 + 8 * (num_tokens > 256) - 4 * (num_tokens <= 4) - 2 * (num_tokens <= 2) - 1 * (num_tokens <= 1)
    return -(-num_tokens // grain) * grain


def size_index(padded_tokens: int, captured: bool) -> int:
    """Where a step stands in a table: 0 up to 4 tokens, then one entry for every multiple of 8 up to 512, and the last
    for all that is not captured.
    """
    return captured * (padded_tokens // _GRAIN) + (1 - captured) * _LARGER


def looked_up(table: tuple[float, ...], index: Any) -> Any:
    """The entry of `table` at `index`, or all entries at an array of them."""
    if isinstance(index, np.ndarray):
        return np.asarray(table)[index.astype(np.intp)]
    return table[int(index)]
