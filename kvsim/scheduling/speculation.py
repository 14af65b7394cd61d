"""Speculative decoding, as a model: a few tokens are drafted for every sequence, and its next step verifies them all.

Nobody runs a draft model here. Whether a guess is right is drawn once for every position of every request, so that a
request fares equally well in any batch, with any memory, preempted or not. Drafting itself takes no time: what comes
out is an upper bound of the gain, of which verification and memory have taken their part. This module knows neither
blocks nor steps.
"""

from __future__ import annotations

import numpy as np

from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import PagedSettings

_NUM_DRAWS = 1 << 18
"""Draws in the table that all requests share: the share of right guesses is that of the settings to about 0.1%."""
_STRIDE = 100_003
"""Draws between the beginnings of two requests in a row; odd, so that each begins at a draw of its own."""


class Speculation:
    """How many tokens are drafted, and which of them the model accepts."""

    def __init__(self, num_tokens: int, acceptance_rate: float, seed: int) -> None:
        """Draft `num_tokens` tokens a step, each right with probability `acceptance_rate` if those before it are."""
        self.num_tokens = num_tokens
        """Tokens drafted for a sequence after each of its steps that yields an output."""
        wrong = np.flatnonzero(np.random.default_rng(seed).random(_NUM_DRAWS) >= acceptance_rate)
        draws = np.arange(_NUM_DRAWS)
        # The table is a ring: behind its last draw stands its first.
        next_wrong = np.append(wrong, wrong[0] + _NUM_DRAWS) if len(wrong) else np.array([2 * _NUM_DRAWS])
        self._num_right: list[int] = (next_wrong[np.searchsorted(next_wrong, draws)] - draws).tolist()

    @classmethod
    def of(cls, settings: PagedSettings) -> Speculation | None:
        """What `settings` ask for; None if that is no speculative decoding."""
        if not settings.num_speculative_tokens:
            return None
        return cls(settings.num_speculative_tokens, settings.acceptance_rate, settings.acceptance_seed)

    def num_accepted(self, sequence: Sequence) -> int:
        """How many of the drafts of `sequence` that are being verified are right: those up to the first wrong one."""
        first_draft = (sequence.row * _STRIDE + sequence.num_tokens) % _NUM_DRAWS
        return min(sequence.drafts, self._num_right[first_draft])
