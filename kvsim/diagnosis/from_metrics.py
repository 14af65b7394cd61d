"""Diagnosis of a server by its metrics alone, and a list of what metrics do not show.

Metrics show how often requests are preempted and how full the pool is, but neither single requests nor the settings. So
the diagnosis has a verdict but no simulated remedies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.live.cache_words import cache_facts, cache_limits
from kvsim.live.server_load import ServerLoad, load_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.live.kv_event_feed import CacheState
    from kvsim.live.metrics import ServerMetrics

_FULL = 0.95
"""Usage, 0 to 1, above which the pool counts as full, because polls rarely meet the highest usage."""


_LIMITS = {
    "vLLM": ("max_num_seqs", "max_num_batched_tokens"),
    "SGLang": ("max_running_requests", "schedule_conservativeness", "max_prefill_tokens"),
}
"""Settings of each kind of server that can hold requests back while memory is free."""
_SHARES = {"vLLM": "gpu_memory_utilization", "SGLang": "mem_fraction_static"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsDiagnosis:
    """Diagnosis of a server from several polls of its metrics."""

    load: ServerLoad
    verdict: str
    facts: tuple[str, ...]
    unknown: tuple[str, ...]
    """Clauses on what the metrics do not show."""
    to_record: str
    """Command that records what the metrics lack."""

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis for JSON."""
        now = self.load.now
        return {
            "verdict": self.verdict,
            "facts": list(self.facts),
            "unknown": list(self.unknown),
            "to_record": self.to_record,
            "usage": now.usage,
            "running": now.running,
            "waiting": now.waiting,
            "preemptions": now.preemptions,
            "preemptions_per_min": self.load.preemptions_per_min,
            "num_blocks": now.num_blocks,
        }


def diagnose_metrics(polls: Sequence[ServerMetrics], cache: CacheState | None = None) -> MetricsDiagnosis:
    """Diagnose a server from at least one of its successive polls.

    `cache` has what its KV events show; None if they were not followed.
    """
    load = load_of(polls)
    now = load.now
    facts = [f"{100 * now.usage:.0f} % of the pool is in use{_blocks(now)}; {now.running:,} run, {now.waiting:,} wait"]
    if load.preemptions_per_min is not None:
        facts.append(
            f"{load.preemptions_per_min:,.0f} preemptions a minute over {load.window_s:,.0f} s, {now.preemptions:,} "
            "since the server started"
        )
    if now.finished:
        each = f"{now.preemptions / now.finished:.2f} preemptions for each request that finished"
        lengths = (
            f"{now.prompt_tokens / now.finished:,.0f} prompt tokens and {now.generation_tokens / now.finished:,.0f}"
        )
        facts.append(f"{each}; {lengths} of output a request on average, preempted prompts counted again")
    if load.hit_share is not None:
        facts.append(_hits(load.hit_share, now.block_size))
    limits: tuple[str, ...] = ()
    if cache is not None:
        facts += cache_facts(cache, now.num_blocks)
        limits = cache_limits(cache)
    return MetricsDiagnosis(
        load=load,
        verdict=_verdict(polls, load),
        facts=tuple(facts),
        unknown=(
            "which request took whose blocks, and when",
            "how many computed tokens each preemption lost",
            "the lengths of single requests, and so what a setting would change",
            f"{', '.join(_LIMITS[now.server])} and {_SHARES[now.server]}",
            *limits,
        ),
        to_record=_to_record(now),
    )


def _to_record(now: ServerMetrics) -> str:
    if now.server == "SGLang":
        return "kvsim run --policy radix simulates a load on SGLang; it records no server of SGLang"
    return (
        f"KVSIM_RECORD=runs/mine vllm serve {now.model or 'MODEL'} "
        "--scheduler-cls kvsim.capture.vllm.RecordingScheduler; then kvsim diagnose runs/mine"
    )


def _hits(share: float, block_size: int | None) -> str:
    found = f"{100 * share:.0f} % of prompt tokens were found in the prefix cache"
    if share:
        return found
    block = f" of {block_size:,} tokens" if block_size else ""
    return (
        f"{found}: no prompt begins with the same full block{block} as an earlier one, or that block was evicted before"
    )


def _verdict(polls: Sequence[ServerMetrics], load: ServerLoad) -> str:
    now, often = load.now, load.preemptions_per_min
    if often:
        return f"Memory is short: {often:,.0f} preemptions a minute, and {now.waiting:,} requests wait."
    if _waiting_for_room(now):
        return _why_waiting([_waiting_for_room(poll) for poll in polls], now)
    if now.waiting:
        return f"{now.waiting:,} requests wait for something else than memory: a KV transfer or a LoRA adapter."
    if now.preemptions and often is None:
        return f"Nothing waits now; {now.preemptions:,} preemptions since the server started. Look for longer."
    return "Nothing waits and nothing is preempted now."


def _why_waiting(for_room: list[int], now: ServerMetrics) -> str:
    """Return a sentence on whether requests wait for memory or because of the scheduler.

    `for_room` has, for each poll, the number of requests that wait for memory or for a place in the batch. `now` is the
    last poll.
    """
    if now.fullest_usage >= _FULL:
        return f"Memory is short: the pool is full and {for_room[-1]:,} requests wait."
    free = f"{100 * (1 - now.fullest_usage):.0f} % of the pool is free"
    if all(for_room):
        return (
            f"{for_room[-1]:,} requests wait although {free}: a limit of the scheduler holds them back "
            f"({' or '.join(_LIMITS[now.server])})."
        )
    return (
        f"{for_room[-1]:,} requests wait now although {free}, and none did in {for_room.count(0):,} of "
        f"{len(for_room):,} looks: nothing holds requests back for long."
    )


def _waiting_for_room(poll: ServerMetrics) -> int:
    return max(poll.waiting - poll.deferred, 0)


def _blocks(now: ServerMetrics) -> str:
    if now.num_blocks is None:
        return ""
    tokens = f" of {now.block_size} tokens" if now.block_size else ""
    return f" ({round(now.usage * now.num_blocks):,} of {now.num_blocks:,} blocks{tokens})"
