"""KV-cache groups: which layers share a table of blocks, and how many blocks a GPU's memory makes."""

from kvsim.kv_groups.group import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode, groups_from_meta

__all__ = ["CacheKind", "KVCacheGroup", "KVCacheLayout", "MambaMode", "groups_from_meta"]
