"""Sizes that vLLM captures as graphs, and tables with a figure for each size of a step, larger ones included.

A library of matrix products has a kernel for every range of sizes, and the ranges are visible: on an H200 a step of 40
or 48 sequences of Llama-3-8B takes 2% longer than predicted by both its neighbours, in every recording.
"""

from __future__ import annotations

from kvsim.steptime.shapes import larger, smaller

_GRAIN, _FEW, _MANY, _LAST = 8, 512, 1024, 16384
_STEP = 128
_LARGER = _FEW // _GRAIN + 1
NUM_LISTED = _LARGER + 1
"""Number of entries of the shortest table: one up to size 4, one for every 8 up to 512, and one for all larger sizes.
"""
LARGE_SIZES = (*range(_FEW, _MANY, _STEP), *range(_MANY, _LAST + 1, _MANY))
"""Sizes of the last entries, in tokens; the first is for sizes just above 512. Sizes in between are interpolated
linearly, and sizes beyond the last use its figure."""
NUM_SIZES = _LARGER + len(LARGE_SIZES)
ALL_ALIKE = (0.0,) * NUM_SIZES
"""Table without measurements."""


def captured_size(num_tokens: int) -> int:
    """Return the captured size that a step is padded to: 1, 2, 4, then steps of 8, and of 16 above 256."""
    grain = 8 + 8 * (num_tokens > 256) - 4 * (num_tokens <= 4) - 2 * (num_tokens <= 2) - 1 * (num_tokens <= 1)
    return -(-num_tokens // grain) * grain


def size_place(num_tokens: int) -> float:
    """Return the place of a step's size in a table: up to 512 tokens the entry of the next captured size, whose kernels
    it runs; above, a place between two entries."""
    few = num_tokens <= _FEW
    beyond_few = (smaller(num_tokens, _MANY) - _FEW) / _STEP
    beyond_many = (smaller(larger(num_tokens, _MANY), _LAST) - _MANY) / _MANY
    return few * (captured_size(num_tokens) // _GRAIN) + (1 - few) * (_LARGER + beyond_few + beyond_many)
