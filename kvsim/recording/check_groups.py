"""Check the KV-cache groups in `meta.json`, from which the slots and bytes of every unit are computed."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any

from kvsim.errors import RecordingError
from kvsim.kv_groups.group import CacheKind, groups_from_meta
from kvsim.recording.model import Pool

_MOST_GROUPS = 1 << 10
_MOST_BYTES = 1 << 56
"""Limit for the number of bytes of a pool, and of a page of a group. Sums over pool and time then fit into 64 bits."""


def with_groups(pool: Pool, entries: Any) -> Pool:
    """Return `pool` with the KV-cache groups in `entries`, the value of `kv_cache_groups` in `meta.json`.

    A single group of full attention without a window needs no groups: `pool` is then returned unchanged.

    Raises:
        RecordingError: a group is impossible, or does not fit the pool.
    """
    if isinstance(entries, list) and len(entries) > _MOST_GROUPS:
        raise RecordingError(f"kv_cache_groups lists {len(entries):,} groups; at most {_MOST_GROUPS:,} are read.")
    groups = groups_from_meta(entries)
    grouped = replace(pool, groups=groups)
    layout = grouped.layout
    assert layout is not None
    for index, group in enumerate(groups):
        if group.num_speculative_blocks:
            raise RecordingError(
                f"kv_cache_groups[{index}] was recorded with speculative decoding, whose blocks are not followed yet."
            )
        if group.content_bytes is not None and group.content_bytes > group.page_bytes:
            raise RecordingError(f"kv_cache_groups[{index}] says content_bytes above its page_bytes.")
        if group.page_bytes * group.num_layers > _MOST_BYTES or not layout.token_slots(group) + layout.state_slots(
            group
        ):
            raise RecordingError(
                f"kv_cache_groups[{index}] says a page of {group.page_bytes:,} bytes, which cannot be."
            )
    together = lcm(*(group.block_size for group in groups))
    if pool.unit_tokens != together:
        raise RecordingError(
            f"pool.unit_tokens is {pool.unit_tokens:,}; the blocks of its kv_cache_groups end together every "
            f"{together:,} tokens."
        )
    if (pool.num_units or 0) * grouped.unit_slots > _MOST_BYTES:
        raise RecordingError("the pool has more bytes than any machine; num_units or bytes_per_unit cannot be right.")
    if len(groups) == 1 and groups[0].kind in (CacheKind.FULL, CacheKind.MLA) and groups[0].window is None:
        return pool
    return grouped
