"""The server arguments of SGLang that decide over its scheduler and its radix cache, under their own names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kvsim.errors import UnknownNameError, UsageError

SCHEDULE_POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first")
EVICTION_POLICIES = ("lru", "lfu", "fifo", "filo", "mru", "priority", "slru")
RETRACTION_POLICIES = ("length", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangSettings:
    """Scheduling; the defaults are SGLang's on a GPU of 60 GiB or more, but for those that depend on the pool."""

    max_running_requests: int = 2048
    context_length: int = 8192
    """Longest sequence in tokens, prompt and answer together."""
    chunked_prefill_size: int = 8192
    """Tokens of prompts in one batch; -1 where prompts are not cut."""
    max_prefill_tokens: int = 16384
    disable_overlap_schedule: bool = False
    enable_mixed_chunk: bool = False
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    init_new_token_ratio: float = 0.7
    """`SGLANG_INIT_NEW_TOKEN_RATIO`; other fields that are no flags are variables of that kind, too."""
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    clip_max_new_tokens_estimation: int = 4096
    disable_consecutive_prefill_overlap: bool = False
    prefill_max_requests: int = 0
    """Requests in one prefill; 0 for no limit."""
    prefill_decode_interval: int = 0
    prefill_decode_interval_min_bs: int = 1
    enable_priority_scheduling: bool = False
    disable_priority_preemption: bool = False
    priority_scheduling_preemption_threshold: int = 10
    schedule_low_priority_values_first: bool = False
    retraction_policy: str = "length"

    def __post_init__(self) -> None:
        _one_of("schedule_policy", self.schedule_policy, SCHEDULE_POLICIES)
        _one_of("retraction_policy", self.retraction_policy, RETRACTION_POLICIES)
        for name in ("max_running_requests", "context_length", "max_prefill_tokens", "new_token_ratio_decay_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} should be at least 1, not {getattr(self, name)}.")
        if self.chunked_prefill_size < 1 and self.chunked_prefill_size != -1:
            raise UsageError(
                f"chunked_prefill_size should be at least 1, or -1 for no chunks, not {self.chunked_prefill_size}."
            )

    @property
    def first_ratio(self) -> float:
        """The share of answers that admission expects at first."""
        return min(self.init_new_token_ratio * self.schedule_conservativeness, 1.0)

    @property
    def least_ratio(self) -> float:
        """The share that it expects at least."""
        return min(self.first_ratio * self.min_new_token_ratio_factor, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadixSettings:
    """The radix cache."""

    page_size: int = 1
    """Slots that are handed out together."""
    radix_eviction_policy: str = "lru"
    disable_radix_cache: bool = False

    def __post_init__(self) -> None:
        _one_of("radix_eviction_policy", self.radix_eviction_policy, EVICTION_POLICIES)
        if self.page_size < 1:
            raise UsageError(f"page_size should be at least 1, not {self.page_size}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Radix:
    """SGLang: prefills before decodes, admission by estimates, over a radix tree of token slots."""

    name: ClassVar[str] = "radix"
    scheduler: SGLangSettings = field(default_factory=SGLangSettings)
    cache: RadixSettings = field(default_factory=RadixSettings)

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and answer together."""
        return self.scheduler.context_length

    @property
    def unit_tokens(self) -> int:
        """Slots per unit of the pool."""
        return self.cache.page_size


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(name, value, known)
