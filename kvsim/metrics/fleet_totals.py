"""Totals of several servers behind one router, for the results of `kvsim run` with several servers.

The totals tell what clients see, how even the load is, and how many bytes of prefixes are cached several times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.metrics.request_times import Distribution, latencies_of
from kvsim.metrics.summary import plain

if TYPE_CHECKING:
    from kvsim.metrics.summary import Summary
    from kvsim.recording import Meta
    from kvsim.recording.tables import Requests


class StoreTotals(NamedTuple):
    """Counts of a prefix store over a run, in blocks."""

    loaded_blocks: int
    written_blocks: int
    evicted_blocks: int
    most_blocks: int
    """Largest number of blocks that the store held at once."""
    capacity_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """Counts over all servers of a fleet, which the results of its single servers do not have."""

    mean_duplicate_blocks: float = 0.0
    """Mean over the samples of the number of duplicate prefix blocks.

    A block counts as a duplicate on each server that has it cached, except one.
    """
    most_duplicate_blocks: int = 0
    """Largest number of duplicate prefix blocks in one sample."""
    num_prefill: int = 0
    """Number of prefill servers; if servers have data-parallel ranks, of all ranks of prefill servers.

    They come first among the servers. The number is 0 without prefill servers.
    """
    clients: Sequence[Requests] = ()
    """Requests of each decode server, with the times at which clients sent them; empty without prefill servers."""
    fetched_blocks: int = 0
    """Number of blocks that decode servers have fetched from prefill servers."""
    num_ranks: int = 1
    """Number of data-parallel ranks of each server. With several, each rank counts as a server."""
    idle_steps: tuple[int, ...] = ()
    """Steps in which a data-parallel rank had no batch, by rank; empty if ranks do not wait for each other."""
    store: StoreTotals | None = None
    """Block counts of the prefix store that all servers share; None without a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """Totals over the servers of a fleet. Rates and latencies are those of all requests together.

    A data-parallel rank counts as a server.
    """

    num_servers: int
    duration_s: float
    """Seconds from the first event until the last server has finished."""
    num_finished: int
    num_lost: int
    """Number of requests that were refused, aborted or not finished."""
    num_preemptions: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    mean_waiting: float
    """Mean over time of the number of waiting requests, summed over the servers."""
    block_bytes: int
    """Bytes of a block (or another unit of the pool) on all GPUs of one server together."""
    pool_bytes: int
    """Bytes of the pools of all servers, on all GPUs together."""
    mean_occupancy: float
    """Share of a server's pool that requests hold, 0 to 1: mean over time, averaged over the servers."""
    peak_occupancy: float
    """Largest share of one server's pool that requests held at any time, 0 to 1."""
    imbalance: float
    """Computed tokens of the busiest server, divided by the mean over all servers; 1 means balanced.

    With prefill servers, it is the larger of the figures of prefill and of decode servers.
    """
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    prefix_hit_rate: float
    one_pool_hit_tokens: int
    """Prompt tokens that would be hits in one endless cache for all servers: an upper bound for every router."""
    mean_duplicate_bytes: float
    """Bytes, on all GPUs together, of cached prefixes beyond one copy: mean over samples at some arrivals.

    A prefix on three servers counts twice.
    """
    most_duplicate_bytes: int
    """Bytes of cached prefixes beyond one copy in the sample with most; see `mean_duplicate_bytes`."""
    num_prefill: int = 0
    """Number of servers (with data parallelism, of their ranks) that only compute prompts; 0 if all servers decode.

    If it is above 0, only the prefix hits of these servers are counted.
    """
    fetched_bytes: int = 0
    """Bytes of KV per GPU that decode servers fetched from prefill servers."""
    num_ranks: int = 1
    """Number of data-parallel ranks behind each front end; 1 for servers without ranks."""
    idle_steps: tuple[int, ...] = ()
    """Number of steps that each data-parallel rank took without a batch, because another rank had one.

    It is empty if ranks do not wait for each other.
    """
    store: Mapping[str, int] | None = None
    """Fields of the `StoreTotals` of the prefix store that all servers share; None without a store."""

    def as_dict(self) -> dict[str, Any]:
        """Return the totals for JSON, with None in place of NaN."""
        return {name: plain(value) for name, value in asdict(self).items()}


def fleet_totals(
    meta: Meta, summaries: Sequence[Summary], requests: Sequence[Requests], counts: FleetCounts
) -> FleetTotals:
    """Add up the `summaries` and the `requests` of a fleet, one entry for each server.

    All servers have the pool and the model in `meta`. With prefill servers, a request is on two servers, and its
    latencies are those in `counts.clients`.
    """
    prefilling, decoding = summaries[: counts.num_prefill], summaries[counts.num_prefill :]
    duration_s = max(summary.duration_s for summary in summaries)
    output_tokens = sum(summary.output_tokens for summary in decoding)
    block_bytes = meta.model.get("tensor_parallel_size", 1) * meta.pool.bytes_per_unit
    prompts = requests[: counts.num_prefill] or requests
    return FleetTotals(
        num_servers=len(summaries),
        duration_s=duration_s,
        num_finished=sum(summary.num_finished for summary in decoding),
        num_lost=sum(summary.num_refused + summary.num_aborted + summary.num_unfinished for summary in decoding),
        num_preemptions=sum(summary.num_preemptions for summary in summaries),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s if duration_s else np.nan,
        **_latencies(counts.clients or prompts),
        mean_waiting=float(np.nansum([summary.mean_waiting for summary in summaries])),
        block_bytes=block_bytes,
        pool_bytes=len(summaries) * (meta.pool.num_units or 0) * block_bytes,
        mean_occupancy=float(np.nanmean([np.nan_to_num(summary.mean_occupancy) for summary in summaries])),
        peak_occupancy=max(float(np.nan_to_num(summary.peak_occupancy)) for summary in summaries),
        imbalance=max((_imbalance(kind) for kind in (prefilling, decoding) if kind), default=np.nan),
        **_prefix_hits(meta, prefilling or summaries, prompts),
        mean_duplicate_bytes=counts.mean_duplicate_blocks * block_bytes,
        most_duplicate_bytes=counts.most_duplicate_blocks * block_bytes,
        num_prefill=counts.num_prefill,
        fetched_bytes=counts.fetched_blocks * meta.pool.bytes_per_unit,
        num_ranks=counts.num_ranks,
        idle_steps=counts.idle_steps,
        store=None if counts.store is None else counts.store._asdict(),
    )


def _latencies(requests: Sequence[Requests]) -> dict[str, Any]:
    """Return the distributions of the latencies of all requests, by fields of `FleetTotals`."""
    tables = [latencies_of(table) for table in requests]
    return {
        name: Distribution.of(np.concatenate([getattr(table, name) for table in tables]))
        for name in ("ttft_s", "tpot_s", "e2e_s")
    }


def _prefix_hits(meta: Meta, summaries: Sequence[Summary], requests: Sequence[Requests]) -> dict[str, Any]:
    """Return the prefix hits of the servers that compute prompts, by fields of `FleetTotals`."""
    queried = sum(summary.prefix_queried_tokens for summary in summaries)
    hits = sum(summary.prefix_hit_tokens for summary in summaries)
    return {
        "prefix_queried_tokens": queried,
        "prefix_hit_tokens": hits,
        "prefix_hit_rate": hits / queried if queried else 0.0,
        "one_pool_hit_tokens": _one_pool_hit_tokens(meta, requests) if queried else 0,
    }


def _imbalance(summaries: Sequence[Summary]) -> float:
    """Return the computed tokens of the busiest server, divided by the mean of all; NaN if none computed any."""
    computed = np.array([summary.computed_tokens for summary in summaries], np.int64)
    return float(computed.max() / computed.mean()) if computed.any() else np.nan


def _one_pool_hit_tokens(meta: Meta, requests: Sequence[Requests]) -> int:
    """Count the prompt tokens, in full blocks, with which an earlier prompt on any server begins too.

    Hashes are chained, so equal hashes mean equal prefixes. Each occurrence of a hash after the first, by arrival, is a
    hit of one block. The last token of a prompt is always computed, so it is never a hit.
    """
    prompt = np.concatenate([each.prompt_tokens for each in requests]).astype(np.int64)
    begun = np.concatenate([~np.isnan(each.first_scheduled_s) for each in requests])
    lengths = np.concatenate([each.prompt_hashes.lengths for each in requests])
    hashes = np.concatenate([each.prompt_hashes.values for each in requests])
    owner = np.repeat(np.arange(len(prompt)), lengths)
    order = np.argsort(np.concatenate([each.arrival_s for each in requests]), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    is_looked_up = begun[owner]
    owner, hashes = owner[is_looked_up], hashes[is_looked_up]
    by_arrival = np.argsort(rank[owner], kind="stable")
    is_first = np.zeros(len(hashes), np.bool_)
    is_first[np.unique(hashes[by_arrival], return_index=True)[1]] = True
    num_repeated = np.bincount(owner[by_arrival][~is_first], minlength=len(prompt))
    size = meta.hash_block_size
    return int(np.minimum(num_repeated, (prompt - 1) // size).sum() * size)
