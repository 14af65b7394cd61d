"""Kinds of caches that a layer can have for a sequence: keys and values, a latent, or a recurrent state.

A `Model` lists the kinds of its layers; `kvsim.kv_groups` computes bytes and blocks from them. Fields describe the
whole layer. Methods take the tensor-parallel size and return the share of one GPU: heads and channels are divided
among the GPUs, a latent is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, NamedTuple, TypeAlias, get_args

from kvsim.models.dtypes import DTYPE_BYTES


class StateTensor(NamedTuple):
    """Tensor of a recurrent state, on one GPU."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """Keys and values of every token."""

    kind: str = field(default="full", init=False)
    num_kv_heads: int
    head_dim: int
    """Elements of one head's key."""
    value_head_dim: int
    """Elements of one head's value."""

    def heads_on_gpu(self, tensor_parallel_size: int) -> int:
        """Return the number of KV heads on each GPU; with more GPUs than heads, the heads are replicated."""
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def elements_per_token(self, tensor_parallel_size: int = 1) -> int:
        """Return the number of elements of a token's keys and values on each GPU."""
        return self.heads_on_gpu(tensor_parallel_size) * (self.head_dim + self.value_head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow(FullAttention):
    """Keys and values of the last `window` tokens."""

    kind: str = field(default="sliding_window", init=False)
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocal(FullAttention):
    """Keys and values of the tokens since the last multiple of `window`."""

    kind: str = field(default="chunked_local", init=False)
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Latent of every token, from which the keys and values of all heads are computed (multi-head latent attention)."""

    kind: str = field(default="mla", init=False)
    kv_lora_rank: int
    """Elements of the latent."""
    rope_dim: int
    """Elements of the rotary key, shared by all heads."""
    sparse: bool = False
    """True if an indexer picks the tokens to read (DeepSeek-V3.2); the fp8 cache then has another format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Keys by which sparse attention picks the tokens to read, in fp8 with a float32 scale for every 128 elements."""

    kind: str = field(default="indexer", init=False)
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token on each GPU."""
        return self.head_dim + self.head_dim // 128 * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """Selective state space layer of Mamba and Jamba."""

    keeps_block_states: ClassVar[bool] = True
    kind: str = field(default="mamba1", init=False)
    inner_size: int
    state_size: int
    conv_kernel: int
    dtype: str
    state_dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensors that each GPU holds for one sequence."""
        del num_speculative_tokens  # vLLM has no speculative decoding with these layers
        inner = self.inner_size // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1, inner), self.dtype),
            StateTensor((inner, self.state_size), self.state_dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """State space layer with scalar decay per head: Mamba 2, Granite 4 H, Nemotron-H, Falcon-H1, Zamba 2."""

    keeps_block_states: ClassVar[bool] = True
    kind: str = field(default="mamba2", init=False)
    inner_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int
    dtype: str
    state_dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensors that each GPU holds for one sequence; one group per GPU if groups cannot be divided."""
        groups = self.num_groups if self.num_groups % tensor_parallel_size == 0 else tensor_parallel_size
        channels = (self.inner_size + 2 * groups * self.state_size) // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1 + num_speculative_tokens, channels), self.dtype),
            StateTensor((self.num_heads // tensor_parallel_size, self.head_dim, self.state_size), self.state_dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Linear attention of Qwen3-Next and Qwen3.5."""

    keeps_block_states: ClassVar[bool] = False
    kind: str = field(default="gated_delta_net", init=False)
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    dtype: str
    state_dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensors that each GPU holds for one sequence."""
        channels = 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim
        heads = self.num_value_heads // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1 + num_speculative_tokens, channels // tensor_parallel_size), self.dtype),
            StateTensor((heads, self.value_head_dim, self.key_head_dim), self.state_dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """Linear attention of Kimi-Linear; its matrix is in float32."""

    keeps_block_states: ClassVar[bool] = False
    kind: str = field(default="kimi_delta", init=False)
    num_heads: int
    head_dim: int
    conv_kernel: int
    dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensors that each GPU holds for one sequence."""
        del num_speculative_tokens  # vLLM has no speculative decoding with these layers
        heads = self.num_heads // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1, 3 * heads * self.head_dim), self.dtype),
            StateTensor((heads, self.head_dim, self.head_dim), "float32"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """Gated short convolution of LFM2."""

    keeps_block_states: ClassVar[bool] = False
    kind: str = field(default="short_conv", init=False)
    inner_size: int
    conv_kernel: int
    dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensors that each GPU holds for one sequence."""
        del num_speculative_tokens  # vLLM has no speculative decoding with these layers
        return (StateTensor((self.conv_kernel - 1, self.inner_size // tensor_parallel_size), self.dtype),)


Attention: TypeAlias = FullAttention | SlidingWindow | ChunkedLocal | Mla
"""Layers that cache keys and values, or a latent, for every token or for the last tokens."""
Recurrent: TypeAlias = Mamba1 | Mamba2 | GatedDeltaNet | KimiDelta | ShortConv
"""Layers with a state of fixed size.

All have a method `state` with the same parameters; those for which vLLM has no speculative decoding ignore
`num_speculative_tokens`. If `keeps_block_states` is true, vLLM can cache a state at the end of each block.
"""
Layer: TypeAlias = Attention | Indexer | Recurrent

LAYER_CLASSES: dict[str, type[Layer]] = {
    layer_class.__dataclass_fields__["kind"].default: layer_class for layer_class in get_args(Layer)
}
"""Layer classes by `kind`, which is their name in recordings and other written shapes."""
