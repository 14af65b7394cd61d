"""Explain a cache plan in sentences: why its blocks have many tokens, and which prefixes can be hit."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from kvsim.kv_groups.group import CacheKind

if TYPE_CHECKING:
    from kvsim.kv_groups.plan import CachePlan
    from kvsim.models import Model


def why_so_large(plan: CachePlan) -> str:
    """Return a sentence on why a block of an attention layer has many tokens; "" if not for recurrent states."""
    states = [group for group in plan.layout.groups if group.kind is CacheKind.MAMBA]
    others = [group for group in plan.layout.groups if group.kind is not CacheKind.MAMBA]
    if not states or not others or plan.settings.block_size == others[0].block_size:
        return ""
    tokens, page = others[0].block_size, others[0].page_bytes
    state = states[0].content_bytes or states[0].page_bytes
    return (
        f"A block of attention has {tokens:,} tokens because vLLM makes all pages equally large: the state of a "
        f"recurrent layer has {state / 1024:,.0f} KiB, a token of an attention layer {page / tokens / 1024:,.4g} KiB, "
        f"and {tokens:,} is the first block that holds as much."
    )


def caching_words(model: Model, plan: CachePlan) -> tuple[bool, str]:
    """Return (True if prefixes are cached, a sentence on which prefixes can be hit or on why none is cached)."""
    if plan.settings.caches_prefixes(model):
        tokens = lcm(*(group.block_size for group in plan.layout.groups))
        return True, f"hits are whole blocks from the first token on: no prefix under {tokens:,} tokens is found"
    if plan.settings.enable_prefix_caching is False and not model.recurrent_layers:
        return False, "no prefix is found, however long; --enable-prefix-caching turns it on"
    return (
        False,
        "no prefix is found: caching is off by default with recurrent layers; --enable-prefix-caching turns it on",
    )
