"""Settings of vLLM that determine the pool of KV blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import UsageError, shortened
from kvsim.kv_groups import CacheSettings
from kvsim.kv_groups.specs import BACKEND_BLOCK, FLASHINFER_MLA_BLOCK
from kvsim.setting_fields import check_instance, is_finite, whole_number

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.models.layers import Layer


_OPTIONAL_NUMBERS = ("kv_memory_bytes", "num_blocks", "block_size", "max_model_len", "max_in_flight_tokens")
_SWITCHES = ("find_max_model_len", "keeps_every_state", "hybrid_manager", "oversize", "estimates_graphs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Model, or heads of the served model, that draft tokens."""

    layers: tuple[Layer, ...]
    """Draft layers that need a KV cache."""
    weight_bytes: int
    """Bytes of the weights of the drafter on each GPU."""
    why: str
    """Explanation of `weight_bytes`, for the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings of vLLM that determine the KV pool. The defaults are those of its `LLM` class on a large GPU."""

    gpu_memory_utilization: float = 0.92
    """Share of the GPU's memory that may be used, in (0, 1]."""
    max_num_batched_tokens: int = 16384
    """Number of tokens in the largest step, from which activations and the blocks of windows follow."""
    max_in_flight_tokens: int | None = None
    """Number of tokens in all steps in flight, for which windows have room; None for `max_num_batched_tokens`."""
    max_num_seqs: int = 1024
    """Number of sequences in the largest step, from which the size of the logits follows."""
    max_model_len: int | None = None
    """Longest sequence in tokens; None for the limit of the model, even if the pool cannot hold such a sequence."""
    find_max_model_len: bool = False
    """True to reduce `max_model_len` to the longest sequence that fits."""
    block_size: int | None = None
    """Number of tokens in a block of full attention; None for the choice of the attention backend."""
    enable_prefix_caching: bool | None = None
    """True to cache prefixes; None for vLLM's choice: True, except with recurrent layers."""
    keeps_every_state: bool = False
    """True to keep the recurrent state at the end of every block, if the model supports this."""
    hybrid_manager: bool = True
    """True to give layers of different kinds separate KV-cache groups."""
    kv_memory_bytes: int | None = None
    """Bytes of the pool on each GPU, before rounding to blocks; None to estimate. If stated, no term is estimated."""
    num_blocks: int | None = None
    """Exact number of blocks, null block included; None to estimate. If stated, no term is estimated."""
    oversize: bool = False
    """True to create the pool even if the GPU's memory is too small for it and the weights."""
    estimates_graphs: bool = True
    """True to subtract the estimated memory of CUDA graphs from the pool."""
    drafter: Drafter | None = None
    """Draft layers of speculative decoding; None without drafts."""
    num_drafts: int = 0
    """Number of tokens drafted for every request and step. Recurrent layers keep a state for each of these tokens."""
    max_loras: int = 0
    """Number of slots for adapters (LoRA)."""
    max_lora_rank: int = 16
    """Rank for which each slot for an adapter has room."""

    def of_cache(self, gpu: Gpu, model: Model) -> CacheSettings:
        """Return the settings from which the KV-cache groups of `model` on `gpu` follow."""
        return CacheSettings(
            max_model_len=model.max_position_embeddings if self.max_model_len is None else self.max_model_len,
            max_num_batched_tokens=self.max_in_flight_tokens or self.max_num_batched_tokens,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            keeps_every_state=self.keeps_every_state,
            hybrid_manager=self.hybrid_manager,
            mla_block_size=_mla_block_size(gpu),
            num_speculative_tokens=self.num_drafts,
            draft_layers=() if self.drafter is None else self.drafter.layers,
        )

    def __post_init__(self) -> None:
        """Check the share of the GPU's memory, the limits, and the size of the pool; convert numbers of NumPy.

        Raises:
            UsageError: a value is out of range.
        """
        share = self.gpu_memory_utilization
        if not (is_finite(share) and 0 < share <= 1):
            raise UsageError(
                f"gpu_memory_utilization is {shortened(share)}; it must be a number above 0 and at most 1."
            )
        stated = [name for name in _OPTIONAL_NUMBERS if getattr(self, name) is not None]
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_lora_rank", *stated):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("num_drafts", "max_loras"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), at_least=0))
        for name in _SWITCHES:
            check_instance(name, getattr(self, name), bool, "True or False")
        check_instance("enable_prefix_caching", self.enable_prefix_caching, bool | None, "True, False or None")
        check_instance("drafter", self.drafter, Drafter | None, "a Drafter")


def _mla_block_size(gpu: Gpu) -> int | None:
    if gpu.architecture.startswith("Hopper"):
        return None
    return FLASHINFER_MLA_BLOCK if gpu.architecture.startswith("Blackwell GB100") else BACKEND_BLOCK
