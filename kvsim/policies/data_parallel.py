"""The rank of a data-parallel server that gets the next request, as vLLM's front end chooses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from kvsim.policies.releases import rules_of

_WAITING_WEIGHT = 4
"""Weight of a waiting request beside a running one, in the older score."""
_PRESSURE_WEIGHT, _FREE_USAGE = 6.0, 0.5
"""Weight of a waiting request on a full rank, and the usage of the pool from which on it counts."""
COUNTS_EVERY_S = 0.1
"""Seconds between two reports of the coordinator, where anything changed: vLLM's."""


def steps_between_syncs(release: str) -> int:
    """Return the steps after which ranks that share experts agree whether any has requests left.

    16 in vLLM 0.33 and 32 in 0.25.1; which release in between changed it was not read, and the rule of balancing that
    changed in between is taken for it.
    """
    return 16 if rules_of(release).balances_own else 32


@dataclass(slots=True, kw_only=True)
class RankBalancer:
    """One front end: the last counts of the ranks, and the requests sent to each.

    The counts are those of the coordinator's last report, and grow with every request that is sent.
    """

    counts: list[list[float]]
    """Waiting and running requests and the usage of the pool of each rank."""
    num_clients: int = 1
    """Front ends that send to the same ranks."""
    start: int = 0
    """The rank that is looked at first."""
    counts_own: bool = True
    """Requests that were sent and not answered count at least, and waiting ones by the usage of the pool."""
    in_flight: list[int] = field(default_factory=list)
    """Requests that this front end has sent to each rank and that were not answered."""

    @classmethod
    def of(cls, release: str, num_ranks: int, *, num_clients: int = 1, client: int = 0) -> Self:
        """Return front end number `client` of `num_clients`, which has heard nothing of `num_ranks` idle ranks."""
        return cls(
            counts=[[0, 0, 0.0] for _ in range(num_ranks)],
            num_clients=num_clients,
            start=num_ranks * client // num_clients,
            counts_own=rules_of(release).balances_own,
            in_flight=[0] * num_ranks,
        )

    def choose(self, rank: int | None = None) -> int:
        """Return the rank that gets the next request, and count it there; a given `rank` is taken as it is."""
        if rank is None:
            size = len(self.counts)
            rank = min(((self.start + offset) % size for offset in range(size)), key=self._score)
            self.counts[rank][0] += self.num_clients
            self.start = (self.start + 1) % size
        if self.counts_own:
            self.in_flight[rank] += 1
        return rank

    def answered(self, rank: int) -> None:
        """Note that a request on a rank has its last output."""
        if self.counts_own:
            self.in_flight[rank] -= 1

    def _score(self, rank: int) -> float:
        """Return the load of a rank; of equal ones, the first that is looked at is chosen."""
        waiting, running, usage = self.counts[rank]
        if not self.counts_own:
            return _WAITING_WEIGHT * waiting + running
        pressure = _PRESSURE_WEIGHT * max(0.0, usage - _FREE_USAGE) if waiting else 0.0
        return max(self.num_clients * self.in_flight[rank], waiting + running) + waiting * pressure
