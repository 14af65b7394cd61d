"""What must hold of groups whatever the layers: every layer has a home, bytes add up, memory is never worth less."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups import CacheKind, CacheSettings, cache_layout, pipeline_stages, plan_cache
from kvsim.kv_groups.grouping import group_layers
from kvsim.kv_groups.specs import LayerSpec, layer_specs
from kvsim.models import Model, all_models, find_model
from kvsim.models.cache_bytes import bytes_per_token
from kvsim.models.layers import Mla

KIB = 1024


@st.composite
def layers(draw: st.DrawFn) -> list[LayerSpec]:
    """Specs of a model of up to four kinds of layers, whose pages can be made equal."""
    sizes = draw(st.lists(st.sampled_from([64, 128, 256, 512]), min_size=1, max_size=4))
    kinds = []
    for number, size in enumerate(sizes):
        window = draw(st.none() | st.sampled_from([16, 100, 1024]))
        kind = CacheKind.FULL if window is None else CacheKind.SLIDING_WINDOW
        kinds.append(
            LayerSpec(
                kind=kind, block_size=16, bytes_per_token=size, window=window, pads_pages=True,
                other_properties=(number,), bytes_per_token_as_full=None if window is None else size,
            )
        )  # fmt: skip
    return draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=60))


@given(layers(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_layer_has_one_home_among_its_like(specs: list[LayerSpec], hybrid_manager: bool) -> None:
    try:
        grouping = group_layers(specs, hybrid_manager=hybrid_manager)
    except UsageError:
        assert not hybrid_manager, "without groups of their own, windows may be impossible"
        return
    homes = [index for group in grouping.groups for index in group]
    assert sorted(homes) == list(range(len(specs)))
    for group in grouping.groups:
        assert len({grouping.specs[index].kind for index in group}) == 1
        assert len({grouping.specs[index].window for index in group} - {None}) <= 1
        assert list(group) == sorted(group)
    assert grouping.groups[0][0] == 0, "the first group is of the kind of the first layer"


def test_layers_that_differ_in_their_window_alone_have_groups_of_their_own() -> None:
    near = LayerSpec(kind=CacheKind.SLIDING_WINDOW, block_size=16, bytes_per_token=64, window=512)
    assert group_layers([near, replace(near, window=1024), near]).groups == ((0,), (2,), (1,))
    assert group_layers([near, near]).groups == ((0, 1),)


@given(layers(), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_bytes_of_a_block_cover_its_pages_and_stages_add_up(specs: list[LayerSpec], num_stages: int) -> None:
    assume(num_stages <= len(specs))
    grouping = group_layers(specs)
    stages = pipeline_stages(len(specs), num_stages)
    assert [index for stage in stages for index in stage] == list(range(len(specs)))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1
    whole = grouping.bytes_per_block(range(len(specs)))
    on_stages = [grouping.bytes_per_block(stage) for stage in stages]
    assert max(on_stages) <= whole <= sum(on_stages)
    for group in grouping.groups:
        pages = [grouping.specs[index].page_bytes for index in group]
        assert sum(pages) <= whole
        assert all(page >= specs[index].page_bytes for page, index in zip(pages, group, strict=True))
    layout = grouping.layout(hash_block_size=None, caches_prefixes=True, stages=stages)
    sizes = [group.block_size for group in layout.groups]
    assert layout.scheduler_block_size == lcm(*sizes)
    assert all(size % layout.hash_block_size == 0 for size in sizes)
    assert sum(group.num_layers for group in layout.groups) == len(specs)


NAMES = """
llama-3-8b gemma-3-27b gpt-oss-20b deepseek-v3.2 qwen3-next-80b-a3b granite-4.0-h-micro falcon-h1-34b
llama-4-scout-17b
nemotron-h-56b gemma-4-26b-a4b
"""
MODELS = [find_model(name) for name in NAMES.split()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name.partition("/")[2])
@given(
    st.integers(1 << 32, 1 << 38), st.integers(0, 1 << 34), st.integers(1, 60_000), st.integers(1, 5_000), st.booleans()
)
@settings(max_examples=8, deadline=None)
def test_more_memory_and_shorter_sequences_never_hold_less(
    model: Model, memory: int, more: int, length: int, longer: int, caches: bool
) -> None:
    at = CacheSettings(max_model_len=length, enable_prefix_caching=caches, keeps_every_state=True)
    small, large = (plan_cache(model, at, [size], insist=True) for size in (memory, memory + more))
    assert small.num_blocks <= large.num_blocks
    assert small.num_blocks * small.layout.bytes_per_block <= memory
    assert small.longest_sequence() <= large.longest_sequence() <= length
    assert small.max_sequences(length) >= small.max_sequences(length + longer)
    assert small.layout.held_blocks(length) <= small.blocks_for(length), "what decodes was admitted"
    beyond = plan_cache(model, replace(at, max_model_len=length + longer), [memory], insist=True)
    assert beyond.longest_sequence() >= small.longest_sequence()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name.partition("/")[2])
def test_the_longest_sequence_is_the_longest(model: Model) -> None:
    at = CacheSettings(max_model_len=50_000)
    plan = plan_cache(model, at, [6 << 30], insist=True)
    longest = plan.longest_sequence()
    assert plan.blocks_for(longest) <= plan.num_blocks if longest else plan.blocks_for(1) > plan.num_blocks
    if longest < 50_000:
        assert plan.blocks_for(longest + 1) > plan.num_blocks
        with pytest.raises(BudgetError, match=f"--max-model-len {longest} would fit" if longest else "room for"):
            plan_cache(model, at, [6 << 30])


@pytest.mark.parametrize(
    ("name", "groups", "kib_per_block"),
    [
        # kind, tokens of a block, layers of each table: of a bf16 cache on one GPU, prefix caching as by default
        ("Llama-3.1-405B", ["full 16: 126"], 8064),
        ("gpt-oss-120b", ["sliding_window 16: 18", "full 16: 18"], 576),
        ("gemma-3-27b", ["sliding_window 16: 9 9 9 9 8 8", "full 16: 10"], 1280),
        ("gemma-3-4b", ["sliding_window 16: 5 5 5 5 5 4", "full 16: 5"], 320),
        ("gemma-4-26B-A4B", ["sliding_window 16: 5 5 5 5 5", "full 32: 5"], 640),
        ("command-a-03-2025", ["sliding_window 16: 16 16 16", "full 16: 16"], 1024),
        ("Llama-4-Scout-17B", ["full 16: 48"], 3072),
        ("DeepSeek-V3", ["mla 16: 61"], 1098),
        ("DeepSeek-V3.2", ["mla 64: 122"], 61 * (72 + 8.25)),
        ("Qwen3-Next-80B-A3B", ["mamba: 12 12 12", "full 544: 12"], 13056),
        ("Qwen3.5-27B", ["mamba: 16 16 16", "full 784: 16"], 50176),
        ("Nemotron-H-56B", ["mamba: 9 9 9 9 9 9", "full 4128: 10"], 165120),
        ("granite-4.0-h-small", ["mamba: 4 4 4 4 4 4 4 4 4", "full 528: 4"], 8448),
        ("Falcon-H1-34B", ["full 1040: 72", "mamba: 72"], 149760),
    ],
)
def test_groups_as_vllm_makes_them(name: str, groups: list[str], kib_per_block: float) -> None:
    model = find_model(name)
    layout = cache_layout(model, CacheSettings(max_model_len=model.max_position_embeddings))
    made: dict[str, list[str]] = {}
    for group in layout.groups:
        label = "mamba" if group.kind == "mamba" else f"{group.kind} {group.block_size}"
        made.setdefault(label, []).append(str(group.num_layers))
    assert [f"{label}: {' '.join(members)}" for label, members in made.items()] == groups
    assert layout.bytes_per_block == kib_per_block * KIB


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name.partition("/")[2])
def test_every_listed_model_has_a_cache_however_it_is_served(model: Model) -> None:
    latent = model.kv_lora_rank is not None
    heads = model.num_attention_heads
    for size in (size for size in (1, 2, 4, 8) if heads % size == 0):
        whole = cache_layout(model.served(tensor_parallel_size=size), CacheSettings(max_model_len=4096))
        in_fp8 = model.served(tensor_parallel_size=size, kv_cache_dtype="fp8")
        smaller = cache_layout(in_fp8, CacheSettings(max_model_len=4096, enable_prefix_caching=True))
        for layout in (whole, smaller):
            assert sum(group.num_layers for group in layout.groups) == sum(len(caches) for caches in model.layers)
            assert (
                layout.bytes_per_block >= max(group.page_bytes * group.num_layers for group in layout.groups) or latent
            )
        assert in_fp8.kv_bytes_per_token < model.served(tensor_parallel_size=size).kv_bytes_per_token


def test_states_that_are_kept_for_prefixes_decide_the_block() -> None:
    granite = find_model("granite-4.0-h-350m")
    kept = cache_layout(granite, CacheSettings(max_model_len=8192, enable_prefix_caching=True, keeps_every_state=True))
    assert {group.block_size for group in kept.groups} == {512}, "two chunks of 256 tokens hold a state"
    assert {str(group.mamba_mode) for group in kept.groups if group.mamba_mode} == {"all"}
    qwen = find_model("Qwen3-Next-80B-A3B")
    aligned = cache_layout(qwen, CacheSettings(max_model_len=8192, enable_prefix_caching=True))
    assert {group.block_size for group in aligned.groups} == {544}
    assert {str(group.mamba_mode) for group in aligned.groups if group.mamba_mode} == {"align"}
    assert kept.hash_block_size == kept.scheduler_block_size == 512
    newer = cache_layout(granite, CacheSettings(max_model_len=8192, enable_prefix_caching=True))
    assert {str(group.mamba_mode) for group in newer.groups if group.mamba_mode} == {"align"}


def test_states_are_dealt_out_among_gpus() -> None:
    qwen = find_model("Qwen3-Next-80B-A3B")
    states = [qwen.served(tensor_parallel_size=size).state_bytes_per_sequence for size in (1, 2, 4)]
    assert states == [36 * 1_097_728, 36 * 1_097_728 // 2, 36 * 1_097_728 // 4]
    # Two groups among four GPUs: each of them needs one, so there are four.
    falcon = find_model("Falcon-H1-34B").served(tensor_parallel_size=4)
    conv, matrix = falcon.recurrent_layers[0].state(4)
    assert conv.shape == (3, (4096 + 2 * 4 * 256) // 4)
    assert matrix.shape == (8, 128, 256)


@pytest.mark.parametrize(
    ("kv_cache_dtype", "expected"),
    [
        ("auto", 2 * 128 * 2), ("fp8", 2 * 128), ("bfloat16", 2 * 128 * 2), ("int8_per_token_head", 2 * 128 + 8),
        ("int4_per_token_head", 128 + 8), ("nvfp4", 2 * (64 + 8)),
    ],
)  # fmt: skip
def test_types_of_the_cache(kv_cache_dtype: str, expected: int) -> None:
    llama = find_model("llama-3-8b").served(kv_cache_dtype=kv_cache_dtype)
    assert llama.kv_bytes_per_token == 32 * 8 * expected
    specs = layer_specs(llama, CacheSettings(max_model_len=8192))
    assert specs[0][0].page_bytes == 16 * 8 * expected


def test_latents_in_fp8() -> None:
    dense = find_model("deepseek-v3").served(kv_cache_dtype="fp8")
    sparse = find_model("deepseek-v3.2").served(kv_cache_dtype="fp8")
    assert dense.kv_bytes_per_token == 61 * 576
    assert sparse.kv_bytes_per_token == 61 * (656 + 132), "with scales, and the rotary part in 16 bits"
    assert cache_layout(dense, CacheSettings(max_model_len=8192)).groups[0].block_size == 64, "FlashMLA's block"
    with pytest.raises(UsageError, match="nvfp4 is not for multi-head latent attention"):
        _ = find_model("deepseek-v3").served(kv_cache_dtype="nvfp4").kv_bytes_per_token


def test_a_latent_has_no_size_in_nvfp4_and_serving_refuses_what_no_backend_takes() -> None:
    with pytest.raises(UsageError, match="nvfp4 is not for sparse latent attention"):
        bytes_per_token(Mla(kv_lora_rank=512, rope_dim=64, sparse=True), dtype="bfloat16", kv_cache_dtype="nvfp4")
    with pytest.raises(UsageError, match="int4_per_token_head is not for multi-head latent attention"):
        find_model("deepseek-v3").served(kv_cache_dtype="int4_per_token_head")


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("max_model_len", True, "True; it must be an integer of at least 1"),
        ("max_model_len", None, "None; it must be an integer of at least 1"),
        ("max_num_batched_tokens", 8192.0, "8192.0; it must be an integer"),
        ("block_size", 0, "0; it must be an integer of at least 1"),
        ("hash_block_size", "16", "'16'; it must be an integer"),
        ("num_speculative_tokens", -1, "-1; it must be an integer of at least 0"),
        ("num_speculative_tokens", True, "True; it must be an integer of at least 0"),
    ],
)
def test_a_number_of_tokens_that_is_none_is_refused(setting: str, value: object, words: str) -> None:
    given: dict[str, Any] = {"max_model_len": 4096, setting: value}
    with pytest.raises(UsageError, match=f"^{setting} is {words}"):
        CacheSettings(**given)


def test_integers_of_numpy_are_integers() -> None:
    llama = find_model("llama-3-8b")
    numbers: dict[str, Any] = {"max_model_len": np.int32(8192), "block_size": np.int64(1 << 20)}
    layout = cache_layout(llama, CacheSettings(**numbers))
    assert layout == cache_layout(llama, CacheSettings(max_model_len=8192, block_size=1 << 20))
    assert type(layout.bytes_per_block) is int
    assert llama.served(tensor_parallel_size=np.int64(2)) == llama.served(tensor_parallel_size=2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tensor_parallel_size is True; it must be an integer of at least 1"):
        llama.served(tensor_parallel_size=True)
