"""Speculative decoding in vLLM: what a method of drafting asks of the scheduler and of the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kvsim.errors import UnknownNameError, UsageError
from kvsim.policies.releases import check_drafts, rules_of

_READS_STATES = ("eagle", "eagle3", "mtp", "mtp_multi")
"""Methods whose layers read the states of the model, one token behind."""
_LOOKS_UP = ("ngram", "ngram_gpu", "suffix")
"""Methods that look drafts up in the request's own tokens."""
METHODS = (*_READS_STATES, "dflash", "draft_model", *_LOOKS_UP)


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
    has_v2_runner: bool = True
    """Whether model runner V2 serves it."""
    limits_running: bool = False
    """Whether a step must have the lookahead of every request that runs."""
    by_batch: Sequence[tuple[int, int, int]] = ()
    """Tokens drafted behind a step of a number of requests, from and to included; empty if that does not matter."""
    right: Sequence[Sequence[int]] = field(default=(), repr=False)
    """Drafts that are right, for each request by the number of its outputs; an empty row: all."""
    proposed: Sequence[Sequence[int]] = field(default=(), repr=False)
    """Drafts that are proposed, for each request by the number of its outputs; an empty row: as many as may be."""

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        release: str,
        *,
        caches_prefixes: bool,
        has_connector: bool = False,
        **told: Sequence[Sequence[int]],
    ) -> Self:
        """Return what a method of drafting asks of a release; with a KV connector, keys cover no tokens ahead.

        Raises:
            UsageError: the method or its number of tokens is none, or drafts of the release are not known.
        """
        check_drafts(release)
        method, num_tokens, rules = settings.get("method"), settings.get("k"), rules_of(release)
        if method not in METHODS:
            raise UnknownNameError("method", str(method), METHODS)
        if type(num_tokens) is not int or num_tokens < 1:
            raise UsageError(f"drafts should be at least 1 token, not {num_tokens!r}")
        reads_states = method in _READS_STATES
        modules = num_tokens if method == "mtp_multi" and rules.spares_modules else 1
        drops = reads_states or method == "dflash"
        if rules.keys_cover_drafts:
            drops = reads_states and not settings.get("disable_block_drop", False)
        covers = drops and rules.keys_cover_drafts and not has_connector
        covers = covers and not settings.get("disable_lookahead_hashes", False)
        is_parallel = bool(settings.get("parallel_drafting", False))
        slots = int(method == "draft_model")
        if is_parallel:
            slots = num_tokens if method == "draft_model" else num_tokens - 1
        by_runner_v2 = reads_states or method == "dflash" or rules.drafts_have_v2_runner
        return cls(
            num_tokens=num_tokens,
            lookahead_tokens=0 if method in _LOOKS_UP else num_tokens + (method == "dflash"),
            slots=slots,
            ahead_tokens=modules if covers and caches_prefixes else 0,
            prompt_ahead_tokens=modules if reads_states or method == "dflash" else 0,
            drops_last_hit=drops and not covers,
            has_v2_runner=by_runner_v2 and not is_parallel and method != "suffix",
            limits_running=method == "dflash" and rules.keys_cover_drafts,
            by_batch=tuple((int(begin), int(end), int(k)) for begin, end, k in settings.get("per_batch") or ()),
            **told,
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
