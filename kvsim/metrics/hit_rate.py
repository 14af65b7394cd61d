"""Measure the prefix-cache hits of prompts, and explain a lack of hits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvsim.recording import Meta
    from kvsim.recording.tables import Requests


class PrefixHits(NamedTuple):
    """Numbers of prompt tokens that were looked up in the prefix cache, and that were found in it."""

    queried_tokens: int
    hit_tokens: int
    why_none: str
    """Reason why there was no hit, in words; empty if there was one."""

    @property
    def rate(self) -> float:
        """Hit tokens divided by queried tokens, 0 to 1; 0 if no tokens were looked up."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


def prefix_hits(meta: Meta, requests: Requests) -> PrefixHits:
    """Count the prefix hits of `requests`. Each prompt counts once, when its request is first scheduled.

    vLLM counts in the same way from 0.27 on. Earlier releases count a prompt at every look-up.
    """
    looks_up = meta.prefix_caching or bool(meta.policy.get("kv_offloading_size"))
    begun = np.flatnonzero(~np.isnan(requests.first_scheduled_s))
    queried = int(requests.prompt_tokens[begun].sum(dtype=np.int64)) if looks_up else 0
    hits = int(requests.cached_tokens.sum(dtype=np.int64))
    return PrefixHits(queried, hits, "" if hits else _why_none(meta, requests, begun, looks_up=looks_up))


def repeated_tokens(meta: Meta, requests: Requests) -> int:
    """Count the prompt tokens, in full blocks, with which an earlier prompt begins too: hits in an endless cache."""
    hashes, per_block = requests.prompt_hashes, max(1, meta.pool.unit_tokens // max(1, meta.hash_block_size))
    within = np.arange(len(hashes.values)) - np.repeat(hashes.offsets[:-1], hashes.lengths)
    of_blocks = hashes.values[within % per_block == per_block - 1]
    return int(len(of_blocks) - len(np.unique(of_blocks))) * meta.pool.unit_tokens


def _why_none(meta: Meta, requests: Requests, begun: npt.NDArray[np.intp], *, looks_up: bool) -> str:
    """Return the reason why no prompt had a prefix hit, in words.

    `begun` has the rows of the requests that were scheduled. `looks_up` is True if the engine has a prefix cache.
    """
    if not looks_up:
        return "prefix caching is off" if meta.policy_name in ("paged", "radix") else "this policy has no prefix cache"
    if not len(begun):
        return "no request was scheduled"
    hashes, per_block = requests.prompt_hashes, meta.pool.unit_tokens // meta.hash_block_size
    num_blocks = hashes.lengths[begun] // per_block
    has_block = requests.prompt_tokens[begun] >= meta.pool.unit_tokens
    is_token = meta.pool.unit_tokens == 1
    if not (num_blocks > 0).any():
        block = "a token" if is_token else f"a block of {meta.pool.unit_tokens:,} tokens"
        return f"no two prompts are known to share {block}" if has_block.any() else f"no prompt fills {block}"
    known = "" if (num_blocks[has_block] > 0).all() else " whose hashes are known"
    # Hashes are chained: prompts that share a full block share their first.
    begun = begun[num_blocks > 0]
    first = hashes.values[hashes.offsets[begun] + per_block - 1]
    _, which, count = np.unique(first, return_inverse=True, return_counts=True)
    shares = count[which] > 1
    if not shares.any():
        block = "their first token" if is_token else f"a full block of {meta.pool.unit_tokens:,} tokens"
        return f"no two prompts{known} share {block}"
    # The last token of a prompt is always computed.
    if not (requests.prompt_tokens[begun[shares]] > meta.pool.unit_tokens).any():
        return "prompts share a block that ends with them, and the last token is always computed"
    return "prompts share full blocks, and none was in the cache when it came again"
