"""The settings of each policy, with the defaults of the simulated engines.

A field is declared once here: its default, its help text, its flag and its limits. The command line, the API and
recordings read these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Self

from kvsim.errors import UsageError
from kvsim.policies.acceptance import rates_of
from kvsim.policies.releases import (
    DEFAULT_RELEASE,
    NEWEST,
    OLDEST,
    check_feature,
    check_has,
    defaults_of,
    number_of,
    rules_of,
)
from kvsim.policies.speculative_config import SpeculativeConfig, canonical
from kvsim.setting_fields import check_settings, python_setting, setting, settings_in

if TYPE_CHECKING:
    from kvsim.hardware import Gpu

MACHINE: Final = "Machine and memory"
"""Heading of the flags for the GPU, the model and the memory."""

_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
OF_PAGED: Final = (
    "speculative_config", "acceptance", "acceptance_seed", "enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras",
)  # fmt: skip
"""Settings of the scheduler that only the paged policy supports."""
PCIE_GEN5_X16_GB_PER_S = 63.0
"""Speed of PCI Express 5.0 x16 in one direction, in 10^9 bytes per second: 32 GT/s per lane, encoded 128b/130b."""
LINK_EFFICIENCY = 0.8
"""Share of the link's speed that copies of blocks reach. Assumed: packet headers and small copies cost time."""
LINK_GB_PER_S = PCIE_GEN5_X16_GB_PER_S * LINK_EFFICIENCY
"""Default speed of the link to host memory, in 10^9 bytes per second."""
LINK_SPEED: Final[dict[str, Any]] = {"above": 0, "below": 1_000_000}
_DURATION: Final = {"at_least": 0, "below": 1_000}


def _max_model_len() -> Any:
    return setting(
        None,
        "Longest sequence in tokens, prompt and output together; auto: the longest that fits.",
        "--max-model-len",
        unit="TOKENS",
        section=MACHINE,
        shown="the recording's, or the model's",
        at_least=1,
        at_most=1 << 27,
    )


class Order(Enum):
    """Order in which requests are served."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Reserve(Enum):
    """Size of the contiguous reservation that a sequence gets at its admission."""

    MAX = "max"
    """The longest sequence that the model takes."""
    LIMIT = "limit"
    """The prompt and the request's limit of output tokens, `max_tokens`."""
    POW2 = "pow2"
    """The prompt, and the final output length rounded up to a power of two ("Orca (Pow2)" of PagedAttention)."""
    ORACLE = "oracle"
    """The exact future length of the sequence: an upper bound that no real system reaches."""
    DOUBLING = "doubling"
    """The next power of two above the current length, doubled when the sequence has filled it; see `Growth`."""


class Growth(Enum):
    """Action if a sequence has filled its reservation and the memory right after it is not free."""

    MOVE = "move"
    """The reservation is copied to a larger free range. If there is none, a request is preempted."""
    FAIL = "fail"
    """A request is preempted at once, because reservations cannot move."""


class PrefixEviction(Enum):
    """Rule that chooses which free block loses its cached prefix when a request needs a block."""

    LRU = "lru"
    """The least recently freed block, as in vLLM."""
    OPTIMAL = "optimal"
    """The block whose next use is the latest (Belady's rule): an upper bound, since no server knows the future."""


class Eviction(Enum):
    """Eviction policy of host memory (vLLM's `eviction_policy`)."""

    LRU = "lru"
    """The least recently used block."""
    ARC = "arc"
    """Adaptive replacement (ARC): a list of blocks used once and a list of blocks used again, with target lengths.

    The list that exceeds its target loses its least recently used block.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousSettings:
    """Settings of continuous batching. Limits that are None follow from the machine, as in vLLM; see `limited`."""

    max_num_seqs: int = setting(None, "Sequences in one step.", shown="vLLM's, by the GPU", at_least=1, at_most=1 << 20)
    max_num_batched_tokens: int = setting(
        None, "Tokens in one step.", shown="vLLM's, by the GPU", at_least=1, at_most=1 << 30
    )
    max_model_len: int = _max_model_len()
    async_scheduling: bool = setting(
        None,
        "Schedule one step ahead of the step whose output is known.",
        "--async-scheduling/--no-async-scheduling",
        shown="on from vLLM 0.14 on",
    )
    order: Order = setting(Order.FCFS, "Order of the queue.", "--order", "--scheduling-policy")
    enable_chunked_prefill: bool = setting(
        True,
        "Split long prompts over several steps.",
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
        " /--no-chunked-prefill",
    )
    long_prefill_token_threshold: int = setting(
        0, "Maximum tokens of one prompt in one step; 0: no limit.", at_least=0, at_most=1 << 30
    )
    max_num_active_seqs: int = setting(
        None,
        "Sequences that may run, if fewer than a step may hold.",
        since="0.31.0",
        shown="--max-num-seqs",
        at_least=1,
        at_most=1 << 20,
    )
    long_prefill_token_threshold_adaptive: bool = setting(
        False,
        "Raise the threshold to an equal share of a step for each request that runs or waits.",
        since="0.31.0",
        requires="long_prefill_token_threshold",
    )
    prefill_schedule_interval: int = setting(
        1,
        "Steps from one that computes prompts to the next, while others decode.",
        since="0.33.0",
        unit="STEPS",
        at_least=1,
        at_most=1 << 20,
    )
    enable_lora: bool = setting(False, "Serve requests that name an adapter (LoRA).")
    max_loras: int = setting(1, "Adapters in use at once.", requires="enable_lora", at_least=1, at_most=1 << 20)
    max_lora_rank: int = setting(
        16,
        "Largest rank of an adapter: each of the --max-loras slots has room for it.",
        requires="enable_lora",
        choices={str(rank): rank for rank in _LORA_RANKS},
    )
    max_cpu_loras: int = setting(
        None,
        "Adapters kept in host memory, no fewer than --max-loras.",
        shown="--max-loras",
        requires="enable_lora",
        at_least=1,
        at_most=1 << 20,
    )
    speculative_config: Any = setting(
        "",
        "Speculative decoding, as vLLM takes it: a JSON object with method, num_speculative_tokens, model and others.",
        "--speculative-config",
        " -sc",
        unit="JSON",
        shown="none",
    )
    acceptance: Any = setting(
        "0.7",
        "Accepted drafts: a rate for each after an accepted one, rates by position (0.8,0.6,0.4), or a file.",
        unit="SHARES",
        requires="speculative_config",
        shown="0.7; assumed",
    )
    acceptance_seed: int = python_setting(0, "Seed for the numbers of accepted drafts.", at_least=0)
    reserve_full_prompt: bool = python_setting(
        True, "Admit a request only if its whole prompt fits now (vLLM's `scheduler_reserve_full_isl`)."
    )
    vllm: str = setting(
        DEFAULT_RELEASE,
        f"Release of vLLM whose rules and defaults are followed, {OLDEST} to {NEWEST}; of others, the nearest.",
        unit="VERSION",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        number_of(self.vllm)  # refuses what is no release
        if (self.max_cpu_loras or self.max_loras) < self.max_loras:
            raise UsageError(
                f"max_cpu_loras should be at least the {self.max_loras} of max_loras, not {self.max_cpu_loras}: vLLM "
                "does not start."
            )
        object.__setattr__(self, "speculative_config", canonical(self.speculative_config or ""))
        shares = self.acceptance if isinstance(self.acceptance, list | tuple) else [self.acceptance]
        object.__setattr__(self, "acceptance", ",".join(map(str, shares)))
        drafting = self.drafting
        if drafting is not None:
            self._check_drafts(drafting)
        if self.async_scheduling is None:
            may_be = drafting is None or drafting.is_async(self.vllm)
            object.__setattr__(self, "async_scheduling", defaults_of(self.vllm).async_scheduling and may_be)

    @property
    def drafting(self) -> SpeculativeConfig | None:
        """Configuration of speculative decoding; None if there are no drafts."""
        return SpeculativeConfig.parse(self.speculative_config) if self.speculative_config else None

    def _check_drafts(self, drafting: SpeculativeConfig) -> None:
        check_feature(self.vllm, "speculative decoding")
        drafting.check_known_to(self.vllm)
        if not drafting.synthetic_rates:
            rates_of(self.acceptance, drafting.num_tokens)  # raises for a wrong rate
        if self.async_scheduling and not drafting.is_async(self.vllm):
            raise UsageError(
                f"vLLM {self.vllm} does not schedule ahead with drafts of the method {drafting.method!r}; leave "
                "--async-scheduling out."
            )

    def limited(self, max_model_len: int, defaults: EngineDefaults) -> Self:
        """Return these settings with every None replaced: by the model's `max_model_len`, or by vLLM's `defaults`."""
        longest = self.max_model_len or max_model_len
        num_seqs, num_tokens = defaults.limits(
            self.max_num_seqs, self.max_num_batched_tokens, longest, chunked=self.enable_chunked_prefill
        )
        return replace(
            self,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_tokens,
            max_model_len=longest,
            max_num_active_seqs=self.max_num_active_seqs or num_seqs,
            max_cpu_loras=self.max_cpu_loras or self.max_loras,
        )

    def check_starts(self) -> None:
        """Check these limits as the validator of vLLM's `SchedulerConfig` does.

        Raises:
            UsageError: vLLM does not start with these limits; the message gives the reason.
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
        self.check_known_to_release()
        if (drafting := self.drafting) is not None:
            drafting.check_starts(self.vllm, self.max_num_seqs, tokens)
        threshold = self.long_prefill_token_threshold
        if threshold > self.max_model_len and rules_of(self.vllm).refuses_long_threshold:
            raise UsageError(
                f"vLLM {self.vllm} does not start with long_prefill_token_threshold ({threshold:,}) above "
                f"max_model_len ({self.max_model_len:,}); lower it, "
                "or give --long-prefill-token-threshold 0."
            )

    def check_known_to_release(self) -> None:
        """Check that the release has all settings that were given.

        Raises:
            UsageError: the release lacks a setting, or two limits contradict each other.
        """
        for each in settings_in(ContinuousSettings):
            # `limited` sets `max_num_active_seqs` to `max_num_seqs`: then the user did not set it.
            usual = self.max_num_seqs if each.name == "max_num_active_seqs" else each.default
            if each.setting.since and getattr(self, each.name) not in (each.default, usual):
                check_has(self.vllm, each.name, each.setting.since)
        if (self.max_num_active_seqs or 0) > (self.max_num_seqs or self.max_num_active_seqs or 0):
            raise UsageError(
                f"max_num_active_seqs should be at most the {self.max_num_seqs:,} of max_num_seqs, not "
                f"{self.max_num_active_seqs:,}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedSettings:
    """Settings of the paged cache. The defaults are those of vLLM 0.25.1.

    The swap of vLLM 0.x, off by default, was not compared with vLLM; see docs/conformance.md.
    """

    block_size: int = setting(
        16,
        "Tokens per block.",
        unit="TOKENS",
        section=MACHINE,
        shown="16; 64 for latent attention",
        at_least=1,
        at_most=1 << 20,
    )
    enable_prefix_caching: bool = setting(
        True,
        "Reuse computed prefixes.",
        "--enable-prefix-caching/--no-enable-prefix-caching",
        "--prefix-caching/--no-prefix-caching",
        shown="on, but off for models with recurrent layers, as in vLLM",
    )
    eviction: PrefixEviction = setting(
        PrefixEviction.LRU,
        "Rule that chooses which cached prefix is evicted; optimal knows all requests: a bound, interpreted only.",
    )
    hybrid_manager: bool = setting(
        True,
        "Give layers of different kinds separate KV-cache groups; off: treat all as full layers, in one group.",
        "--disable-hybrid-kv-cache-manager",
        flag_help="Treat layers with windows as full layers, which keep every token.",
    )
    uniform_cache: bool = python_setting(False, "Keep every token in every layer, whatever its window.")
    watermark: float = setting(
        0.0, "Share of the pool that admission leaves free while anything runs.", at_least=0, below=1
    )
    kv_offloading_size: float = setting(
        0.0,
        "Host memory, in GiB, of vLLM's native offload: blocks are copied there and come back as prefix hits.",
        unit="GIB",
        shown="none",
        at_least=0,
        at_most=999_999,
    )
    kv_offloading_block_size: int = setting(
        0,
        "Tokens of a block of host memory, a multiple of the block size.",
        unit="TOKENS",
        shown="the block size",
        requires="kv_offloading_size",
        at_least=0,
        at_most=1 << 20,
    )
    kv_offloading_eviction: Eviction = setting(
        Eviction.LRU,
        "Rule that chooses which block of host memory makes room for another.",
        requires="kv_offloading_size",
    )
    kv_offloading_prompt_only: bool = setting(
        True,
        "Copies of prompt blocks only; the flag copies blocks of generated tokens too.",
        "--kv-offloading-outputs",
        requires="kv_offloading_size",
    )
    store_gb_per_s: float = python_setting(
        LINK_GB_PER_S, "Speed of the link to host memory, in 10^9 bytes per second.", **LINK_SPEED
    )
    load_gb_per_s: float = python_setting(
        LINK_GB_PER_S, "Speed of the link from host memory, in 10^9 bytes per second.", **LINK_SPEED
    )
    copy_latency_s: float = python_setting(
        70e-6, "Shortest time of a copy of the offload, in seconds: measured in vLLM 0.25.1 on an H200.", **_DURATION
    )
    copy_submit_s: float = python_setting(0.55e-3, "Host time to hand a copy to the GPU, in seconds.", **_DURATION)
    copy_piece_s: float = python_setting(
        1e-6, "Host time for each layer of each block of a copy, in seconds.", **_DURATION
    )
    offload_step_s: float = python_setting(
        0.12e-3, "Host time that the offload adds to a step, in seconds.", **_DURATION
    )
    offload_sequence_s: float = python_setting(
        4.3e-6, "Host time that the offload adds to a step for each of its sequences, in seconds.", **_DURATION
    )
    offload_deferred_block_s: float = python_setting(
        4.3e-6, "Host time for each block that is freed only after the steps in flight, in seconds.", **_DURATION
    )
    swap_gib: float = setting(
        0.0,
        "Host memory, in GiB, to which vLLM 0.x copied preempted sequences; vLLM 0.25.1 has no such swap.",
        unit="GIB",
        shown="none; a model",
        at_least=0,
        at_most=999_999,
    )
    swap_gb_per_s: float = setting(
        LINK_GB_PER_S,
        "Speed of the link to the swap in either direction, in 10^9 bytes per second.",
        unit="GB/S",
        shown="50.4: 80% of PCIe 5.0 x16",
        requires="swap_gib",
        **LINK_SPEED,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.kv_offloading_block_size % self.block_size:
            raise UsageError(
                f"kv_offloading_block_size should be a multiple of the block size of {self.block_size} tokens, not "
                f"{self.kv_offloading_block_size}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousSettings:
    """Settings of the contiguous policy, in which each sequence has one reservation."""

    reserve: Reserve = setting(Reserve.MAX, "Tokens that each sequence reserves.")
    fit: str = setting(
        "first", "Placement strategy.", choices={name: name for name in ("first", "best", "next", "buddy")}
    )
    growth: Growth = setting(Growth.MOVE, "Relocate or preempt when growth fails; with --reserve doubling alone.")
    compaction: bool = setting(
        False, "Slide all extents together if that makes room for a waiting request; copies take time."
    )
    request_level: bool = setting(
        False, "Admit no request until the whole batch has ended, as servers did before Orca."
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """Settings of static batching: batches are padded to a rectangle, and last until their last row ends."""

    batch_size: int = setting(16, "Rows of a batch.", at_least=1, at_most=1 << 20)
    preallocated: bool = setting(
        False,
        "Grow the cache by a column a step, or allocate it for the longest output at once.",
        "--cache",
        choices={"dynamic": False, "static": True},
    )
    max_model_len: int = _max_model_len()
    timeout_s: float = setting(
        0.0,
        "Seconds that the oldest request waits for a batch to fill; 0: a batch takes the requests that are there.",
        "--batch-timeout",
        unit="SECONDS",
        at_least=0,
        below=1_000_000_000,
    )
    sort_by_length: bool = setting(False, "Batch the oldest request with the prompts closest to its own in length.")
    memory_guard: bool = setting(
        True,
        "Cut a batch short where its longest answers might not fit; off: it may run out of memory and fail.",
        "--no-memory-guard",
        flag_help="Do not cut a batch short where it might not fit: it may run out of memory and fail.",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def limited(self, max_model_len: int, _defaults: EngineDefaults) -> Self:
        """Return these settings, with the model's `max_model_len` if they state none."""
        return replace(self, max_model_len=self.max_model_len or max_model_len)


class EngineDefaults(Enum):
    """vLLM's defaults (`max_num_seqs`, `max_num_batched_tokens`): a member for each entry point and size of GPU.

    "Large" is a GPU of at least 70 GiB that is not an A100.
    """

    LLM_LARGE = (1024, 16384)
    LLM = (256, 8192)
    SERVER_LARGE = (1024, 8192)
    SERVER = (256, 2048)

    @property
    def max_num_seqs(self) -> int:
        """vLLM's default of `max_num_seqs` for this entry point and size of GPU."""
        return self.value[0]

    @property
    def max_num_batched_tokens(self) -> int:
        """vLLM's default of `max_num_batched_tokens` for this entry point and size of GPU."""
        return self.value[1]

    def limits(
        self, max_num_seqs: int | None, max_num_batched_tokens: int | None, max_model_len: int, *, chunked: bool
    ) -> tuple[int, int]:
        """Return the largest numbers of sequences and of tokens in a step. A limit that is None becomes vLLM's default.

        The default number of tokens is at most the number of all sequences' tokens at full length. Without chunked
        prefill, it is at least that of the longest prompt. The default number of sequences is at most that.
        """
        num_seqs, num_tokens = max_num_seqs, max_num_batched_tokens
        if num_tokens is None:
            num_tokens = self.max_num_batched_tokens if chunked else max(self.max_num_batched_tokens, max_model_len)
            num_tokens = min(num_tokens, (self.max_num_seqs if num_seqs is None else num_seqs) * max_model_len)
        return min(self.max_num_seqs, num_tokens) if num_seqs is None else num_seqs, num_tokens

    @classmethod
    def of(cls, entry_point: str, gpu: Gpu, release: str = DEFAULT_RELEASE) -> EngineDefaults:
        """Return the defaults of a release for `entry_point`, "llm" or "server", on `gpu`."""
        if gpu.memory_bytes >= 160 << 30 and defaults_of(release).has_huge_cards:
            return cls.LLM_LARGE
        large = gpu.memory_bytes >= 70 << 30 and not gpu.name.startswith("A100")
        if entry_point == "llm":
            return cls.LLM_LARGE if large else cls.LLM
        return cls.SERVER_LARGE if large else cls.SERVER
