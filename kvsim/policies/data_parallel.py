"""Choice of the data-parallel rank for the next request, as in vLLM's front end.

The coordinator of the ranks reports their load to the front ends at intervals. Between two reports, a front end adds
the requests that it sends itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from kvsim.policies.releases import rules_of

_WAITING_WEIGHT = 4
"""Weight of a waiting request relative to a running one, in the score before vLLM 0.27; the lowest score is chosen."""
_PRESSURE_WEIGHT, _FREE_USAGE = 6.0, 0.5
"""Factor and threshold of the score from vLLM 0.27 on.

Each waiting request adds the part of the pool usage (0 to 1) above the threshold, multiplied by the factor.
"""
COUNTS_EVERY_S = 0.1
"""Seconds between two reports of the coordinator while loads change. The value is vLLM's."""


def steps_between_syncs(release: str) -> int:
    """Return the number of steps after which ranks that share experts check again whether any rank has requests.

    It is 16 in vLLM 0.33 and 32 in 0.25.1. It is assumed to have changed together with the balancing, in 0.27.
    """
    return 16 if rules_of(release).balances_own else 32


@dataclass(slots=True)
class RankLoad:
    """Load of a rank by the coordinator's last report, plus the requests that this front end has sent to it since.

    Each of these requests counts `num_clients` times, as if all front ends had sent one.
    """

    num_waiting: float = 0
    num_running: float = 0
    usage: float = 0.0
    """Share of the rank's pool that requests hold, 0 to 1."""


@dataclass(slots=True, kw_only=True)
class RankBalancer:
    """One front end: the loads of the ranks as far as it knows them, and the rank that it compares first."""

    loads: list[RankLoad]
    num_clients: int = 1
    """Number of front ends that send to the same ranks."""
    start: int = 0
    """Rank that is compared first, and so is chosen among equal scores. Every choice moves it on by one."""
    counts_own: bool = True
    """True if the score depends on this front end's unanswered requests and on the pool usage, as from vLLM 0.27 on."""
    in_flight: list[int] = field(default_factory=list)
    """Number of unanswered requests of this front end on each rank; always 0 without `counts_own`."""

    @classmethod
    def of(cls, release: str, num_ranks: int, *, num_clients: int = 1, client: int = 0) -> Self:
        """Return the front end with index `client` (from 0) of `num_clients`, without any report of the ranks yet."""
        return cls(
            loads=[RankLoad() for _ in range(num_ranks)],
            num_clients=num_clients,
            start=num_ranks * client // num_clients,
            counts_own=rules_of(release).balances_own,
            in_flight=[0] * num_ranks,
        )

    def choose(self, rank: int | None = None) -> int:
        """Choose the rank of the next request, count the request there, and return the rank.

        If `rank` is given, it is the rank that is chosen.
        """
        if rank is None:
            size = len(self.loads)
            rank = min(((self.start + offset) % size for offset in range(size)), key=self._score)
            self.loads[rank].num_waiting += self.num_clients
            self.start = (self.start + 1) % size
        if self.counts_own:
            self.in_flight[rank] += 1
        return rank

    def answered(self, rank: int) -> None:
        """Record that a request on a rank has got its last output."""
        if self.counts_own:
            self.in_flight[rank] -= 1

    def _score(self, rank: int) -> float:
        load = self.loads[rank]
        waiting, running = load.num_waiting, load.num_running
        if not self.counts_own:
            return _WAITING_WEIGHT * waiting + running
        pressure = _PRESSURE_WEIGHT * max(0.0, load.usage - _FREE_USAGE) if waiting else 0.0
        return max(self.num_clients * self.in_flight[rank], waiting + running) + waiting * pressure
