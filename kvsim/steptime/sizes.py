"""Sizes of steps that vLLM captures as graphs, and tables with one entry for each range of sizes.

A size is a number of tokens. Libraries for matrix products have different kernels for different ranges of sizes. On an
H200, a step of 40 or 48 sequences of Llama-3-8B takes 2 % longer than steps of nearby sizes predict, in every
recording.
"""

from __future__ import annotations

from kvsim.steptime.shapes import larger, smaller

_GRAIN, _FEW, _MANY, _LAST = 8, 512, 1024, 16384
_STEP = 128
_LARGER = _FEW // _GRAIN + 1
NUM_LISTED = _LARGER + 1
"""Number of entries in a short table: one for sizes up to 4, one for every 8 up to 512, and one for larger sizes."""
LARGE_SIZES = (*range(_FEW, _MANY, _STEP), *range(_MANY, _LAST + 1, _MANY))
"""Size in tokens of each entry for sizes of 512 or more. Times between two entries are interpolated linearly."""
NUM_SIZES = _LARGER + len(LARGE_SIZES)
"""Number of entries in a full table by size, such as `Roofline.of_size_s`."""
ALL_ALIKE = (0.0,) * NUM_SIZES
"""Full table by size with zeros only."""


def captured_size(num_tokens: int) -> int:
    """Return the captured size to which a step is padded: 1, 2, 4, a multiple of 8, or above 256 a multiple of 16.

    The caller must check that the step is not larger than the largest captured size.
    """
    # Arithmetic instead of branches, so that `num_tokens` may be an array.
    grain = 8 + 8 * (num_tokens > 256) - 4 * (num_tokens <= 4) - 2 * (num_tokens <= 2) - 1 * (num_tokens <= 1)
    return -(-num_tokens // grain) * grain


def size_place(num_tokens: int) -> float:
    """Return the index into a full table for a step of `num_tokens`.

    A step of up to 512 tokens has the index of the captured size to which it is padded. A larger step can have a
    fraction between two indices. Steps of 16,384 tokens or more have the last index.
    """
    few = num_tokens <= _FEW
    beyond_few = (smaller(num_tokens, _MANY) - _FEW) / _STEP
    beyond_many = (smaller(larger(num_tokens, _MANY), _LAST) - _MANY) / _MANY
    return few * (captured_size(num_tokens) // _GRAIN) + (1 - few) * (_LARGER + beyond_few + beyond_many)


SIZE_OF_PLACE = {int(size_place(tokens)): captured_size(tokens) for tokens in range(1, _FEW + 1)} | dict(
    enumerate(LARGE_SIZES, _LARGER)
)
"""Size in tokens of each entry of a full table that a step can use, by index; the largest if an entry has several."""
