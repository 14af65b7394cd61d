from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import RecordingError
from kvsim.kv_groups import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode, groups_from_meta

SLIDING = KVCacheGroup(kind=CacheKind.SLIDING_WINDOW, block_size=16, num_layers=12, page_bytes=32768, window=128)
FULL = KVCacheGroup(kind=CacheKind.FULL, block_size=16, num_layers=12, page_bytes=32768, spec=1)
STATE = KVCacheGroup(
    kind=CacheKind.MAMBA,
    block_size=512,
    num_layers=4,
    page_bytes=99,
    mamba_mode=MambaMode.ALL,
    num_speculative_blocks=2,
)


@pytest.mark.parametrize("group", [SLIDING, FULL, STATE], ids=lambda group: group.kind)
def test_a_group_survives_being_written_down(group: KVCacheGroup) -> None:
    assert groups_from_meta(json.loads(json.dumps([group.as_meta()]))) == (group,)


def test_a_window_needs_what_it_sees_and_what_a_step_adds() -> None:
    # 127 tokens of the window before a step of 2,048, and one block because neither end need be at a boundary.
    assert SLIDING.blocks_for(100_000, 2048) == -(-(127 + 2048) // 16) + 1
    assert SLIDING.blocks_for(100, 2048) == 7 + 1
    assert FULL.blocks_for(100_000, 2048) == 6250
    chunked = KVCacheGroup(kind=CacheKind.CHUNKED_LOCAL, block_size=16, num_layers=1, page_bytes=1, window=8192)
    assert chunked.blocks_for(100_000, 2048) == (8192 + 2048) // 16


@pytest.mark.parametrize(("mode", "blocks"), [(MambaMode.NONE, 1), (MambaMode.ALIGN, 2), (MambaMode.ALL, 5)], ids=str)
def test_recurrent_states_by_mode(mode: MambaMode, blocks: int) -> None:
    group = KVCacheGroup(kind=CacheKind.MAMBA, block_size=512, num_layers=4, page_bytes=1, mamba_mode=mode)
    assert group.blocks_for(2049, 16) == blocks


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 8192))
def test_a_longer_sequence_never_needs_fewer_blocks(tokens: int, more: int, largest_step: int) -> None:
    layout = KVCacheLayout(groups=(SLIDING, FULL), bytes_per_block=1, scheduler_block_size=16, hash_block_size=16)
    assert layout.blocks_for(tokens, largest_step) <= layout.blocks_for(tokens + more, largest_step)
    assert not layout.is_uniform


@pytest.mark.parametrize("key", ["kind", "block_size", "num_layers", "page_bytes", "window"])
@pytest.mark.parametrize("value", [None, 0, -1, True, "8", 2.5, []])
def test_a_damaged_group_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(RecordingError, match=rf"kv_cache_groups\[1\] says {key} = "):
        groups_from_meta([FULL.as_meta(), SLIDING.as_meta() | {key: value}])


@pytest.mark.parametrize("entries", [[], {}, None, [3]])
def test_what_is_no_list_of_groups_is_refused(entries: object) -> None:
    with pytest.raises(RecordingError, match="kv_cache_groups"):
        groups_from_meta(entries)  # type: ignore[arg-type]
