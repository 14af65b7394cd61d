"""Check that a configuration states the fields on which the shape depends, and that they fit its architecture.

A `config.json` may leave out fields for which its class in Transformers has a default. These defaults differ between
classes and versions. A wrong guess would give a wrong cache size, so kvsim requires these fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.models.attention import num_layers
from kvsim.models.layers import ChunkedLocal, FullAttention, Indexer, Mla, SlidingWindow

if TYPE_CHECKING:
    from kvsim.models.attention import Caches
    from kvsim.models.config import Config
    from kvsim.models.layers import Layer

_KV = "num_key_value_heads|num_kv_heads|n_head_kv"
_EXPERTS = "num_local_experts|num_experts|n_routed_experts|moe_num_experts"
_SHARED = "n_shared_experts|num_shared_experts|moe_num_shared_experts"
_LATENT = f"{_EXPERTS} {_SHARED} moe_intermediate_size q_lora_rank first_k_dense_replace|mlp_layer_types"
_MAMBA = "mamba_chunk_size|chunk_size"
_BIASED = "attention_bias"
_STATED: dict[str, str] = {
    "AfmoeForCausalLM": f"layer_types head_dim moe_intermediate_size num_dense_layers {_EXPERTS} {_SHARED}",
    "BambaForCausalLM": f"{_KV} {_MAMBA} mamba_d_state",
    "CwmForCausalLM": f"layer_types head_dim {_KV}",
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "DeepseekV32ForCausalLM": f"{_LATENT} index_topk index_n_heads",
    "Ernie4_5ForCausalLM": f"{_KV} head_dim",
    "Ernie4_5_MoeForCausalLM": f"{_KV} {_EXPERTS} {_SHARED} moe_intermediate_size moe_layer_start_index",
    "Exaone4ForCausalLM": f"{_KV} layer_types",
    "FalconH1ForCausalLM": f"{_KV} {_MAMBA} mamba_d_ssm mamba_d_head mamba_d_state",
    "FlexOlmoForCausalLM": _EXPERTS,
    "GPTNeoXForCausalLM": _BIASED,
    "Gemma2ForCausalLM": f"{_KV} head_dim",
    "Gemma3ForCausalLM": f"{_KV} head_dim sliding_window",
    "Gemma3nForCausalLM": f"{_KV} head_dim sliding_window num_kv_shared_layers",
    "Gemma4ForCausalLM": f"{_KV} head_dim sliding_window per_layer_config|global_head_dim hidden_size_per_layer_input",
    "GemmaForCausalLM": f"{_KV} head_dim",
    "Glm4ForCausalLM": f"{_KV} {_BIASED} head_dim",
    "Glm4MoeForCausalLM": f"{_KV} {_EXPERTS} {_SHARED} moe_intermediate_size first_k_dense_replace",
    "Glm4MoeLiteForCausalLM": _LATENT,
    "GlmForCausalLM": f"{_KV} {_BIASED} head_dim",
    "GlmMoeDsaForCausalLM": f"{_LATENT} index_topk index_n_heads",
    "GptOssForCausalLM": f"{_KV} {_EXPERTS} head_dim sliding_window",
    "GraniteMoeForCausalLM": _EXPERTS,
    "GraniteMoeHybridForCausalLM": f"{_EXPERTS} {_MAMBA} shared_intermediate_size mamba_d_state",
    "GraniteMoeSharedForCausalLM": f"{_EXPERTS} shared_intermediate_size",
    "JambaForCausalLM": f"{_KV} {_EXPERTS} expert_layer_period",
    "Lfm2ForCausalLM": f"{_KV} block_auto_adjust_ff_dim",
    "Lfm2MoeForCausalLM": f"{_KV} {_EXPERTS} moe_intermediate_size num_dense_layers",
    "Llama4ForCausalLM": f"{_KV} {_EXPERTS} head_dim",
    "Mamba2ForCausalLM": f"{_MAMBA} n_groups num_heads",
    "MiniMaxM2ForCausalLM": f"{_KV} {_EXPERTS} head_dim",
    "Ministral3ForCausalLM": f"{_KV} head_dim",
    "MistralForCausalLM": f"{_KV} sliding_window",
    "MixtralForCausalLM": f"{_KV} {_EXPERTS}",
    "NemotronHForCausalLM": f"{_KV} {_MAMBA} n_groups n_routed_experts|hybrid_override_pattern",
    "OlmoeForCausalLM": _EXPERTS,
    "PhiMoEForCausalLM": f"{_KV} {_EXPERTS}",
    "Qwen2ForCausalLM": _KV,
    "Qwen2MoeForCausalLM": f"{_KV} {_EXPERTS} moe_intermediate_size shared_expert_intermediate_size",
    "Qwen3ForCausalLM": f"{_KV} head_dim",
    "Qwen3MoeForCausalLM": f"{_KV} {_EXPERTS} moe_intermediate_size",
    "Qwen3NextForCausalLM": f"{_KV} {_EXPERTS} head_dim moe_intermediate_size shared_expert_intermediate_size",
    "Qwen3_5ForCausalLM": f"{_KV} head_dim",
    "Qwen3_5MoeForCausalLM": f"{_KV} {_EXPERTS} head_dim moe_intermediate_size shared_expert_intermediate_size",
    "SeedOssForCausalLM": f"{_KV} {_BIASED} head_dim",
    "SmolLM3ForCausalLM": _KV,
    "StableLmForCausalLM": _KV,
    "Starcoder2ForCausalLM": _KV,
    **dict.fromkeys(
        (
            "ExaoneForCausalLM", "HunYuanDenseV1ForCausalLM", "InternLM2ForCausalLM", "InternLM3ForCausalLM",
            "KimiLinearForCausalLM", "MiniCPMForCausalLM", "OrionForCausalLM", "SolarForCausalLM",
            "TeleChat3ForCausalLM",
        ),
        f"{_KV} tie_word_embeddings",
    ),
}  # fmt: skip
"""Required fields of each architecture. `a|b` means that one of these fields is required."""
_MAY_BE_NULL = ("sliding_window", "q_lora_rank", "n_routed_experts", "n_shared_experts", "per_layer_config")
"""Required fields that may be null, which means that the model lacks the feature."""

_NAMES: dict[str, tuple[type, ...]] = {
    "full_attention": (FullAttention, Mla),
    "attention": (FullAttention, Mla),
    "indexed_attention": (Mla,),
    "deepseek_sparse_attention": (Mla,),
    "sliding_attention": (SlidingWindow,),
    "chunked_attention": (ChunkedLocal,),
}
"""Classes of attention caches by their names in `layer_types`. All other names are recurrent layers."""


def check_stated(text: Config) -> None:
    """Raise a `UsageError` if a required field is not stated."""
    # The text model inside an image model may name another class than `architecture`: the one that wrote its fields.
    text_classes = [name for name in text.texts("architectures") or () if name.endswith("ForCausalLM")]
    for names in _STATED.get(text_classes[0] if text_classes else text.architecture, "").split():
        if not any(text.states(name) or (name in text.fields and name in _MAY_BE_NULL) for name in names.split("|")):
            raise text.wrong(names.partition("|")[0], "stated: a default would decide the answer")


def check_layers(text: Config, layers: Caches) -> None:
    """Raise a `UsageError` if the configuration contradicts `layers`, which the rule of its architecture lists."""
    if len(layers) != num_layers(text):
        raise text.wrong("num_hidden_layers", f"{len(layers)}, the number of layers in its list")
    if not any(layers):
        raise text.wrong("layer_types", "a list with at least one layer that keeps something")
    names = text.texts("layer_types", len(layers)) or ()
    for name, caches in zip(names, layers, strict=False):
        if caches and not _is_of(name, caches[0]):
            kind = caches[0].kind
            raise text.wrong(
                "layer_types",
                f"what vLLM makes of {text.architecture}, which is {kind} there",
                shown=f"a list with {name!r}",
            )
    kinds = text.texts("mlp_layer_types", len(layers)) or ()
    if unknown := sorted(set(kinds) - {"dense", "sparse"}):
        raise text.wrong("mlp_layer_types", "a list of dense and sparse", shown=f"a list with {unknown[0]!r}")
    slides = any(isinstance(layer, SlidingWindow) for caches in layers for layer in caches)
    window = text.states("sliding_window") and text.count("sliding_window", least=0)
    if window and not slides and text.flag("use_sliding_window", default=True):
        raise text.wrong("sliding_window", f"left out or null: no layer of {text.architecture} slides")
    for name in ("index_topk_freq", "index_topk_pattern", "indexer_types"):
        if text.states(name) and text.fields[name] not in (1, ["full"] * len(layers)):
            raise text.wrong(name, "left out: kvsim knows an indexer in every layer", shown="otherwise")


def _is_of(name: str, layer: Layer) -> bool:
    if name in _NAMES:
        # Sliding and chunked layers are subclasses of FullAttention, but not "full_attention".
        is_partial = isinstance(layer, FullAttention) and layer.kind != "full"
        return isinstance(layer, _NAMES[name]) and not (name.endswith("full_attention") and is_partial)
    return name in ("mamba", "linear_attention", "conv") and not isinstance(layer, (FullAttention, Mla, Indexer))
