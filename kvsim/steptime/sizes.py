"""Sizes that vLLM captures as graphs, and the entries of tables by the size of a step.

Such tables are needed because matrix-product libraries use other kernels for other ranges of sizes. On an H200, a step
of 40 or 48 sequences of Llama-3-8B takes 2 % longer than its neighbours predict, in every recording.
"""

from __future__ import annotations

from kvsim.steptime.shapes import larger, smaller

_GRAIN, _FEW, _MANY, _LAST = 8, 512, 1024, 16384
_STEP = 128
_LARGER = _FEW // _GRAIN + 1
NUM_LISTED = _LARGER + 1
"""Number of entries of the shortest table: one for sizes up to 4, one for every 8 up to 512, one for larger sizes."""
LARGE_SIZES = (*range(_FEW, _MANY, _STEP), *range(_MANY, _LAST + 1, _MANY))
"""Sizes of the entries above 512 tokens, between which times are interpolated linearly."""
NUM_SIZES = _LARGER + len(LARGE_SIZES)
ALL_ALIKE = (0.0,) * NUM_SIZES
"""Table in which all sizes have the same entry, 0."""


def captured_size(num_tokens: int) -> int:
    """Return the captured size that a step is padded to: 1, 2, 4, then multiples of 8, and of 16 above 256."""
    # Arithmetic instead of branches, so that `num_tokens` may be an array.
    grain = 8 + 8 * (num_tokens > 256) - 4 * (num_tokens <= 4) - 2 * (num_tokens <= 2) - 1 * (num_tokens <= 1)
    return -(-num_tokens // grain) * grain


def size_place(num_tokens: int) -> float:
    """Return the place of a step's size in a table.

    Up to 512 tokens, it is the index of the captured size that the step is padded to. Above, it is a fractional index
    between two entries.
    """
    few = num_tokens <= _FEW
    beyond_few = (smaller(num_tokens, _MANY) - _FEW) / _STEP
    beyond_many = (smaller(larger(num_tokens, _MANY), _LAST) - _MANY) / _MANY
    return few * (captured_size(num_tokens) // _GRAIN) + (1 - few) * (_LARGER + beyond_few + beyond_many)
