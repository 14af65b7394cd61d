"""Kinds of caches that a layer can have: keys and values, a latent, or a recurrent state.

A `Model` lists the caches of its layers, from which `kvsim.kv_groups` computes bytes and blocks. Fields describe the
whole layer. Methods with a tensor-parallel size describe one GPU: heads and channels are divided among the GPUs, and
each GPU has the whole latent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, NamedTuple, TypeAlias, get_args

from kvsim.models.dtypes import DTYPE_BYTES


class StateTensor(NamedTuple):
    """Shape and element type of a tensor of a recurrent state, on one GPU."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """Cache with keys and values of every token."""

    kind: str = field(default="full", init=False)
    num_kv_heads: int
    head_dim: int
    """Number of elements in the key of one head."""
    value_head_dim: int
    """Number of elements in the value of one head."""

    def heads_on_gpu(self, tensor_parallel_size: int) -> int:
        """Return the number of KV heads on each GPU. With more GPUs than heads, several GPUs hold the same head."""
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def elements_per_token(self, tensor_parallel_size: int = 1) -> int:
        """Return the number of elements of the keys and values of one token on each GPU."""
        return self.heads_on_gpu(tensor_parallel_size) * (self.head_dim + self.value_head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow(FullAttention):
    """Cache with keys and values of the last `window` tokens."""

    kind: str = field(default="sliding_window", init=False)
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocal(FullAttention):
    """Cache with keys and values of the tokens in the current chunk, which begins at the last multiple of `window`."""

    kind: str = field(default="chunked_local", init=False)
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Cache with a latent of every token (MLA), from which the keys and values of all heads are computed."""

    kind: str = field(default="mla", init=False)
    kv_lora_rank: int
    """Number of elements in the latent."""
    rope_dim: int
    """Number of elements in the rotary key, which all heads share."""
    sparse: bool = False
    """True if an indexer chooses the tokens to read (DeepSeek-V3.2). The format of an fp8 cache then differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Cache with the keys by which sparse attention chooses the tokens to read.

    The keys are in fp8, with a float32 scale per 128 elements.
    """

    kind: str = field(default="indexer", init=False)
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the key of one token, on each GPU."""
        return self.head_dim + self.head_dim // 128 * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """Cache with the state of a selective state space layer, as in Mamba and Jamba."""

    keeps_block_states: ClassVar[bool] = True
    kind: str = field(default="mamba1", init=False)
    inner_size: int
    state_size: int
    conv_kernel: int
    dtype: str
    state_dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensors of one sequence on each GPU. `num_speculative_tokens` has no effect."""
        del num_speculative_tokens  # vLLM has no speculative decoding with these layers
        inner = self.inner_size // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1, inner), self.dtype),
            StateTensor((inner, self.state_size), self.state_dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Cache with the state of a state space layer with one decay per head.

    Mamba 2, Granite 4 H, Nemotron-H, Falcon-H1 and Zamba 2 have such layers.
    """

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
        """Return the tensors of one sequence on each GPU: convolution and state.

        Drafted tokens lengthen the convolution's tensor. If `num_groups` cannot be divided among the GPUs, each GPU has
        one group of the matrices B and C.
        """
        groups = self.num_groups if self.num_groups % tensor_parallel_size == 0 else tensor_parallel_size
        channels = (self.inner_size + 2 * groups * self.state_size) // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1 + num_speculative_tokens, channels), self.dtype),
            StateTensor((self.num_heads // tensor_parallel_size, self.head_dim, self.state_size), self.state_dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Cache with the state of the linear attention in Qwen3-Next and Qwen3.5."""

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
        """Return the tensors of one sequence on each GPU: convolution and state.

        Drafted tokens lengthen the convolution's tensor.
        """
        channels = 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim
        heads = self.num_value_heads // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1 + num_speculative_tokens, channels // tensor_parallel_size), self.dtype),
            StateTensor((heads, self.value_head_dim, self.key_head_dim), self.state_dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """Cache with the state of the linear attention in Kimi-Linear. The matrix of the state is in float32."""

    keeps_block_states: ClassVar[bool] = False
    kind: str = field(default="kimi_delta", init=False)
    num_heads: int
    head_dim: int
    conv_kernel: int
    dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensors of one sequence on each GPU. `num_speculative_tokens` has no effect."""
        del num_speculative_tokens  # vLLM has no speculative decoding with these layers
        heads = self.num_heads // tensor_parallel_size
        return (
            StateTensor((self.conv_kernel - 1, 3 * heads * self.head_dim), self.dtype),
            StateTensor((heads, self.head_dim, self.head_dim), "float32"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """Cache with the state of a gated short convolution, as in LFM2."""

    keeps_block_states: ClassVar[bool] = False
    kind: str = field(default="short_conv", init=False)
    inner_size: int
    conv_kernel: int
    dtype: str

    def state(self, tensor_parallel_size: int = 1, num_speculative_tokens: int = 0) -> tuple[StateTensor, ...]:
        """Return the tensor of one sequence's convolution on each GPU. `num_speculative_tokens` is ignored."""
        del num_speculative_tokens  # vLLM has no speculative decoding with these layers
        return (StateTensor((self.conv_kernel - 1, self.inner_size // tensor_parallel_size), self.dtype),)


Attention: TypeAlias = FullAttention | SlidingWindow | ChunkedLocal | Mla
"""Caches with keys and values or with latents: of all tokens, or only of the last ones."""
Recurrent: TypeAlias = Mamba1 | Mamba2 | GatedDeltaNet | KimiDelta | ShortConv
"""Caches with a state whose size does not depend on the length of the sequence.

Each class has a method `state` with the same parameters. It ignores `num_speculative_tokens` if vLLM has no speculative
decoding with such layers. If `keeps_block_states` is True, vLLM can cache the state at the end of each block.
"""
Layer: TypeAlias = Attention | Indexer | Recurrent

LAYER_CLASSES: dict[str, type[Layer]] = {
    layer_class.__dataclass_fields__["kind"].default: layer_class for layer_class in get_args(Layer)
}
"""Class of a cache by its `kind`, which recordings contain."""
