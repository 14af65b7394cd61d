"""Work of one token, one sequence and one step on one GPU, from the shape of a model: products, bytes and kernels.

Layers are counted by kind: full attention, windows, latent attention, recurrent layers, dense feed-forward layers and
mixtures of experts. Tensor parallelism splits heads and widths. This module knows no speeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.kv_groups import CacheKind, CacheSettings, cache_layout
from kvsim.models.layers import ChunkedLocal, FullAttention, Mamba2, Mla, SlidingWindow

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.models.layers import Attention

_LATENT_HEAD = 128
"""Elements of a query's content and of a value in latent attention, in every DeepSeek model."""
_ACTIVATION_BYTES = 2
_SMALL_KERNELS = 5
"""Kernels of a compiled layer besides products and attention: two norms, rotation, activation, cache write."""
_MORE_SMALL_KERNELS = {"gemma": 2, "latent": 4, "recurrent": 3}
"""Additional small kernels if layers have norms behind them too (Gemma), and in layers with a latent or a recurrence.
"""


_HIDDEN_ELEMENTS = {"gemma": 15, "others": 6}
"""Elements of its hidden size that a layer's norms and sums read and write per token; norms behind layers too, in 32
bits, move more. From long prompts in the profiles of engines with the shapes of Gemma 3 12B and of Llamas."""
_LATENT_ELEMENTS = 14
"""Multiple of all heads' query elements that is read and written to unpack a latent: heads are concatenated, copied and
padded. From a prompt of 4,096 tokens, profiled in an engine with 32 such heads; 16 heads agree."""


class Weights(NamedTuple):
    """A matrix of weights on one GPU."""

    n: int
    """Outputs."""
    k: int
    """Inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """Attention layers of one kind, on one GPU."""

    num_layers: float
    """Number of layers; not a whole number on a stage of a pipeline, which has its share of every kind."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Elements of a key."""
    query_dim: float
    """Mean of the elements of a prompt's query and of a value: fewer than a key's with an unpacked latent."""
    bytes_per_token: int
    """Bytes of the cache per token in one layer."""
    is_fp8: bool
    """True if the cache is in fp8."""
    window: int
    """Window in tokens; 0 for all."""
    is_latent: bool
    """True for latent attention."""
    is_sparse: bool
    """True if an indexer picks the tokens to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a model on each of its GPUs."""

    num_layers: float
    products: Mapping[Weights, float]
    """Number of times that each matrix is multiplied in a step, without experts and the output projection."""
    weight_bits: float
    """Bits of one weight in those products."""
    output: Weights | None
    """Output projection; None if another stage of a pipeline has it."""
    expert_weights: int
    """Weights of one expert in one layer, divided by the GPUs that share the experts; 0 without experts."""
    expert_layers: float
    num_experts: int
    num_experts_per_token: int
    expert_bits: float
    readings: tuple[AttentionKind, ...]
    state_bytes: float
    """Bytes of recurrent state that a step reads and writes per sequence."""
    num_recurrent_layers: float
    element_bytes: float
    """Bytes that norms, rotations and activations read and write per token, in all layers."""
    num_small_kernels: float
    num_kernels_of_attention_layer: int
    """Number of kernels, products and attention included."""
    num_latent_layers: float
    num_state_tables: int
    """Number of tables with the places of sequences' recurrent states; each has as many layers as an attention group.
    """
    reduced_bytes: int
    """Bytes that one token adds to each sum over the GPUs."""
    num_reduces: float
    """Sums over the GPUs in a step; 0 on one GPU."""
    has_workers: bool
    """True if worker processes launch the kernels, as on several GPUs."""


def work_of(model: Model) -> Work:
    """Return the work of `model`, as it is served, on each GPU."""
    size, hidden = model.tensor_parallel_size, model.hidden_size
    products: Counter[Weights] = Counter()
    for layer in model.attention_layers:
        products.update(_attention_products(model, layer))
    for recurrent in model.recurrent_layers:
        if isinstance(recurrent, Mamba2):
            into = 2 * recurrent.inner_size + 2 * recurrent.num_groups * recurrent.state_size + recurrent.num_heads
            products.update([Weights(into // size, hidden), Weights(hidden, recurrent.inner_size // size)])
    _add_feed_forward(products, model)
    recurrent_layers = len(model.recurrent_layers)
    latent_layers = sum(isinstance(layer, Mla) for layer in model.attention_layers)
    is_gemma = model.architecture.startswith("Gemma")
    more = _MORE_SMALL_KERNELS["gemma"] if is_gemma else 0
    small_kernels = model.num_layers * (_SMALL_KERNELS + more)
    small_kernels += _MORE_SMALL_KERNELS["latent"] * latent_layers + _MORE_SMALL_KERNELS["recurrent"] * recurrent_layers
    widest = sum(weights.n for weights in products.elements()) / model.num_layers
    elements = model.num_layers * (_HIDDEN_ELEMENTS["gemma" if is_gemma else "others"] * hidden + 1.5 * widest)
    unpacked = sum(_LATENT_HEAD + layer.rope_dim for layer in model.attention_layers if isinstance(layer, Mla))
    elements += _LATENT_ELEMENTS * unpacked * (model.num_attention_heads // size)
    expert_layers = _expert_layers(model)
    bits = 8.0 * model.dtype_bytes
    quantization = model.quantization
    return Work(
        num_layers=model.num_layers,
        products=dict(products),
        weight_bits=(quantization.linear_bits if quantization else 0) or bits,
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
        element_bytes=_ACTIVATION_BYTES * elements,
        num_small_kernels=small_kernels,
        num_kernels_of_attention_layer=6 + _SMALL_KERNELS + more,
        num_latent_layers=latent_layers,
        num_state_tables=_num_state_tables(model),
        reduced_bytes=_ACTIVATION_BYTES * hidden,
        num_reduces=2 * model.num_layers if size > 1 else 0,
        has_workers=model.num_gpus > 1,
    )


def attention_products(model: Model) -> list[Weights]:
    """Return the products of one attention layer on each GPU, those of the first kind that the model has."""
    return _attention_products(model, model.attention_layers[0])


def untimed(model: Model, *, times_sparse: bool = False) -> tuple[str, ...]:
    """Describe the work of a server of `model` that is missing in step times; `times_sparse` is set if those of sparse
    attention are known.

    A process launches its first large steps slowly. The effect was largest in workers of several GPUs with windows: 28
    to 47 ms each in the first second, and 16 to 18 when the same load came again.
    """
    has_workers = model.num_gpus > 1
    found = {
        "its sparse attention (each token reads all that are cached and nothing picks them)": not times_sparse
        and any(isinstance(layer, Mla) and layer.sparse for layer in model.attention_layers),
        "compiling the kernels of its experts (at first use in a fresh server: 0.8 to 1.6 s each)": (
            model.num_expert_parameters > 0
        ),
        "recurrent layers other than Mamba 2 (but for their weights and states)": any(
            not isinstance(layer, Mamba2) for layer in model.recurrent_layers
        ),
        "images and sound": model.num_encoder_parameters > 0,
        "a fresh server's first second (whose large steps took 1.6 to 2.8 times as long)": (
            has_workers and model.sliding_window is not None
        ),
    }
    return tuple(words for words, applies in found.items() if applies)


def on_stage(work: Work, share: float, *, is_last: bool) -> Work:
    """Return the work of a pipeline stage on each of its GPUs: a `share` of every kind of layers.

    Only the last stage has the output projection.
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
        element_bytes=share * work.element_bytes,
        num_small_kernels=share * work.num_small_kernels,
        num_latent_layers=share * work.num_latent_layers,
        num_reduces=share * work.num_reduces,
    )


def streamed_bytes(model: Model, num_parameters: int) -> float:
    """Return the bytes of `num_parameters` that each GPU reads, without parameters that are only looked up."""
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
    """Add the remaining parameters that every token uses: gate and up in one matrix, and down.

    They are counted from parameters instead of widths, because they include shared experts, dense first layers and
    other recurrent layers.
    """
    size, hidden = model.tensor_parallel_size, model.hidden_size
    embeddings = model.vocab_size * hidden * (1 if model.tie_word_embeddings else 2)
    counted = size * sum(weights.n * weights.k * count for weights, count in products.items())
    left = model.num_parameters - model.num_expert_parameters - embeddings - counted
    width = 8 * int(left / (3 * hidden * model.num_layers) / size / 8)  # norms are too few to make eight
    if width > 0:
        products[Weights(2 * width, hidden)] += model.num_layers
        products[Weights(hidden, width)] += model.num_layers


def _num_state_tables(model: Model) -> int:
    if not model.recurrent_layers:
        return 0
    layout = cache_layout(model, CacheSettings(max_model_len=model.max_position_embeddings))
    return sum(group.kind is CacheKind.MAMBA for group in layout.groups)


def _expert_layers(model: Model) -> int:
    if not model.num_experts:
        return 0
    of_one = 3 * model.hidden_size * (model.expert_intermediate_size or model.intermediate_size)
    return max(1, min(model.num_layers, round(model.num_expert_parameters / (of_one * model.num_experts))))


def _readings(model: Model) -> tuple[AttentionKind, ...]:
    """Return the attention layers by kind. A decode step reads a latent as one head that all query heads share."""
    size = model.tensor_parallel_size
    found: Counter[Attention] = Counter(model.attention_layers)
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
        for layer, count in found.items()
    )
