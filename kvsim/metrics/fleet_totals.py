"""Sum up several servers behind one router: what clients see, who is busy, and what is held more than once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.metrics.request_times import Distribution, latencies_of

if TYPE_CHECKING:
    from kvsim.metrics.summary import Summary
    from kvsim.recording import Meta
    from kvsim.recording.tables import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """Sums over the servers of a fleet; rates and latencies are those of all requests."""

    num_servers: int
    duration_s: float
    """Seconds until the last server is done."""
    num_finished: int
    num_lost: int
    """Requests that were refused, aborted or not finished."""
    num_preemptions: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    mean_waiting: float
    """Waiting requests of all servers, on average over each server's run."""
    block_bytes: int
    """Bytes of a block, or of another unit of the pools, on all GPUs of a server."""
    pool_bytes: int
    """Bytes of all servers' pools, on all of their GPUs."""
    mean_occupancy: float
    """Share of the servers' pools that is held, 0 to 1, on average."""
    peak_occupancy: float
    """Share of the fullest pool that was held at most."""
    imbalance: float
    """Tokens that the busiest server computed, divided by the mean of all servers of its kind; 1 is balanced."""
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    prefix_hit_rate: float
    one_pool_hit_tokens: int
    """Prompt tokens that one pool for all servers would find if it never forgot: no routing finds more."""
    mean_duplicate_bytes: float
    """Bytes of cached prefixes that another server holds, too, on average; each prefix counts once less."""
    most_duplicate_bytes: int
    num_prefill: int = 0
    """Servers that compute prompts for the others; 0 where each does both. Prefix hits are theirs."""
    fetched_bytes: int = 0
    """Bytes of KV that servers have fetched from each other, on each GPU."""
    idle_steps: tuple[int, ...] = ()
    """Steps without a batch of each data-parallel rank that waited for others; empty where none waits."""
    store: Mapping[str, int] | None = None
    """Blocks that a shared store of prefixes loaded, wrote, evicted, held at most and can hold; None without one."""

    def as_dict(self) -> dict[str, Any]:
        """Return the totals for JSON; what is not known is null."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def fleet_totals(
    meta: Meta,
    summaries: Sequence[Summary],
    requests: Sequence[Requests],
    *,
    mean_duplicate_blocks: float,
    most_duplicate_blocks: int,
    num_prefill: int = 0,
    clients: Sequence[Requests] = (),
    fetched_blocks: int = 0,
    idle_steps: tuple[int, ...] = (),
    store: Mapping[str, int] | None = None,
) -> FleetTotals:
    """Add up the `summaries` and `requests` of the servers of a fleet, which are alike, as `meta` describes them.

    The first `num_prefill` servers compute prompts for the others, whose requests are `clients` as clients see them.
    """
    answering, finding = summaries[num_prefill:], summaries[:num_prefill] or summaries
    kinds = [kind for kind in (summaries[:num_prefill], answering) if kind]
    duration_s = max(summary.duration_s for summary in summaries)
    output_tokens = sum(summary.output_tokens for summary in answering)
    queried = sum(summary.prefix_queried_tokens for summary in finding)
    hits = sum(summary.prefix_hit_tokens for summary in finding)
    block_bytes = meta.model.get("tensor_parallel_size", 1) * meta.pool.bytes_per_unit
    requests = requests[:num_prefill] or requests
    times = [latencies_of(each) for each in clients or requests]
    return FleetTotals(
        num_servers=len(summaries),
        duration_s=duration_s,
        num_finished=sum(summary.num_finished for summary in answering),
        num_lost=sum(summary.num_refused + summary.num_aborted + summary.num_unfinished for summary in answering),
        num_preemptions=sum(summary.num_preemptions for summary in summaries),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s if duration_s else np.nan,
        **{
            name: Distribution.of(np.concatenate([getattr(each, name) for each in times]))
            for name in ("ttft_s", "tpot_s", "e2e_s")
        },
        mean_waiting=float(np.nansum([summary.mean_waiting for summary in summaries])),
        block_bytes=block_bytes,
        pool_bytes=len(summaries) * (meta.pool.num_units or 0) * block_bytes,
        mean_occupancy=float(np.nanmean([np.nan_to_num(summary.mean_occupancy) for summary in summaries])),
        peak_occupancy=max(float(np.nan_to_num(summary.peak_occupancy)) for summary in summaries),
        imbalance=max((_imbalance(kind) for kind in kinds), default=np.nan),
        prefix_queried_tokens=queried,
        prefix_hit_tokens=hits,
        prefix_hit_rate=hits / queried if queried else 0.0,
        one_pool_hit_tokens=_one_pool_hit_tokens(meta, requests) if queried else 0,
        mean_duplicate_bytes=mean_duplicate_blocks * meta.pool.bytes_per_unit,
        most_duplicate_bytes=most_duplicate_blocks * meta.pool.bytes_per_unit,
        num_prefill=num_prefill,
        fetched_bytes=fetched_blocks * meta.pool.bytes_per_unit,
        idle_steps=idle_steps,
        store=store,
    )


def _imbalance(summaries: Sequence[Summary]) -> float:
    """Return the tokens that the busiest server computed, divided by the mean of all."""
    computed = np.array([summary.computed_tokens for summary in summaries], np.int64)
    return float(computed.max() / computed.mean()) if computed.any() else np.nan


def _one_pool_hit_tokens(meta: Meta, requests: Sequence[Requests]) -> int:
    """Count the prompt tokens that an earlier prompt of any server began with, in full blocks.

    Hashes are chained, so the blocks before a block that was seen were seen, too. The last token of a prompt is
    always computed.
    """
    prompt = np.concatenate([each.prompt_tokens for each in requests]).astype(np.int64)
    begun = np.concatenate([~np.isnan(each.first_scheduled_s) for each in requests])
    lengths = np.concatenate([each.prompt_hashes.lengths for each in requests])
    hashes = np.concatenate([each.prompt_hashes.values for each in requests])
    owner = np.repeat(np.arange(len(prompt)), lengths)
    order = np.argsort(np.concatenate([each.arrival_s for each in requests]), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    kept = begun[owner]
    owner, hashes = owner[kept], hashes[kept]
    by_arrival = np.argsort(rank[owner], kind="stable")
    first = np.zeros(len(hashes), np.bool_)
    first[np.unique(hashes[by_arrival], return_index=True)[1]] = True
    num_seen = np.bincount(owner[by_arrival][~first], minlength=len(prompt))
    size = meta.hash_block_size
    return int(np.minimum(num_seen, (prompt - 1) // size).sum() * size)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
