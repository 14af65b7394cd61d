"""The shape of a model as it is served: its layers, the types of its weights and cache, the GPUs that share it.

From a shape follow how many bytes a token takes in the cache, how many the weights take, and how much arithmetic a
token costs. This module knows nothing of GPUs, blocks or time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvsim.errors import RecordingError, UsageError
from kvsim.models.cache_bytes import bytes_per_token, check_kv_cache_dtype, check_layer_takes
from kvsim.models.dtypes import dtype_bytes
from kvsim.models.layers import Attention, FullAttention, Indexer, Mla, SlidingWindow
from kvsim.models.weights import Quantization, stored_bytes
from kvsim.models.written import read_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.models.layers import Layer, Recurrent

ATTENTION = (FullAttention, Mla)
"""Classes of layers that keep something for every token; windows and chunks are among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The shape of one decoder-only model, as it is served."""

    name: str
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    """Elements of one head of the queries, keys and values, in layers of plain attention."""
    hidden_size: int
    intermediate_size: int
    """Width of a layer's feed-forward network; of one expert where every layer is a mixture."""
    vocab_size: int
    max_position_embeddings: int
    """Longest sequence in tokens, prompt and answer together."""
    tie_word_embeddings: bool
    """Whether one table serves both as input embedding and as output projection."""
    dtype: str
    """Type of weights and activations: a key of `DTYPE_BYTES`."""
    num_parameters: int
    """Parameters of the text model."""
    num_active_parameters: int
    """Parameters that one token passes through; fewer than `num_parameters` in a mixture of experts."""
    architecture: str = ""
    """The class that a Hugging Face configuration names; empty where the shape came from elsewhere."""
    layer_kinds: tuple[Layer, ...] = ()
    """The kinds of layers that keep something for a sequence, each once; empty: all layers are full attention."""
    layer_caches: tuple[tuple[int, ...], ...] = ()
    """The indices in `layer_kinds` of what each layer of the model keeps: none (a bare feed-forward layer),
    one, or two (attention beside a recurrent layer, a latent beside its index)."""
    mamba_chunk_size: int | None = None
    """Tokens that the kernels of a recurrent layer take at a time."""
    num_experts: int = 0
    """Routed experts of a layer; 0: none."""
    num_experts_per_token: int = 0
    expert_intermediate_size: int = 0
    num_expert_parameters: int = 0
    """Parameters of all routed experts in all layers."""
    num_encoder_parameters: int = 0
    """Parameters of towers for images or sound. They are loaded, and no token of text passes through them."""
    quantization: Quantization | None = None
    """The format in which the weights are stored; None for `dtype`."""
    stored_weight_bytes: int | None = None
    """Size of the published weights, where it is known and not what `quantization` says."""
    kv_cache_dtype: str = "auto"
    """Type of the cache: one of `KV_CACHE_DTYPES`."""
    tensor_parallel_size: int = 1
    """GPUs among which every layer is dealt out."""
    pipeline_parallel_size: int = 1
    """GPUs, or groups of them, each of which holds a run of layers."""
    sources: tuple[str, ...] = ()
    """Sources of the shape."""
    from_memory: tuple[str, ...] = ()
    """Figures that no source was seen for."""
    note: str = ""

    @classmethod
    def from_shape(cls, shape: Mapping[str, Any]) -> Model:
        """The model that a mapping of field names describes, such as `model` in a recording's `meta.json`.

        Keys that are no field of `Model` are ignored. `num_parameters` defaults to the count of a decoder with a gated
        feed-forward network, `num_active_parameters` to `num_parameters`. Where the mapping states
        `kv_bytes_per_token`, it must agree with the shape.

        Raises:
            RecordingError: if a figure is missing, cannot be right, or contradicts another.
        """
        model = cls(**read_shape(shape, tuple(cls.__dataclass_fields__)))
        stated = shape.get("kv_bytes_per_token", model.kv_bytes_per_token)
        if stated != model.kv_bytes_per_token:
            raise RecordingError(
                f"the shape of the model {model.name!r} says kv_bytes_per_token = {stated!r}; it must be "
                f"{model.kv_bytes_per_token:,}, by its shape."
            )
        return model

    def served(
        self,
        *,
        kv_cache_dtype: str | None = None,
        quantization: Quantization | str | None = "",
        tensor_parallel_size: int | None = None,
        pipeline_parallel_size: int | None = None,
    ) -> Model:
        """The model served otherwise; what is not given stays (`quantization`: an empty text).

        Raises:
            UsageError: if the heads cannot be dealt out among the GPUs, or there are more stages than layers.
        """
        changes: dict[str, Any] = {}
        if kv_cache_dtype is not None:
            check_kv_cache_dtype(kv_cache_dtype)
            for layer in set(self.attention_layers):
                check_layer_takes(layer, kv_cache_dtype)
            if kv_cache_dtype == "auto" and self.quantization is not None:
                kv_cache_dtype = self.quantization.kv_cache_dtype
            changes["kv_cache_dtype"] = kv_cache_dtype
        if not isinstance(quantization, str):
            changes |= {"quantization": quantization, "stored_weight_bytes": None}
        for name, size in (
            ("tensor_parallel_size", tensor_parallel_size),
            ("pipeline_parallel_size", pipeline_parallel_size),
        ):
            if size is not None:
                self._check_size(name, size)
                changes[name] = size
        return replace(self, **changes)

    def _check_size(self, name: str, size: int) -> None:
        if not (isinstance(size, int) and size >= 1):
            raise UsageError(f"{name} is {size}; it must be a whole number of at least 1.")
        if name == "tensor_parallel_size" and self.num_attention_heads % size:
            raise UsageError(
                f"tensor_parallel_size is {size}; it must divide the {self.num_attention_heads} attention heads of "
                f"{self.name}."
            )
        if name == "pipeline_parallel_size" and size > self.num_layers:
            raise UsageError(f"pipeline_parallel_size is {size}; {self.name} has {self.num_layers} layers.")

    def __repr__(self) -> str:
        size = f"{self.num_layers} layers, {self.num_parameters / 1e9:,.3g} billion parameters"
        return f"<Model {self.name}: {size}, {self.kv_bytes_per_token:,} bytes of KV per token>"

    @property
    def layers(self) -> tuple[tuple[Layer, ...], ...]:
        """For every layer of the model, what it keeps for a sequence."""
        if self.layer_caches:
            return tuple(tuple(self.layer_kinds[index] for index in caches) for caches in self.layer_caches)
        layer = FullAttention(num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, value_head_dim=self.head_dim)
        return ((layer,),) * self.num_layers

    @property
    def attention_layers(self) -> tuple[Attention, ...]:
        """The layers of attention, of whatever kind, in order."""
        return tuple(layer for caches in self.layers for layer in caches if isinstance(layer, ATTENTION))

    @property
    def recurrent_layers(self) -> tuple[Recurrent, ...]:
        """The layers that keep a state of fixed size, in order."""
        return tuple(
            layer for caches in self.layers for layer in caches if not isinstance(layer, (*ATTENTION, Indexer))
        )

    @property
    def num_kv_layers(self) -> int:
        """Layers of attention: all of them, but few in a hybrid of attention and recurrent layers."""
        return len(self.attention_layers)

    @property
    def kv_lora_rank(self) -> int | None:
        """Elements of the latent that multi-head latent attention keeps; None for other attention."""
        return next((layer.kv_lora_rank for layer in self.layer_kinds if isinstance(layer, Mla)), None)

    @property
    def sliding_window(self) -> int | None:
        """Tokens that a sliding layer looks back; None where none slides."""
        return next((layer.window for layer in self.layer_kinds if isinstance(layer, SlidingWindow)), None)

    @property
    def state_bytes_per_sequence(self) -> int:
        """Recurrent state that a sequence holds on one GPU, whatever its length."""
        tensors = (tensor for layer in self.recurrent_layers for tensor in layer.state(self.tensor_parallel_size))
        return sum(tensor.num_bytes for tensor in tensors)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element of the weights and activations, where those are not quantized."""
        return dtype_bytes(self.dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes on one GPU that one token takes in all layers while every one of them holds it."""
        if not self.layer_caches:
            return self.num_layers * self.layer_bytes_per_token(self.layers[0][0])
        times = Counter(index for caches in self.layer_caches for index in caches)
        return sum(times[index] * self.layer_bytes_per_token(kind) for index, kind in enumerate(self.layer_kinds))

    def layer_bytes_per_token(self, layer: Layer) -> int:
        """Bytes on one GPU that one token takes in `layer`; 0 for a recurrent one."""
        if not isinstance(layer, (*ATTENTION, Indexer)):
            return 0
        return bytes_per_token(
            layer,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            tensor_parallel_size=self.tensor_parallel_size,
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of the text model, on all GPUs together."""
        if self.stored_weight_bytes is not None:
            return self.stored_weight_bytes
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return stored_bytes(
            self.quantization,
            num_linear_parameters=self.num_parameters - self.num_expert_parameters - embeddings,
            num_expert_parameters=self.num_expert_parameters,
            num_other_parameters=embeddings,
            dtype_bytes=self.dtype_bytes,
        )

    @property
    def weight_bytes_on_gpu(self) -> float:
        """Bytes of the weights that each GPU of a tensor-parallel group holds and streams."""
        return self.weight_bytes / self.tensor_parallel_size

    @property
    def encoder_bytes(self) -> int:
        """Bytes of towers for images or sound, which are not quantized."""
        return self.num_encoder_parameters * self.dtype_bytes

    @property
    def num_lookup_parameters(self) -> int:
        """Parameters of an input embedding that is only looked up: its rows are neither streamed nor multiplied."""
        return 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size

    @property
    def flops_per_token(self) -> float:
        """FLOPs that one token costs each GPU in the layers: a multiplication and an addition per active parameter.

        Attention itself is `flops_per_attention_pair`; the output projection is `flops_per_logits`, since an engine
        computes logits only for the position it will sample from.
        """
        on_all = 2.0 * (self.num_active_parameters - self.num_lookup_parameters)
        return on_all / self.tensor_parallel_size - self.flops_per_logits

    @property
    def flops_per_logits(self) -> float:
        """FLOPs of the output projection of one position, on each GPU."""
        return 2.0 * self.vocab_size * self.hidden_size / self.tensor_parallel_size

    @property
    def flops_per_attention_pair(self) -> float:
        """FLOPs on each GPU in all layers for one query against one key: the score, and the value that it weighs."""
        return 4.0 * self.num_kv_layers * self.num_attention_heads * self.head_dim / self.tensor_parallel_size
