"""Memory saved by sharing blocks in parallel sampling and beam search, from the PagedAttention paper."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.copy_on_write import BranchingCache, CountedBlocks, beam_search
from kvsim.published.length_tables import paper_lengths

if TYPE_CHECKING:
    from kvsim.published.figures import ProgressCallback

RESHUFFLE = {"alpaca": 0.2, "sharegpt": 0.035}
"""Share of steps in which beams are exchanged, by the data set.

The share depends on model and text. It was chosen to match Figure 15b.
"""
_WIDTHS = (2, 6)
_NUM_REQUESTS = 160


def saved_percent(name: str, width: int, reshuffle: float) -> float:
    """Return the percentage of blocks of 16 tokens that sharing saves, averaged over time.

    `name` is the data set, `width` the number of sequences per request, and `reshuffle` the share of steps as in
    `RESHUFFLE`.
    """
    rng = np.random.default_rng(0)
    cache = BranchingCache(CountedBlocks(1999), block_size=16)
    lengths = np.column_stack(paper_lengths(name).sample(_NUM_REQUESTS, rng)).tolist()
    searches = (beam_search(cache, prompt, output, width, reshuffle=reshuffle, rng=rng) for prompt, output in lengths)
    return reduce(add, searches).saved_percent


def _parallel_sampling(progress: ProgressCallback) -> list[float]:
    progress(0, 1)
    return [saved_percent(name, width, 0.0) for name in RESHUFFLE for width in _WIDTHS]


def _beam_search(progress: ProgressCallback) -> list[float]:
    progress(0, 1)
    return [saved_percent(name, width, reshuffle) for name, reshuffle in RESHUFFLE.items() for width in _WIDTHS]


REPRODUCE = {"parallel-sampling": _parallel_sampling, "beam-search": _beam_search}
"""Functions that simulate figures about branching sequences, by the name of the row."""
