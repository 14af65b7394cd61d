"""Work of a model on one GPU, counted from the model's shape: matrix products, bytes and kernels.

`kvsim.steptime.reduction` multiplies the counts by the times of a machine card. Layers are counted by kind: full
attention, windows, MLA, recurrent layers, dense feed-forward layers and layers with experts. Tensor parallelism divides
heads and widths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.kv_groups import CacheKind, CacheSettings, cache_layout
from kvsim.models.layers import ChunkedLocal, FullAttention, GatedDeltaNet, Mamba2, Mla, SlidingWindow

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.models.layers import Attention, Recurrent
    from kvsim.models.vision import VisionTower

_LATENT_HEAD = 128
"""Number of elements of a value, and of the non-rotary part of a query, in MLA of all DeepSeek models."""
_ACTIVATION_BYTES = 2
_SMALL_KERNELS = 5
"""Number of small kernels in a compiled layer: two norms, rotation, activation and cache write."""
_MORE_SMALL_KERNELS = {"gemma": 2, "latent": 4, "recurrent": 3}
"""Number of additional small kernels in a layer, by type: a layer of Gemma, one with latents, and a recurrent layer.

Gemma has norms after attention and after the feed-forward network.
"""

_HIDDEN_ELEMENTS = {"gemma": 15, "others": 6}
"""Number of elements that the norms and residual sums of a layer read and write per token, divided by the hidden size.

Gemma has more norms, in 32 bits. Source: long prompts in profiles of engines with the shapes of Gemma 3 12B and of
Llama models.
"""
_LATENT_ELEMENTS = 14
"""Number of elements read and written to unpack a latent, divided by the query elements of all heads.

Heads are concatenated, copied and padded. Source: a profiled prompt of 4,096 tokens in an engine with 32 MLA heads. An
engine with 16 MLA heads agrees.
"""


class Weights(NamedTuple):
    """Shape of a matrix of weights on one GPU."""

    n: int
    """Number of outputs."""
    k: int
    """Number of inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """Attention layers of one kind, on one GPU."""

    num_layers: float
    """Number of layers. It may be a fraction, because a pipeline stage is assumed to have a share of every kind."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Number of elements of a key."""
    query_dim: float
    """Mean of the numbers of elements of a query and of a value, in a prompt; below `head_dim` in MLA."""
    bytes_per_token: int
    """Number of bytes of one token in the cache of one layer."""
    is_fp8: bool
    """True if the cache is in fp8."""
    window: int
    """Number of tokens in the window; 0 if a query reads all tokens before it."""
    is_latent: bool
    is_sparse: bool
    """True if an indexer chooses the tokens to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one step of a model on each of its GPUs, per token, per sequence and per step.

    Numbers of layers, kernels and all-reduces are fractions if a pipeline stage has a part of every kind of layers.
    """

    num_layers: float
    products: Mapping[Weights, float]
    """Number of layers with a matrix of each shape; experts and the output projection are not included."""
    weight_bits: float
    """Bits of one weight in the matrices of `products`."""
    product_type: str
    """Type in which `products` are computed; see `Quantization.product_type`."""
    output: Weights | None
    """Output projection; None if another pipeline stage has it."""
    expert_weights: int
    """Number of weights of one expert in one layer on one GPU; 0 without experts."""
    expert_layers: float
    """Number of layers with experts."""
    num_experts: int
    num_experts_per_token: int
    expert_bits: float
    """Bits of one weight of an expert."""
    readings: tuple[AttentionKind, ...]
    state_bytes: float
    """Number of bytes of recurrent states that a step reads and writes per sequence."""
    num_recurrent_layers: float
    num_delta_nets: float
    """Number of recurrent layers with a gated delta net."""
    element_bytes: float
    """Number of bytes that norms, rotations and activations read and write per token, in all layers."""
    num_small_kernels: float
    """Number of kernels for norms, rotations, activations and cache writes in a step."""
    num_kernels_of_attention_layer: int
    """Number of kernels in an attention layer: matrix products, attention and small kernels."""
    num_latent_layers: float
    num_state_tables: int
    """Number of block tables for recurrent states, one for each KV-cache group of recurrent layers."""
    reduced_bytes: int
    """Bytes per token of the step in each all-reduce."""
    num_reduces: float
    """Number of all-reduces in a step; 0 on one GPU."""
    has_workers: bool
    """True if worker processes launch the kernels, as in servers with several GPUs."""
    divides_experts: bool
    """True if the experts of a layer are divided among several GPUs."""
    has_mxfp4_experts: bool
    """True if the weights of experts are in mxfp4."""
    vision: VisionTower | None
    """Image encoder; None if the model has none, or if another pipeline stage has it."""
    tensor_parallel_size: int


def work_of(model: Model) -> Work:
    """Return the work of `model`, with its serving settings, on each GPU."""
    size, hidden = model.tensor_parallel_size, model.hidden_size
    products: Counter[Weights] = Counter()
    for layer in model.attention_layers:
        products.update(_attention_products(model, layer))
    for recurrent in model.recurrent_layers:
        products.update(_recurrent_products(recurrent, size, hidden))
    _add_feed_forward(products, model)
    recurrent_layers = len(model.recurrent_layers)
    latent_layers = sum(isinstance(layer, Mla) for layer in model.attention_layers)
    small_kernels = _SMALL_KERNELS + (_MORE_SMALL_KERNELS["gemma"] if _is_gemma(model) else 0)
    expert_layers = _expert_layers(model)
    bits = 8.0 * model.dtype_bytes
    quantization = model.quantization
    return Work(
        num_layers=model.num_layers,
        products=dict(products),
        weight_bits=(quantization.linear_bits if quantization else 0) or bits,
        product_type=quantization.product_type if quantization else "bfloat16",
        output=Weights(model.vocab_size // size, hidden),
        expert_weights=model.num_expert_parameters
        // max(expert_layers * model.num_experts, 1)
        // model.num_expert_gpus,
        expert_layers=expert_layers,
        num_experts=model.num_experts,
        num_experts_per_token=model.num_experts_per_token,
        expert_bits=(quantization.expert_bits if quantization else 0) or bits,
        readings=_readings(model),
        state_bytes=model.state_bytes_per_sequence,
        num_recurrent_layers=recurrent_layers,
        num_delta_nets=sum(isinstance(layer, GatedDeltaNet) for layer in model.recurrent_layers),
        element_bytes=_ACTIVATION_BYTES * _elements_per_token(model, products),
        num_small_kernels=model.num_layers * small_kernels
        + _MORE_SMALL_KERNELS["latent"] * latent_layers
        + _MORE_SMALL_KERNELS["recurrent"] * recurrent_layers,
        num_kernels_of_attention_layer=6 + small_kernels,
        num_latent_layers=latent_layers,
        num_state_tables=_num_state_tables(model),
        reduced_bytes=_ACTIVATION_BYTES * hidden,
        num_reduces=2 * model.num_layers if size > 1 else 0,
        has_workers=model.num_gpus > 1,
        divides_experts=model.num_experts > 0 and model.num_expert_gpus > 1,
        has_mxfp4_experts=quantization is not None and quantization.method == "mxfp4",
        vision=model.vision,
        tensor_parallel_size=size,
    )


def _is_gemma(model: Model) -> bool:
    return model.architecture.startswith("Gemma")


def _recurrent_products(layer: Recurrent, size: int, hidden: int) -> list[Weights]:
    """Return the shapes of the large matrices of a recurrent layer, on each of the `size` GPUs that share it.

    The list is empty for layers other than Mamba 2 and gated delta nets. `_add_feed_forward` counts their parameters.
    """
    if isinstance(layer, Mamba2):
        into = 2 * layer.inner_size + 2 * layer.num_groups * layer.state_size + layer.num_heads
        return [Weights(into // size, hidden), Weights(hidden, layer.inner_size // size)]
    if isinstance(layer, GatedDeltaNet):
        keys, values = layer.num_key_heads * layer.key_head_dim, layer.num_value_heads * layer.value_head_dim
        into = 2 * keys + 2 * values + 2 * layer.num_value_heads  # also a gate, a decay and a rate per head
        return [Weights(into // size, hidden), Weights(hidden, values // size)]
    return []


def _elements_per_token(model: Model, products: Counter[Weights]) -> float:
    """Return the number of elements that norms, rotations, activations and unpacked latents read and write per token.

    All layers on one GPU are counted.
    """
    norms = _HIDDEN_ELEMENTS["gemma" if _is_gemma(model) else "others"] * model.hidden_size
    widest = sum(weights.n for weights in products.elements()) / model.num_layers
    unpacked = sum(_LATENT_HEAD + layer.rope_dim for layer in model.attention_layers if isinstance(layer, Mla))
    heads = model.num_attention_heads // model.tensor_parallel_size
    return model.num_layers * (norms + 1.5 * widest) + _LATENT_ELEMENTS * unpacked * heads


def attention_products(model: Model) -> list[Weights]:
    """Return the shapes of the matrices in the model's first attention layer, on each GPU."""
    return _attention_products(model, model.attention_layers[0])


def untimed(model: Model, *, times_sparse: bool = False, times_delta_nets: bool = False) -> tuple[str, ...]:
    """Describe the parts of serving `model` that step times do not include.

    `times_sparse` is True if the times include sparse attention, and `times_delta_nets` if they include gated delta
    nets. The slow first steps of a new server are described only for models with windows on several GPUs, where they
    were longest: 28 to 47 ms, and 16 to 18 ms when the same load was repeated.
    """
    has_workers = model.num_gpus > 1
    parts = {
        "its sparse attention (each token reads all that are cached and nothing picks them)": not times_sparse
        and any(isinstance(layer, Mla) and layer.sparse for layer in model.attention_layers),
        "compiling the kernels of its experts (at first use in a fresh server: 0.8 to 1.6 s each)": (
            model.num_expert_parameters > 0
        ),
        "recurrent layers other than Mamba 2 (but for their weights and states)": any(
            not isinstance(layer, Mamba2) and not (times_delta_nets and isinstance(layer, GatedDeltaNet))
            for layer in model.recurrent_layers
        ),
        "images and sound": model.num_encoder_parameters > 0 and model.vision is None,
        "a fresh server's first second (whose large steps took 1.6 to 2.8 times as long)": (
            has_workers and model.sliding_window is not None
        ),
    }
    return tuple(words for words, applies in parts.items() if applies)


def on_stage(work: Work, share: float, *, is_first: bool, is_last: bool) -> Work:
    """Return the work of a pipeline stage on each of its GPUs: a `share` of every kind of layers.

    Only the first stage has the image encoder, and only the last stage has the output projection.
    """
    return replace(
        work,
        num_layers=share * work.num_layers,
        products={weights: share * count for weights, count in work.products.items()},
        output=work.output if is_last else None,
        expert_layers=share * work.expert_layers,
        readings=tuple(replace(reading, num_layers=share * reading.num_layers) for reading in work.readings),
        state_bytes=share * work.state_bytes,
        num_recurrent_layers=share * work.num_recurrent_layers,
        num_delta_nets=share * work.num_delta_nets,
        element_bytes=share * work.element_bytes,
        num_small_kernels=share * work.num_small_kernels,
        num_latent_layers=share * work.num_latent_layers,
        num_reduces=share * work.num_reduces,
        vision=work.vision if is_first else None,
    )


def streamed_bytes(model: Model, num_parameters: int) -> float:
    """Return the bytes of weights that each GPU reads in a step that uses `num_parameters` of the model's parameters.

    Parameters of an untied input embedding are included in `num_parameters`, but are not read.
    """
    return model.weight_bytes_on_gpu / model.num_parameters * (num_parameters - model.num_lookup_parameters)


def _attention_products(model: Model, layer: Attention) -> list[Weights]:
    size, hidden, heads = model.tensor_parallel_size, model.hidden_size, model.num_attention_heads
    if isinstance(layer, Mla):
        queries = Weights(heads // size * (_LATENT_HEAD + layer.rope_dim), hidden)
        latent = Weights(layer.kv_lora_rank + layer.rope_dim, hidden)
        unpacked = Weights(heads // size * 2 * _LATENT_HEAD, layer.kv_lora_rank)
        return [queries, latent, unpacked, Weights(hidden, heads // size * _LATENT_HEAD)]
    width = heads // size * layer.head_dim + layer.elements_per_token(size)
    return [Weights(width, hidden), Weights(hidden, heads // size * layer.value_head_dim)]


def _add_feed_forward(products: Counter[Weights], model: Model) -> None:
    """Add feed-forward layers to `products`, so that all parameters that every token uses are counted.

    All layers get equal matrices: one for gate and up, and one for down. Their width follows from the number of
    parameters that are not in `products` yet. So shared experts, dense first layers, and recurrent layers that
    `products` lacks are included.
    """
    size, hidden = model.tensor_parallel_size, model.hidden_size
    embeddings = model.vocab_size * hidden * (1 if model.tie_word_embeddings else 2)
    counted = size * sum(weights.n * weights.k * count for weights, count in products.items())
    left = model.num_parameters - model.num_expert_parameters - embeddings - counted
    # Rounding down to a multiple of 8 removes the parameters of norms.
    width = 8 * int(left / (3 * hidden * model.num_layers) / size / 8)
    if width > 0:
        products[Weights(2 * width, hidden)] += model.num_layers
        products[Weights(hidden, width)] += model.num_layers


def _num_state_tables(model: Model) -> int:
    if not model.recurrent_layers:
        return 0
    layout = cache_layout(model, CacheSettings(max_model_len=model.max_position_embeddings))
    return sum(group.kind is CacheKind.MAMBA for group in layout.groups)


def _expert_layers(model: Model) -> int:
    """Return the number of layers with experts, derived from the number of parameters of all experts."""
    if not model.num_experts:
        return 0
    of_one = 3 * model.hidden_size * (model.expert_intermediate_size or model.intermediate_size)
    return max(1, min(model.num_layers, round(model.num_expert_parameters / (of_one * model.num_experts))))


def _readings(model: Model) -> tuple[AttentionKind, ...]:
    """Return one entry per kind of attention layers. A latent counts as one KV head that all query heads share."""
    size = model.tensor_parallel_size
    num_layers: Counter[Attention] = Counter(model.attention_layers)
    return tuple(
        AttentionKind(
            num_layers=count,
            num_heads=model.num_attention_heads // size,
            num_kv_heads=layer.heads_on_gpu(size) if isinstance(layer, FullAttention) else 1,
            head_dim=layer.head_dim if isinstance(layer, FullAttention) else layer.kv_lora_rank + layer.rope_dim,
            query_dim=layer.head_dim if isinstance(layer, FullAttention) else _LATENT_HEAD + layer.rope_dim / 2,
            is_fp8=model.kv_cache_dtype.startswith("fp8"),
            bytes_per_token=model.layer_bytes_per_token(layer),
            window=layer.window if isinstance(layer, SlidingWindow | ChunkedLocal) else 0,
            is_latent=isinstance(layer, Mla),
            is_sparse=isinstance(layer, Mla) and layer.sparse,
        )
        for layer, count in num_layers.items()
    )
