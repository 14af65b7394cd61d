"""KV events in the shapes of all releases, and what is none. vLLM's own are in `test_told_by_vllm`."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from kvsim.errors import RecordingError
from kvsim.live.kv_events import CachePart, ServerCache

GPU = CachePart("GPU", 0)
STORED = ["BlockStored", [11, 12], None, [1, 2, 3, 4], 2, None, "GPU", None]
"""As vLLM 0.20 sends it, without the fields that have a default."""
BY_NAME = {
    "type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
    "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None,
}  # fmt: skip
"""As vLLM 0.24 and later send it."""


def heard(*events: Any, cached: ServerCache | None = None) -> ServerCache:
    cached = cached or ServerCache()
    cached.hear(msgpack.packb([1.5, list(events), 0]))
    return cached


@pytest.mark.parametrize("stored", [
    STORED,
    [*STORED, None, 0],
    [*STORED, None, 0, "full_attention", None],
    [*STORED, None, 0, "full_attention", None, "LOCAL", "a tier", "a session", [[5], [6]], "a field of tomorrow"],
    BY_NAME,
    BY_NAME | {"group_idx": 0, "kv_cache_spec_kind": "full_attention"},
    BY_NAME | {"locality": "LOCAL", "session_id": "a session", "lookahead_token_ids": [[5], [6]], "tomorrow": 1},
])  # fmt: skip
def test_blocks_are_stored_and_removed_in_the_shapes_of_all_releases(stored: Any) -> None:
    cached = heard(stored)
    assert list(cached.blocks[GPU]) == [11, 12]
    assert [block.parent for block in cached.blocks[GPU].values()] == [None, 11]
    assert [block.num_tokens for block in cached.blocks[GPU].values()] == [2, 2]
    heard({"type": "BlockRemoved", "block_hashes": [11], "medium": "GPU", "locality": "LOCAL"}, cached=cached)
    assert list(cached.blocks[GPU]) == [12]
    heard(["BlockRemoved", [12], "GPU", 0, "tomorrow"], cached=cached)
    assert not cached.blocks[GPU]


def test_groups_and_media_have_caches_of_their_own_and_all_are_cleared() -> None:
    window = BY_NAME | {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 8}
    cached = heard(BY_NAME, window, BY_NAME | {"medium": "CPU", "block_hashes": [b"a whole hash", 12]})
    assert {place: len(blocks) for place, blocks in cached.blocks.items()} == {
        GPU: 2, CachePart("GPU", 1): 2, CachePart("CPU", 0): 2,
    }  # fmt: skip
    assert cached.blocks[CachePart("GPU", 1)][12].kind == "sliding_window"
    heard({"type": "BlockRemoved", "block_hashes": [11, 12], "medium": "GPU", "group_idx": 1}, cached=cached)
    assert not cached.blocks[CachePart("GPU", 1)]
    assert len(cached.blocks[GPU]) == 2
    assert not heard(["AllBlocksCleared"], cached=cached).blocks
    assert not heard(BY_NAME, {"type": "AllBlocksCleared"}).blocks


def test_blocks_that_are_told_again_count_once_and_a_partial_one_is_promoted() -> None:
    cached = heard(BY_NAME, BY_NAME)  # kv_cache_report_mode tells blocks that are reused
    assert len(cached.blocks[GPU]) == 2
    partial = BY_NAME | {"block_hashes": [13], "parent_block_hash": 12, "block_size": 1}
    whole = BY_NAME | {"block_hashes": [14], "parent_block_hash": 12, "block_size": 2}
    removed = {"type": "BlockRemoved", "block_hashes": [13], "medium": "GPU", "group_idx": 0}
    heard(partial, removed, whole, cached=cached)
    assert list(cached.blocks[GPU]) == [11, 12, 14]


@pytest.mark.parametrize(("batch", "reason"), [
    ({"ts": 1.0}, "no batch of KV events"),
    ([1.0, {}], "no batch of KV events"),
    ([1.0, [["BlockMoved", [1]]]], "no KV event that is known"),
    ([1.0, [["BlockStored", [1], None]]], "has no token_ids"),
    ([1.0, [{"type": "BlockRemoved", "medium": "GPU"}]], "has no block_hashes"),
    ([float("nan"), []], "no batch of KV events"),
    ([1.0, [BY_NAME | {"block_hashes": ["eleven"]}]], "cannot have"),
    ([1.0, [BY_NAME | {"block_size": 0}]], "cannot have"),
    ([1.0, [BY_NAME | {"block_hashes": True}]], "cannot have"),
    ([1.0, [BY_NAME | {"group_idx": -1}]], "cannot have"),
])  # fmt: skip
def test_what_is_no_event_is_refused_in_a_sentence(batch: Any, reason: str) -> None:
    with pytest.raises(RecordingError, match=reason):
        ServerCache().hear(msgpack.packb(batch))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01"])
def test_bytes_that_are_no_msgpack_are_refused(payload: bytes) -> None:
    with pytest.raises(RecordingError, match="no batch of KV events"):
        ServerCache().hear(payload)


def test_sglang_leaves_out_what_is_none() -> None:
    stored = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [7, 8], "block_size": 1}
    cached = heard(stored | {"parent_block_hash": None}, stored | {"parent_block_hash": 2, "block_hashes": [3]})
    assert list(cached.blocks[GPU]) == [1, 2, 3]
    heard({"type": "BlockRemoved", "block_hashes": [3]}, cached=cached)
    assert list(cached.blocks[GPU]) == [1, 2]
    assert (cached.num_stored, cached.num_removed, len(cached.lifetimes_s)) == (3, 1, 1)
