"""The radix policy: SGLang's scheduler and radix cache, with the names and defaults of SGLang's server arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvsim.errors import BudgetError, UsageError
from kvsim.policies.settings import LINK_GB_PER_S, LINK_SPEED
from kvsim.setting_fields import check_parts, check_settings, python_setting, setting

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kvsim.kv_groups.sglang_pools import PoolBytes


def _words(*words: str) -> dict[str, str]:
    return {word: word for word in words}


SCHEDULE_POLICIES = _words("fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first")
EVICTION_POLICIES = _words("lru", "lfu", "fifo", "filo", "mru", "priority", "slru")
RETRACTION_POLICIES = _words("length", "priority")
WRITE_POLICIES = _words("write_through", "write_through_selective", "write_back")
NO_WINDOWS = "kvsim does not follow HiCache beside layers with windows; leave out --enable-hierarchical-cache."
"""Message of the error for a host tier with a model that has a second pool for windows."""
_KEPT_FOR_ANSWER = 5
"""Number of tokens of the longest sequence that are left for the answer."""
_GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangSettings:
    """Settings of SGLang's scheduler. The defaults are those of SGLang on a GPU of 60 to 160 GiB.

    `kvsim run` and the name "radix" use the defaults for the given GPU (`kvsim.sizing.sglang_budget.defaults_on`).
    """

    max_running_requests: int = setting(
        2048, "Requests that run at once; at most half of the pool's slots.", at_least=1
    )
    context_length: int = python_setting(8192, "Longest sequence in tokens, prompt and output together.", at_least=8)
    chunked_prefill_size: int = setting(
        8192,
        "Tokens of prompts in one step; -1: prompts are not cut.",
        shown="by the GPU",
        at_least=-1,
        at_most=1 << 31,
    )
    max_prefill_tokens: int = setting(16384, "Tokens of prompts that are admitted in one step.", at_least=1)
    disable_overlap_schedule: bool = setting(False, "Process each step's output before the next step is scheduled.")
    enable_mixed_chunk: bool = setting(False, "Let running requests decode in the step of a prefill.")
    schedule_policy: str = setting("fcfs", "Order of the queue.", choices=SCHEDULE_POLICIES)
    schedule_conservativeness: float = setting(
        1.0, "Factor on the share of answers that admission expects: more admits less, and retracts less.", at_least=0
    )
    init_new_token_ratio: float = python_setting(
        0.7, "Share of its output limit that a request is expected to need, at first.", at_least=0
    )
    min_new_token_ratio_factor: float = python_setting(
        0.14, "Part of `init_new_token_ratio` below which the expected share never falls.", at_least=0
    )
    new_token_ratio_decay_steps: int = python_setting(
        600, "Decode steps in which the expected share falls to its smallest value.", at_least=1
    )
    retract_decode_steps: int = python_setting(
        20, "Tokens that each remaining request can decode after a retraction.", at_least=0
    )
    clip_max_new_tokens_estimation: int = python_setting(
        4096, "Largest number of answer tokens for which admission reserves slots.", at_least=0
    )
    disable_consecutive_prefill_overlap: bool = python_setting(
        False, "Let a prefill that follows another wait for its output."
    )
    prefill_max_requests: int = setting(0, "Requests in one prefill; 0: no limit.", at_least=0)
    prefill_decode_interval: int = setting(0, "Passes after a prefill in which no other prefill begins.", at_least=0)
    prefill_decode_interval_min_bs: int = python_setting(
        1, "Running requests below which the interval ends.", at_least=0
    )
    enable_priority_scheduling: bool = setting(False, "Serve requests with a larger priority first.")
    disable_priority_preemption: bool = python_setting(False, "Let running requests keep their rows whatever waits.")
    priority_scheduling_preemption_threshold: int = python_setting(
        10, "Lead in priority beyond which a request gives way."
    )
    schedule_low_priority_values_first: bool = python_setting(False, "Serve requests with a smaller priority first.")
    retraction_policy: str = python_setting(
        "length", "Order in which running requests are retracted.", choices=RETRACTION_POLICIES
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.chunked_prefill_size == 0:
            raise UsageError("chunked_prefill_size should be at least 1, or -1 where prompts are not cut, not 0.")

    @property
    def first_ratio(self) -> float:
        """Initial `new_token_ratio`: share of its remaining output limit that a running request is expected to use."""
        return min(self.init_new_token_ratio * self.schedule_conservativeness, 1.0)

    @property
    def least_ratio(self) -> float:
        """Smallest value of `new_token_ratio`."""
        return min(self.first_ratio * self.min_new_token_ratio_factor, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RadixSettings:
    """Settings of SGLang's radix cache."""

    page_size: int = setting(1, "Slots that are allocated together.", shown="by the GPU", at_least=1, at_most=1024)
    radix_eviction_policy: str = setting("lru", "Leaf of the tree that is evicted first.", choices=EVICTION_POLICIES)
    disable_radix_cache: bool = setting(False, "Keep no prefix.")
    swa_full_tokens_ratio: float = setting(
        0.8, "Slots of layers with windows for each slot of the others.", above=0, at_most=1
    )
    swa_eviction_interval: int = python_setting(
        128, "Tokens beyond the window after which a running request gives slots of windows back.", at_least=1
    )
    enable_hierarchical_cache: bool = setting(False, "Keep copies of the radix tree in host memory, too (HiCache).")
    hicache_ratio: float = setting(
        2.0,
        "Size of host memory for the tree, as a multiple of the pool's slots.",
        requires="enable_hierarchical_cache",
        above=0,
        at_most=1000,
    )
    hicache_size: float = setting(
        0.0,
        "Size of host memory for the tree on each GPU, in 10^9 bytes, in place of --hicache-ratio; 0: by the ratio.",
        unit="GB",
        shown="by the ratio",
        requires="enable_hierarchical_cache",
        at_least=0,
        at_most=999_999,
    )
    hicache_write_policy: str = setting(
        "write_through",
        "When a node of the tree is copied to the host: at its first hit, at its second, or when it is evicted.",
        choices=WRITE_POLICIES,
        requires="enable_hierarchical_cache",
    )
    store_gb_per_s: float = python_setting(
        LINK_GB_PER_S, "Speed of the link to host memory, in 10^9 bytes per second.", **LINK_SPEED
    )
    load_gb_per_s: float = python_setting(
        LINK_GB_PER_S, "Speed of the link from host memory, in 10^9 bytes per second.", **LINK_SPEED
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.enable_hierarchical_cache and self.disable_radix_cache:
            raise UsageError(
                "SGLang does not start with both --enable-hierarchical-cache and --disable-radix-cache; leave one out."
            )

    def num_host_pages(self, num_pages: int, page_bytes: int) -> int:
        """Return the number of pages in host memory for a pool of `num_pages` pages; 0 without a host tier.

        A page takes `page_bytes` on each GPU. Each GPU has its own part of host memory.

        Raises:
            BudgetError: `hicache_size` is too small for a slot. A size for less than a page is accepted.
        """
        if not self.enable_hierarchical_cache:
            return 0
        if self.hicache_size and int(self.hicache_size * _GIGA) * self.page_size < page_bytes:
            raise BudgetError(
                f"--hicache-size {self.hicache_size:g} GB hold no slot of {page_bytes // self.page_size:,} bytes; give "
                "more, or leave out --enable-hierarchical-cache."
            )
        return host_pages(num_pages, self.page_size, page_bytes, ratio=self.hicache_ratio, size_gb=self.hicache_size)


def host_pages(num_pages: int, page_size: int, page_bytes: int, *, ratio: float, size_gb: float) -> int:
    """Return the number of pages in HiCache's host memory.

    The memory has `size_gb` x 10^9 bytes or, if `size_gb` is 0, room for `ratio` times `num_pages` pages. SGLang adds
    one page to the whole pages that fit.
    """
    if size_gb:
        return int(size_gb * _GIGA) * page_size // page_bytes // page_size + 1
    return int(num_pages * page_size * ratio) // page_size + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Radix:
    """SGLang: prefills before decodes, admission by an estimate of the output, and a radix tree of token slots."""

    name: ClassVar[str] = "radix"
    scheduler: SGLangSettings = field(default_factory=SGLangSettings)
    cache: RadixSettings = field(default_factory=RadixSettings)

    def __post_init__(self) -> None:
        check_parts(self, scheduler=SGLangSettings, cache=RadixSettings)

    @property
    def max_model_len(self) -> int:
        """Length of the longest sequence in tokens, prompt and answer together."""
        return self.scheduler.context_length

    @property
    def unit_tokens(self) -> int:
        """Number of tokens in a unit of the pool."""
        return self.cache.page_size

    def longest_tokens(self, num_slots: int) -> int:
        """Return the length in tokens of the longest sequence in a pool of `num_slots` slots."""
        return min(self.scheduler.context_length, num_slots) - 1

    def num_slots(self, kv_bytes: int, layers: PoolBytes) -> int:
        """Return the number of slots of the first pool, in whole pages, if both pools take `kv_bytes` bytes.

        It may be 0. The second pool is for layers with windows. Without a radix cache, it has a fixed size, and the
        first pool gets the rest.
        """
        unit, chunk = self.unit_tokens, self.scheduler.chunked_prefill_size
        if layers.window_tokens and self.cache.disable_radix_cache and chunk > 0:
            window_pool_bytes = self._most_window_slots(layers.window_tokens) * layers.window_bytes
            return max(kv_bytes - window_pool_bytes, 0) // layers.full_bytes // unit * unit
        return layers.num_slots(kv_bytes, self.cache.swa_full_tokens_ratio) // unit * unit

    def num_window_slots(self, num_slots: int, window_tokens: int) -> int:
        """Return the number of slots of the second pool, for layers with windows of `window_tokens` tokens.

        It is 0 without windows. With a radix cache, or without chunked prefill (`chunked_prefill_size` below 0), it is
        a share of the `num_slots` slots of the first pool. Otherwise, it is the most that all requests can use at once.
        """
        unit, chunk = self.unit_tokens, self.scheduler.chunked_prefill_size
        if window_tokens == 0:
            return 0
        if not self.cache.disable_radix_cache or chunk < 0:
            return int(num_slots * self.cache.swa_full_tokens_ratio) // unit * unit
        return self._most_window_slots(window_tokens)

    def _most_window_slots(self, window_tokens: int) -> int:
        """Return the largest number of window slots that all running requests use at once without a prefix cache."""
        unit, num_chunks = self.unit_tokens, 1 if self.scheduler.disable_overlap_schedule else 2
        request_slots = window_tokens + self.cache.swa_eviction_interval + 2 * unit
        most = self.scheduler.max_running_requests * request_slots
        most += num_chunks * self.scheduler.chunked_prefill_size + unit
        return -(-most // unit) * unit

    def most_new_tokens(self, prompt_tokens: npt.NDArray[np.int64], num_slots: int) -> npt.NDArray[np.int64]:
        """Return int64[len(prompt_tokens)]: largest number of output tokens for each prompt in a pool of `num_slots`.

        A request whose number is 0 still gets one output token.
        """
        pages = -(-prompt_tokens // self.unit_tokens)
        pool_limit = num_slots - pages * self.unit_tokens - self.unit_tokens - 1
        model_limit = self.longest_tokens(num_slots) - prompt_tokens - 1
        return pool_limit.clip(max=model_limit).clip(min=0)

    def refused_prompt_tokens(self, num_slots: int) -> int:
        """Return the smallest prompt length in tokens that is refused, in a pool of `num_slots` slots."""
        return self.longest_tokens(num_slots) - _KEPT_FOR_ANSWER
