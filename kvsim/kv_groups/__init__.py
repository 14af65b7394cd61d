"""KV-cache groups: which layers share a table of blocks, and how many blocks a GPU's memory makes."""

from kvsim.kv_groups.group import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode, groups_from_meta
from kvsim.kv_groups.grouping import pipeline_stages
from kvsim.kv_groups.plan import CachePlan, bytes_per_block, cache_layout, plan_cache
from kvsim.kv_groups.specs import CacheSettings

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
