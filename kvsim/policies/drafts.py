"""Effects of speculative decoding on the scheduler and the cache, as numbers.

`Drafts` computes them from vLLM's configuration and release, so that an engine needs to know neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from kvsim.errors import UsageError
from kvsim.kv_groups.group import CacheKind, KVCacheLayout
from kvsim.policies.draft_counts import DraftCounts, draft_counts_of
from kvsim.policies.kinds import AnyPolicy, Paged
from kvsim.policies.releases import check_feature, rules_of
from kvsim.policies.speculative_config import READS_STATES, SpeculativeConfig

_KIND_WORDS = {CacheKind.CHUNKED_LOCAL: "chunked", CacheKind.MAMBA: "recurrent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Effects of drafting on the scheduler and on the cache."""

    num_tokens: int
    """Number of tokens drafted for every request and step."""
    lookahead_tokens: int = 0
    """Number of slots that every request holds after the slot of its last token."""
    step_tokens: int = 0
    """Number of tokens of the step's budget (`max_num_batched_tokens`) that drafting itself takes for each request."""
    ahead_tokens: int = 0
    """Number of tokens after the end of a block that the prefix key of the block also covers."""
    prompt_ahead_tokens: int = 0
    """Number of prompt tokens that the draft layers read after the end of the chunk that a step computes."""
    drops_last_hit: bool = False
    """True if the last block of every prefix hit is computed again, because the draft layers need its hidden states."""
    limits_running: bool = False
    """True if fewer requests may run, so that a step has room for the `lookahead_tokens` of each request."""
    by_batch: Sequence[tuple[int, int, int]] = ()
    """Entries (first, last, tokens): after a step of `first` to `last` requests, inclusive, each gets `tokens` drafts.

    Between two ranges and beyond the last one, the range before applies. If there are no entries, each request always
    gets `num_tokens` drafts.
    """
    accepted: DraftCounts
    """List of numbers of accepted drafts for each request. A request with an empty list accepts all drafts."""
    proposed: DraftCounts
    """List of numbers of proposed drafts for each request. A request with an empty list gets the maximum."""

    @classmethod
    def of(
        cls,
        config: SpeculativeConfig,
        release: str,
        *,
        caches_prefixes: bool,
        accepted: DraftCounts,
        proposed: DraftCounts,
        has_connector: bool = False,
    ) -> Self:
        """Return the effects of drafting with `config` in a release of vLLM.

        With a KV connector, the prefix key of a block covers no tokens after the block (`ahead_tokens` is 0).
        """
        check_feature(release, "speculative decoding")
        if has_connector:
            config = replace(config, has_plain_hashes=True)
        method, num_tokens, rules = config.method, config.num_tokens, rules_of(release)
        reads_states = method in READS_STATES
        modules = min(config.num_modules, num_tokens) if rules.spares_modules else 1
        return cls(
            num_tokens=num_tokens,
            lookahead_tokens=config.lookahead_tokens,
            step_tokens=config.step_tokens,
            ahead_tokens=config.tokens_ahead(release) if caches_prefixes else 0,
            prompt_ahead_tokens=modules if reads_states or method == "dflash" else 0,
            drops_last_hit=config.drops_last_hit(release),
            limits_running=method == "dflash" and rules.keys_cover_drafts,
            by_batch=config.by_batch,
            accepted=accepted,
            proposed=proposed,
        )

    def check_groups(self, layout: KVCacheLayout | None) -> None:
        """Check that kvsim knows which blocks of a prefix hit are computed again for drafts, in these KV-cache groups.

        Raises:
            UsageError: kvsim does not know them.
        """
        if layout is None or layout.is_uniform or not self.drops_last_hit:
            return
        kinds = {group.kind for group in layout.groups} & {CacheKind.CHUNKED_LOCAL, CacheKind.MAMBA}
        if kinds:
            raise UsageError(
                "kvsim does not follow drafting that computes the last block of a hit again where a model has "
                f"{_KIND_WORDS[min(kinds)]} layers"
            )

    def numbers_by_batch(self, most: int) -> list[int]:
        """Return, for i from 0 to `most`, the number of tokens drafted for each request after a step of i requests.

        The list is empty without `by_batch`.
        """
        if not self.by_batch:
            return []
        numbers = []
        for size in range(most + 1):
            # Between two ranges and after the last, the number of the range before applies.
            earlier = [tokens for begin, _, tokens in self.by_batch if begin <= max(size, 1)]
            numbers.append(earlier[-1] if earlier else self.num_tokens)
        return numbers


def drafts_of(policy: AnyPolicy, rows: range) -> Drafts | None:
    """Return the effects of speculative decoding on the requests in `rows`; None if `policy` drafts nothing."""
    if not isinstance(policy, Paged) or (config := policy.scheduler.drafting) is None:
        return None
    chosen = policy.scheduler
    accepted, proposed = draft_counts_of(
        chosen.acceptance,
        synthetic_rates=config.synthetic_rates,
        num_tokens=config.num_tokens,
        seed=chosen.acceptance_seed,
        rows=rows,
    )
    return Drafts.of(
        config, chosen.vllm, caches_prefixes=policy.cache.enable_prefix_caching, accepted=accepted, proposed=proposed
    )
