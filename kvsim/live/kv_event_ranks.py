"""KV events of every data-parallel rank of a server, added up for the whole server.

vLLM and SGLang publish the events of each rank at a separate port: the configured port plus the rank.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError
from kvsim.live.kv_event_feed import CacheState, KvEventFeed

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANGE = re.compile(r"(?P<before>.*?)(?P<first>\d{1,5})-(?P<last>\d{1,5})")
_MOST_RANKS = 1_024
_MOST_SHARED = 3
_COUNTS = (
    "num_blocks", "num_tokens", "num_stored", "num_removed", "num_cleared", "num_batches", "lost", "replayed",
    "restarts",
)  # fmt: skip


class KvEventRanks:
    """Feeds of all ranks of a server, followed until `close`."""

    def __init__(self, address: str, *, replay: str | None = None) -> None:
        """Subscribe at the addresses of all ranks, such as HOST:5557-5560 for four ranks.

        `replay` has as many replay endpoints, in the same form; None if there are none.
        """
        addresses, replays = ports_of(address), ports_of(replay) if replay else []
        if replays and len(replays) != len(addresses):
            raise UsageError(
                f"--kv-events has {len(addresses)} ports and --kv-events-replay {len(replays)}; a rank has one of each."
            )
        self._feeds: list[KvEventFeed] = []
        try:
            for rank, each in enumerate(addresses):
                self._feeds.append(KvEventFeed(each, replay=replays[rank] if replays else None))
        except Exception:
            self.close()
            raise

    @property
    def ended(self) -> str | None:
        """Reason for the end of the first feed that ended, as a sentence; None while all are open."""
        return next((feed.ended for feed in self._feeds if feed.ended), None)

    def state(self) -> CacheState:
        """Return the state of all ranks together, as of the last batch of each."""
        return added_up([feed.state() for feed in self._feeds])

    def close(self) -> None:
        """End all subscriptions."""
        for feed in self._feeds:
            feed.close()


def ports_of(address: str) -> list[str]:
    """Return the address of each port of a range such as HOST:5557-5560; for any other text, the text alone."""
    found = _RANGE.fullmatch(address)
    if found is None:
        return [address]
    ports = range(int(found["first"]), int(found["last"]) + 1)
    if not 1 <= len(ports) <= _MOST_RANKS:
        raise UsageError(f"{address!r} should name 1 to {_MOST_RANKS:,} ports, the first one first, such as 5557-5560.")
    return [f"{found['before']}{port}" for port in ports]


def added_up(states: Sequence[CacheState]) -> CacheState:
    """Combine the states of several ranks: sums of counts, and the ages of removed blocks of all ranks.

    The time since the last batch is the longest of any rank.
    """
    if len(states) == 1:
        return states[0]

    totals: dict[str, Any] = {name: sum(getattr(state, name) for state in states) for name in _COUNTS}
    media = sorted({medium for state in states for medium, _ in state.elsewhere})
    shared = sorted((each for state in states for each in state.shared), key=lambda each: -each[1])
    return replace(
        states[0],
        **totals,
        elsewhere=tuple((medium, sum(dict(state.elsewhere).get(medium, 0) for state in states)) for medium in media),
        lifetimes_s=tuple(age_s for state in states for age_s in state.lifetimes_s),
        shared=tuple(shared[:_MOST_SHARED]),
        from_start=all(state.from_start for state in states),
        quiet_s=max(state.quiet_s for state in states),
        blocks_of_ranks=tuple(state.num_blocks for state in states),
        silent_ranks=tuple(rank for rank, state in enumerate(states) if not state.num_batches),
    )
