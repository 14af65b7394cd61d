"""Demands of speculative decoding on the scheduler and on the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from kvsim.policies.kinds import AnyPolicy, Paged
from kvsim.policies.outcomes import Outcomes, outcomes_of
from kvsim.policies.releases import check_drafts, rules_of
from kvsim.policies.speculative_config import READS_STATES, SpeculativeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Demands of drafting on the scheduler and on the cache."""

    num_tokens: int
    """Tokens drafted for every request and step."""
    lookahead_tokens: int = 0
    """Slots behind its tokens that every request holds."""
    slots: int = 0
    """Tokens of a step that drafting itself takes for each request."""
    ahead_tokens: int = 0
    """Tokens behind a block that its key covers."""
    prompt_ahead_tokens: int = 0
    """Tokens of a prompt that drafting reads ahead."""
    drops_last_hit: bool = False
    limits_running: bool = False
    """Whether a step must have the lookahead of every request that runs."""
    by_batch: Sequence[tuple[int, int, int]] = ()
    """Tokens drafted behind a step of a number of requests, from and to included; empty if that does not matter."""
    right: Outcomes
    """Drafts that are right, for each request by the number of its outputs; a request without numbers: all."""
    proposed: Outcomes
    """Drafts that are proposed, for each request by the number of its outputs; without numbers: as many as may be."""

    @classmethod
    def of(
        cls,
        config: SpeculativeConfig,
        release: str,
        *,
        caches_prefixes: bool,
        right: Outcomes,
        proposed: Outcomes,
        has_connector: bool = False,
    ) -> Self:
        """Return what a method of drafting asks of a release; with a KV connector, keys cover no tokens ahead.

        Raises:
            UsageError: drafts of the release are not known.
        """
        check_drafts(release)
        if has_connector:
            config = replace(config, has_plain_hashes=True)
        method, num_tokens, rules = config.method, config.num_tokens, rules_of(release)
        reads_states = method in READS_STATES
        modules = min(config.num_modules, num_tokens) if rules.spares_modules else 1
        return cls(
            num_tokens=num_tokens,
            lookahead_tokens=config.lookahead_tokens,
            slots=config.slots,
            ahead_tokens=config.tokens_ahead(release) if caches_prefixes else 0,
            prompt_ahead_tokens=modules if reads_states or method == "dflash" else 0,
            drops_last_hit=config.drops_last_hit(release),
            limits_running=method == "dflash" and rules.keys_cover_drafts,
            by_batch=config.by_batch,
            right=right,
            proposed=proposed,
        )

    def numbers_by_batch(self, most: int) -> list[int]:
        """Return the tokens drafted behind a step of each number of requests up to `most`; empty if all are equal."""
        if not self.by_batch:
            return []
        numbers = []
        for size in range(most + 1):
            earlier = [k for begin, _, k in self.by_batch if begin <= max(size, 1)]
            numbers.append(earlier[-1] if earlier else self.num_tokens)
        return numbers


def drafts_of(policy: AnyPolicy, rows: range) -> Drafts | None:
    """Return what speculative decoding asks of an engine with the requests in `rows` of a workload; None without.

    Raises:
        WorkloadError: the file of accepted drafts cannot be read.
    """
    if not isinstance(policy, Paged) or (config := policy.scheduler.drafting) is None:
        return None
    chosen = policy.scheduler
    right, proposed = outcomes_of(chosen.acceptance, config.rates, config.num_tokens, chosen.acceptance_seed, rows)
    return Drafts.of(
        config,
        chosen.vllm,
        caches_prefixes=policy.cache.enable_prefix_caching,
        right=right,
        proposed=proposed,
    )
