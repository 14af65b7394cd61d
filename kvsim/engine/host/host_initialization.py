"""Creation of the second tier in host memory when a run begins: its capacity, its settings and its state."""

from __future__ import annotations

from typing import Any, TypeGuard, cast

import numpy as np

from kvsim.engine.arrays import make, make_growing, make_lazily, make_one, numbers
from kvsim.engine.host_tier import (
    NUM_LISTS,
    CopyRow,
    HostBlock,
    HostList,
    HostSequence,
    HostSettings,
    HostState,
    HostTier,
    Job,
)
from kvsim.errors import BudgetError, UsageError
from kvsim.policies import Paged, Policy
from kvsim.policies.releases import check_offload as check_offload_of
from kvsim.policies.settings import Eviction, PagedSettings

_GIB, _GIGA = 1 << 30, 1e9
_FIRST_COPY_ROWS = 1 << 14
_LOADS_PER_STEP = 1024
"""Largest number of loads that may begin in one step, because there is room to record no more."""


def check_offload(policy: Paged, num_groups: int, shortest_prompt: int) -> None:
    """Refuse an offload that kvsim does not simulate. `num_groups` is the number of the model's KV-cache groups, and
    `shortest_prompt` the number of tokens of the workload's shortest prompt.

    Raises:
        UsageError: the release, another setting, the model or the prompts do not allow the offload.
    """
    cache = policy.cache
    if not cache.kv_offloading_size:
        return
    check_offload_of(policy.scheduler.vllm)
    if cache.swap_gib:
        raise UsageError(
            "host memory is used either as vLLM 0.25.1 does (--kv-offloading-size) or as vLLM 0.x did (--swap-gib); "
            "give only one."
        )
    if shortest_prompt == 1 and cache.block_size * blocks_per_slot(policy) == 1:
        raise UsageError(
            f"vLLM {policy.scheduler.vllm} loads a prompt of one token from host memory again and again where a host "
            "block has one token; take --block-size 2 or more."
        )
    if num_groups > 1:
        raise UsageError(
            f"kvsim knows --kv-offloading-size for models with one group of full attention, and this one has "
            f"{num_groups} KV-cache groups; leave it out."
        )


def blocks_per_slot(policy: Paged) -> int:
    """Return the number of GPU blocks in a host block."""
    return (policy.cache.kv_offloading_block_size or policy.cache.block_size) // policy.cache.block_size


def num_slots(policy: Paged, block_bytes: int, num_gpus: int) -> int:
    """Return the number of host blocks for which `policy` has memory. A GPU block takes `block_bytes` bytes on each of
    `num_gpus` GPUs.

    Raises:
        BudgetError: the host memory does not hold a single host block.
    """
    bytes_per_slot = block_bytes * num_gpus * blocks_per_slot(policy)
    slots = int(policy.cache.kv_offloading_size * _GIB) // bytes_per_slot
    if not slots:
        raise BudgetError(
            f"{policy.cache.kv_offloading_size} GiB of host memory hold no host block of {bytes_per_slot} bytes; give "
            "--kv-offloading-size more, or leave it out."
        )
    return slots


def most_loading(policy: Paged, num_units: int, num_requests: int) -> int:
    """Return the largest number of requests that can load at the same time, out of `num_requests` in all. Each needs
    the GPU blocks of at least one host block; the pool has `num_units`.
    """
    return min(num_requests, num_units // blocks_per_slot(policy))


def rows_of_loads(policy: Policy, num_units: int, num_requests: int, width: int, *, has_connector: bool = False) -> int:
    """Return the largest number of rows of the recording's memory table that the loads of one step write; 0 without
    offload and connector. A block table has at most `width` entries.
    """
    if has_connector:
        return min(num_requests, num_units, _LOADS_PER_STEP) * rows_of_table(width)
    if not has_offload(policy):
        return 0
    return min(most_loading(policy, num_units, num_requests), _LOADS_PER_STEP) * rows_of_table(width)


def rows_of_table(width: int) -> int:
    """Return the most rows of the memory table that a step writes for a sequence with `width` block-table entries."""
    return 3 * width + 2


def host_tier(
    policy: Policy,
    num_units: int,
    num_requests: int,
    block_bytes: int,
    num_gpus: int,
    *,
    num_layers: int,
    is_timed: bool,
    compiled: bool,
) -> HostTier:
    """Return the initial records of an engine's second tier; an empty tuple if `policy` has no offload.

    The pool has `num_units` GPU blocks, each of `block_bytes` bytes on each of `num_gpus` GPUs. A block is copied in
    one piece per layer. With `is_timed`, the engine's clock decides when a copy ends; otherwise the caller reports it.
    """
    if not has_offload(policy):
        return cast("HostTier", ())
    slots, per_slot = num_slots(policy, block_bytes, num_gpus), blocks_per_slot(policy)
    settings = _settings_of_tier(policy.cache, block_bytes, num_layers, compiled=compiled)
    settings.num_slots, settings.blocks_per_slot = slots, per_slot
    settings.slot_tokens = per_slot * policy.cache.block_size
    settings.is_timed = is_timed
    num_records = NUM_LISTS + (3 * slots if settings.adaptive else slots)
    state = make_one(HostState, compiled=compiled)
    state.num_free = slots
    blocks = make_lazily(HostBlock, num_records, compiled=compiled)
    heads: Any = blocks
    for index in range(NUM_LISTS):
        heads[index].next = heads[index].previous = index
    most_jobs = min(slots, num_units) + most_loading(policy, num_units, num_requests)
    return HostTier(
        settings=settings,
        state=state,
        blocks=blocks,
        lists=make(HostList, NUM_LISTS, compiled=compiled),
        buckets=numbers(np.zeros(1 << num_records.bit_length(), np.int64), compiled=compiled),
        sources=numbers(np.zeros(slots * per_slot, np.int64), compiled=compiled),
        jobs=make_lazily(Job, most_jobs + 1, compiled=compiled),
        sequences=make(HostSequence, num_requests + 1, compiled=compiled),
        allocated_in=numbers(np.zeros(num_units + 1, np.int64), compiled=compiled),
        copy_rows=make_growing(CopyRow, _FIRST_COPY_ROWS + slots * per_slot + num_units + 1, compiled=compiled),
    )


def _settings_of_tier(cache: PagedSettings, block_bytes: int, num_layers: int, *, compiled: bool) -> HostSettings:
    """Return the second tier's settings, without `is_timed` and its size. A block is copied in one piece per layer."""
    settings = make_one(HostSettings, compiled=compiled)
    settings.adaptive = cache.kv_offloading_eviction is Eviction.ARC
    settings.prompt_only = cache.kv_offloading_prompt_only
    settings.store_block_s = block_bytes / (cache.store_gb_per_s * _GIGA)
    settings.load_block_s = block_bytes / (cache.load_gb_per_s * _GIGA)
    settings.job_s = cache.copy_latency_s
    settings.submit_s, settings.submit_block_s = cache.copy_submit_s, num_layers * cache.copy_piece_s
    settings.step_s, settings.sequence_s = cache.offload_step_s, cache.offload_sequence_s
    settings.deferred_block_s = cache.offload_deferred_block_s
    settings.most_copy_rows = _FIRST_COPY_ROWS
    return settings


def has_offload(policy: Policy) -> TypeGuard[Paged]:
    """Tell whether a policy has a second tier in host memory."""
    return isinstance(policy, Paged) and policy.cache.kv_offloading_size > 0
