"""Conversion of a Hugging Face `config.json` to a `Model`.

If kvsim cannot compute the size of a model's cache exactly, it refuses the model. `--model` reads a configuration in
this way if `listed.toml` does not have the model. The listed models are built by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from kvsim.errors import UsageError, reason_of
from kvsim.files.contents import TEXT_BYTES, content_of
from kvsim.files.json_text import parse
from kvsim.models import attention, recurrent
from kvsim.models.config import Config
from kvsim.models.layers import FullAttention, Layer
from kvsim.models.parameters import (
    count_parameters,
    dense_size,
    encoder_parameters,
    has_experts,
    is_tied,
    mixture,
    num_deepstack_layers,
)
from kvsim.models.positions import longest_sequence
from kvsim.models.quantized import quantization_of
from kvsim.models.shape import Model
from kvsim.models.stated import check_layers, check_stated
from kvsim.models.vision import vision_tower

Rule: TypeAlias = Callable[[Config], attention.Caches]
"""Function that lists the caches of each layer of a model, from the model's configuration."""

_PLAIN = """
AfmoeForCausalLM ApertusForCausalLM ArceeForCausalLM CohereForCausalLM CwmForCausalLM Ernie4_5ForCausalLM
Ernie4_5_MoeForCausalLM Exaone4ForCausalLM ExaoneForCausalLM FlexOlmoForCausalLM GPT2LMHeadModel GPTNeoXForCausalLM
GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM GlmForCausalLM GraniteForCausalLM GraniteMoeForCausalLM
GraniteMoeSharedForCausalLM HunYuanDenseV1ForCausalLM InternLM2ForCausalLM InternLM3ForCausalLM LLaMAForCausalLM
LlamaForCausalLM MiniCPMForCausalLM MiniMaxM2ForCausalLM Ministral3ForCausalLM MistralForCausalLM MixtralForCausalLM
NemotronForCausalLM OPTForCausalLM Olmo2ForCausalLM OlmoForCausalLM OlmoeForCausalLM
OrionForCausalLM Phi3ForCausalLM PhiForCausalLM PhiMoEForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM
Qwen3ForCausalLM Qwen3MoeForCausalLM SeedOssForCausalLM SmolLM3ForCausalLM SolarForCausalLM StableLmForCausalLM
Starcoder2ForCausalLM TeleChat3ForCausalLM
"""
"""Architectures without a rule of their own: `layer_types` or `sliding_window` decides which layers have a window."""

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_PLAIN.split(), attention.by_layer_types),
    "Cohere2ForCausalLM": partial(attention.full_every_nth, 4),
    "Gemma2ForCausalLM": partial(attention.full_every_nth, 2),
    "Gemma3ForCausalLM": partial(attention.full_every_nth, 6),
    "Gemma3nForCausalLM": attention.gemma_3n,
    "Gemma4ForCausalLM": attention.gemma_4,
    "GptOssForCausalLM": attention.gpt_oss,
    "Olmo3ForCausalLM": partial(attention.full_every_nth, 4),
    "Llama4ForCausalLM": attention.llama_4,
    "DeepseekV2ForCausalLM": attention.latent,
    "DeepseekV3ForCausalLM": attention.latent,
    "DeepseekV32ForCausalLM": attention.latent,
    "Glm4MoeLiteForCausalLM": attention.latent,
    "GlmMoeDsaForCausalLM": attention.latent,
    "BambaForCausalLM": recurrent.granite_hybrid,
    "FalconH1ForCausalLM": recurrent.falcon_h1,
    "FalconMambaForCausalLM": recurrent.mamba_1,
    "GraniteMoeHybridForCausalLM": recurrent.granite_hybrid,
    "JambaForCausalLM": recurrent.jamba,
    "KimiLinearForCausalLM": recurrent.kimi_linear,
    "Lfm2ForCausalLM": recurrent.lfm2,
    "Lfm2MoeForCausalLM": recurrent.lfm2,
    "Mamba2ForCausalLM": recurrent.mamba_2,
    "MambaForCausalLM": recurrent.mamba_1,
    "NemotronHForCausalLM": recurrent.nemotron_h,
    "Qwen3NextForCausalLM": recurrent.qwen_linear,
    "Qwen3_5ForCausalLM": recurrent.qwen_linear,
    "Qwen3_5MoeForCausalLM": recurrent.qwen_linear,
}
"""Functions that list the caches of a model, by the class of the text model in `architectures`."""

_WRAPPERS: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3nForConditionalGeneration": "Gemma3nForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
"""Class of the text model of each image model, by the class of the image model in `architectures`."""

_LIGHTNING = "lightning attention (the zeros of attn_type_list), whose states have a type of their own"
_NOT_MODELLED: Mapping[str, str] = {
    "DeepseekV4ForCausalLM": "latents of several compression ratios (compress_ratios) in packed pages",
    "MiniMaxM1ForCausalLM": _LIGHTNING,
    "MiniMaxText01ForCausalLM": _LIGHTNING,
    "Zamba2ForCausalLM": "attention blocks that Mamba-2 layers share (hybrid_layer_ids, num_mem_blocks)",
}
"""Architectures that are refused, and the part of their caches for which kvsim has no rule."""

_OTHER_FILES = {
    "peft_type": "an adapter (adapter_config.json); --model takes the config.json of its base model",
    "tokenizer_class": "a tokenizer (tokenizer_config.json); --model takes the config.json beside it",
    "weight_map": "an index of weights; --model takes the config.json beside it",
    "quant_algo": "a quantization; --model takes the config.json beside it",
    "producer": "a quantization (hf_quant_config.json); --model takes the config.json beside it",
    "do_sample": "how to sample (generation_config.json); --model takes the config.json beside it",
    "eos_token_id": "how to sample (generation_config.json); --model takes the config.json beside it",
    "crop_size": "a processor of images; --model takes the config.json beside it",
    "added_tokens": "a tokenizer (tokenizer.json); --model takes the config.json beside it",
}
"""Fields that show that a file is no `config.json`, and what the file is instead."""


def read_config(path: Path, longest: int | None = None) -> Model:
    """Read the model from a `config.json`, or from a folder with that file.

    The model's name is `_name_or_path` in the file; without this field, the name of the folder. `longest` is the number
    of tokens in the longest sequence, used only if the file states none. If it is None, such a file is refused.

    Raises:
        UsageError: the file cannot be read, or describes no model that kvsim knows.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        content = content_of(file, TEXT_BYTES)
        document = parse(content)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {reason_of(error)}; --model takes a folder with config.json."
        ) from error
    except ValueError as error:
        if content.startswith(b"GGUF"):
            raise UsageError(f"{file} is a GGUF file; --model takes the config.json that it was made from.") from error
        raise UsageError(f"{file} is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file} holds no object; a config.json of a model does.")
    stated = document.get("_name_or_path")
    name = stated if isinstance(stated, str) and stated else _name_of(file.absolute())
    return from_fields(document, name=name, where=str(file), longest=longest)


def _name_of(file: Path) -> str:
    """Return the name of the model with the configuration `file`: the name of its folder.

    In the cache of Hugging Face, this folder is named after a commit. Then a parent folder has the name of the model,
    such as "models--Qwen--Qwen3-8B".
    """
    cached = next((folder.name for folder in file.parents if folder.name.startswith("models--")), None)
    return file.parent.name if cached is None else cached.removeprefix("models--").replace("--", "/")


def from_fields(fields: Mapping[str, Any], *, name: str, where: str, longest: int | None = None) -> Model:
    """Build the model called `name` from the fields of a `config.json`.

    `where` names the file in messages. `longest` is as in `read_config`.
    """
    config = Config(fields, where)
    architecture = _architecture(config)
    text = config.text(architecture)
    check_stated(text)
    layers = RULES[architecture](text)
    check_layers(text, layers)
    layer_kinds, layer_caches = _kinds_of(layers)
    counts = count_parameters(text, layers)
    experts = mixture(text)
    all_sparse = experts is not None and all(has_experts(text, index) for index in range(len(layers)))
    heads = attention.num_heads(text) if _has_heads(text) else text.count("num_heads", default=1)
    quantization = quantization_of(config, text, num_layers=len(layers), has_experts=experts is not None)
    return Model(
        name=name,
        architecture=architecture,
        num_layers=len(layers),
        num_attention_heads=heads,
        num_kv_heads=attention.num_kv_heads(text) if _has_heads(text) else heads,
        head_dim=attention.head_dim(text) if _has_heads(text) else text.count("head_dim", default=64),
        hidden_size=attention.hidden_size(text),
        intermediate_size=experts.intermediate_size if experts and all_sparse else dense_size(text),
        vocab_size=text.count("vocab_size"),
        max_position_embeddings=longest_sequence(text, longest),
        tie_word_embeddings=is_tied(text),
        dtype=recurrent.model_dtype(text),
        num_parameters=counts.total,
        num_active_parameters=counts.active,
        layer_kinds=layer_kinds,
        layer_caches=layer_caches,
        mamba_chunk_size=_chunk(text),
        num_experts=experts.num_experts if experts else 0,
        num_experts_per_token=experts.num_active if experts else 0,
        expert_intermediate_size=experts.intermediate_size if experts else 0,
        num_expert_parameters=counts.routed_experts,
        num_encoder_parameters=encoder_parameters(config),
        image_class=next((name for name in config.texts("architectures") or () if name in _WRAPPERS), ""),
        vision=vision_tower(config),
        num_image_levels=1 + num_deepstack_layers(config),
        quantization=quantization,
        kv_cache_dtype=quantization.kv_cache_dtype if quantization else "auto",
    )


def _kinds_of(layers: attention.Caches) -> tuple[tuple[Layer, ...], tuple[tuple[int, ...], ...]]:
    """Return the different caches of a model and, for each layer, the indices of its caches.

    Both are empty if every layer has one cache of full attention with keys as large as its values, because `Model`
    needs no list then.
    """
    kinds: list[Layer] = list(dict.fromkeys(layer for caches in layers for layer in caches))
    if len(kinds) == 1 and all(len(caches) == 1 for caches in layers):
        [only] = kinds
        if isinstance(only, FullAttention) and only.kind == "full" and only.head_dim == only.value_head_dim:
            return (), ()
    return tuple(kinds), tuple(tuple(kinds.index(layer) for layer in caches) for caches in layers)


def _chunk(text: Config) -> int | None:
    names = ("mamba_chunk_size", "chunk_size")
    return text.count(*names) if any(map(text.states, names)) else None


def _has_heads(text: Config) -> bool:
    return any(text.states(name) for name in ("num_attention_heads", "n_head", "n_heads"))


def _architecture(config: Config) -> str:
    """Return the first architecture with a rule. Raise a `UsageError` that says why there is none."""
    if config.flag("is_encoder_decoder", default=False):
        raise UsageError(f"{config.where} says is_encoder_decoder = true; kvsim knows models without cross attention.")
    named = config.texts("architectures") or ()
    if not named and not config.states("hidden_size"):
        for field, what in _OTHER_FILES.items():
            if config.states(field):
                raise UsageError(f"{config.where} does not say architectures, and by its {field} describes {what}.")
    if len(set(named)) > 1:
        raise config.wrong("architectures", "a list of one")
    known = [name for name in (_WRAPPERS.get(name, name) for name in named) if name in RULES]
    if known:
        return known[0]
    for name in named:
        if name in _NOT_MODELLED:
            raise UsageError(
                f"{config.where} says architectures = {list(named)!r}: these models have {_NOT_MODELLED[name]}, for "
                "which kvsim has no rule, so that any size would be wrong."
            )
    raise UsageError(
        f"{config.where} says architectures = {list(named)!r}, which kvsim does not know; where all of its layers are "
        "plain attention, a config.json with architectures = ['LlamaForCausalLM'], num_hidden_layers, hidden_size, "
        "num_attention_heads, num_key_value_heads, head_dim, intermediate_size, vocab_size, max_position_embeddings, "
        "tie_word_embeddings and torch_dtype describes it."
    )
