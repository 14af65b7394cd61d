"""Sizes of steps that vLLM captures as graphs, and tables with one entry for each range of sizes.

A size is a number of tokens. Libraries for matrix products have different kernels for different ranges of sizes. On an
H200, a step of 40 or 48 sequences of Llama-3-8B takes 2 % longer than steps of nearby sizes predict, in every
recording.

A full table has one entry for sizes up to 4, one for every 8 tokens up to 512, and one for each of `LARGE_SIZES`. In a
file, the last entries may be left out. They then equal the last entry that is there.
"""

from __future__ import annotations

from kvsim.steptime.shapes import larger, smaller

_GRAIN, _FEW = 8, 512
"""Number of tokens between two entries of a table, for sizes up to `_FEW` tokens."""
_LARGE_GRAIN, _MANY = 128, 1024
"""Number of tokens between two of `LARGE_SIZES`, for sizes up to `_MANY` tokens; from there on, it is `_MANY`."""
_LAST = 16384
"""Largest of `LARGE_SIZES`, in tokens."""
_FIRST_LARGE = _FEW // _GRAIN + 1
"""Index in a full table of the first of `LARGE_SIZES`."""
NUM_LISTED = _FIRST_LARGE + 1
"""Least number of entries of a table in a file. With this number, all `LARGE_SIZES` have the value of the last one."""
LARGE_SIZES = (*range(_FEW, _MANY, _LARGE_GRAIN), *range(_MANY, _LAST + 1, _MANY))
"""Size in tokens of each entry for sizes of 512 or more. Times between two entries are interpolated linearly."""
NUM_SIZES = _FIRST_LARGE + len(LARGE_SIZES)
"""Number of entries in a full table, such as `Roofline.of_size_s`."""
ALL_ALIKE = (0.0,) * NUM_SIZES
"""Full table with zeros only."""


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
    beyond_few = (smaller(num_tokens, _MANY) - _FEW) / _LARGE_GRAIN
    beyond_many = (smaller(larger(num_tokens, _MANY), _LAST) - _MANY) / _MANY
    return few * (captured_size(num_tokens) // _GRAIN) + (1 - few) * (_FIRST_LARGE + beyond_few + beyond_many)


SIZE_OF_PLACE = {int(size_place(tokens)): captured_size(tokens) for tokens in range(1, _FEW + 1)} | dict(
    enumerate(LARGE_SIZES, _FIRST_LARGE)
)
"""Size in tokens, by the index of an entry in a full table; the largest if an entry is for several sizes.

Entries that no captured step uses are left out.
"""
