"""Sentences on the prefix cache of a server by its KV events, and on the limits of these events."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.live.kv_event_feed import CacheLook

_PUBLISH = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq"}\' with vLLM, '
    '\'{"publisher": "zmq"}\' with SGLang'
)


def cache_facts(look: CacheLook, num_blocks: int | None) -> tuple[str, ...]:
    """Return sentences on the cached blocks, the time for which blocks stay cached, and shared prefixes.

    `num_blocks` is the number of blocks in the pool; None if unknown.
    """
    of = f" of {num_blocks:,}" if num_blocks else ""
    share = f", {100 * look.num_blocks / num_blocks:.0f} % of the pool" if num_blocks else ""
    since = "since the server started" if look.from_start else "since kvsim listens"
    facts = [
        f"at least {look.num_blocks:,} blocks{of} keep a prefix{share}: {look.num_tokens:,} tokens"
        if look.lost or not look.from_start
        else f"{look.num_blocks:,} blocks{of} keep a prefix{share}: {look.num_tokens:,} tokens",
        f"{look.num_stored:,} blocks were stored and {look.num_removed:,} removed {since}"
        + (f"; all were cleared {look.num_cleared:,} times" if look.num_cleared else ""),
    ]
    if look.blocks_of_ranks:
        facts.append(f"by data-parallel rank: {', '.join(f'{number:,}' for number in look.blocks_of_ranks)} blocks")
    if look.ages_s:
        facts.append(
            f"half of the last {len(look.ages_s):,} removed blocks had been cached for more than "
            f"{median(look.ages_s):,.3g} s: a prompt that comes back later finds less"
        )
    facts += [f"{tokens:,} tokens are a prefix that {ways:,} blocks continue" for tokens, ways in look.shared]
    facts += [f"{number:,} blocks are in {medium}" for medium, number in look.elsewhere]
    return tuple(facts)


def cache_limits(look: CacheLook) -> tuple[str, ...]:
    """Return clauses on what the events do not contain, and on what was lost."""
    limits = [
        "which request holds a block, and the blocks that keep no prefix: events are about the prefix cache alone"
    ]
    if not look.num_batches:
        limits.append(f"anything yet: no event has come. A server publishes with {_PUBLISH}")
    elif look.silent_ranks:
        ranks = ", ".join(map(str, look.silent_ranks))
        limits.append(f"anything of data-parallel rank {ranks}: no event has come from there")
    if look.num_batches and not look.from_start:
        limits.append(
            "blocks that were cached before kvsim listened; with a replay_endpoint in the server's --kv-events-config, "
            "--kv-events-replay asks for them"
        )
    if look.lost:
        limits.append(f"what {look.lost:,} lost batches said: blocks may be gone, or there, that are not counted so")
    if look.restarts:
        limits.append(f"what was before the server's last start; it began anew {look.restarts:,} times")
    return tuple(limits)
