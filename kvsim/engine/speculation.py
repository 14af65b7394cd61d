"""Speculative decoding, as a model: a few tokens are drafted for every sequence, and its next step verifies them all.

No draft model runs here. Whether a guess is right is drawn once for every position of every request, so that a request
fares equally well in any batch, with any memory, preempted or not. Drafting itself takes no time: what comes out is an
upper bound of the gain, of which verification and memory have taken their part.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.engine.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine

_NUM_DRAWS = 1 << 18
"""Draws in the table that all requests share: the share of right guesses is that of the settings to about 0.1%."""
_STRIDE = 100_003
"""Draws between the beginnings of two requests in a row; odd, so that each begins at a draw of its own."""


def right_drafts(acceptance_rate: float, seed: int) -> npt.NDArray[np.int64]:
    """Return how many drafts are right in a row from each draw on, at an `acceptance_rate` for each."""
    wrong = np.flatnonzero(np.random.default_rng(seed).random(_NUM_DRAWS) >= acceptance_rate)
    draws = np.arange(_NUM_DRAWS)
    # The table is a ring: its first draw follows its last.
    next_wrong = np.append(wrong, wrong[0] + _NUM_DRAWS) if len(wrong) else np.array([2 * _NUM_DRAWS])
    return np.asarray(next_wrong[np.searchsorted(next_wrong, draws)] - draws)


@part
def num_outputs(engine: Engine, sequence: Sequence) -> int:
    """Count the outputs that a step yields for a sequence: one, and the drafts up to the first wrong one."""
    left = sequence.end_tokens - sequence.num_tokens
    if not engine.settings.guesses:
        return 1
    first_draft = ((sequence.number - 1) * _STRIDE + sequence.num_tokens) % _NUM_DRAWS
    return min(1 + min(sequence.drafts, engine.right_drafts[first_draft]), left)
