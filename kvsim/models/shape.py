"""Shape of a model: its layers, the types of its weights and cache, and how GPUs share it.

Three kinds of figures follow from the shape, for sizing and for step times: bytes of cache per token, bytes of weights,
and FLOPs per token.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvsim.errors import RecordingError, UsageError
from kvsim.models.cache_bytes import bytes_per_token, check_kv_cache_dtype, check_layer_takes
from kvsim.models.dtypes import DTYPE_BYTES
from kvsim.models.layers import Attention, ChunkedLocal, FullAttention, Indexer, Mla, SlidingWindow
from kvsim.models.shape_fields import check_fields, read_shape
from kvsim.models.vision import VisionTower
from kvsim.models.weights import Quantization, stored_bytes
from kvsim.setting_fields import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.models.layers import Layer, Recurrent

ATTENTION = (FullAttention, Mla)
"""Classes of caches with keys and values, or with latents. Caches of windows and chunks are subclasses of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Shape of one decoder-only model, and the settings with which it is served."""

    name: str
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    """Number of elements of one head. If it differs between layers, `layer_kinds` has the size for each."""
    hidden_size: int
    intermediate_size: int
    """Width of the feed-forward network in a layer. If all layers have experts, the width of one expert."""
    vocab_size: int
    max_position_embeddings: int
    """Number of tokens in the longest sequence, prompt and output together."""
    tie_word_embeddings: bool
    """True if one table is both input embedding and output projection."""
    dtype: str
    """Type of weights and activations, a key of `DTYPE_BYTES`."""
    num_parameters: int
    """Number of parameters of the text model."""
    num_active_parameters: int
    """Number of parameters that one token passes through; less than `num_parameters` if there are experts."""
    architecture: str = ""
    """Class of the text model in a Hugging Face configuration; empty for a model that was not read from one."""
    layer_kinds: tuple[Layer, ...] = ()
    """The different caches of the layers. If empty, all layers have full attention."""
    layer_caches: tuple[tuple[int, ...], ...] = ()
    """Indices in `layer_kinds` of the caches of each layer.

    A layer has no cache (feed-forward only), one, or two (attention and a recurrent state, or latent and indexer keys).
    """
    mamba_chunk_size: int | None = None
    """Number of tokens that the kernels of a recurrent layer process at a time; None if not stated."""
    num_experts: int = 0
    """Number of routed experts in a layer; 0 for a model without experts."""
    num_experts_per_token: int = 0
    """Number of routed experts that one token passes through in a layer."""
    expert_intermediate_size: int = 0
    """Width of one routed expert."""
    num_expert_parameters: int = 0
    """Number of parameters of all routed experts in all layers."""
    num_encoder_parameters: int = 0
    """Number of parameters of encoders for images or sound. They are loaded, but tokens of text do not use them."""
    image_class: str = ""
    """Class of an image model, such as "Qwen3VLForConditionalGeneration"; empty for a text model."""
    vision: VisionTower | None = None
    """Layers that compute images; None without images, or if kvsim does not know the layers."""
    num_image_levels: int = 1
    """Number of vectors that the image encoder outputs for one token.

    One is for the first layer, and one for each deeper layer that gets a vector of its own.
    """
    quantization: Quantization | None = None
    """Format of quantized weights; None if all weights have type `dtype`."""
    stored_weight_bytes: int | None = None
    """Number of bytes of the published weights; if it is None, the number follows from `quantization`."""
    kv_cache_dtype: str = "auto"
    """Type of the cache, one of `KV_CACHE_DTYPES`."""
    tensor_parallel_size: int = 1
    """Number of GPUs that share every layer."""
    pipeline_parallel_size: int = 1
    """Number of pipeline stages. Each stage has consecutive layers and its own tensor-parallel group of GPUs."""
    data_parallel_size: int = 1
    """Number of data-parallel ranks, among which the routed experts are divided.

    Each rank has its own scheduler and cache, and its own copy of all other weights.
    """
    enable_expert_parallel: bool = False
    """True if each GPU of all ranks has some whole experts; False if each has a part of every expert."""
    decode_context_parallel_size: int = 1
    """Number of GPUs of a tensor-parallel group among which the cached tokens of a sequence are divided."""
    sources: tuple[str, ...] = ()
    """Documents from which the shape was taken."""
    from_memory: tuple[str, ...] = ()
    """Names of fields whose values were taken from no document."""
    note: str = ""
    """Remark about the listed model; empty without one."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            UsageError: a field is invalid.
        """
        check_fields(self)

    @classmethod
    def from_shape(cls, shape: Mapping[str, Any]) -> Model:
        """Build a model from a mapping of field names, such as `model` in a recording's `meta.json`.

        Unknown keys are ignored. Without `num_parameters`, the parameters of a decoder with a gated feed-forward
        network are counted. Without `num_active_parameters`, it is `num_parameters`. If `kv_bytes_per_token` is stated,
        it must be the number that follows from the shape.

        Raises:
            RecordingError: a figure is missing, invalid, or contradicts another.
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
        data_parallel_size: int | None = None,
        enable_expert_parallel: bool | None = None,
        decode_context_parallel_size: int | None = None,
    ) -> Model:
        """Return the model with other serving settings. None keeps a setting.

        For `quantization`, "" keeps the setting, and None means weights that are not quantized.

        Raises:
            UsageError: heads, experts or contexts cannot be divided among the GPUs, or there are more stages than
                layers.
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
            ("data_parallel_size", data_parallel_size),
            ("decode_context_parallel_size", decode_context_parallel_size),
        ):
            if size is not None:
                changes[name] = whole_number(name, size)
                self._check_divides(name, changes[name])
        if enable_expert_parallel is not None:
            changes["enable_expert_parallel"] = enable_expert_parallel
        served = replace(self, **changes)
        served._check_experts()
        if served.decode_context_parallel_size > 1:
            served._check_contexts()
        return served

    def _check_experts(self) -> None:
        if self.enable_expert_parallel and not self.num_experts:
            raise UsageError(f"{self.name} has no experts to divide among GPUs; leave --enable-expert-parallel out.")
        width, size = self.expert_intermediate_size or self.intermediate_size, self.num_expert_gpus
        if self.divides_experts_among_ranks and not self.enable_expert_parallel and width % size:
            raise UsageError(
                f"experts {width:,} wide cannot be divided among {size} GPUs; give --enable-expert-parallel, or "
                "another --data-parallel-size."
            )

    def _check_contexts(self) -> None:
        """Check that contexts can be divided: each KV head is on at least `decode_context_parallel_size` GPUs."""
        size, on_all = self.decode_context_parallel_size, self.tensor_parallel_size
        if self.recurrent_layers or any(
            isinstance(layer, SlidingWindow | ChunkedLocal) for layer in self.attention_layers
        ):
            raise UsageError(
                f"kvsim knows --decode-context-parallel-size for models whose layers all keep every token; {self.name} "
                "has windows or recurrent states (vLLM itself refuses windows)."
            )
        heads = max(1 if isinstance(layer, Mla) else layer.num_kv_heads for layer in self.attention_layers)
        if on_all % size or size > on_all // heads:
            raise UsageError(
                f"--decode-context-parallel-size is {size}; it must divide --tensor-parallel-size, which is {on_all}, "
                f"and be at most {max(on_all // heads, 1)}, because {self.name} has {heads} KV heads."
            )
        sizes = {self._whole_bytes(layer) for caches in self.layers for layer in caches}
        if any(each % size for each in sizes):
            raise UsageError(
                f"--decode-context-parallel-size is {size}, and kvsim counts the cache in whole bytes a token: it must "
                f"divide the {' and '.join(f'{each:,}' for each in sorted(sizes))} bytes of a layer of {self.name}."
            )

    def _check_divides(self, name: str, size: int) -> None:
        if name == "tensor_parallel_size" and self.num_attention_heads % size:
            raise UsageError(
                f"--tensor-parallel-size is {size}; it must divide the {self.num_attention_heads} attention heads of "
                f"{self.name}."
            )
        if name == "pipeline_parallel_size" and size > self.num_layers:
            raise UsageError(
                f"--pipeline-parallel-size is {size}; it must be at most {self.num_layers}, the layers of {self.name}."
            )

    def __repr__(self) -> str:
        size = f"{self.num_layers} layers, {self.num_parameters / 1e9:,.3g} billion parameters"
        return f"<Model {self.name}: {size}, {self.kv_bytes_per_token:,} bytes of KV per token>"

    @property
    def layers(self) -> tuple[tuple[Layer, ...], ...]:
        """Caches of each layer of the model; empty for a layer without a cache."""
        if self.layer_caches:
            return tuple(tuple(self.layer_kinds[index] for index in caches) for caches in self.layer_caches)
        layer = FullAttention(num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, value_head_dim=self.head_dim)
        return ((layer,),) * self.num_layers

    @property
    def attention_layers(self) -> tuple[Attention, ...]:
        """Caches of all attention layers, in the order of the layers."""
        return tuple(layer for caches in self.layers for layer in caches if isinstance(layer, ATTENTION))

    @property
    def recurrent_layers(self) -> tuple[Recurrent, ...]:
        """Caches of all recurrent layers, in the order of the layers."""
        return tuple(
            layer for caches in self.layers for layer in caches if not isinstance(layer, (*ATTENTION, Indexer))
        )

    @property
    def num_kv_layers(self) -> int:
        """Number of attention layers."""
        return len(self.attention_layers)

    @property
    def kv_lora_rank(self) -> int | None:
        """Number of elements in the latent (MLA); None for other attention."""
        return next((layer.kv_lora_rank for layer in self.layer_kinds if isinstance(layer, Mla)), None)

    @property
    def has_sparse_attention(self) -> bool:
        """True if layers have an `Indexer`, which selects the tokens that they read."""
        return any(isinstance(layer, Indexer) for layer in self.layer_kinds)

    @property
    def sliding_window(self) -> int | None:
        """Number of tokens in the window of the sliding layers; None without sliding layers."""
        return next((layer.window for layer in self.layer_kinds if isinstance(layer, SlidingWindow)), None)

    @property
    def state_bytes_per_sequence(self) -> int:
        """Number of bytes of one sequence's recurrent states on one GPU, independent of the sequence's length."""
        tensors = (tensor for layer in self.recurrent_layers for tensor in layer.state(self.tensor_parallel_size))
        return sum(tensor.num_bytes for tensor in tensors)

    @property
    def dtype_bytes(self) -> int:
        """Number of bytes of one activation, and of one weight that is not quantized."""
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Number of bytes of one token's cache in all layers on one GPU. Windows count as if they kept every token."""
        if not self.layer_caches:
            return self.num_layers * self.layer_bytes_per_token(self.layers[0][0])
        times = Counter(index for caches in self.layer_caches for index in caches)
        return sum(times[index] * self.layer_bytes_per_token(kind) for index, kind in enumerate(self.layer_kinds))

    def layer_bytes_per_token(self, layer: Layer) -> int:
        """Return the number of bytes of one token in `layer` on one GPU; 0 for a recurrent state.

        If decode context parallelism divides the tokens among GPUs, this is the average over the GPUs.
        """
        return self._whole_bytes(layer) // self.decode_context_parallel_size

    def _whole_bytes(self, layer: Layer) -> int:
        """Return the number of bytes of one token in `layer`, on a GPU that has the token; 0 for a recurrent state."""
        if not isinstance(layer, (*ATTENTION, Indexer)):
            return 0
        return bytes_per_token(
            layer, dtype=self.dtype, kv_cache_dtype=self.kv_cache_dtype, tensor_parallel_size=self.tensor_parallel_size
        )

    @property
    def weight_bytes(self) -> int:
        """Number of bytes of all weights of the text model, on all GPUs together."""
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
    def expert_bytes(self) -> int:
        """Number of bytes of all routed experts, on all GPUs together.

        If the size of the published weights is known, the computed size is multiplied by the ratio of the published to
        the computed size of all weights.
        """
        bits = (self.quantization.expert_bits if self.quantization else 0) or 8 * self.dtype_bytes
        computed = math.ceil(self.num_expert_parameters * bits / 8)
        if self.stored_weight_bytes is None:
            return computed
        return round(computed * self.stored_weight_bytes / replace(self, stored_weight_bytes=None).weight_bytes)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of one data-parallel rank, over all its pipeline stages.

        Without such ranks, it is the number of GPUs of the server.
        """
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_expert_gpus(self) -> int:
        """Number of GPUs among which the experts of one layer are divided, over all data-parallel ranks."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def divides_experts_among_ranks(self) -> bool:
        """True if the experts are divided among data-parallel ranks. The steps of these ranks wait for each other."""
        return self.num_experts > 0 and self.data_parallel_size > 1

    @property
    def expert_share_on_gpu(self) -> float:
        """Share of the routed experts on one GPU, 0 to 1. If experts do not divide evenly, the largest share."""
        if not self.enable_expert_parallel:
            return 1 / self.num_expert_gpus
        return math.ceil(self.num_experts / self.num_expert_gpus) / self.num_experts

    @property
    def weight_bytes_on_gpu(self) -> float:
        """Number of bytes of weights on one GPU of a rank, as if there were no pipeline stages."""
        others = (self.weight_bytes - self.expert_bytes) / self.tensor_parallel_size
        return others + self.expert_bytes * self.expert_share_on_gpu

    @property
    def encoder_bytes(self) -> int:
        """Number of bytes of the encoders for images or sound, on all GPUs together. They are not quantized."""
        return self.num_encoder_parameters * self.dtype_bytes

    @property
    def image_token_bytes(self) -> int:
        """Number of bytes of the encoder output for one token of an image."""
        return self.hidden_size * self.dtype_bytes * self.num_image_levels

    @property
    def num_lookup_parameters(self) -> int:
        """Number of parameters of an input embedding that is not tied to the output; 0 if it is tied.

        A step reads only the rows of its tokens.
        """
        return 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size

    @property
    def flops_per_token(self) -> float:
        """FLOPs of one token with the weights of all layers, on each GPU: two per active parameter.

        Attention scores are in `flops_per_attention_pair`. The output projection is in `flops_per_logits`, because an
        engine computes logits only at positions where it samples.
        """
        all_gpus = 2.0 * (self.num_active_parameters - self.num_lookup_parameters)
        return all_gpus / self.tensor_parallel_size - self.flops_per_logits

    @property
    def flops_per_logits(self) -> float:
        """FLOPs of the output projection at one position, on each GPU."""
        return 2.0 * self.vocab_size * self.hidden_size / self.tensor_parallel_size

    @property
    def flops_per_attention_pair(self) -> float:
        """FLOPs of the attention of one query to one key in all layers, on each GPU: score and weighted value."""
        return 4.0 * self.num_kv_layers * self.num_attention_heads * self.head_dim / self.tensor_parallel_size
