from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.capture.random_weights import has_weights, model_folder, token_ids, write_config
from kvsim.errors import UnknownNameError, UsageError
from kvsim.models import all_models, find_model
from kvsim.models.huggingface import read_config
from kvsim.models.layers import FullAttention
from kvsim.workload import Workload


def test_prompts_share_what_the_workload_says_and_nothing_else() -> None:
    workload = Workload(
        arrival_s=np.zeros(4),
        prompt_tokens=[40, 50, 45, 60],
        output_tokens=[1, 1, 1, 1],
        prefix_group=[0, 0, 1, -1],
        prefix_tokens=[32, 16, 32, 0],
        prefix_names=["a", "b"],
    )
    prompts = token_ids(workload, vocab_size=1000)
    assert [len(prompt) for prompt in prompts] == [40, 50, 45, 60]
    assert prompts[0][:16] == prompts[1][:16]
    assert prompts[0][16:20] != prompts[1][16:20]
    assert prompts[0][:16] != prompts[2][:16]
    assert prompts == token_ids(workload, vocab_size=1000), "the same seed draws the same tokens"
    assert all(10 <= token < 1000 for prompt in prompts for token in prompt)


def test_a_listed_model_becomes_a_configuration(tmp_path: Path) -> None:
    folder = model_folder("llama-3-8b", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"], config["vocab_size"]) == (32, 8, 128256)
    assert not has_weights(folder)
    assert model_folder(str(folder), tmp_path) == folder, "a folder with a configuration is taken as it is"


def test_a_written_configuration_has_the_parameters_and_the_cache_of_its_model(tmp_path: Path) -> None:
    """With the biases of Qwen2, and of every other listed model that is written."""
    written = []
    for model in all_models():
        with suppress(UsageError):
            written.append((model, read_config(write_config(model, tmp_path / model.name))))
    names = {model.architecture for model, _ in written}
    assert {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"} <= names
    for model, found in written:
        shape = found.num_parameters, found.kv_bytes_per_token, found.num_layers, found.max_position_embeddings
        expected = model.num_parameters, model.kv_bytes_per_token, model.num_layers, model.max_position_embeddings
        assert shape == expected, model.name


def test_what_random_weights_cannot_stand_in_for(tmp_path: Path) -> None:
    for name, other in (
        ("DeepSeek-V3", "256 experts"),
        ("Qwen3-30B-A3B", "128 experts"),
        ("gemma-3-1b-it", "layers of the kind sliding_window"),
        ("granite-4.0-h-1b", "layers of the kind mamba2"),
        ("facebook/opt-13b", "the layers of OPTForCausalLM"),
        ("Qwen2.5-VL-3B-Instruct", "an encoder for images"),
        ("Qwen2.5-7B-Instruct-AWQ", "awq weights"),
    ):
        with pytest.raises(UsageError, match=f"is not a plain grouped-query decoder: it has {other}, so"):
            model_folder(name, tmp_path)
    llama = find_model("Meta-Llama-3-8B")
    layer = FullAttention(num_kv_heads=16, head_dim=128, value_head_dim=128)
    wider = replace(llama, layer_kinds=(*llama.layers[0], layer), layer_caches=(*[(0,)] * 31, (1,)))
    with pytest.raises(UsageError, match="it has layers with heads of several sizes, so"):
        write_config(wider, tmp_path / "wider")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UnknownNameError, match="there is no model"):
        model_folder("no-such-model", tmp_path)
