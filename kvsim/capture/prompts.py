"""Random token ids for a workload of lengths: what a prompt says does not matter, what it shares with others does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.workload import Workload

_SPECIAL_TOKENS = 10
"""Ids at the beginning of a vocabulary that may mean something to an engine; never drawn."""


def token_ids(workload: Workload, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """One list of token ids per request; requests of one prefix group begin alike, as far as the workload says."""
    rng = np.random.default_rng(seed)
    prefixes: dict[int, npt.NDArray[np.int64]] = {}
    prompts = []
    for row in range(len(workload)):
        if workload.prompt_token_ids is not None and len(given := workload.prompt_token_ids[row]):
            prompts.append(given.tolist())
            continue
        tokens = rng.integers(_SPECIAL_TOKENS, vocab_size, int(workload.prompt_tokens[row]))
        group, shared = int(workload.prefix_group[row]), int(workload.prefix_tokens[row])
        if group >= 0:
            longest = int(workload.prefix_tokens[workload.prefix_group == group].max())
            if group not in prefixes:
                prefixes[group] = np.random.default_rng([seed, group]).integers(_SPECIAL_TOKENS, vocab_size, longest)
            tokens[:shared] = prefixes[group][:shared]
        prompts.append(tokens.tolist())
    return prompts
