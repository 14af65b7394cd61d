"""Routers in front of several servers: which server gets the next request, from what a router sees of each."""

from __future__ import annotations

import math
import random
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args

from kvsim.errors import UnknownNameError, UsageError
from kvsim.policies.data_parallel import COUNTS_EVERY_S, RankBalancer
from kvsim.policies.releases import NEWEST

RouteName: TypeAlias = Literal[
    "shortest", "round-robin", "least-kv", "power-of-two", "session", "prefix", "llm-d", "dynamo", "data-parallel"
]
ROUTE_NAMES: tuple[str, ...] = get_args(RouteName)
SEES_PREFIXES = frozenset({"prefix", "llm-d", "dynamo"})
"""Routes that ask every server what a prompt would find in its prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """The next request, as a router sees it: its answer is not known."""

    row: int
    """Row of the workload, from 0."""
    prompt_tokens: int
    priority: int
    session: int
    """Number of its session or, of a workload without sessions, of the named prefix of its prompt; -1 without one."""
    arrival_s: float


class RoutedServer(Protocol):
    """One server, as a router sees it when a request arrives."""

    @property
    def number(self) -> int:
        """Number of the server, from 0."""

    @property
    def num_requests(self) -> int:
        """Requests that were sent to the server and have not ended: waiting and running."""

    @property
    def num_running(self) -> int:
        """Requests that hold memory and compute."""

    @property
    def num_waiting(self) -> int:
        """Requests in the server's queue."""

    @property
    def unit_tokens(self) -> int:
        """Tokens of one unit of the pool: of a block, or 1."""

    @property
    def num_used_units(self) -> int:
        """Units that requests hold; what is only cached counts as free."""

    @property
    def kv_usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts that were sent to the server and are not computed yet."""

    @property
    def hit_tokens(self) -> int:
        """Leading tokens of the prompt that are in the server's prefix cache, or were when its events left it."""

    @property
    def held_tokens(self) -> int:
        """Leading tokens of the prompt in blocks that requests hold now; no more than are cached."""


class Router(Protocol):
    """Chooses a server for the next request."""

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the number of the server that gets `request`, from 0."""


class RoundRobin:
    """One server after the other."""

    def __init__(self) -> None:
        self._num_sent = 0

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG002
        """Return the next server in turn."""
        self._num_sent += 1
        return (self._num_sent - 1) % len(servers)


def shortest_queue(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG001
    """Return the server with the fewest waiting and running requests; the first of equal ones."""
    return min(servers, key=lambda server: server.num_requests).number


def least_kv(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG001
    """Return the server whose requests hold the smallest share of its pool; of equal ones the shortest queue."""
    return min(servers, key=lambda server: (server.kv_usage, server.num_requests)).number


class PowerOfTwo:
    """The shorter queue of two servers drawn at random."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Draw two different servers and return the one with fewer requests."""
        return shortest_queue(request, self._random.sample(servers, min(2, len(servers))))


class SessionAffinity:
    """Requests of one session go to one server: the one with the shortest queue when its first request came."""

    def __init__(self) -> None:
        self._homes: dict[int, int] = {}

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the server of the request's session; a request without one goes to the shortest queue."""
        shortest = shortest_queue(request, servers)
        return shortest if request.session < 0 else self._homes.setdefault(request.session, shortest)


def longest_prefix(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG001
    """Return the server that has most of the prompt in its cache; of equal ones the shortest queue."""
    return min(servers, key=lambda server: (-server.hit_tokens, server.num_requests)).number


def llm_d(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
    """Return the server with the highest weighted score of llm-d's default profile.

    Weights: 2 for the queue (1 for the shortest, 0 for the longest), 2 for the free share of the pool, 3 for the share
    of the prompt's blocks that are cached. Source: the default scheduling profile of the Gateway API inference
    extension, which llm-d documents. Its picker draws among equal scores; here the shortest queue is taken.
    """
    waiting = [server.num_waiting for server in servers]
    most, span = max(waiting), max(waiting) - min(waiting)

    def score(server: RoutedServer) -> float:
        queue = (most - server.num_waiting) / span if span else 1.0
        num_blocks = max(request.prompt_tokens // server.unit_tokens, 1)
        cached = server.hit_tokens // server.unit_tokens / num_blocks
        return 2 * queue + 2 * (1 - server.kv_usage) + 3 * cached

    return max(servers, key=lambda server: (score(server), -server.num_requests)).number


def dynamo(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
    """Return the server with the lowest cost of NVIDIA Dynamo's KV router with its defaults.

    The cost is the blocks of prompts that are still to compute with this request, and the blocks in use with it, of
    which those are shared that requests hold already (overlap weight 1, temperature 0). Source: Dynamo's documentation
    of its KV router, "Cost function", and its replay. That router estimates both from what it has sent and leaves
    answers out; here they are read from the server.
    """

    def cost(server: RoutedServer) -> float:
        new_tokens = request.prompt_tokens - server.hit_tokens
        added_tokens = request.prompt_tokens - server.held_tokens
        prefill_blocks = (server.prefill_tokens + new_tokens) / server.unit_tokens
        return prefill_blocks + server.num_used_units + -(-added_tokens // server.unit_tokens)

    return min(servers, key=lambda server: (cost(server), server.num_requests)).number


class DataParallel:
    """The choice of vLLM's front end among the ranks of a data-parallel server: `data_parallel.RankBalancer`.

    The counts of the ranks are those of the last report of the coordinator, which comes every 0.1 s.
    """

    def __init__(self, release: str = NEWEST) -> None:
        self._release = release
        self._balancer: RankBalancer | None = None
        self._reported_s = -math.inf

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the rank with the lowest score."""
        if self._balancer is None:
            self._balancer = RankBalancer.of(self._release, len(servers))
        if request.arrival_s - self._reported_s >= COUNTS_EVERY_S:
            self._reported_s = request.arrival_s
            self._balancer.counts = [[each.num_waiting, each.num_running, each.kv_usage] for each in servers]
        self._balancer.in_flight = [server.num_requests for server in servers]
        return self._balancer.choose()


_ROUTERS: Mapping[str, Callable[[], Router]] = {
    "shortest": lambda: shortest_queue,
    "round-robin": RoundRobin,
    "least-kv": lambda: least_kv,
    "power-of-two": PowerOfTwo,
    "session": SessionAffinity,
    "prefix": lambda: longest_prefix,
    "llm-d": lambda: llm_d,
    "dynamo": lambda: dynamo,
    "data-parallel": DataParallel,
}


def router_of(route: str | Router) -> Router:
    """Return a new router for a name, the function `route` of a Python file, or the router that is given.

    Raises:
        UnknownNameError: there is no such route.
        UsageError: the file has no function `route`, or cannot be run.
    """
    if not isinstance(route, str):
        return route
    if route.endswith(".py"):
        return _from_file(Path(route))
    if route not in _ROUTERS:
        raise UnknownNameError("route", route, ROUTE_NAMES)
    return _ROUTERS[route]()


def _from_file(path: Path) -> Router:
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise UsageError(f"the router in {path} cannot be run: {type(error).__name__}: {error}.") from error
    router: object = names.get("route")
    if not callable(router):
        raise UsageError(f"{path} has no function route(request, servers), which returns the number of a server.")
    return router
