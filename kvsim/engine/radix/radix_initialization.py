"""Creation of the state of SGLang's cache and scheduler when a run begins."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine import radix_records as records
from kvsim.engine.arrays import fill, make, make_growing, make_lazily, make_one, numbers
from kvsim.engine.host_tier import CopyRow
from kvsim.errors import BudgetError, UsageError
from kvsim.policies.sglang import NO_WINDOWS

if TYPE_CHECKING:
    from kvsim.engine.known_requests import Demand
    from kvsim.policies import Radix, RadixSettings

_ORDERS = {
    "fcfs": records.FCFS,
    "lpm": records.LPM,
    "dfs-weight": records.DFS_WEIGHT,
    "lof": records.LOF,
    "hrrn": records.HRRN,
    "shortest-prefill-first": records.SHORTEST_PREFILL_FIRST,
}
_EVICTIONS = {
    "lru": records.LRU,
    "lfu": records.LFU,
    "fifo": records.FIFO,
    "filo": records.FILO,
    "mru": records.MRU,
    "priority": records.LEAST_PRIORITY,
    "slru": records.SLRU,
}
_WRITE_POLICIES = {
    "write_through": records.WRITE_THROUGH,
    "write_through_selective": records.WRITE_SELECTIVE,
    "write_back": records.WRITE_BACK,
}
_CACHE_AGNOSTIC = ("fcfs", "lof")
"""Orders of the waiting queue (`--schedule-policy`) without the prefix cache: by arrival, or longest limit first."""
_GIGA = 1e9
_FIRST_COPY_ROWS = 1 << 14
_MOST_ENTRIES = 1 << 28
"""Largest number of pages in all rows of the request table together."""
_EVENTS_BESIDE_PAGES = 1 << 12
"""Number of events in one step for which there is room, besides the events about pages."""
MOST_ROWS_OF_PAGE = 4
"""Most rows of the memory table that a step writes about a page: eviction, release, allocation, replacement."""
ROWS_OF_HITS = 1 << 20
"""Room for rows of the memory table about one step's hits: one for each range of consecutive hit pages."""


def radix_tables(
    policy: Radix,
    demand: Demand,
    num_pages: int,
    most_in_flight: int,
    most_memory_rows: int,
    *,
    windows: tuple[int, int],
    page_bytes: int,
    num_layers: int,
    copies_are_timed: bool,
    reports: bool,
    compiled: bool,
) -> records.RadixTables:
    """Return the initial records of SGLang's cache and scheduler. All pages are free, in ascending order.

    Args:
        policy: settings of the server.
        demand: the requests of the run.
        num_pages: number of pages in the pool.
        most_in_flight: largest number of steps in flight.
        most_memory_rows: capacity of the memory table, in rows.
        windows: (pages in the pool for layers with windows, tokens of a window); both 0 if there is no such pool.
        page_bytes: bytes of a page in all layers of one GPU.
        num_layers: number of layers on one GPU.
        copies_are_timed: whether the engine's clock decides when a copy ends. If not, a copy ends in the scheduler's
            pass after the one in which it begins, unless the caller sets the rule `REPORTED`.
        reports: whether evictions, duplicates and retractions are recorded.
        compiled: whether the records are arrays, which machine code uses, instead of objects.

    Raises:
        UsageError: there is a host tier, and a pool for layers with windows.
        BudgetError: the rows of the request table would take too much memory.
    """
    num_requests, (num_windows, window_tokens) = len(demand.prompt), windows
    num_rows = min(policy.scheduler.max_running_requests, num_requests)
    row_pages = _pages_of_row(policy, demand, num_rows)
    holdings = make(records.Holding, num_requests + 1, compiled=compiled)
    begin_key = demand.known_begins(policy.unit_tokens)
    fill(holdings, 1, limit=demand.limit, priority=demand.priority, begin_key=begin_key)
    sizes: dict[str, Any] = {"row_pages": row_pages, "most_memory_rows": most_memory_rows, "reports": reports}
    num_host_pages = policy.cache.num_host_pages(num_pages, page_bytes)
    if num_host_pages:
        if window_tokens:
            raise UsageError(NO_WINDOWS)
        sizes |= _of_host_tier(policy.cache, num_host_pages, page_bytes, num_layers)
        sizes |= {"copies_end": records.BY_CLOCK if copies_are_timed else records.IN_NEXT_PASS}
    sizes |= {"window_tokens": window_tokens, "window_pages": num_windows}
    num_events = 4 * num_pages + _EVENTS_BESIDE_PAGES if reports else 0
    zeros = partial(_zeros, compiled=compiled)
    return records.RadixTables(
        settings=_settings(policy, sizes, compiled=compiled),
        state=_first_state(policy, num_rows, num_pages, num_windows, num_host_pages, compiled=compiled),
        **_free_lists((num_pages, num_windows), compiled=compiled),
        node_pages=zeros(2 * _half(num_pages)),
        window_pages=zeros(num_pages + 1 if num_windows else 1),
        nodes=_empty_tree(num_pages + num_host_pages, compiled=compiled),
        leaves=zeros(num_pages + 1),
        rows=zeros(num_rows * row_pages),
        free_rows=numbers(np.arange(num_rows)[::-1].astype(np.int64), compiled=compiled),
        holdings=holdings,
        last=zeros(num_rows),
        order=zeros(num_requests),
        **_copies(num_pages, num_host_pages, compiled=compiled),
        launches=make(records.Launch, most_in_flight, compiled=compiled),
        needs=make(records.Need, 2 * num_rows + 2, compiled=compiled),
        events=make_growing(records.CacheEvent, num_events, compiled=compiled),
    )


def _of_host_tier(cache: RadixSettings, num_host_pages: int, page_bytes: int, num_layers: int) -> dict[str, Any]:
    return {
        "write_policy": _WRITE_POLICIES[cache.hicache_write_policy],
        "host_pages": num_host_pages,
        "store_page_s": page_bytes / (cache.store_gb_per_s * _GIGA),
        "load_page_s": page_bytes / (cache.load_gb_per_s * _GIGA),
        "num_layers": num_layers,
        "most_copy_rows": _FIRST_COPY_ROWS,
    }


def _copies(num_pages: int, num_host_pages: int, *, compiled: bool) -> dict[str, Any]:
    """Return the fields of `RadixTables` for the host tier, by name: `written`, `loading` and `copy_rows` without
    copies, and `next_slot` with all slots free in ascending order.

    Each copy locks at least one page of the device, which bounds the number of copies in progress. One step copies at
    most three times as many pages as the device has.
    """
    following = np.arange(1, num_host_pages + 2, dtype=np.int64)
    following[-1] = records.NO_SLOT
    most_copies = num_pages + 2 if num_host_pages else 1
    most_rows = _FIRST_COPY_ROWS + 3 * num_pages + 1 if num_host_pages else 0
    return {
        "written": make_growing(records.NodeCopy, most_copies, compiled=compiled),
        "loading": make_growing(records.NodeCopy, most_copies, compiled=compiled),
        "next_slot": numbers(following, compiled=compiled),
        "copy_rows": make_growing(CopyRow, most_rows, compiled=compiled),
    }


def _empty_tree(num_pages: int, *, compiled: bool) -> Any:
    """Return `RadixTables.nodes` for a tree of only the root, with room for a node per page of device and host."""
    nodes = make_lazily(records.Node, num_pages + 2, compiled=compiled)
    nodes[records.ROOT].place = -1
    return nodes


def _zeros(size: int, *, compiled: bool) -> Any:
    return np.zeros(size, np.int64) if compiled else [0] * size


def _pages_of_row(policy: Radix, demand: Demand, num_rows: int) -> int:
    longest = int((demand.prompt + np.maximum(demand.output, 1)).max(initial=1)) + 1
    row_pages = -(-longest // policy.unit_tokens) + 1
    if num_rows * row_pages > _MOST_ENTRIES:
        raise BudgetError(
            f"{num_rows:,} requests of up to {longest:,} tokens need rows of {num_rows * row_pages:,} pages, and at "
            f"most {_MOST_ENTRIES:,} are simulated; lower --max-running-requests."
        )
    return row_pages


def _half(num_pages: int) -> int:
    """Return the number of entries in each half of `RadixTables.node_pages`: 1.5 for each page. When a half is full,
    the entries in use are copied to the other half. They fill at most two thirds of this half, so copying is rare.
    """
    return num_pages + num_pages // 2 + 1


def _first_state(
    policy: Radix, num_rows: int, num_pages: int, num_windows: int, num_host_pages: int, *, compiled: bool
) -> Any:
    state = make_one(records.RadixState, compiled=compiled)
    state.entries_limit = _half(num_pages)
    state.num_free_host = num_host_pages
    state.first_free_slot = min(num_host_pages, 1)
    state.num_free_windows, state.num_free_rows = num_windows, num_rows
    state.ratio, state.is_ratio_reset = policy.scheduler.first_ratio, True
    return state


def _free_lists(sizes: tuple[int, int], *, compiled: bool) -> dict[str, Any]:
    free, rings = make(records.FreeList, 2, compiled=compiled), []
    first_page, begin = 1, 0
    for pool, size in enumerate(sizes):
        ring = np.zeros(2 * size + 2, np.int64)
        ring[:size] = np.arange(first_page, first_page + size)
        free[pool].begin = free[pool].head = begin
        free[pool].tail = free[pool].collected_end = begin + size
        free[pool].end = begin + len(ring)
        first_page, begin = first_page + size, begin + len(ring)
        rings.append(ring)
    return {"free_lists": free, "free_pages": numbers(np.concatenate(rings), compiled=compiled)}


def _settings(policy: Radix, sizes: dict[str, Any], *, compiled: bool) -> records.RadixArguments:
    scheduler, cache = policy.scheduler, policy.cache
    looks_at_cache = scheduler.schedule_policy not in _CACHE_AGNOSTIC
    chosen = {
        "has_tree": not cache.disable_radix_cache,
        "eviction": _EVICTIONS[cache.radix_eviction_policy],
        "order": _ORDERS["fcfs" if cache.disable_radix_cache and looks_at_cache else scheduler.schedule_policy],
        "max_running_requests": scheduler.max_running_requests,
        "chunk_tokens": max(scheduler.chunked_prefill_size, 0),
        "max_prefill_tokens": scheduler.max_prefill_tokens,
        "mixes": scheduler.enable_mixed_chunk and scheduler.chunked_prefill_size > 0,
        "serializes_prefills": scheduler.disable_consecutive_prefill_overlap,
        "prefill_max_requests": scheduler.prefill_max_requests,
        "prefill_decode_interval": scheduler.prefill_decode_interval,
        "interval_min_seqs": scheduler.prefill_decode_interval_min_bs,
        "by_priority": scheduler.enable_priority_scheduling,
        "low_values_first": scheduler.schedule_low_priority_values_first,
        "preempts": scheduler.enable_priority_scheduling and not scheduler.disable_priority_preemption,
        "preemption_threshold": scheduler.priority_scheduling_preemption_threshold,
        "retracts_by_priority": scheduler.retraction_policy == "priority",
        "first_ratio": scheduler.first_ratio,
        "least_ratio": scheduler.least_ratio,
        "ratio_decay": (scheduler.first_ratio - scheduler.least_ratio) / scheduler.new_token_ratio_decay_steps,
        "retract_steps": scheduler.retract_decode_steps,
        "most_new_tokens": scheduler.clip_max_new_tokens_estimation,
        "window_interval": cache.swa_eviction_interval,
    }
    settings = make_one(records.RadixArguments, compiled=compiled)
    for name, value in (chosen | sizes).items():
        setattr(settings, name, value)
    return settings
