"""Dispatch of requests to several servers: what a router sees of a server, and prefixes that several servers cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.errors import UsageError
from kvsim.policies import Radix
from kvsim.policies.routers import SEES_PREFIXES, RoutedRequest, RouteName, Router, router_of
from kvsim.simulation.machine import release_of
from kvsim.simulation.server import ServerProcess, distinct

if TYPE_CHECKING:
    from kvsim.simulation.setup import Setup

_FEWEST_SAMPLES, _MOST_SAMPLES = 16, 256
_MOST_READS = 4096
"""Largest number of reads of prefix caches, in all samples together, unless they are under `_FEWEST_SAMPLES`."""

CachedKeys = npt.NDArray[np.int64]
"""Distinct keys of the prefix blocks that one server has cached at one moment."""


class _ServerView:
    """A server as its router sees it while it chooses for one prompt: a `RoutedServer`.

    It shows the server's load now, and a prefix hit that was looked up now or earlier.
    """

    def __init__(self, number: int, server: ServerProcess, hit_tokens: int | None, row: int, num_units: int) -> None:
        """Show the server with this number to the router. `num_units` is the number of units, such as blocks.

        `row` is the prompt's row in the workload. `hit_tokens` is its prefix hit from an earlier look-up; if it is
        None, the hit is looked up when the router asks for it.
        """
        self.number = number
        self.num_units = num_units
        self._server, self._hit_tokens, self._row = server, hit_tokens, row

    @property
    def num_requests(self) -> int:
        return self._server.num_requests

    @property
    def num_running(self) -> int:
        return self.num_requests - self.num_waiting

    @property
    def num_waiting(self) -> int:
        return self._server.num_waiting

    @property
    def num_used_units(self) -> int:
        return self.num_units - int(self._server.driver.engine.state.num_free)

    @property
    def kv_usage(self) -> float:
        return self.num_used_units / self.num_units

    @property
    def unit_tokens(self) -> int:
        return int(self._server.driver.engine.settings.unit_tokens)

    @property
    def prefill_tokens(self) -> int:
        return self._server.num_prefill_tokens()

    @property
    def hit_tokens(self) -> int:
        if self._hit_tokens is None:
            self._hit_tokens = self._server.hit_tokens(self._row)
        return self._hit_tokens

    @property
    def held_tokens(self) -> int:
        return self._server.held_tokens(self._row)


class Dispatcher:
    """Sends each request to the server that its router chooses.

    The router sees the prefix caches as they were `lag_s` seconds before the arrival of the request.
    """

    def __init__(
        self,
        router: Router,
        requests: Callable[[int, float], RoutedRequest],
        num_requests: int,
        num_units: int,
        *,
        lag_s: float = 0.0,
    ) -> None:
        """Args:
        router: chooses a server for each request.
        requests: returns what the router sees of a request, from its row in the workload and the time it is sent.
        num_requests: number of requests among which samples of duplicate prefixes are taken; 0 for no samples.
        num_units: number of units, such as blocks, in each server's pool.
        lag_s: age in seconds of the prefix hits that the router sees.
        """
        self.lag_s = lag_s
        self._router, self._requests, self._num_units = router, requests, num_units
        self._hits: dict[int, list[int]] = {}
        self.duplicates = DuplicatePrefixes(num_requests)

    @classmethod
    def of(cls, setup: Setup, route: RouteName | str | Router = "shortest", lag_s: float = 0.0) -> Dispatcher:
        """Return the dispatcher of the requests of `setup`.

        Raises:
            UsageError: `route` sees prefixes and the policy is radix, or `lag_s` is given and arrivals depend on
                answers.
        """
        if isinstance(setup.base, Radix) and route in SEES_PREFIXES:
            raise UsageError(
                f"the route {route!r} looks prefixes up in blocks, and the radix policy keeps a tree of tokens; take "
                "--route shortest, round-robin, least-kv, power-of-two or session."
            )
        if lag_s and setup.arrivals_await_answers:
            raise UsageError(
                "--route-lag needs arrivals that are known beforehand, and users and sessions send requests when "
                "others are answered; leave it out."
            )
        workload = setup.workload
        sessions = workload.prefix_group if workload.turns is None else workload.turns.session

        def describe_request(row: int, at_s: float) -> RoutedRequest:
            return RoutedRequest(
                row=row,
                prompt_tokens=int(workload.prompt_tokens[row]),
                priority=int(workload.priority[row]),
                session=int(sessions[row]),
                arrival_s=at_s,
            )

        # Without keys, no prefix is cached twice, so no sample is needed.
        num_sampled = len(workload) if setup.demand.keys.values.size else 0
        return cls(
            router_of(route, release_of(setup.base)), describe_request, num_sampled, setup.num_units, lag_s=lag_s
        )

    def look_up(self, row: int, servers: Sequence[ServerProcess]) -> None:
        """Look up the prefix hit of the prompt in `row` on each server, and store the hits for the router."""
        self._hits[row] = [server.hit_tokens(row) for server in servers]

    def choose(self, row: int, at_s: float, servers: Sequence[ServerProcess]) -> ServerProcess:
        """Return the server to which the router sends the request in `row` at time `at_s`."""
        hits = self._hits.pop(row, [None] * len(servers))
        seen = [
            _ServerView(number, server, hits[number], row, self._num_units) for number, server in enumerate(servers)
        ]
        self.duplicates.sample(servers)
        try:
            number = self._router(self._requests(row, at_s), seen)
        except Exception as error:
            raise UsageError(
                f"the router failed at the request in row {row}: {type(error).__name__}: {error}."
            ) from error
        if not isinstance(number, int | np.integer) or not 0 <= number < len(servers):
            raise UsageError(
                f"the router returned {number!r} for the request in row {row}, and should return the number of a "
                f"server, 0 to {len(servers) - 1}."
            )
        return servers[int(number)]


class DuplicatePrefixes:
    """Counts of prefix blocks that more than one server has cached, in samples taken when requests arrive."""

    def __init__(self, num_requests: int, samples: Sequence[Sequence[CachedKeys]] = ()) -> None:
        """Prepare for a run with `num_requests` requests, during which `sample` is called at each arrival.

        If the servers were simulated one by one, the samples are given instead: `samples[server][i]` are the keys that
        the server had cached at sample `i`.
        """
        self._num_requests, self._num_seen = num_requests, 0
        self._samples = [num_duplicates(held) for held in zip(*samples, strict=True)]

    def sample(self, servers: Sequence[ServerProcess]) -> None:
        """Count one arrival, and take a sample if it is one of the `sampled_arrivals`."""
        if self._num_seen in sampled_arrivals(self._num_requests, len(servers)):
            self._samples.append(num_duplicates([server.cached_keys() for server in servers]))
        self._num_seen += 1

    @property
    def mean_blocks(self) -> float:
        """Mean number of duplicates in a sample; 0 without samples."""
        return sum(self._samples) / len(self._samples) if self._samples else 0.0

    @property
    def most_blocks(self) -> int:
        """Largest number of duplicates in a sample; 0 without samples."""
        return max(self._samples, default=0)


def sampled_arrivals(num_requests: int, num_servers: int) -> range:
    """Return the arrivals, counted from 0, at which samples of duplicate prefixes are taken.

    There are at most `_MOST_SAMPLES`. A sample reads the caches of all servers, so with many servers there are fewer
    samples: `_MOST_READS` divided by the number of servers, but at least `_FEWEST_SAMPLES`.
    """
    most = min(max(_MOST_READS // num_servers, _FEWEST_SAMPLES), _MOST_SAMPLES)
    return range(0, num_requests, max(-(-num_requests // most), 1))


def num_duplicates(held: Sequence[CachedKeys]) -> int:
    """Return the number of duplicates in a sample: the keys cached on all servers together, minus the distinct ones."""
    return sum(map(len, held)) - len(distinct(np.concatenate(held)))
