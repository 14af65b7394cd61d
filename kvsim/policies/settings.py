"""The settings of each policy, with the defaults of the engines that they model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import cast

from kvsim.errors import UsageError
from kvsim.policies.releases import DEFAULT, rules_of

PCIE_GEN5_X16_GB_PER_S = 63.0
"""PCI Express 5.0 over 16 lanes, one direction, in 10^9 bytes per second: 32 GT/s each, encoded 128b/130b."""
LINK_EFFICIENCY = 0.8
"""Share of it that copies of whole blocks are taken to reach: assumed, for packet headers and for small pieces."""


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
    """The prompt and the output rounded up to a power of two: at most twice what is needed (Orca (Pow2) in the
    paper).
    """
    ORACLE = "oracle"
    """Exactly what the sequence will need: a bound that no real system reaches."""
    DOUBLING = "doubling"
    """The next power of two above what the sequence has, and twice as much whenever that is full; see `Growth`."""


class Growth(Enum):
    """What happens to a reservation that is full and has no room behind it."""

    MOVE = "move"
    """The extent is copied to a larger hole; where there is none, a request is preempted."""
    FAIL = "fail"
    """A request is preempted at once: extents cannot move."""


class Eviction(Enum):
    """Which block of host memory makes room for another (vLLM's `eviction_policy`)."""

    LRU = "lru"
    """The least recently used one."""
    ARC = "arc"
    """Evict a block used once or one used again, from whichever list is longer than it should be."""


_TOO_MANY = 1 << 31


def _positive(**settings: int) -> None:
    for name, value in settings.items():
        if value < 1:
            raise UsageError(f"{name} should be at least 1, not {value}.")
        if value >= _TOO_MANY:
            raise UsageError(f"{name} should be below 2^31, not {value:,}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousSettings:
    """Iteration-level scheduling; the defaults are those of vLLM 0.25.1's `LLM` class on a GPU of 70 GiB or more."""

    max_num_seqs: int = cast(int, None)
    """Sequences in one step; left out, 1,024, or `max_num_batched_tokens` where that is less, as in vLLM."""
    max_num_batched_tokens: int = cast(int, None)
    """Tokens in one step; left out, 16,384, adjusted as `EngineDefaults.limits` says."""
    max_model_len: int = 8192
    async_scheduling: bool = True
    """Schedule one step ahead of the step whose output is known."""
    order: Order = Order.FCFS
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 means no limit but `max_num_batched_tokens`."""
    reserve_full_prompt: bool = True
    """Admit a request only when its whole prompt fits now (vLLM's `scheduler_reserve_full_isl`)."""
    vllm: str = DEFAULT
    """The release of vLLM whose rules are followed; of one that is not known, those of the nearest."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")}
        _positive(**{name: value for name, value in given.items() if value is not None})
        limits = EngineDefaults.LLM_LARGE.limits(*given.values(), chunked=self.enable_chunked_prefill)
        for name, value in zip(given, limits, strict=False):
            object.__setattr__(self, name, value)
        if self.long_prefill_token_threshold < 0:
            raise UsageError(
                f"long_prefill_token_threshold should be 0 or more, not {self.long_prefill_token_threshold}."
            )

    def check_starts(self) -> None:
        """Make sure that vLLM starts with these limits, as the validator of its `SchedulerConfig` does.

        Raises:
            UsageError: it does not; the sentence gives its reason.
        """
        tokens = self.max_num_batched_tokens
        if tokens < self.max_num_seqs:
            raise UsageError(
                f"vLLM does not start with max_num_batched_tokens ({tokens:,}) below max_num_seqs "
                f"({self.max_num_seqs:,}): a step must have a token for every sequence; raise "
                "--max-num-batched-tokens or lower --max-num-seqs."
            )
        if tokens < self.max_model_len and not self.enable_chunked_prefill:
            raise UsageError(
                f"vLLM does not start with max_num_batched_tokens ({tokens:,}) below max_model_len "
                f"({self.max_model_len:,}) where prompts are not chunked: a prompt must fit into one step; raise "
                "--max-num-batched-tokens, lower --max-model-len, or leave out --no-chunked-prefill."
            )
        threshold = self.long_prefill_token_threshold
        if threshold > self.max_model_len and rules_of(self.vllm).refuses_long_threshold:
            raise UsageError(
                f"vLLM {self.vllm} does not start with long_prefill_token_threshold ({threshold:,}) above "
                f"max_model_len ({self.max_model_len:,}); lower it, "
                "or give --long-prefill-token-threshold 0."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedSettings:
    """The paged cache; the defaults are vLLM 0.25.1's.

    Speculative decoding and the swap of vLLM 0.x, both off by default, are modelled and not verified; see
    docs/conformance.md.
    """

    block_size: int = 16
    enable_prefix_caching: bool = True
    hybrid_manager: bool = True
    """Whether layers of different kinds have KV-cache groups of their own; otherwise windowed layers keep all."""
    uniform_cache: bool = False
    """Whether every layer keeps every token whatever its window, as in a cache without groups."""
    watermark: float = 0.0
    """Share of the pool that admission leaves free while anything runs."""
    kv_offloading_size: float = 0.0
    """Host memory, in GiB, of vLLM's native offload: computed blocks are copied there and come back as prefix hits."""
    kv_offloading_block_size: int = 0
    """Tokens of a block of host memory, a multiple of `block_size`; 0 for `block_size`."""
    kv_offloading_eviction: Eviction = Eviction.LRU
    kv_offloading_prompt_only: bool = True
    """Blocks of generated tokens are not copied."""
    store_gb_per_s: float = PCIE_GEN5_X16_GB_PER_S * LINK_EFFICIENCY
    """Speed of the link to host memory, in 10^9 bytes per second."""
    load_gb_per_s: float = PCIE_GEN5_X16_GB_PER_S * LINK_EFFICIENCY
    """Speed of the link from host memory, in 10^9 bytes per second."""
    copy_latency_s: float = 70e-6
    """Seconds that a copy of the offload takes however small it is: measured in vLLM 0.25.1 on an H200."""
    copy_submit_s: float = 0.55e-3
    copy_piece_s: float = 1e-6
    """Host time to hand a copy of the offload to the GPU, and for each layer of each of its blocks."""
    offload_step_s: float = 0.12e-3
    offload_sequence_s: float = 4.3e-6
    """Host time that the offload adds to a step, and to each sequence in it."""
    offload_deferred_block_s: float = 4.3e-6
    """Host time that it adds for each block whose freeing is put off until steps under way have ended."""
    swap_gib: float = 0.0
    """Host memory, in GiB, to which vLLM 0.x copied preempted sequences instead of computing them again; 0 for none.
    vLLM 0.25.1 has no such swap.
    """
    swap_gb_per_s: float = PCIE_GEN5_X16_GB_PER_S * LINK_EFFICIENCY
    """Speed of the link to it in either direction, in 10^9 bytes per second."""
    num_speculative_tokens: int = 0
    """Tokens drafted for every sequence and step, to be verified in the next; 0 for no speculative decoding."""
    acceptance_rate: float = 0.7
    """Probability that a drafted token is accepted, given that all drafted before it were."""
    acceptance_seed: int = 0
    """Seed of the draws that decide which drafts are accepted."""

    def __post_init__(self) -> None:
        _positive(block_size=self.block_size)
        if not 0 <= self.watermark < 1:
            raise UsageError(f"watermark should be at least 0 and below 1, not {self.watermark}.")
        for name in ("kv_offloading_size", "swap_gib"):
            if not 0 <= getattr(self, name) < 1e6:
                raise UsageError(f"{name} should be a size of 0 to 999,999 GiB, not {getattr(self, name):g}.")
        if self.kv_offloading_block_size < 0 or self.kv_offloading_block_size % self.block_size:
            raise UsageError(
                f"kv_offloading_block_size should be a multiple of the block size of {self.block_size} tokens, not "
                f"{self.kv_offloading_block_size}."
            )
        for name in ("store_gb_per_s", "load_gb_per_s"):
            if not 0 < getattr(self, name) < 1e6:
                raise UsageError(
                    f"{name} should be a speed above 0 and below 1,000,000 GB/s, not {getattr(self, name):g}."
                )
        for name in (
            *("copy_latency_s", "copy_submit_s", "copy_piece_s"),
            *("offload_step_s", "offload_sequence_s", "offload_deferred_block_s"),
        ):
            if not 0 <= getattr(self, name) < 1e3:
                raise UsageError(f"{name} should be 0 or more seconds, below 1,000, not {getattr(self, name):g}.")
        if not 0 < self.swap_gb_per_s < 1e6:
            raise UsageError(
                f"swap_gb_per_s should be a speed above 0 and below 1,000,000 GB/s, not {self.swap_gb_per_s:g}."
            )
        if self.num_speculative_tokens < 0:
            raise UsageError(f"num_speculative_tokens should be 0 or more, not {self.num_speculative_tokens}.")
        if not 0 <= self.acceptance_rate <= 1:
            raise UsageError(f"acceptance_rate should lie between 0 and 1, not {self.acceptance_rate}.")
        if self.acceptance_seed < 0:
            raise UsageError(f"acceptance_seed should be 0 or more, not {self.acceptance_seed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousSettings:
    """One contiguous reservation per sequence."""

    reserve: Reserve = Reserve.MAX
    fit: str = "first"
    """`first`, `best`, `next` or `buddy`; see `kvsim.engine.extents`."""
    growth: Growth = Growth.MOVE
    """The way in which reservations grow, for `Reserve.DOUBLING` alone: the others never grow."""
    compaction: bool = False
    """Slide all extents together whenever that makes the hole that a request waits for; the copies take time."""
    request_level: bool = False
    """Admit no request until the whole batch has ended, as servers did before Orca."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """Request-level batches, padded to a rectangle and held until their last row ends."""

    batch_size: int = 16
    preallocated: bool = False
    """Whether the cache is allocated for the longest possible output at once (a static cache) or grows with the
    batch.
    """
    max_model_len: int = 8192
    timeout_s: float = 0.0
    """Seconds that the oldest request waits for a batch to fill up; with 0, the requests that are there make a batch.
    """
    sort_by_length: bool = False
    """Give the oldest request the company of those whose prompts are most like its own, instead of the next oldest."""
    memory_guard: bool = True
    """Cut a batch short where it might not fit; without, it may run out of memory, and all of its requests fail."""

    def __post_init__(self) -> None:
        _positive(batch_size=self.batch_size, max_model_len=self.max_model_len)
        if not 0 <= self.timeout_s < 1e9:
            raise UsageError(f"timeout_s should be a number of seconds, 0 or more, not {self.timeout_s}.")


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

    def limits(
        self, max_num_seqs: int | None, max_num_batched_tokens: int | None, max_model_len: int, *, chunked: bool
    ) -> tuple[int, int]:
        """The sequences and tokens of a step, where None is vLLM's default, which it adjusts to the other settings.

        A step has tokens for the longest prompt where prompts are not chunked, no more than all sequences together
        could compute, and one for every sequence.
        """
        num_seqs, num_tokens = max_num_seqs, max_num_batched_tokens
        if num_tokens is None:
            num_tokens = self.max_num_batched_tokens if chunked else max(self.max_num_batched_tokens, max_model_len)
            num_tokens = min(num_tokens, (self.max_num_seqs if num_seqs is None else num_seqs) * max_model_len)
        return min(self.max_num_seqs, num_tokens) if num_seqs is None else num_seqs, num_tokens

    @classmethod
    def of(cls, entry_point: str, gpu_memory_bytes: int, *, is_a100: bool) -> EngineDefaults:
        """The defaults of `entry_point` (`llm` or `server`) on a GPU with so much memory."""
        large = gpu_memory_bytes >= 70 << 30 and not is_a100
        if entry_point == "llm":
            return cls.LLM_LARGE if large else cls.LLM
        return cls.SERVER_LARGE if large else cls.SERVER
