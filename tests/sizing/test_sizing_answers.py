"""The answers of `docs/sizing.md`, by the arithmetic that a reader would do, and in the words that stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.hardware import Gpu, find_gpu
from kvsim.models import find_model
from kvsim.sizing.budget import plan_budget
from kvsim.sizing.pool_settings import PoolSettings

H100, H200 = find_gpu("H100"), find_gpu("H200")


@pytest.fixture(scope="module")
def answers(repository: Path) -> str:
    return (repository / "docs" / "sizing.md").read_text(encoding="utf-8").partition("## Answers")[2]


def test_70b_on_four_gpus(answers: str) -> None:
    model = find_model("Llama-3.1-70B-Instruct").served(tensor_parallel_size=4)
    budget = plan_budget(H100, model, PoolSettings(gpu_memory_utilization=0.9))
    assert budget.bytes_per_block == 16 * 80 * (8 // 4) * 2 * 128 * 2
    usable = budget.num_blocks - 1
    assert budget.max_sequences(4096) == usable // 256
    assert budget.max_sequences(1300) == usable // 82 > 128
    in_fp8 = plan_budget(H100, model.served(kv_cache_dtype="fp8"), PoolSettings(gpu_memory_utilization=0.9))
    said = (
        f"{budget.num_blocks:,} blocks: {usable // 256} sequences of 4,096 tokens (256 blocks), {usable // 82} of 1,300"
    )
    assert said in answers
    assert f"{in_fp8.num_blocks:,} blocks, {(in_fp8.num_blocks - 1) // 82} sequences" in answers


def test_32b_on_one_gpu(answers: str) -> None:
    budget = plan_budget(H100, find_model("Qwen3-32B"))
    assert budget.bytes_per_block == 16 * 64 * 8 * 2 * 128 * 2 == 4 << 20
    fits = (budget.num_blocks - 1) // -(-2500 // 16)
    assert f"{budget.num_blocks:,} blocks of 4 MiB: {fits} sequences of 2,500 tokens" in answers
    assert f"{16 * budget.num_blocks:,} fit" in answers
    assert budget.plan.concurrency < 1


@pytest.mark.parametrize(
    ("name", "gpu", "tokens", "tables", "window", "layers"),
    [("gpt-oss-20b", H100, 8_000, 1, 128, 12), ("gemma-3-27b-it", H200, 32_000, 6, 1024, 10)],
)
def test_windows_and_what_they_save(
    answers: str, name: str, gpu: Gpu, tokens: int, tables: int, window: int, layers: int
) -> None:
    model = find_model(name)
    grouped = plan_budget(gpu, model)
    page = 16 * model.num_kv_heads * 2 * model.head_dim * 2
    assert grouped.bytes_per_block == layers * page
    held = tokens // 16 + tables * (-(-(window - 1) // 16) + 1)
    fits = (grouped.num_blocks - 1) // held
    assert grouped.max_sequences(tokens) == fits
    as_full = plan_budget(gpu, model, PoolSettings(hybrid_manager=False))
    assert as_full.bytes_per_block == model.num_layers * page
    without = (as_full.num_blocks - 1) // (tokens // 16)
    assert f"{held:,} a sequence" in answers
    assert f"{grouped.num_blocks:,} blocks of" in answers
    assert f": {fits} sequences; were windows full layers, {as_full.num_blocks:,} blocks" in answers
    assert f"{tokens // 16:,} a sequence: {without} |" in answers


def test_latents_on_eight_gpus(answers: str) -> None:
    budget = plan_budget(H200, find_model("DeepSeek-V3").served(tensor_parallel_size=8))
    assert budget.bytes_per_block == 16 * 61 * 576 * 2
    dealt_out = 8 * budget.num_blocks // 1000
    assert f"{budget.num_blocks:,} blocks of 1.07 MiB" in answers
    assert (
        f": {(budget.num_blocks - 1) // 1000} sequences; were the latent divided among the GPUs, {dealt_out} |"
        in answers
    )
