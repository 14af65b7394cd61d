"""Build the engine's records and settings of KV-cache groups from a model's groups and the rules of a vLLM release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from kvsim.engine import records
from kvsim.engine.arrays import Records, make
from kvsim.engine.paged import groups
from kvsim.engine.records import NEVER
from kvsim.engine.state import ALIGNED, CHUNKED_LOCAL, EVERY_STATE, FULL_ATTENTION, LIVE_STATE, MAMBA, SLIDING_WINDOW
from kvsim.errors import UsageError
from kvsim.kv_groups import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode
from kvsim.policies import Paged, Pipeline, Policy
from kvsim.policies.drafts import Drafts
from kvsim.policies.releases import AlignedSplit, Junction, LeftOut, ReleaseRules, ReusedFirst, SecondKey, rules_of

_KINDS = {
    CacheKind.FULL: FULL_ATTENTION,
    CacheKind.MLA: FULL_ATTENTION,
    CacheKind.SLIDING_WINDOW: SLIDING_WINDOW,
    CacheKind.CHUNKED_LOCAL: CHUNKED_LOCAL,
    CacheKind.MAMBA: MAMBA,
}
_MODES = {MambaMode.NONE: LIVE_STATE, MambaMode.ALL: EVERY_STATE, MambaMode.ALIGN: ALIGNED}


def one_group(policy: Policy) -> KVCacheLayout:
    """Return a layout with one group: full attention in all layers, as in most models."""
    group = KVCacheGroup(kind=CacheKind.FULL, block_size=policy.unit_tokens, num_layers=1, page_bytes=1)
    return KVCacheLayout(
        groups=(group,),
        bytes_per_block=policy.unit_tokens,
        scheduler_block_size=policy.unit_tokens,
        hash_block_size=policy.unit_tokens,
    )


def settings_of_groups(layout: KVCacheLayout, policy: Policy) -> dict[str, Any]:
    """Return the settings of the engine that depend on the KV-cache groups, by their names in `Settings`."""
    tokens, _ = _slots_of_groups(layout)
    caching = isinstance(policy, Paged) and policy.cache.enable_prefix_caching
    rules = rules_of(policy.scheduler.vllm) if isinstance(policy, Paged) else ReleaseRules()
    boundaries = [group.block_size for group in layout.groups if group.mamba_mode is MambaMode.ALIGN]
    return {
        "num_groups": len(layout.groups),
        "unit_tokens": layout.scheduler_block_size,
        "unit_slots": layout.unit_slots,
        "token_slots": sum(tokens),
        "has_windows": layout.has_windows,
        "cache_tokens": layout.scheduler_block_size,
        "retention_tokens": NEVER,
        "cuts_every_full_kind": rules.cuts_every_full_kind,
        "bounds_first_chunk": rules.junction is Junction.FIRST_CHUNK,
        "keeps_junctions": rules.junction is Junction.KEPT,
        "cuts_at_boundaries": rules.aligned_split is not AlignedSplit.WHOLE_BLOCKS,
        "cuts_wide_blocks": rules.aligned_split is AlignedSplit.WIDE_BLOCKS,
        "spares_last_token": rules.spares_last_token,
        "marks_prompt_end": rules.marks_prompt_end and caching and bool(boundaries),
        "commit_tokens": (
            layout.scheduler_block_size
            if rules.caches_to_boundaries
            else gcd(*(group.block_size for group in layout.groups))
        ),
        # A token can expire once it has left a window; a recurrent state, when the next one is written.
        "expires_from": min(
            (group.window or 0 for group in layout.groups if group.window is not None or group.kind is CacheKind.MAMBA),
            default=0,
        ),
        "boundary_tokens": max(boundaries, default=0) if caching else 0,
        "first_in_lookup": _lookup_order(layout)[0],
    }


def check_groups(layout: KVCacheLayout, release: str, *, caches_prefixes: bool) -> None:
    """Refuse a model with these KV-cache groups if `release` of vLLM cannot serve it.

    Raises:
        UsageError: the release refuses the model, or does so with prefix caching (`caches_prefixes`).
    """
    is_padded = any(group.content_bytes and group.mamba_mode is None for group in layout.groups)
    if is_padded and not rules_of(release).pads_pages:
        raise UsageError(
            f"vLLM {release} does not start with a page of one layer that does not divide that of another; take "
            "another --block-size, or a release from 0.24 on."
        )
    keeps_every_state = any(group.mamba_mode is MambaMode.ALL for group in layout.groups)
    if keeps_every_state and caches_prefixes and not rules_of(release).caches_every_state:
        raise UsageError(
            f"vLLM {release} does not cache prefixes of a model that keeps the recurrent state of every block; take "
            "--no-prefix-caching, or an older release."
        )


def marks_tails(layout: KVCacheLayout, policy: Paged) -> bool:
    """Return `Settings.marks_tails`: True if, with drafts, vLLM also assigns a key to a partly full block in which the
    last full hash of a prompt ends.

    This requires prefix caching, a release with this rule (`ReleaseRules.second_key`), and a group of full attention
    whose blocks have more tokens than a hash covers.
    """
    has_keys = rules_of(policy.scheduler.vllm).second_key is not SecondKey.NONE and policy.cache.enable_prefix_caching
    sizes = [group.block_size for group in layout.groups if _KINDS[group.kind] == FULL_ATTENTION]
    return has_keys and any(size > layout.hash_block_size for size in sizes)


def frees_after_flight(layout: KVCacheLayout, policy: Paged) -> bool:
    """Tell whether some group frees blocks that have left a window, or old states, only when the outputs of the steps
    in flight that read them are processed.
    """
    waits = rules_of(policy.scheduler.vllm).windows_wait
    return waits and any(_KINDS[group.kind] != FULL_ATTENTION for group in layout.groups)


def _keeps_all(layout: KVCacheLayout, group: KVCacheGroup, rules: ReleaseRules, retention_tokens: int | None) -> bool:
    if group.kind is CacheKind.MAMBA:
        return retention_tokens is None or not rules.retains_states
    if group.kind is not CacheKind.SLIDING_WINDOW or rules.left_out is LeftOut.NONE:
        return True
    return rules.left_out is LeftOut.SMALLER and layout.scheduler_block_size <= group.block_size


def keeps_only_some(
    layout: KVCacheLayout, group: KVCacheGroup, rules: ReleaseRules, retention_tokens: int | None
) -> bool:
    """Tell whether some full blocks of a group are never cached. For `retention_tokens`, see `records_of_groups`."""
    if _keeps_all(layout, group, rules, retention_tokens):
        return False
    return retention_tokens is not None or layout.keeps_only_some(group)


def _slots_of_groups(layout: KVCacheLayout) -> tuple[list[int], list[int]]:
    """Return two lists with a value for each group: number of slots that one token takes, and number that one recurrent
    state takes. Slots are the units in which the pool is measured; see `KVCacheLayout.unit_slots`.
    """
    return [layout.token_slots(group) for group in layout.groups], [layout.state_slots(each) for each in layout.groups]


def _lookup_order(layout: KVCacheLayout) -> list[int]:
    """Return the order in which prefixes are looked up: the index of the first group of each kind, full attention
    first. Groups with equal `spec` are of one kind, and are looked up together.
    """
    specs = [group.spec for group in layout.groups]
    order = [specs.index(spec) for spec in dict.fromkeys(specs)]
    return sorted(order, key=lambda first: _KINDS[layout.groups[first].kind] != FULL_ATTENTION)


def specs_dropping_hits(groups: Sequence[KVCacheGroup], rules: ReleaseRules) -> set[int]:
    """Return the values of `KVCacheGroup.spec` of the groups whose last hit block is computed again because of drafts:
    those that share a spec with a group that has draft layers. Return all values if no group has draft layers, or if
    the release does not distinguish groups by them (`ReleaseRules.drops_where_drafted`).
    """
    drafting = {group.spec for group in groups if group.has_draft_layers}
    return drafting if drafting and rules.drops_where_drafted else {group.spec for group in groups}


def records_of_groups(
    layout: KVCacheLayout,
    widths: list[int],
    policy: Policy,
    retention_tokens: int | None,
    pipeline: Pipeline,
    drafts: Drafts | None,
    *,
    compiled: bool,
) -> Records[records.Group]:
    """Return the engine's records of the KV-cache groups.

    Args:
        layout: the groups of the model.
        widths: number of entries in a table of each group.
        policy: settings of the server. Unless they are vLLM's (`Paged`), the model has one group, and no release's
            rules apply to it.
        retention_tokens: tokens between the boundaries at which windows and states are cached; None for no setting.
        pipeline: stages of the engine, which bound the number of tokens in flight.
        drafts: speculative decoding; None without.
        compiled: True for an array of records, which machine code uses, instead of objects.
    """
    made = make(records.Group, len(layout.groups), compiled=compiled)
    _link_groups(made, layout)
    tokens, states = _slots_of_groups(layout)
    rules, in_flight_tokens = ReleaseRules(reused_first=ReusedFirst.ALL), 1
    if isinstance(policy, Paged):
        rules, in_flight_tokens = rules_of(policy.scheduler.vllm), pipeline.max_in_flight_tokens(policy.scheduler)
        if rules.reused_first is ReusedFirst.WITH_CACHING and not policy.cache.enable_prefix_caching:
            rules = replace(rules, reused_first=ReusedFirst.NONE)
    dropping = specs_dropping_hits(layout.groups, rules) if drafts is not None and drafts.drops_last_hit else set()
    extra_tokens = max(drafts.prompt_ahead_tokens - 1, 0) if drafts else 0
    for index, group in enumerate(layout.groups):
        record, kept = made[index], group
        if group.kind is CacheKind.SLIDING_WINDOW and group.window is not None:
            record.extra_tokens = extra_tokens
            kept = replace(group, window=group.window + extra_tokens)
        record.drops_hit = group.spec in dropping
        record.kind, record.block_size, record.window = _KINDS[group.kind], group.block_size, group.window or 0
        record.mode = _MODES[group.mamba_mode or MambaMode.NONE]
        record.most_blocks = kept.blocks_for(policy.max_model_len, in_flight_tokens)
        record.hashes_per_block = max(group.block_size // layout.hash_block_size, 1)
        record.token_slots, record.state_slots = tokens[index], states[index]
        record.keeps_all = _keeps_all(layout, group, rules, retention_tokens)
        record.keeps_only_some = keeps_only_some(layout, group, rules, retention_tokens)
        record.reuses_left_first = rules.reused_first is not ReusedFirst.NONE
        record.reuses_first = record.reuses_left_first and (
            rules.reused_first is not ReusedFirst.WINDOWS or group.kind is CacheKind.SLIDING_WINDOW
        )
        record.frees_over_gaps = rules.frees_over_gaps and group.mamba_mode is MambaMode.ALIGN
        record.first_entry = sum(widths[:index])
    return made


def _link_groups(made: Records[records.Group], layout: KVCacheLayout) -> None:
    """Set the fields of the groups' records that refer to other groups of the same kind, or to the next kind."""
    order, specs = _lookup_order(layout), [group.spec for group in layout.groups]
    tokens, states = _slots_of_groups(layout)
    for index, spec in enumerate(specs):
        record = made[index]
        of_kind = [other for other in range(len(specs)) if specs[other] == spec]
        record.num_of_kind = len(of_kind)
        record.kind_slots = sum(tokens[other] + states[other] for other in of_kind)
        following = [other for other in of_kind if other > index]
        record.next_of_kind = following[0] if following else groups.NO_GROUP
        later_kinds = order[order.index(index) + 1 :] if index in order else []
        record.next_in_lookup = later_kinds[0] if later_kinds else groups.NO_GROUP
