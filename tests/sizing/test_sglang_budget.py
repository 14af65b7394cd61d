"""SGLang's slots: what its share leaves, line by line, beside vLLM's blocks."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from kvsim.cli import cli
from kvsim.errors import BudgetError, UsageError
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.sizing.sglang_budget import default_fraction, defaults_on, plan_slots


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["size", *arguments])


def test_a_server_that_people_asked_about() -> None:
    """vllm#21348: SGLang logged 367,404 tokens for Qwen3-235B-A22B-FP8 on four H100 at 0.93."""
    result = typed("--policy", "radix", "--model", "Qwen/Qwen3-235B-A22B-FP8", "--gpu", "H100 SXM",
                   "--tensor-parallel-size", "4", "--mem-fraction-static", "0.93", "--json")  # fmt: skip
    document = json.loads(result.stdout)
    assert document["num_slots"] == pytest.approx(367_404, rel=0.03)
    assert document["num_slots"] > document["vllm"]["capacity_tokens"]
    assert sum(term["bytes"] for term in document["terms"]) == document["kv_bytes"]


def test_the_share_is_of_what_is_free_before_the_weights() -> None:
    gpu, model = find_gpu("H200"), find_model("Llama-3-8B")
    small, large = (plan_slots(gpu, model, mem_fraction_static=share) for share in (0.8, 0.9))
    before = sum(term.size_bytes for term in small.terms[:2])
    assert large.kv_bytes - small.kv_bytes == pytest.approx(0.1 * before, rel=1e-4)
    pages = plan_slots(gpu, model, mem_fraction_static=0.8, page_size=64)
    assert pages.num_slots % 64 == 0
    assert 0 <= small.num_slots - pages.num_slots < 64


def test_defaults_by_card() -> None:
    model = find_model("Llama-3-8B")
    found = {name: tuple(defaults_on(find_gpu(name), model).values()) for name in ("T4", "L4", "H200", "B200")}
    assert found == {"T4": (2048, 1), "L4": (4096, 1), "H200": (8192, 1), "B200": (16384, 64)}
    assert defaults_on(find_gpu("H200"), find_model("DeepSeek-V3.2"))["page_size"] == 64
    gpu = find_gpu("H200")
    fraction = default_fraction(gpu, model, 8192)
    assert fraction == pytest.approx(1 - (512 + 1.5 * 8192 + 512 + 128) / (gpu.memory_bytes / 2**20), abs=5e-4)
    assert plan_slots(gpu, model).mem_fraction_static == fraction


def test_what_cannot_be_is_refused() -> None:
    gpu, model = find_gpu("L4"), find_model("Llama-3-8B")
    with pytest.raises(BudgetError, match=r"--mem-fraction-static 0.5 leaves no slot on L4"):
        plan_slots(gpu, model, mem_fraction_static=0.5)
    with pytest.raises(UsageError, match="must be above 0 and below 1"):
        plan_slots(gpu, model, mem_fraction_static=1.5)
    result = typed("--model", "Llama-3-8B", "--gpu", "H200", "--mem-fraction-static", "0.9")
    assert "is SGLang's; give --policy radix" in str(result.exception or result.output)
