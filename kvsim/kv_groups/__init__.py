"""KV-cache groups: layers that share a table of blocks, and the number of blocks in a GPU's memory.

Each name is imported when it is first used. So programs that only read the groups of a recording load no models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import by_name, names_of

if TYPE_CHECKING:
    from kvsim.kv_groups.group import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode, groups_from_meta
    from kvsim.kv_groups.grouping import pipeline_stages
    from kvsim.kv_groups.plan import CachePlan, bytes_per_block, cache_layout, plan_cache
    from kvsim.kv_groups.specs import CacheSettings

_HOME = by_name({
    "kvsim.kv_groups.group": "CacheKind KVCacheGroup KVCacheLayout MambaMode groups_from_meta",
    "kvsim.kv_groups.grouping": "pipeline_stages",
    "kvsim.kv_groups.plan": "CachePlan bytes_per_block cache_layout plan_cache",
    "kvsim.kv_groups.specs": "CacheSettings",
})  # fmt: skip
"""Module of each name that this package offers."""

__all__ = [
    "CacheKind",
    "CachePlan",
    "CacheSettings",
    "KVCacheGroup",
    "KVCacheLayout",
    "MambaMode",
    "bytes_per_block",
    "cache_layout",
    "groups_from_meta",
    "pipeline_stages",
    "plan_cache",
]

__getattr__ = names_of(__name__, _HOME)
