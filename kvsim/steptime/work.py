"""What one token, one sequence and one step ask of one GPU, from the shape of a model: products, bytes and kernels.

Layers are counted by kind: attention over everything, over a window or over a latent, recurrent layers, dense
feed-forward layers and mixtures of experts. Tensor parallelism deals the heads and widths out. Nothing here knows how
fast anything is.
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
"""Elements of the content of a query and of a value behind a latent, in every DeepSeek model."""
_ACTIVATION_BYTES = 2
_SMALL_KERNELS = 5
"""Kernels of a compiled layer beside products and attention: two norms, rotation, activation, cache write."""
_MORE_SMALL_KERNELS = {"gemma": 2, "latent": 4, "recurrent": 3}
"""Additional small kernels where norms stand behind layers as well as before them (Gemma), and in layers with a latent
or a recurrence.
"""


_HIDDEN_ELEMENTS = {"gemma": 15, "others": 6}
"""Elements of its hidden size that a layer's norms and sums read and write for a token: norms behind layers as well as
before them, in 32 bits, move more. Of long prompts in the profiles of engines with Gemma 3 12B's shape and with Llamas.
"""
_LATENT_ELEMENTS = 14
"""Multiple of all heads' query elements that is read and written where a latent is unpacked: heads are put together,
copied and padded. Of a prompt of 4,096 tokens, profiled in an engine with 32 such heads; 16 heads agree.
"""


class Weights(NamedTuple):
    """A matrix of weights on one GPU."""

    n: int
    """Outputs."""
    k: int
    """Inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Attention layers of one kind, on one GPU."""

    num_layers: float
    """Number that is not whole on a stage of a pipeline, which has its share of every kind of layers."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Elements of a key."""
    query_dim: float
    """Elements that a prompt's query and a value have on average: fewer than a key's where a latent is unpacked."""
    bytes_per_token: int
    """Bytes of the cache that a token takes in one layer."""
    is_fp8: bool
    """Whether the cache is in fp8."""
    window: int
    """Tokens that it looks back; 0: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a model asks of each of its GPUs."""

    num_layers: float
    products: Mapping[Weights, float]
    """Number of times that each matrix is multiplied in a step, but for experts and the output projection."""
    weight_bits: float
    """Bits of one weight in those products."""
    output: Weights | None
    """The output projection; None where another stage of a pipeline has it."""
    expert_weights: int
    """Weights of one expert in one layer; 0 where there are none."""
    expert_layers: float
    num_experts: int
    num_experts_per_token: int
    expert_bits: float
    readings: tuple[Reading, ...]
    state_bytes: float
    """Recurrent state that a step reads, and writes, for every sequence."""
    num_recurrent_layers: float
    element_bytes: float
    """Bytes that norms, rotations and activations read and write for one token, in all layers."""
    num_small_kernels: float
    num_kernels_of_attention_layer: int
    """Products and attention among them."""
    num_latent_layers: float
    num_state_tables: int
    """Tables that say where a sequence's recurrent states lie, each for as many layers as there are of attention."""
    reduced_bytes: int
    """Bytes that one token adds to each sum over the GPUs."""
    num_reduces: float
    """Sums over the GPUs in a step; 0 on one GPU."""
    has_workers: bool
    """Whether processes of their own launch the kernels, as on several GPUs."""


def work_of(model: Model) -> Work:
    """What `model`, as it is served, asks of each GPU."""
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
        expert_weights=model.num_expert_parameters // max(expert_layers * model.num_experts, 1) // size,
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
        has_workers=size * model.pipeline_parallel_size > 1,
    )


def untimed(model: Model) -> tuple[str, ...]:
    """What a server of `model` does that is in no step times, in words.

    A process launches its first large steps slowly, nowhere as slowly as workers of several GPUs with windows: 28 to 47
    ms each in its first second, and 16 to 18 when the same load came again.
    """
    has_workers = model.tensor_parallel_size * model.pipeline_parallel_size > 1
    found = {
        "its sparse attention (each token reads all that are cached and nothing picks them)": any(
            isinstance(layer, Mla) and layer.sparse for layer in model.attention_layers
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
    """What a stage of a pipeline asks of each of its GPUs: a `share` of all layers, of each kind as much.

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
    """Bytes that each GPU reads of so many of the parameters, with what is only looked up left out."""
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
    """What is left of the parameters that every token passes through: gate and up in one matrix, and down.

    Counted from the parameters rather than from widths, because shared experts, dense first layers and recurrent layers
    of other kinds are among them.
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


def _readings(model: Model) -> tuple[Reading, ...]:
    """A decode step reads a latent as one head of keys that all query heads share."""
    size = model.tensor_parallel_size
    found: Counter[Attention] = Counter(model.attention_layers)
    return tuple(
        Reading(
            num_layers=count,
            num_heads=model.num_attention_heads // size,
            num_kv_heads=layer.heads_on_gpu(size) if isinstance(layer, FullAttention) else 1,
            head_dim=layer.head_dim if isinstance(layer, FullAttention) else layer.kv_lora_rank + layer.rope_dim,
            query_dim=layer.head_dim if isinstance(layer, FullAttention) else _LATENT_HEAD + layer.rope_dim / 2,
            is_fp8=model.kv_cache_dtype.startswith("fp8"),
            bytes_per_token=model.layer_bytes_per_token(layer),
            window=layer.window if isinstance(layer, SlidingWindow | ChunkedLocal) else 0,
        )
        for layer, count in found.items()
    )
