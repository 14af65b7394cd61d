"""Parameters of a model, counted from its configuration: all, those of routed experts, and those that a token uses.

The bytes of weights and the FLOPs follow from these numbers. Large biases are counted, and one vector for each norm.
Rotary tables and modules for drafting are not counted. They were less than 0.1 % in every model that was compared with
its published size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.models.attention import hidden_size, num_heads, num_layers
from kvsim.models.layers import FullAttention, GatedDeltaNet, Indexer, KimiDelta, Mamba1, Mamba2, Mla, ShortConv
from kvsim.models.vision import tower_width

if TYPE_CHECKING:
    from kvsim.models.attention import Caches
    from kvsim.models.config import Config
    from kvsim.models.layers import Layer, Recurrent

_UNGATED = {
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "FalconForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "NemotronForCausalLM",
    "NemotronHForCausalLM",
    "OPTForCausalLM",
    "PhiForCausalLM",
    "Starcoder2ForCausalLM",
}
"""Architectures whose feed-forward network has two matrices. All others have a third one, the gate."""
_GATED_ATTENTION = ("Qwen3Next", "Qwen3_5")
_TIED_BY_DEFAULT = (
    "Gemma",
    "Cohere",
    "OPT",
    "GPT2",
    "Ernie4_5",
    "SmolLM3",
    "Starcoder2",
    "FalconMamba",
    "MambaFor",
    "Lfm2For",
)
"""Beginnings of architectures that use one table for input and output if `tie_word_embeddings` is not stated."""
_WIDTH_FIELDS = {
    "Llama4ForCausalLM": "intermediate_size_mlp",
    "OPTForCausalLM": "ffn_dim",
    "GPT2LMHeadModel": "n_inner",
}
"""Field with the width of the feed-forward network, for architectures where it is not `intermediate_size`."""
_MIXTURES = (
    "Afmoe", "Ernie4_5_Moe", "FlexOlmo", "Glm4MoeFor", "GptOss", "GraniteMoeFor", "GraniteMoeShared", "Jamba",
    "Lfm2Moe", "MiniMaxM2", "Mixtral", "Olmoe", "PhiMoE", "Qwen2Moe", "Qwen3Moe", "Qwen3Next", "Qwen3_5Moe",
)  # fmt: skip
_WITHOUT_FEED_FORWARD = ("MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM")
_LEARNED_POSITIONS = {"OPTForCausalLM": 2, "GPT2LMHeadModel": 0}
"""Architectures with learned positions. Their table has this many rows more than the longest sequence."""


class Mixture(NamedTuple):
    """Number and widths of the experts in one layer."""

    num_experts: int
    """Number of routed experts."""
    num_active: int
    """Number of routed experts that one token passes through."""
    intermediate_size: int
    """Width of one routed expert."""
    shared_size: int
    """Total width of the experts that every token passes through; 0 without such experts."""


class Parameters(NamedTuple):
    """Numbers of parameters of a text model."""

    total: int
    active: int
    """Number of parameters that one token passes through."""
    routed_experts: int
    """Number of parameters of all routed experts."""


def mixture(config: Config) -> Mixture | None:
    """Return the number and the widths of the experts in one layer with experts; None for a model without experts."""
    names = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    count = config.count(*names, default=0, least=int(config.architecture.startswith(_MIXTURES)))
    if not count:
        return None
    has_own_width = config.states("moe_intermediate_size") or config.states("expert_intermediate_size")
    has_own_width = has_own_width or config.architecture == "NemotronHForCausalLM"
    width_fields = ("moe_intermediate_size", "expert_intermediate_size") if has_own_width else ("intermediate_size",)
    width = config.count(*width_fields)
    shared = config.count(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
        default=config.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0)
        * width,
        least=0,
    )  # fmt: skip
    if config.architecture.startswith("Llama4"):
        shared = width
    active = config.count(
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_k", "moe_topk",
        most=count,
    )  # fmt: skip
    return Mixture(count, active, width, shared)


def has_experts(config: Config, index: int) -> bool:
    """Tell whether layer `index` has experts, in a model with experts."""
    kind = _stated_kind(config, index)
    if kind is not None:
        return kind in ("E", "moe", "sparse")
    if index < config.count("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0, least=0):
        return False
    if index in config.indices("mlp_only_layers", num_layers(config)):
        return False
    if config.states("expert_layer_period"):
        offset = config.count("expert_layer_offset", default=0, least=0)
        return index % config.count("expert_layer_period") == offset
    step = config.count("interleave_moe_layer_step", "decoder_sparse_step", default=1)
    return (index + 1) % step == 0


def _stated_kind(config: Config, index: int) -> str | None:
    """Return the stated name for the kind of layer `index`, or of its feed-forward part; None if not stated."""
    for name in ("hybrid_override_pattern", "layers_block_type", "mlp_layer_types"):
        kinds = config.fields.get(name)
        tells = name != "layers_block_type" or (isinstance(kinds, list) and "moe" in kinds)
        if isinstance(kinds, str | list | tuple) and len(kinds) > index and tells:
            return str(kinds[index])
    return None


def count_parameters(config: Config, layers: Caches) -> Parameters:
    """Count the parameters of a text model. `layers` has the caches of each layer."""
    hidden = hidden_size(config)
    vocabulary = config.count("vocab_size") * hidden
    architecture = config.architecture
    total = vocabulary * (1 if is_tied(config) else 2) + hidden
    if architecture in _LEARNED_POSITIONS:
        positions = config.count("max_position_embeddings", "n_positions") + _LEARNED_POSITIONS[architecture]
        total += positions * hidden
    total += _per_layer_embeddings(config, len(layers))
    experts = active_experts = 0
    for index, caches in enumerate(layers):
        total += sum(_cache_parameters(config, layer) for layer in caches) + 2 * hidden
        dense, routed, active = _feed_forward(config, index, bool(caches))
        total += dense + routed
        experts += routed
        active_experts += active
    return Parameters(total, total - experts + active_experts, experts)


def is_tied(config: Config) -> bool:
    """Tell whether one table is both input embedding and output projection."""
    return config.flag("tie_word_embeddings", default=config.architecture.startswith(_TIED_BY_DEFAULT))


def encoder_parameters(config: Config) -> int:
    """Estimate the number of parameters of an image encoder from its width and depth; 0 without an encoder.

    A feed-forward network with `silu` is assumed to have a gate. An encoder that merges neighbouring patches is assumed
    to have two linear layers for this.
    """
    stated = config.fields.get("vision_config")
    if not isinstance(stated, dict):
        return 0
    tower = type(config)(stated, f"vision_config of {config.where}")
    width = tower_width(tower)
    depth = tower.count("num_hidden_layers", "depth", "num_layers", default=0, least=0)
    inner = tower.count("intermediate_size", default=4 * width, least=0)
    patch = tower.count("patch_size", default=14)
    matrices = 3 if stated.get("hidden_act") == "silu" else 2
    merged = width * tower.count("spatial_merge_size", default=1) ** 2
    projector = merged * hidden_size(config.text("")) + (merged**2 if merged > width else 0)
    return depth * (4 * width**2 + matrices * width * inner) + 3 * patch**2 * width + projector


def num_deepstack_layers(config: Config) -> int:
    """Return the number of deeper layers that get their own vector from the image encoder (deepstack of Qwen3-VL)."""
    stated = config.fields.get("vision_config")
    levels = stated.get("deepstack_visual_indexes") if isinstance(stated, dict) else None
    return len(levels) if isinstance(levels, list) else 0


def _per_layer_embeddings(config: Config, num_layers: int) -> int:
    width = config.count("hidden_size_per_layer_input", default=0, least=0)
    if not width:
        return 0
    rows = config.count("vocab_size_per_layer_input", default=config.count("vocab_size"))
    return num_layers * width * (rows + 3 * hidden_size(config))


def _feed_forward(config: Config, index: int, has_cache: bool) -> tuple[int, int, int]:
    """Return three numbers of feed-forward parameters of layer `index`.

    They are those that every token uses, those of all routed experts, and those of the experts that one token uses.
    """
    hidden, architecture = hidden_size(config), config.architecture
    matrices = 2 if architecture in _UNGATED else 3
    experts = mixture(config)
    if architecture in _WITHOUT_FEED_FORWARD:
        return 0, 0, 0
    if architecture == "NemotronHForCausalLM" and has_cache:  # its layers are attention, Mamba 2 or feed-forward
        return 0, 0, 0
    if experts is None or not has_experts(config, index):
        return matrices * hidden * dense_size(config, index), 0, 0
    latent = config.count("moe_latent_size", default=hidden)
    per_expert = matrices * latent * experts.intermediate_size
    if architecture == "GptOssForCausalLM":  # biases
        per_expert += 2 * experts.intermediate_size + hidden
    dense = matrices * hidden * experts.shared_size + hidden * experts.num_experts
    dense += 2 * hidden * latent if latent != hidden else 0
    if config.flag("enable_moe_block", default=False):  # Gemma 4: a dense network beside the experts
        dense += matrices * hidden * dense_size(config, index)
    return dense, experts.num_experts * per_expert, experts.num_active * per_expert


def dense_size(config: Config, index: int = 0) -> int:
    """Return the width of the feed-forward network of layer `index`, if the layer has no experts."""
    widths = config.fields.get("intermediate_size")
    if isinstance(widths, list | tuple):  # Gemma 3n: one for every layer
        if len(widths) != num_layers(config):
            raise config.wrong("intermediate_size", f"a number, or one for each of the {num_layers(config)} layers")
        return type(config)({"intermediate_size": widths[index]}, config.where).count("intermediate_size")
    name, default = _WIDTH_FIELDS.get(config.architecture, "intermediate_size"), None
    if config.count("num_local_experts", default=1, least=0) == 0:  # Granite 4 H without experts
        name = "shared_intermediate_size" if config.states("shared_intermediate_size") else name
    if name == "n_inner":
        default = 4 * hidden_size(config)
    elif config.architecture in _WITHOUT_FEED_FORWARD:
        default = config.count("expand", default=2) * hidden_size(config)
    size = config.count(name, default=default)
    if not config.flag("block_auto_adjust_ff_dim", default=False):
        return size
    # LFM2 states the width of a network without a gate: two thirds of it, in whole multiples.
    multiple = config.count("block_multiple_of", default=256)
    narrowed = int(config.positive("block_ffn_dim_multiplier", default=1.0) * int(2 * size / 3))
    return -(-narrowed // multiple) * multiple


def _cache_parameters(config: Config, layer: Layer) -> int:
    match layer:
        case FullAttention():
            return _attention(config, layer)
        case Mla():
            return _latent_attention(config, layer)
        case Indexer():
            hidden, heads = hidden_size(config), config.count("index_n_heads", default=64)
            query = config.count("q_lora_rank", default=hidden)
            return query * heads * layer.head_dim + hidden * (layer.head_dim + heads)
        case _:
            return _recurrent(config, layer)


def _recurrent(config: Config, layer: Recurrent) -> int:
    """Return the number of parameters of a recurrent layer: its projections, convolution and state rule."""
    hidden = hidden_size(config)
    match layer:
        case Mamba1():
            rank = config.count("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
            inner = layer.inner_size
            steps = inner * (rank + 2 * layer.state_size) + rank * inner + inner * layer.state_size
            return 3 * hidden * inner + inner * (layer.conv_kernel + 2) + steps
        case Mamba2():
            channels = layer.inner_size + 2 * layer.num_groups * layer.state_size
            into = hidden * (layer.inner_size + channels + layer.num_heads)
            return into + channels * (layer.conv_kernel + 1) + layer.inner_size * (hidden + 1) + 3 * layer.num_heads
        case GatedDeltaNet():
            keys, values = layer.num_key_heads * layer.key_head_dim, layer.num_value_heads * layer.value_head_dim
            into = hidden * (2 * keys + 2 * values + 2 * layer.num_value_heads)
            return into + (2 * keys + values) * layer.conv_kernel + values * hidden + 2 * layer.num_value_heads
        case KimiDelta():
            inner = layer.num_heads * layer.head_dim
            gates = 2 * (hidden * layer.head_dim + layer.head_dim * inner) + hidden * layer.num_heads
            return 4 * hidden * inner + gates + 3 * inner * layer.conv_kernel
        case ShortConv():
            return 4 * hidden * layer.inner_size + layer.inner_size * layer.conv_kernel


def _attention(config: Config, layer: FullAttention) -> int:
    hidden, heads, architecture = hidden_size(config), num_heads(config), config.architecture
    gated = architecture.startswith(_GATED_ATTENTION)
    query = heads * layer.head_dim * (2 if gated and config.flag("attn_output_gate", default=True) else 1)
    shares_values = config.flag("attention_k_eq_v", default=False) and layer.kind == "full"
    values = 0 if shares_values else layer.num_kv_heads * layer.value_head_dim
    keys = layer.num_kv_heads * layer.head_dim
    biased = config.flag("attention_bias", default=architecture.startswith(("Qwen2", "OPT", "GptOss")))
    biases = query + keys + values if biased else 0
    gate = hidden * query if architecture == "AfmoeForCausalLM" else 0
    return hidden * (query + keys + values) + heads * layer.value_head_dim * hidden + biases + gate


def _latent_attention(config: Config, layer: Mla) -> int:
    hidden, heads = hidden_size(config), num_heads(config)
    content, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    query = heads * (content + layer.rope_dim)
    rank = config.count("q_lora_rank", default=0, least=0)
    queries = rank * (hidden + query) if rank else hidden * query
    latents = hidden * (layer.kv_lora_rank + layer.rope_dim) + layer.kv_lora_rank * heads * (content + value)
    return queries + latents + heads * value * hidden
