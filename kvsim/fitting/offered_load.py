"""Load for which `kvsim fit` checks a server: requests with arrival times (an open loop), or users (a closed loop).

An open loop is repeated until it is long enough to judge the server after its warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvsim.engine.paged.prefix_keys import prompt_keys
from kvsim.errors import UsageError, shortened
from kvsim.metrics.steady import FEWEST_REQUESTS, Steadiness, SteadyPart
from kvsim.recording import RequestStatus
from kvsim.setting_fields import is_finite, whole_number
from kvsim.workload import Images, Ragged, Turns, Workload
from kvsim.workload.request_rules import SCALAR_COLUMNS
from kvsim.workload.synthetic import MOST_REQUESTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.simulation import Measured

Column: TypeAlias = "npt.NDArray[np.int64]"

_ROUNDS = 4
"""Number of requests of each user in a closed loop. The first and the last request of each user do not count."""
_LEAST_REQUESTS = 200
_MOST_REQUESTS, _MOST_TOKENS = 20_000, 4_000_000
"""Maximum numbers of requests and of output tokens of a load that is repeated until its rate settles."""
_MOST_AT_ONCE = 8
"""Largest factor by which a load is made longer after one simulation."""
_AIMED_RUN_TIMES = 6.0
"""Duration of the arrivals that a longer load aims for, in multiples of a request's mean running time."""
_UNIT_TOKENS = 16
"""Number of tokens per hash, if hashes are made from token ids."""
_BEYOND_KEYS = 44
"""Lowest bit of the part of a hash that holds the number of the repetition, so that repeated prompts differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, and how they are sent."""

    workload: Workload
    users: int | None = None
    """Number of users; None for an open loop. A user sends each request after the answer to the request before."""
    think_s: float = 0.0
    """Seconds between an answer and the next request of the same user."""
    stamp_at_entry: bool = False
    """True if arrival times are the times at which an engine took the requests, as in a recording of the engine."""
    repeats: bool = True
    """True if an open loop repeats its requests until its output rate settles; False for exactly these requests."""
    asked_rate_per_s: float | None = None
    """Requested rate of an open loop, in requests per second; None if no rate was requested."""

    def __post_init__(self) -> None:
        if self.users is not None and whole_number("users", self.users) > MOST_REQUESTS:
            raise UsageError(f"users should be at most {MOST_REQUESTS:,}, not {shortened(self.users)}.")
        if not (is_finite(self.think_s) and self.think_s >= 0):
            raise UsageError(f"think_s should be a number of seconds, 0 or more, not {shortened(self.think_s)}.")

    def of_users(self, users: int) -> Load:
        """Return this load with another number of users. Each user sends about as many requests as before."""
        per_user = max(len(self.workload) / (self.users or users), 1.0)
        wanted = max(round(per_user * users), min(_LEAST_REQUESTS, len(self.workload)))
        return replace(self, workload=repeated(self.workload, wanted), users=users)

    def at_rate(self, factor: float) -> Load:
        """Return the requests of this load with the arrival rate multiplied by `factor`."""
        asked = None if self.asked_rate_per_s is None else self.asked_rate_per_s * factor
        return replace(self, workload=self.workload.scaled_rate(factor), asked_rate_per_s=asked)

    def longer(self, part: SteadyPart) -> Load | None:
        """Return a longer load if `part`, the steady part of a run of this load, is too short to judge the server.

        Return None if it is long enough, or if the load already has the maximum length.
        """
        if not self.is_judged_steady or part.steadiness is not Steadiness.SHORT:
            return None
        now, tokens = len(self.workload), float(self.workload.output_tokens.mean())
        most = min(_MOST_REQUESTS, int(_MOST_TOKENS / tokens))
        times = min(max(_AIMED_RUN_TIMES * part.running_s / part.arriving_s, 2.0), _MOST_AT_ONCE)
        if now >= most:
            return None
        wanted = max(int(np.ceil(now * times)), FEWEST_REQUESTS)  # fewer have no rate
        return replace(self, workload=repeated(self.workload, min(wanted, most)))

    @property
    def is_judged_steady(self) -> bool:
        """True if the load is an open loop that is repeated until its output rate settles."""
        return self.repeats and self.users is None

    @property
    def rate_per_s(self) -> float | None:
        """Requests that arrive per second; None in a closed loop, or if all arrive at once."""
        if self.users is not None:
            return None
        return self.asked_rate_per_s or self.workload.summary().rate_per_s


def requests_for(users: int) -> int:
    """Return the number of requests to simulate for `users` users, so that enough come after the warm-up."""
    return max(_ROUNDS * users, _LEAST_REQUESTS)


def repeated(workload: Workload, num_requests: int) -> Workload:
    """Return the first `num_requests` requests of `workload`. If it has fewer, all its requests are repeated in turn.

    Sessions are never cut, so there may be more requests than asked for. If only one prompt has a prefix or an image,
    the prefix or image is new in every repetition. If several prompts have it, all repetitions share it.
    """
    if num_requests <= len(workload) and workload.turns is None:
        return workload.head(num_requests)
    turns, num_arrivals = workload.turns, len(workload)
    if turns is None:
        rows, times = np.arange(num_requests) % len(workload), np.arange(num_requests) // len(workload)
    else:
        rows, times = _whole_sessions(turns, num_requests)
        turns, num_arrivals = _again(turns, rows, times), int((turns.after < 0).sum())
    lasts_s = float(np.ptp(workload.arrival_s)) * num_arrivals / max(num_arrivals - 1, 1)
    hashes, unit_tokens, ahead = workload.prompt_hashes, workload.hash_unit_tokens, workload.hash_ahead_tokens
    if workload.prompt_token_ids is not None:
        unit_tokens, ahead = _UNIT_TOKENS, 0
        hashes = prompt_keys(workload, unit_tokens)
    taken = hashes.take(rows)
    _, which, count = np.unique(taken.values[: len(hashes.values)], return_inverse=True, return_counts=True)
    is_unique = np.resize(count[which] == 1, len(taken.values)) if len(which) else np.empty(0, np.bool_)
    again = np.repeat(times, taken.lengths) * is_unique  # the number of the repetition, 0 for shared prefixes
    return Workload(
        arrival_s=workload.arrival_s[rows] + times * lasts_s,
        **{name: getattr(workload, name)[rows] for name in SCALAR_COLUMNS if name != "arrival_s"},
        prefix_names=workload.prefix_names,
        prompt_hashes=Ragged(taken.values ^ again << _BEYOND_KEYS, taken.offsets, np.int64),
        hash_unit_tokens=unit_tokens,
        hash_ahead_tokens=ahead,
        images=_images_again(workload, rows, times),
        turns=turns,
        name=workload.name,
        description=workload.description,
    )


def _images_again(workload: Workload, rows: Column, times: Column) -> Images | None:
    """Return the images of the requests `rows`; None without images.

    `times` has the number of the repetition of each request, from 0. An image of a single prompt or session is new in
    every repetition.
    """
    images = workload.images
    if images is None:
        return None
    user = images.prompt_index if workload.turns is None else workload.turns.session[images.prompt_index]
    contents, num_users = np.unique(np.unique(np.stack((images.content, user)), axis=1)[0], return_counts=True)
    taken = images.take(rows)
    again = times[taken.prompt_index] * np.isin(taken.content, contents[num_users == 1])
    return replace(taken, content=taken.content + again * (int(images.content.max()) + 1))


def _whole_sessions(turns: Turns, num_requests: int) -> tuple[Column, Column]:
    """Return the rows of whole sessions, and the number of the repetition of each row, from 0.

    The sessions have at least `num_requests` requests together.
    """
    session = turns.session
    size = np.bincount(session)
    whole, rest = divmod(num_requests, len(turns))
    last = int(np.searchsorted(np.cumsum(size), rest)) + 1 if rest else 0
    rows = [np.arange(len(turns))] * whole + [np.flatnonzero(session < last)]
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), list(map(len, rows)))


def _again(turns: Turns, rows: Column, times: Column) -> Turns:
    """Return the turns of the requests `rows`. `times` has the number of the repetition of each request, from 0.

    A turn waits for the turn before it in the same repetition.
    """
    place = np.full((int(times[-1]) + 1, len(turns)), -1)
    place[times, rows] = np.arange(len(rows))
    after = turns.after[rows]
    return Turns(
        after=np.where(after < 0, -1, place[times, after]),
        pause_s=turns.pause_s[rows],
        history_tokens=turns.history_tokens[rows],
    )


def steady(load: Load, measured: Measured, part: SteadyPart) -> npt.NDArray[np.int64]:
    """Return the rows in `measured.requests` of the finished requests after the warm-up.

    In a closed loop, the last requests of the users are left out, too.
    """
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
