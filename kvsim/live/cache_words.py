"""Sentences on the prefix cache of a server by its KV events, and on the limits of these events."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.live.kv_event_feed import CacheState

_PUBLISH = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq"}\' with vLLM, '
    '\'{"publisher": "zmq"}\' with SGLang'
)


def cache_facts(state: CacheState, num_blocks: int | None) -> tuple[str, ...]:
    """Return sentences on the cached blocks, the time for which blocks stay cached, and shared prefixes.

    `num_blocks` is the number of blocks in the pool; None if unknown.
    """
    of = f" of {num_blocks:,}" if num_blocks else ""
    share = f", {100 * state.num_blocks / num_blocks:.0f} % of the pool" if num_blocks else ""
    since = "since the server started" if state.from_start else "since kvsim listens"
    facts = [
        f"at least {state.num_blocks:,} blocks{of} keep a prefix{share}: {state.num_tokens:,} tokens"
        if state.lost or not state.from_start
        else f"{state.num_blocks:,} blocks{of} keep a prefix{share}: {state.num_tokens:,} tokens",
        f"{state.num_stored:,} blocks were stored and {state.num_removed:,} removed {since}"
        + (f"; all were cleared {state.num_cleared:,} times" if state.num_cleared else ""),
    ]
    if state.blocks_of_ranks:
        facts.append(f"by data-parallel rank: {', '.join(f'{number:,}' for number in state.blocks_of_ranks)} blocks")
    if state.lifetimes_s:
        facts.append(
            f"half of the last {len(state.lifetimes_s):,} removed blocks had been cached for more than "
            f"{median(state.lifetimes_s):,.3g} s: a prompt that comes back later finds less"
        )
    facts += [f"{tokens:,} tokens are a prefix that {ways:,} blocks continue" for tokens, ways in state.shared]
    facts += [f"{number:,} blocks are in {medium}" for medium, number in state.elsewhere]
    return tuple(facts)


def cache_limits(state: CacheState) -> tuple[str, ...]:
    """Return clauses on what the events do not contain, and on what was lost."""
    limits = [
        "which request holds a block, and the blocks that keep no prefix: events are about the prefix cache alone"
    ]
    if not state.num_batches:
        limits.append(f"anything yet: no event has come. A server publishes with {_PUBLISH}")
    elif state.silent_ranks:
        ranks = ", ".join(map(str, state.silent_ranks))
        limits.append(f"anything of data-parallel rank {ranks}: no event has come from there")
    if state.num_batches and not state.from_start:
        limits.append(
            "blocks that were cached before kvsim listened; with a replay_endpoint in the server's --kv-events-config, "
            "--kv-events-replay asks for them"
        )
    if state.lost:
        limits.append(f"what {state.lost:,} lost batches said: blocks may be gone, or there, that are not counted so")
    if state.restarts:
        limits.append(f"what was before the server's last start; it began anew {state.restarts:,} times")
    return tuple(limits)
