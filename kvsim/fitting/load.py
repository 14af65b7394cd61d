"""What a server is asked for: requests that arrive at their own times, or users who wait for their answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.prefix_keys import prompt_keys
from kvsim.metrics.steady import Steadiness, SteadyPart
from kvsim.recording import RequestStatus
from kvsim.workload import Ragged, Workload
from kvsim.workload.checks import SCALAR_COLUMNS

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.simulation import Measured

_ROUNDS = 4
"""Requests of each user in a closed loop: the first of each, sent by all at once, are left out, as are the last, whose
company has gone."""
_LEAST_REQUESTS = 200
_MOST_REQUESTS, _MOST_TOKENS = 20_000, 4_000_000
"""Requests, and output tokens of them, that a load is repeated to where its rate does not settle before."""
_MOST_AT_ONCE = 8
"""Times as many requests as before that are tried next."""
_ENOUGH = 6.0
"""Times for which a request runs that requests should arrive for."""
_UNIT_TOKENS = 16
"""Tokens that a hash stands for which is made of token ids."""
_BEYOND_KEYS = 44
"""Bit of a hash at which the number of the repetition is put."""


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
    repeats: bool = True
    """Whether an open loop goes on with the same requests until the server has settled; False where the run of exactly
    these is of interest, as that of a recording."""
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

    def longer(self, part: SteadyPart) -> Load | None:
        """This load for longer, where `part` of its run was too short to tell; None where it goes on long enough, or
        no longer will do.
        """
        if not self.is_judged_steady or part.steadiness is not Steadiness.SHORT:
            return None
        now, tokens = len(self.workload), float(self.workload.output_tokens.mean())
        most = min(_MOST_REQUESTS, int(_MOST_TOKENS / tokens))
        times = min(max(_ENOUGH * part.running_s / part.arriving_s, 2.0), _MOST_AT_ONCE)
        if now >= most:
            return None
        return replace(self, workload=repeated(self.workload, min(int(np.ceil(now * times)), most)))

    @property
    def is_judged_steady(self) -> bool:
        """Whether what it meets is judged once the server has settled."""
        return self.repeats and self.users is None

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
    """`num_requests` requests: the first ones, or all over and over, as far apart as they were.

    What only one prompt begins with is new every time; what several begin with, such as a system prompt, they share.
    """
    if num_requests <= len(workload):
        return workload.head(num_requests)
    rows, times = np.arange(num_requests) % len(workload), np.arange(num_requests) // len(workload)
    lasts_s = float(np.ptp(workload.arrival_s)) * len(workload) / max(len(workload) - 1, 1)
    hashes, unit_tokens = workload.prompt_hashes, workload.hash_unit_tokens
    if workload.prompt_token_ids is not None:
        unit_tokens = _UNIT_TOKENS
        hashes = prompt_keys(workload, unit_tokens)
    taken = hashes.take(rows)
    _, which, count = np.unique(taken.values[: len(hashes.values)], return_inverse=True, return_counts=True)
    is_own = np.resize(count[which] == 1, len(taken.values)) if len(which) else np.empty(0, np.bool_)
    again = np.repeat(times, taken.lengths) * is_own
    return Workload(
        arrival_s=workload.arrival_s[rows] + times * lasts_s,
        **{name: getattr(workload, name)[rows] for name in SCALAR_COLUMNS if name != "arrival_s"},
        prefix_names=workload.prefix_names,
        prompt_hashes=Ragged(taken.values ^ again << _BEYOND_KEYS, taken.offsets, np.int64),
        hash_unit_tokens=unit_tokens,
        name=workload.name,
        description=workload.description,
    )


def steady(load: Load, measured: Measured, part: SteadyPart) -> npt.NDArray[np.int64]:
    """Rows of the requests that met the server at work: neither the first rush nor the last stragglers."""
    requests = measured.requests
    order = np.argsort(requests.arrival_s, kind="stable")
    rows: npt.NDArray[np.int64] = order[requests.status[order] == RequestStatus.FINISHED]
    if load.is_judged_steady and part.steadiness is Steadiness.STEADY:
        return rows[requests.arrival_s[rows] >= part.begin_s]
    first, end = len(rows) // 10, len(rows)
    if load.users is not None:
        share = load.users * len(rows) // max(len(load.workload), 1)
        first, end = (share, len(rows) - share) if len(rows) >= 3 * share > 0 else (0, len(rows))
    return rows[first:end]
