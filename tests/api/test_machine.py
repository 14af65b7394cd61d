"""Machines by name, by card, by `config.json` and from a recording: what the commands would simulate on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvsim
from kvsim.errors import BudgetError, UnknownNameError, UsageError
from kvsim.recording import Recording

CARDS = Path(kvsim.__file__).parent / "machines" / "cards"


def test_one_text_names_the_gpu_and_the_model() -> None:
    machine = kvsim.machine("H200/Llama-3-8B")
    assert (machine.gpu.name, machine.model.name) == ("H200", "meta-llama/Meta-Llama-3-8B")
    assert machine.step_time.calibrated
    assert machine.kv_bytes == kvsim.plan_budget(machine.gpu, machine.model).kv_bytes
    assert len(repr(machine)) < 200


def test_several_gpus_share_a_model() -> None:
    machine = kvsim.machine("2xH100", "Llama-3.1-70B-Instruct", kv_cache_dtype="fp8")
    assert machine.model.tensor_parallel_size == 2
    assert machine.model.kv_cache_dtype == "fp8"
    with pytest.raises(UsageError, match="tensor_parallel_size is 4"):
        kvsim.machine("2xH100", "Llama-3-8B", tensor_parallel_size=4)


def test_the_memory_is_as_stated() -> None:
    assert kvsim.machine("H200/Llama-3-8B", kv_gib=3.1).kv_bytes == int(3.1 * 2**30)
    assert kvsim.machine("H200/Llama-3-8B", num_blocks=1000).kv_bytes == 1000 * 16 * 131_072
    with pytest.raises(UsageError, match="give only one"):
        kvsim.machine("H200/Llama-3-8B", kv_gib=3, num_blocks=1000)


def test_a_card_knows_its_gpu() -> None:
    card = next(file for file in sorted(CARDS.glob("*.toml")) if 'gpu = "H200"' in file.read_text(encoding="utf-8"))
    machine = kvsim.machine(card, "Qwen3-8B")
    assert machine.gpu.name == "H200"
    assert "machine card of H200" in machine.step_time.label
    with pytest.raises(UsageError, match="name the model"):
        kvsim.machine(card)


def test_a_config_is_a_model(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024, "vocab_size": 1000,
        "max_position_embeddings": 2048, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for machine in (kvsim.machine("H200", tmp_path), kvsim.machine(f"H200/{tmp_path}")):
        assert machine.model.kv_bytes_per_token == 4 * 2 * 2 * 64 * 2


def test_a_recording_is_a_machine(pressure: Recording) -> None:
    machine, pool = kvsim.machine(pressure), pressure.meta.pool
    assert pool.num_units is not None
    assert machine.pool(kvsim.Paged()).num_units == pool.num_units
    assert machine.gpu.name == "H200"


def test_what_cannot_be_right_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="name the model as well"):
        kvsim.machine("H200")
    with pytest.raises(UnknownNameError, match="no model 'Lama-9'"):
        kvsim.machine("H200/Lama-9")
    with pytest.raises(UnknownNameError, match="no GPU"):
        kvsim.machine("H2O/Llama-3-8B")
    with pytest.raises(BudgetError, match="weights"):
        kvsim.machine("T4/Llama-3.1-70B-Instruct")


def test_the_longest_sequence_is_stated_where_the_machine_is() -> None:
    """As `--max-model-len` is; a policy that states its own keeps it."""
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=500, max_model_len=2048)
    requests = kvsim.Workload(arrival_s=[0.0], prompt_tokens=[100], output_tokens=[20])
    for policy in ("paged", "contiguous", "static", kvsim.Paged()):
        assert kvsim.simulate(requests, policy, machine).meta.policy["max_model_len"] == 2048
    assert kvsim.simulate(requests, "radix", machine).meta.policy["context_length"] == 2048
    stated = kvsim.Paged(scheduler=kvsim.ContinuousSettings(max_model_len=1024))
    assert kvsim.simulate(requests, stated, machine).meta.policy["max_model_len"] == 1024
    with pytest.raises(UsageError, match="with --max-model-len 10000: its configuration allows 8,192 tokens"):
        kvsim.machine("H200/Llama-3-8B", max_model_len=10_000)
    with pytest.raises(UsageError, match="max_model_len is 0; it must be an integer of at least 1"):
        kvsim.machine("H200/Llama-3-8B", max_model_len=0)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(UsageError, match=r"^num_block is no setting of a machine; there are data_parallel_size, "):
        kvsim.machine("H200/llama-3-8b", num_block=40)
