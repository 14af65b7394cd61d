"""What a server is asked for: requests that arrive at their own times, or users who wait for their answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording import RequestStatus
from kvsim.workload import Workload

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.simulation import Measured

_ROUNDS = 4
"""Requests of each user in a closed loop: the first of each, sent by all at once, are left out, as are the last, whose
company has gone."""
_LEAST_REQUESTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, and who sends them."""

    workload: Workload
    users: int | None = None
    """So many users, each of whom sends the next request when the last is answered; None: requests arrive when the
    workload says."""
    think_s: float = 0.0
    """Seconds between an answer and a user's next request."""
    stamp_at_entry: bool = False
    """Times of arrival are those at which an engine had let a request in, as in a recording of one."""
    asked_rate_per_s: float | None = None
    """Requests per second of an open loop that was asked for; None: as they arrive."""

    def of_users(self, users: int) -> Load:
        """The requests of this load, sent by another number of users: each sends as many, taken anew from the
        beginning where there are not enough.
        """
        per_user = max(len(self.workload) / (self.users or users), 1.0)
        wanted = max(round(per_user * users), min(_LEAST_REQUESTS, len(self.workload)))
        return replace(self, workload=repeated(self.workload, wanted), users=users)

    def at_rate(self, factor: float) -> Load:
        """The requests of this load, arriving `factor` times as fast."""
        asked = None if self.asked_rate_per_s is None else self.asked_rate_per_s * factor
        return replace(self, workload=self.workload.scaled_rate(factor), asked_rate_per_s=asked)

    @property
    def rate_per_s(self) -> float | None:
        """Arrivals per second; None in a closed loop, or where all arrive at once."""
        if self.users is not None:
            return None
        return self.asked_rate_per_s or self.workload.summary().rate_per_s


def requests_for(users: int) -> int:
    """How many requests show what so many users meet."""
    return max(_ROUNDS * users, _LEAST_REQUESTS)


def repeated(workload: Workload, num_requests: int) -> Workload:
    """`num_requests` requests: the first ones, or all over and over, arriving when the first ones did."""
    if num_requests <= len(workload):
        return workload.head(num_requests)
    rows = np.arange(num_requests) % len(workload)
    return Workload(
        arrival_s=np.sort(workload.arrival_s[rows]),
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        max_tokens=workload.max_tokens[rows],
        priority=workload.priority[rows],
        name=workload.name,
        description=workload.description,
    )


def steady(load: Load, measured: Measured) -> npt.NDArray[np.int64]:
    """Rows of the requests that met the server at work: neither the first rush nor the last stragglers."""
    requests = measured.requests
    order = np.argsort(requests.arrival_s, kind="stable")
    rows: npt.NDArray[np.int64] = order[requests.status[order] == RequestStatus.FINISHED]
    first, end = len(rows) // 10, len(rows)
    if load.users is not None:
        share = load.users * len(rows) // max(len(load.workload), 1)
        first, end = (share, len(rows) - share) if len(rows) >= 3 * share > 0 else (0, len(rows))
    return rows[first:end]
