"""The settings of each policy, with the defaults of the engines that they model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvsim.errors import UsageError


class Order(Enum):
    """Who is served first."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Reserve(Enum):
    """How much a contiguous cache reserves for a sequence when it is admitted."""

    MAX = "max"
    """The longest sequence that the model takes."""
    LIMIT = "limit"
    """The prompt and `max_tokens`."""
    POW2 = "pow2"
    """The prompt and the output rounded up to a power of two: at most twice what is needed (Orca (Pow2) in the paper)."""
    ORACLE = "oracle"
    """Exactly what the sequence will need: a bound that no real system reaches."""


def _positive(**settings: int) -> None:
    for name, value in settings.items():
        if value < 1:
            raise UsageError(f"{name} should be at least 1, not {value}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousSettings:
    """Iteration-level scheduling; the defaults are those of vLLM 0.25.1's `LLM` class on a GPU of 70 GiB or more."""

    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 16384
    max_model_len: int = 8192
    async_scheduling: bool = True
    """Schedule one step ahead of the step whose output is known."""
    order: Order = Order.FCFS
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 means no limit but `max_num_batched_tokens`."""
    reserve_full_prompt: bool = True
    """Admit a request only when its whole prompt fits now (vLLM's `scheduler_reserve_full_isl`)."""

    def __post_init__(self) -> None:
        _positive(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
        )
        if self.long_prefill_token_threshold < 0:
            raise UsageError(f"long_prefill_token_threshold should be 0 or more, not {self.long_prefill_token_threshold}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedSettings:
    """The paged cache; the defaults are vLLM 0.25.1's."""

    block_size: int = 16
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    """Share of the pool that admission leaves free while anything runs."""

    def __post_init__(self) -> None:
        _positive(block_size=self.block_size)
        if not 0 <= self.watermark < 1:
            raise UsageError(f"watermark should be at least 0 and below 1, not {self.watermark}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousSettings:
    """One contiguous reservation per sequence."""

    reserve: Reserve = Reserve.MAX
    fit: str = "first"
    """`first`, `best`, `next` or `buddy`; see `kvsim.memory.contiguous`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """Request-level batches, padded to a rectangle and held until their last row ends."""

    batch_size: int = 16
    preallocated: bool = False
    """Whether the cache is allocated for the longest possible output at once (a static cache) or grows with the batch."""
    max_model_len: int = 8192

    def __post_init__(self) -> None:
        _positive(batch_size=self.batch_size, max_model_len=self.max_model_len)


class EngineDefaults(Enum):
    """vLLM 0.25.1's own defaults (`max_num_seqs`, `max_num_batched_tokens`) by entry point and class of GPU.

    "Large" is a GPU of at least 70 GiB that is not an A100.
    """

    LLM_LARGE = (1024, 16384)
    LLM = (256, 8192)
    SERVER_LARGE = (1024, 8192)
    SERVER = (256, 2048)

    @property
    def max_num_seqs(self) -> int:
        """Sequences in one batch."""
        return self.value[0]

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens in one step."""
        return self.value[1]

    @classmethod
    def of(cls, entry_point: str, gpu_memory_bytes: int, *, is_a100: bool) -> EngineDefaults:
        """The defaults of `entry_point` (`llm` or `server`) on a GPU with so much memory."""
        large = gpu_memory_bytes >= 70 << 30 and not is_a100
        if entry_point == "llm":
            return cls.LLM_LARGE if large else cls.LLM
        return cls.SERVER_LARGE if large else cls.SERVER
