"""What drafts and the slots of adapters take off the pool, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies.drafter import drafter_of
from kvsim.policies.speculative_config import SpeculativeConfig
from kvsim.sizing.activations import slot_bytes
from kvsim.sizing.budget import Budget, plan_budget
from kvsim.sizing.pool_settings import PoolSettings

GPU, LLAMA = find_gpu("H100-SXM"), find_model("Llama-3.1-8B")


def config(method: str, model: str = "a draft model") -> SpeculativeConfig:
    return SpeculativeConfig.of({"method": method, "model": model, "num_speculative_tokens": 3})


def planned(method: str, served: str = "Llama-3.1-8B", draft: str = "a draft model", **settings: Any) -> Budget:
    model = find_model(served)
    drafter = drafter_of(config(method, draft), model)
    return plan_budget(GPU, model, PoolSettings(max_model_len=8192, drafter=drafter, num_drafts=3, **settings))


def terms(budget: Budget) -> dict[str, int]:
    return {term.label: -term.size_bytes for term in budget.terms}


def test_an_eagle3_head_is_one_layer_more_and_has_weights() -> None:
    plain, drafted = plan_budget(GPU, LLAMA, PoolSettings(max_model_len=8192)), planned("eagle3")
    assert drafted.bytes_per_block * 32 == plain.bytes_per_block * 33
    assert drafted.num_blocks < plain.num_blocks
    # The published head of this model has 425 million parameters, and its file 850 MB.
    assert terms(drafted)["draft weights"] == pytest.approx(850e6, rel=0.01)


def test_what_is_looked_up_has_no_layers() -> None:
    assert planned("ngram").num_blocks == plan_budget(GPU, LLAMA, PoolSettings(max_model_len=8192)).num_blocks


def test_a_draft_model_has_all_its_layers_in_a_block() -> None:
    budget = planned("draft_model", "Qwen3-8B", "Qwen/Qwen3-0.6B")
    own = {name: find_model(name).kv_bytes_per_token for name in ("Qwen3-8B", "Qwen3-0.6B")}
    assert budget.bytes_per_block == 16 * sum(own.values())
    assert terms(budget)["draft weights"] == find_model("Qwen3-0.6B").weight_bytes


def test_a_draft_layer_joins_the_full_layers_beside_windows() -> None:
    groups = {group.kind: group.num_layers for group in planned("eagle3", "gpt-oss-20b").plan.layout.groups}
    assert groups == {"sliding_window": 12, "full": 13}


def test_a_module_of_mtp_is_a_layer_of_the_models_kind() -> None:
    model = find_model("DeepSeek-V3").served(tensor_parallel_size=8)
    drafter = drafter_of(config("mtp"), model)
    assert drafter is not None
    assert drafter.layers == (model.attention_layers[-1],)


def test_a_draft_model_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="the draft model decides how large a block is: there is no model 'nothing'"):
        planned("draft_model", draft="nothing")


def test_slots_of_adapters_take_their_matrices() -> None:
    hidden, kv, inner = 4096, 1024, 14336
    by_projection = [hidden + hidden] * 2 + [hidden + kv] * 2 + [hidden + inner] * 3
    assert slot_bytes(LLAMA, 16) == 32 * 16 * sum(by_projection) * 2
    budget = plan_budget(GPU, LLAMA, PoolSettings(max_model_len=8192, max_loras=20, max_lora_rank=64))
    assert terms(budget)["adapters"] == 20 * slot_bytes(LLAMA, 64)
    halved = slot_bytes(LLAMA.served(tensor_parallel_size=2), 16)
    assert slot_bytes(LLAMA, 16) / 2 < halved < slot_bytes(LLAMA, 16), "one matrix of each pair is whole on each GPU"


def test_slots_of_experts_are_not_known() -> None:
    with pytest.raises(UsageError, match="decoders with plain attention and without experts, which mistralai/Mixtral"):
        slot_bytes(find_model("Mixtral-8x7B"), 16)
