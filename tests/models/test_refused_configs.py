"""Configurations that look like a model's and are not, or are one only by what vLLM makes of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import UsageError
from kvsim.models import Model, find_model
from kvsim.models.huggingface import from_fields, read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 8192, "vocab_size": 64_000, "max_position_embeddings": 16_384,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_3N = LLAMA | {
    "architectures": ["Gemma3nForCausalLM"],
    "head_dim": 128,
    "sliding_window": 512,
    "num_kv_shared_layers": 4,
}
LLAMA_4 = LLAMA | {"architectures": ["Llama4ForCausalLM"], "head_dim": 128, "num_local_experts": 0}
MIXTRAL = LLAMA | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS = MIXTRAL | {"architectures": ["GptOssForCausalLM"], "head_dim": 128, "sliding_window": 128}
ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 8192}
LINEAR = {"rope_type": "linear", "factor": 2.0}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
FP8_CACHE = {"dynamic": False, "num_bits": 8, "type": "float"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
TENSORS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
}


def model_of(config: dict[str, Any], **changes: Any) -> Model:
    return from_fields(config | changes, name="one", where="its config.json")


@pytest.mark.parametrize(
    ("config", "changes", "field"),
    [
        (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        (LLAMA, {"num_key_value_heads": 32}, "num_key_value_heads = 32"),
        (LLAMA, {"num_kv_heads": 8}, "num_kv_heads = 8"),
        (LLAMA, {"n_layer": 12}, "n_layer = 12"),
        (LLAMA, {"hidden_size": 2050}, "head_dim"),
        (LLAMA, {"head_dim": 0}, "head_dim = 0"),
        (LLAMA, {"max_position_embeddings": None}, "max_position_embeddings"),
        (LLAMA, {"max_position_embeddings": 10**30}, "max_position_embeddings = 1000"),
        (LLAMA, {"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'"),
        (LLAMA, {"tie_word_embeddings": 0}, "tie_word_embeddings = 0"),
        (LLAMA, {"sliding_window": True}, "sliding_window = True"),
        (LLAMA, {"layer_types": ["full_attention"] * 23}, "layer_types = 23 texts"),
        (LLAMA, {"layer_types": ["full_attention"] * 23 + ["linear_attention"]}, "layer_types"),
        (LLAMA, {"architectures": ["LlamaForCausalLM", "MambaForCausalLM"]}, "architectures"),
        (LLAMA, {"architectures": ["MyOwnForCausalLM"], "auto_map": {"AutoModel": "mine.Own"}}, "MyOwnForCausalLM"),
        (LLAMA, {"architectures": ["ViTForImageClassification"]}, "ViTForImageClassification"),
        (LLAMA, {"architectures": ["Whisper"], "is_encoder_decoder": True}, "is_encoder_decoder"),
        (LLAMA, {"text_config": LLAMA, "llm_config": LLAMA}, "text_config"),
        (LLAMA, {"text_config": [1]}, "text_config"),
        (LLAMA, {"dtype": "float16"}, "dtype"),
        (LLAMA, {"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
        (GEMMA_3N, {"num_kv_shared_layers": 24}, "num_kv_shared_layers = 24"),
        (GEMMA_3N, {"intermediate_size": [8192] * 23}, "intermediate_size"),
        (LLAMA_4, {"no_rope_layers": [1] * 23}, "no_rope_layers"),
        (LLAMA_4, {"no_rope_layers": [1] * 23 + [2]}, "no_rope_layers"),
        (LLAMA_4, {"no_rope_layers": [True] * 24}, "no_rope_layers"),
        (LLAMA_4, {"layer_types": ["sliding_attention"] * 24}, "layer_types"),
        (LLAMA_4, {"layer_types": ["full_attention"] * 24}, "layer_types"),
        (LLAMA_4, {"sliding_window": 4096}, "sliding_window = 4096"),
        (GPT_OSS, {"layer_types": ["full_attention"] * 24}, "layer_types"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
        (MIXTRAL, {"num_experts": 16}, "num_experts = 16"),
        (MIXTRAL, {"num_local_experts": 0}, "num_local_experts"),
        (MIXTRAL, {"num_local_experts": None}, "num_local_experts"),
        (MIXTRAL, {"mlp_only_layers": [0, 24]}, "mlp_only_layers"),
        (MIXTRAL, {"mlp_layer_types": ["sparse"] * 23 + ["moe"]}, "mlp_layer_types"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_the_name_of_its_field(
    config: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(UsageError, match=field):
        model_of(config, **changes)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (YARN, 32_768),
        ({"type": "yarn", "factor": 4}, 65_536),
        ({"type": "linear", "factor": 2.0}, 32_768),
        ({"rope_type": "dynamic", "alpha": 1000.0}, 16_384),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 16_384),
        ({"rope_type": "default", "rope_theta": 1e6}, 16_384),
        ({"rope_theta": 1e6}, 16_384),
        ({"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}, 32_768),
        (YARN | {"factor": "4.0"}, "factor = '4.0'"),
        ({"rope_type": "yarn", "factor": True}, "factor = True"),
        ({"rope_type": "yarn", "factor": float("nan")}, "factor = nan"),
        ({"rope_type": "yarn", "factor": 0.5}, "factor = 0.5"),
        (YARN | {"factor": 1e5}, "max_position_embeddings = 819"),
        ({"rope_type": "yarn"}, "factor"),
        (YARN | {ORIGINAL: -5}, f"{ORIGINAL} = -5"),
        (YARN | {ORIGINAL: 8192.0}, ORIGINAL),
        ({"rope_type": "yarn", "type": "linear", "factor": 4.0}, "type = 'linear'"),
        ({"rope_type": "spiral", "factor": 4.0}, "rope_type = 'spiral'"),
        ({"factor": 4.0}, "rope_type"),
        ({"rope_type": "default", "factor": 4.0}, "factor = 4.0"),
        ({"full_attention": LINEAR, "factor": 8.0}, "rope_scaling"),
        ({"all_layers": LINEAR}, "rope_scaling"),
        ({"full_attention": LINEAR, "sliding_attention": LINEAR | {"factor": 4.0}}, "one factor"),
        ("yarn", "rope_scaling = 'yarn'"),
        ([4.0], "rope_scaling"),
    ],
)  # fmt: skip
def test_a_scaling_of_positions_is_vllms_or_refused(scaling: Any, longest: int | str) -> None:
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(longest, int):
            assert model_of(LLAMA, **{name: scaling}).max_position_embeddings == longest
        else:
            with pytest.raises(UsageError, match=longest.replace("rope_scaling", name)):
                model_of(LLAMA, **{name: scaling})


def test_the_longest_sequence_is_the_shortest_that_is_stated_or_told() -> None:
    assert model_of(LLAMA, n_positions=4096).max_position_embeddings == 4096
    assert model_of(LLAMA, model_max_length=131_072).max_position_embeddings == 131_072
    long = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    assert model_of(LLAMA, rope_scaling=long, original_max_position_embeddings=4096).max_position_embeddings == 4096
    unsaid = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert from_fields(unsaid, name="one", where="its config.json", longest=512).max_position_embeddings == 512
    with pytest.raises(UsageError, match="--max-model-len"):
        model_of(unsaid)
    with pytest.raises(UsageError, match="rope_parameters"):
        model_of(LLAMA, rope_scaling={"type": "yarn", "factor": 2.0}, rope_parameters={"type": "yarn", "factor": 4.0})


@pytest.mark.parametrize(
    ("stated", "linear_bits", "cache"),
    [
        ({"quant_method": "fp8"}, 8.002, "auto"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8.002, "auto"),
        (AWQ, 4.156, "auto"),
        (AWQ | {"modules_to_not_convert": ["lm_head", "model.embed_tokens", "mlp.gate"]}, 4.156, "auto"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, "auto"),
        (MODELOPT, 8.002, "auto"),
        (MODELOPT | {"kv_cache_quant_algo": "FP8"}, 8.002, "fp8"),
        (MODELOPT | {"kv_cache_scheme": FP8_CACHE}, 8.002, "fp8"),
        (MODELOPT | {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, 4.5, "nvfp4"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, 8.002, "auto"),
        (TENSORS, 8.002, "auto"),
        (TENSORS | {"kv_cache_scheme": FP8_CACHE | {"strategy": "tensor", "symmetric": True}}, 8.002, "fp8"),
    ],
)  # fmt: skip
def test_weights_and_cache_are_of_the_types_that_vllm_takes(stated: Any, linear_bits: float, cache: str) -> None:
    model = model_of(LLAMA, quantization_config=stated)
    assert model.quantization is not None
    assert model.quantization.linear_bits == pytest.approx(linear_bits, abs=1e-3)
    assert model.kv_cache_dtype == model.served(kv_cache_dtype="auto").kv_cache_dtype == cache
    assert model.served(kv_cache_dtype="bfloat16").kv_bytes_per_token == model_of(LLAMA).kv_bytes_per_token
    assert Model.from_shape(shape(model)) == model


def shape(model: Model) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(model)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({}, "quant_method"),
        ("fp8", "quantization_config"),
        ({"quant_method": "sparkle"}, "sparkle"),
        ({"quant_method": 8}, "quant_method = 8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        (AWQ | {"bits": True}, "bits = True"),
        (AWQ | {"bits": 5}, "bits = 5"),
        (AWQ | {"bits": "4"}, "bits = '4'"),
        (AWQ | {"group_size": 0}, "group_size = 0"),
        (AWQ | {"group_size": True}, "group_size = True"),
        (AWQ | {"w_bit": 8}, "w_bit = 8"),
        ({"quant_method": "awq"}, "bits"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "kv_cache_scheme": FP8_CACHE}, "kv_cache_scheme"),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.3.mlp.down_proj"]}, "ignored_layers"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "ignored_layers"),
        (MODELOPT | {"quant_algo": "W4A8_AWQ"}, "quant_algo"),
        (MODELOPT | {"quant_algo": None}, "quant_algo"),
        (MODELOPT | {"kv_cache_quant_algo": "INT8"}, "kv_cache_quant_algo = 'INT8'"),
        (MODELOPT | {"kv_cache_quant_algo": "NVFP4", "kv_cache_scheme": FP8_CACHE}, "kv_cache_quant_algo"),
        (MODELOPT | {"kv_cache_scheme": FP8_CACHE | {"num_bits": 16}}, "kv_cache_scheme"),
        (TENSORS | {"kv_cache_scheme": FP8_CACHE}, "kv_cache_scheme"),
        (TENSORS | {"config_groups": {}}, "config_groups"),
        (TENSORS | {"config_groups": {"a": {"weights": {"num_bits": "4"}}}}, "num_bits = '4'"),
    ],
)
def test_a_quantization_that_cannot_be_or_is_not_known_is_refused(stated: Any, field: str) -> None:
    with pytest.raises(UsageError, match=field):
        model_of(LLAMA, quantization_config=stated)


def test_a_quantization_inside_of_the_text_model_holds_and_two_must_agree() -> None:
    wrapped: dict[str, Any] = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": LLAMA | {"sliding_window": None},
    }
    inside = wrapped | {"text_config": wrapped["text_config"] | {"quantization_config": {"quant_method": "fp8"}}}
    assert model_of(inside).weight_bytes < 0.6 * model_of(wrapped).weight_bytes
    assert model_of(inside) == model_of(wrapped, quantization_config={"quant_method": "fp8"})
    with pytest.raises(UsageError, match="the same wherever it is stated"):
        model_of(inside, quantization_config=AWQ)


def test_a_text_model_that_names_its_class_needs_what_that_class_leaves_out() -> None:
    text = LLAMA | {"sliding_window": 512}
    wrapped = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    assert model_of(wrapped).head_dim == 128
    unnamed = {key: value for key, value in text.items() if key != "architectures"}
    with pytest.raises(UsageError, match="head_dim"):
        model_of(wrapped, text_config=unnamed)


def test_attention_that_is_left_alone_leaves_the_experts_quantized() -> None:
    left: dict[str, Any] = {
        "quant_method": "fp8",
        "ignored_layers": [f"model.layers.{layer}.self_attn" for layer in range(24)],
    }
    model = model_of(MIXTRAL, quantization_config=left)
    assert model.quantization is not None
    assert (model.quantization.linear_bits, model.quantization.expert_bits > 8) == (0, True)
    with pytest.raises(UsageError, match="ignored_layers"):
        model_of(MIXTRAL, quantization_config=left | {"ignored_layers": left["ignored_layers"][:-1]})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"peft_type": "LORA", "base_model_name_or_path": "x"}', "an adapter"),
        ('{"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096}', "a tokenizer"),
        ('{"do_sample": true, "temperature": 0.6}', "generation_config.json"),
        ('{"metadata": {}, "weight_map": {}}', "an index of weights"),
        ("GGUF\x03\x00", "a GGUF file"),
        (json.dumps(LLAMA)[:-1] + ', "num_hidden_layers": 8}', "'num_hidden_layers' more than once"),
        ("[]", "no object"),
    ],
)
def test_another_file_is_told_for_what_it_is(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=words):
        read_config(file)


def test_what_vllm_takes_for_granted_of_a_llama_is_still_read() -> None:
    plain = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "tie_word_embeddings")}
    assert model_of(plain).num_kv_heads == 16
    assert not model_of(plain).tie_word_embeddings
    assert find_model("Qwen2.5-72B-Instruct").max_position_embeddings == 32_768
