from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import BudgetError, UsageError
from kvsim.hardware import GIB, find_gpu
from kvsim.models import Model, all_models, find_model
from kvsim.sizing.budget import blocks_for, plan_budget
from kvsim.sizing.pool_settings import PoolSettings

MIB = 1 << 20
H200 = find_gpu("H200")
LLAMA = find_model("llama-3-8b")
GRANITE = find_model("granite-4.0-350m")
TRACES = Path(__file__).parents[2] / "traces"


def test_the_papers_pool_of_12_gib_holds_15728_slots_of_opt_13b() -> None:
    assert blocks_for(12 * GIB, find_model("opt-13b"), block_size=1) == 15_728
    assert blocks_for(12 * GIB, find_model("opt-13b"), block_size=16) == 15_728 // 16


def test_a_block_of_16_tokens_of_llama_3_8b_is_2_mib() -> None:
    assert plan_budget(H200, LLAMA).bytes_per_block == 2 * MIB


def test_a_vllm_log_12_52_gib_hold_468736_tokens_of_granite() -> None:
    # The log rounds its 12.52 GiB to two decimals and counts every block, the null block included.
    low, high = (blocks_for(int(gib * GIB), GRANITE, 16) for gib in (12.515, 12.525))
    assert low <= 468_736 // 16 == 29_296 <= high
    budget = plan_budget(find_gpu("A4000"), GRANITE, PoolSettings(kv_memory_bytes=29_296 * 16 * 28_672))
    assert round(budget.kv_bytes / GIB, 2) == 12.52
    assert budget.num_blocks * 16 == 468_736
    assert budget.capacity_tokens == 468_736 - 16


def test_the_estimate_for_that_card_lands_within_five_percent() -> None:
    # vLLM's defaults for a card of this size; the log does not say its settings.
    budget = plan_budget(
        find_gpu("A4000"),
        GRANITE,
        PoolSettings(gpu_memory_utilization=0.9, max_num_batched_tokens=8192, max_num_seqs=256),
    )
    assert budget.num_blocks == pytest.approx(29_296, rel=0.05)


def test_the_recorded_pool_on_an_h200_is_met_within_half_a_percent() -> None:
    meta = json.loads((TRACES / "vllm-h200-granite-350m-gsm8k" / "meta.json").read_text())
    engine = meta["engine"]
    budget = plan_budget(
        find_gpu(meta["gpu"]),
        find_model(meta["model"]["name"]),
        PoolSettings(
            gpu_memory_utilization=engine["gpu_memory_utilization"],
            max_num_batched_tokens=engine["max_num_batched_tokens"],
            max_num_seqs=engine["max_num_seqs"],
        ),
    )
    assert budget.num_usable_blocks == pytest.approx(meta["pool"]["num_units"], rel=0.0025)
    assert budget.bytes_per_block == meta["pool"]["bytes_per_unit"]


@given(
    model=st.sampled_from([model for model in all_models() if model.weight_bytes < 45 * GIB]),
    utilization=st.floats(0.8, 1.0),
    block_size=st.sampled_from([None, 16, 32, 128]),
    largest_step=st.tuples(st.integers(1, 16384), st.integers(1, 1024)),
)
@settings(max_examples=60, deadline=None)
def test_the_terms_add_up_to_whole_blocks(
    model: Model, utilization: float, block_size: int | None, largest_step: tuple[int, int]
) -> None:
    num_tokens, num_seqs = largest_step
    budget = plan_budget(
        H200,
        model,
        PoolSettings(
            gpu_memory_utilization=utilization,
            block_size=block_size,
            max_num_batched_tokens=num_tokens,
            max_num_seqs=num_seqs,
        ),
    )
    assert (
        sum(term.size_bytes for term in budget.terms) == budget.kv_bytes == budget.num_blocks * budget.bytes_per_block
    )
    assert -budget.bytes_per_block < budget.terms[-1].size_bytes <= 0
    assert budget.terms[0].size_bytes + budget.terms[1].size_bytes == math.ceil(H200.memory_bytes * utilization)
    assert all(term.label and term.why for term in budget.terms)
    if budget.plan.layout.is_uniform:
        assert budget.capacity_tokens == (budget.num_blocks - 1) * budget.block_size


@given(st.floats(0.3, 0.99), st.integers(256, 16384), st.integers(1, 1024))
@settings(max_examples=40, deadline=None)
def test_more_room_or_smaller_steps_never_cost_blocks(utilization: float, num_tokens: int, num_seqs: int) -> None:
    budget = plan_budget(
        H200,
        LLAMA,
        PoolSettings(gpu_memory_utilization=utilization, max_num_batched_tokens=num_tokens, max_num_seqs=num_seqs),
    )
    roomier = plan_budget(
        H200,
        LLAMA,
        PoolSettings(gpu_memory_utilization=1.0, max_num_batched_tokens=num_tokens // 2, max_num_seqs=num_seqs),
    )
    assert roomier.num_blocks >= budget.num_blocks


def test_tensor_parallelism_divides_weights_and_pages_until_heads_run_out() -> None:
    served = [LLAMA.served(tensor_parallel_size=size) for size in (1, 8, 16)]
    one, eight, sixteen = (plan_budget(H200, model) for model in served)
    weights = [next(term for term in budget.terms if term.label == "weights") for budget in (one, eight)]
    assert weights[0].size_bytes == 8 * weights[1].size_bytes
    assert [one.bytes_per_block, eight.bytes_per_block, sixteen.bytes_per_block] == [2 * MIB, MIB // 4, MIB // 4]
    assert blocks_for(GIB, served[1], 16) == 8 * blocks_for(GIB, LLAMA, 16)


def test_a_pipeline_holds_layers_and_tables_by_stage_and_is_as_large_as_its_tightest() -> None:
    llama = find_model("llama-3.1-70b")
    stages = [plan_budget(H200, llama.served(pipeline_parallel_size=size)) for size in (2, 3)]
    # 80 layers in 27, 27 and 26: the stages before the last get the odd ones.
    assert [[size // MIB for size in budget.plan.bytes_per_block] for budget in stages] == [[2, 2], [1, 1, 1]]
    assert stages[1].plan.bytes_per_block == (27 * MIB // 16, 27 * MIB // 16, 26 * MIB // 16)
    for budget in stages:
        assert sum(term.size_bytes for term in budget.terms) == budget.kv_bytes
    tables = 2 * llama.vocab_size * llama.hidden_size
    weights = -next(term.size_bytes for term in stages[0].terms if term.label == "weights")
    assert weights == pytest.approx((llama.weight_bytes - 2 * tables) / 2 + tables, rel=1e-6)


def test_max_sequences_rounds_each_up_to_whole_blocks() -> None:
    budget = plan_budget(H200, LLAMA, PoolSettings(kv_memory_bytes=11 * 2 * MIB))
    assert budget.num_usable_blocks == 10
    assert [budget.max_sequences(tokens) for tokens in (1, 16, 17, 160, 161)] == [10, 10, 5, 1, 0]
    with pytest.raises(UsageError, match="tokens is 0"):
        budget.max_sequences(0)


def test_a_recurrent_state_takes_a_block_of_every_table_of_its_kind() -> None:
    hybrid = find_model("granite-4.0-h-micro")
    budget = plan_budget(H200, hybrid, PoolSettings(kv_memory_bytes=GIB))
    # 36 recurrent layers beside 4 of attention: nine tables with one block a sequence, and one that grows.
    assert budget.max_sequences(16) == budget.num_usable_blocks // (9 + 1)
    assert budget.max_sequences(529) == budget.num_usable_blocks // (9 + 2)


def test_weights_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(BudgetError, match=r"Llama-2-13b.*24\.24 GiB.*RTX A4000.*14\.36 GiB of its 15\.61 GiB.*help"):
        plan_budget(find_gpu("A4000"), find_model("llama-2-13b"))
    with pytest.raises(BudgetError, match=r"14\.96 GiB.*the KV cache leaves 5\.61 GiB.*--oversize allows it"):
        plan_budget(find_gpu("A4000"), LLAMA, PoolSettings(kv_memory_bytes=10 * GIB))
    with pytest.raises(BudgetError, match=r"130\.42 GiB|131\.\d\d GiB"):
        plan_budget(find_gpu("H100"), find_model("llama-3.1-70b"), PoolSettings(num_blocks=1000))
    assert (
        plan_budget(
            find_gpu("H100"), find_model("llama-3.1-70b"), PoolSettings(num_blocks=1000, oversize=True)
        ).num_blocks
        == 1000
    )


def test_a_pool_with_no_block_for_a_request_is_refused_with_the_numbers() -> None:
    with pytest.raises(BudgetError, match=r"weights -14\.96 GiB.*activations -1\.69 GiB.*--max-num-batched-tokens"):
        plan_budget(find_gpu("A4000"), LLAMA, PoolSettings(gpu_memory_utilization=0.98))
    with pytest.raises(BudgetError, match=r"the stated KV memory, 3\.00 MiB.*two blocks take 4\.00 MiB"):
        plan_budget(H200, LLAMA, PoolSettings(kv_memory_bytes=3 * MIB))


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1.5])
@pytest.mark.parametrize(
    "setting",
    ["block_size", "max_num_batched_tokens", "max_num_seqs", "kv_memory_bytes", "num_blocks", "max_model_len"],
)
def test_counts_that_cannot_be_right(setting: str, value: float) -> None:
    with pytest.raises(UsageError, match=setting):
        plan_budget(H200, LLAMA, PoolSettings(**{setting: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -0.5, 1.01, math.nan])
def test_utilization_is_a_share(value: float) -> None:
    with pytest.raises(UsageError, match="gpu_memory_utilization"):
        plan_budget(H200, LLAMA, PoolSettings(gpu_memory_utilization=value))


def test_heads_that_cannot_be_dealt_out_evenly_are_refused() -> None:
    with pytest.raises(UsageError, match="must divide the 32 attention heads"):
        LLAMA.served(tensor_parallel_size=3)
    with pytest.raises(UsageError, match="kv_memory_bytes"):
        blocks_for(0, LLAMA, 16)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("max_num_seqs", True), ("max_num_batched_tokens", 0), ("num_blocks", True), ("kv_memory_bytes", -1)],
)
def test_a_count_that_is_none_is_refused(setting: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"^{setting} is {value}; it must be an integer of at least 1"):
        PoolSettings(**{setting: value})  # type: ignore[arg-type]
    budget = plan_budget(H200, LLAMA, PoolSettings(**{setting: np.int64(1 << 32 if "bytes" in setting else 1024)}))
    assert type(budget.num_blocks) is int
    with pytest.raises(UsageError, match=r"^tokens is True; it must be an integer of at least 1"):
        budget.max_sequences(True)
