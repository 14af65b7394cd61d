"""KV-cache groups as the records that the engine works on."""

from __future__ import annotations

from typing import Any

from kvsim.engine import groups, records
from kvsim.engine.arrays import Records, make
from kvsim.engine.records import NEVER
from kvsim.engine.state import (
    ALIGNED,
    CHUNKED_LOCAL,
    EVERY_STATE,
    FULL,
    LIVE_STATE,
    MAMBA,
    SLIDING_WINDOW,
)
from kvsim.kv_groups import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode
from kvsim.policies import Paged, Policy
from kvsim.policies.releases import ReusedFirst, rules_of

_KINDS = {
    CacheKind.FULL: FULL,
    CacheKind.MLA: FULL,
    CacheKind.SLIDING_WINDOW: SLIDING_WINDOW,
    CacheKind.CHUNKED_LOCAL: CHUNKED_LOCAL,
    CacheKind.MAMBA: MAMBA,
}


_MODES = {MambaMode.NONE: LIVE_STATE, MambaMode.ALL: EVERY_STATE, MambaMode.ALIGN: ALIGNED}


def one_group(policy: Policy) -> KVCacheLayout:
    """Return the layout of full attention in all layers, as in most models."""
    group = KVCacheGroup(kind=CacheKind.FULL, block_size=policy.unit_tokens, num_layers=1, page_bytes=1)
    return KVCacheLayout(
        groups=(group,),
        bytes_per_block=policy.unit_tokens,
        scheduler_block_size=policy.unit_tokens,
        hash_block_size=policy.unit_tokens,
    )


def settings_of_groups(layout: KVCacheLayout, policy: Policy) -> dict[str, Any]:
    """Return the settings that follow from the groups."""
    tokens, _ = _slots_of_groups(layout)
    caching = isinstance(policy, Paged) and policy.cache.enable_prefix_caching
    boundaries = [group.block_size for group in layout.groups if group.mamba_mode is MambaMode.ALIGN]
    return {
        "num_groups": len(layout.groups),
        "unit_tokens": layout.scheduler_block_size,
        "unit_slots": layout.unit_slots,
        "token_slots": sum(tokens),
        "has_windows": layout.has_windows,
        "cache_tokens": layout.scheduler_block_size,
        "retention_tokens": NEVER,
        "expires_from": min((group.window or 0 for group in layout.groups if _expires(group)), default=0),
        "boundary_tokens": max(boundaries, default=0) if caching else 0,
        "first_leader": _leaders(layout)[0],
    }


def _reused_first(policy: Policy) -> ReusedFirst:
    """Return the freed blocks that are taken first, by the rule for the cache with or without prefixes."""
    if not isinstance(policy, Paged):
        return ReusedFirst.ALL
    reused = rules_of(policy.scheduler.vllm).reused_first
    if reused is ReusedFirst.WITH_CACHING:
        return ReusedFirst.ALL if policy.cache.enable_prefix_caching else ReusedFirst.NONE
    return reused


def _expires(group: KVCacheGroup) -> bool:
    """Tell whether a group holds tokens, or states, longer than any step reads them."""
    return group.kind is CacheKind.MAMBA or group.window is not None


def _slots_of_groups(layout: KVCacheLayout) -> tuple[list[int], list[int]]:
    """Return the slots of one token, and of one state, in every group."""
    return [layout.token_slots(group) for group in layout.groups], [layout.state_slots(each) for each in layout.groups]


def _leaders(layout: KVCacheLayout) -> list[int]:
    """Return the first group of every kind, in lookup order: full attention first."""
    specs = [group.spec for group in layout.groups]
    leaders = [specs.index(spec) for spec in dict.fromkeys(specs)]
    return sorted(leaders, key=lambda leader: _KINDS[layout.groups[leader].kind] != FULL)


def records_of_groups(
    layout: KVCacheLayout, widths: list[int], policy: Policy, retention_tokens: int | None, *, compiled: bool
) -> Records[records.Group]:
    """Return the records of the groups, whose tables have `widths` entries."""
    made = make(records.Group, len(layout.groups), compiled=compiled)
    leaders, specs = _leaders(layout), [group.spec for group in layout.groups]
    tokens, states = _slots_of_groups(layout)
    most = policy.scheduler.max_num_batched_tokens if isinstance(policy, Paged) else 1
    reused = _reused_first(policy)
    for index, group in enumerate(layout.groups):
        record = made[index]
        record.kind, record.block_size, record.window = _KINDS[group.kind], group.block_size, group.window or 0
        record.mode = _MODES[group.mamba_mode or MambaMode.NONE]
        record.cap_blocks = group.blocks_for(policy.max_model_len, most)
        record.hashes_per_block = max(group.block_size // layout.hash_block_size, 1)
        record.token_slots, record.state_slots = tokens[index], states[index]
        record.num_alike = specs.count(specs[index])
        record.alike_slots = sum(
            tokens[other] + states[other] for other in range(len(specs)) if specs[other] == specs[index]
        )
        record.keeps_some = retention_tokens is not None or layout.keeps_some(group)
        record.reuses_first = reused is ReusedFirst.ALL or (
            reused is ReusedFirst.WINDOWS and group.kind is CacheKind.SLIDING_WINDOW
        )
        record.first_entry = sum(widths[:index])
        alike = [other for other in range(index + 1, len(specs)) if specs[other] == specs[index]]
        record.next_alike = alike[0] if alike else groups.NO_GROUP
        later = leaders[leaders.index(index) + 1 :] if index in leaders else []
        record.next_leader = later[0] if later else groups.NO_GROUP
    return made
