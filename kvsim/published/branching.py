"""Memory saved by sharing, from the PagedAttention paper: parallel sampling and beam search."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.sharing import BranchingCache, CountedBlocks, beam_search
from kvsim.published.figures import Figure, Row
from kvsim.published.lengths import paper_lengths

if TYPE_CHECKING:
    from kvsim.published.figures import ProgressCallback

RESHUFFLE = {"alpaca": 0.2, "sharegpt": 0.035}
"""Share of tokens at which beams change places. It depends on model and text, and was chosen to match Figure 15b."""
_WIDTHS = (2, 6)
_NUM_REQUESTS = 160
_SOURCE = "Kwon et al., SOSP 2023 (PagedAttention), Figure 15, from memory"
_BAND = "2 points, as for the other shares of the pool"


def saved_percent(name: str, width: int, reshuffle: float) -> float:
    """Return the percent of blocks of 16 tokens that sharing saves, averaged over time."""
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


ROWS = (
    Row(
        name="parallel-sampling",
        title="KV memory saved by sharing the prompt among several answers, OPT-13B",
        source=f"{_SOURCE}: 6.1% to 9.8% and 16.2% to 30.5%",
        band=_BAND,
        figures=(
            Figure.within("Alpaca, 2 answers", 6.1, 2, "%"),
            Figure.within("Alpaca, 6 answers", 9.8, 2, "%"),
            Figure.within("ShareGPT, 2 answers", 16.2, 2, "%"),
            Figure.within("ShareGPT, 6 answers", 30.5, 2, "%"),
        ),
        reproduce=_parallel_sampling,
    ),
    Row(
        name="beam-search",
        title="KV memory saved by sharing among beams, OPT-13B",
        source=f"{_SOURCE}: 37.6% to 55.2% and 44.3% to 66.3%",
        band=_BAND,
        figures=(
            Figure.within("Alpaca, width 2", 37.6, 2, "%"),
            Figure.within("Alpaca, width 6", 55.2, 2, "%"),
            Figure.within("ShareGPT, width 2", 44.3, 2, "%"),
            Figure.within("ShareGPT, width 6", 66.3, 2, "%"),
        ),
        reproduce=_beam_search,
        note="The share of tokens at which beams change places is not published. One value for each workload was "
        "chosen to match these figures, so only one of the two widths is a test.",
    ),
)
"""Published figures about branching sequences."""
