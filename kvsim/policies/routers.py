"""Routers for simulations of several servers: a router chooses the server of the next request.

A router sees the next request without its answer, and the state of every server.
"""

from __future__ import annotations

import math
import random
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

from kvsim.errors import UnknownNameError, UsageError
from kvsim.policies.data_parallel import COUNTS_EVERY_S, RankBalancer, RankLoad

RouteName: TypeAlias = Literal[
    "shortest", "round-robin", "least-kv", "power-of-two", "session", "prefix", "llm-d", "dynamo", "data-parallel"
]
ROUTE_NAMES: tuple[str, ...] = get_args(RouteName)
SEES_PREFIXES = frozenset({"prefix", "llm-d", "dynamo"})
"""Names of routers that compare prompts with the prefix cache of every server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """The next request, as a router sees it: without the length of its answer."""

    row: int
    """Row of the workload, from 0."""
    prompt_tokens: int
    priority: int
    session: int
    """Id of the request's session; in a workload without sessions, id of its shared prefix; -1 if it has neither."""
    arrival_s: float


class RoutedServer(Protocol):
    """One server, as a router sees it when a request arrives."""

    @property
    def number(self) -> int:
        """Number of the server, from 0."""

    @property
    def num_requests(self) -> int:
        """Number of requests on the server that have not ended: waiting and running."""

    @property
    def num_running(self) -> int:
        """Number of running requests."""

    @property
    def num_waiting(self) -> int:
        """Number of requests in the server's queue."""

    @property
    def unit_tokens(self) -> int:
        """Number of tokens in a unit of the pool: in a block, or 1 if there are no blocks."""

    @property
    def num_used_units(self) -> int:
        """Number of units that requests hold. Units that are only in the prefix cache are not counted."""

    @property
    def kv_usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""

    @property
    def prefill_tokens(self) -> int:
        """Number of prompt tokens, of all requests on the server, that are not computed yet."""

    @property
    def hit_tokens(self) -> int:
        """Number of leading tokens of the next request's prompt that are in the server's prefix cache.

        With `--route-lag`, this is the number at an earlier time.
        """

    @property
    def held_tokens(self) -> int:
        """Number of those `hit_tokens` whose blocks are held by running requests now."""


class Router(Protocol):
    """Function that chooses the server of the next request."""

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the number of the server that gets `request`, from 0."""


class RoundRobin:
    """Router that takes the servers in turn."""

    def __init__(self) -> None:
        self._num_sent = 0

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG002
        """Return the number of the server after the last chosen one; at first 0."""
        self._num_sent += 1
        return (self._num_sent - 1) % len(servers)


def shortest_queue(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG001
    """Return the number of the server with the fewest waiting and running requests; among equals, the first."""
    return min(servers, key=lambda server: server.num_requests).number


def least_kv(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG001
    """Return the number of the server with the lowest `kv_usage`; among equals, the one with the fewest requests."""
    return min(servers, key=lambda server: (server.kv_usage, server.num_requests)).number


class PowerOfTwo:
    """Router that draws two servers at random and chooses the one with fewer requests."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the number of the chosen server. If there is only one server, it is 0."""
        return shortest_queue(request, self._random.sample(servers, min(2, len(servers))))


class SessionAffinity:
    """Router that sends all requests of a session to the same server.

    The first request of a session goes to the server with the fewest requests at that time.
    """

    def __init__(self) -> None:
        self._homes: dict[int, int] = {}

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the number of the session's server; without a session, of the server with the fewest requests."""
        shortest = shortest_queue(request, servers)
        return shortest if request.session < 0 else self._homes.setdefault(request.session, shortest)


def longest_prefix(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:  # noqa: ARG001
    """Return the number of the server with the most cached tokens of the prompt.

    Among equals, it is the server with the fewest requests.
    """
    return min(servers, key=lambda server: (-server.hit_tokens, server.num_requests)).number


def llm_d(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
    """Return the number of the server with the highest score by llm-d's default profile.

    The score is 2 x queue + 2 x free + 3 x cached. All three terms are from 0 to 1. `queue` is 1 for the shortest queue
    and 0 for the longest; if all queues are equal, it is 1. `free` is the free share of the pool, and `cached` the
    cached share of the prompt's blocks.
    Source: the default scheduling profile of the Gateway API inference extension, which llm-d documents. llm-d draws
    among equal scores; here the server with the fewest requests is chosen.
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
    """Return the number of the server with the lowest cost by NVIDIA Dynamo's KV router, with its defaults (overlap
    weight 1, temperature 0).

    The cost is the sum of two numbers of blocks, both counted as if this request were on the server: the prompt blocks
    that are not computed yet, and the blocks in use. A block that several requests share counts once. Source: Dynamo's
    documentation of its KV router, "Cost function", and the replay of `ai-dynamo`. Dynamo's router estimates both
    numbers from the requests that it has sent, without their answers; here they are read from the server.
    """

    def cost(server: RoutedServer) -> float:
        new_tokens = request.prompt_tokens - server.hit_tokens
        added_tokens = request.prompt_tokens - server.held_tokens
        prefill_blocks = (server.prefill_tokens + new_tokens) / server.unit_tokens
        return prefill_blocks + server.num_used_units + -(-added_tokens // server.unit_tokens)

    return min(servers, key=lambda server: (cost(server), server.num_requests)).number


class DataParallel:
    """Router that chooses among data-parallel ranks as vLLM's front end does (`data_parallel.RankBalancer`).

    It knows the load of each rank from the coordinator's last report, and the number of its own unanswered requests on
    each rank. A report is at most 0.1 s old.
    """

    def __init__(self, release: str) -> None:
        """Follow the rule of vLLM `release`."""
        self._release = release
        self._balancer: RankBalancer | None = None
        self._reported_s = -math.inf

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the number of the rank with the lowest score."""
        if self._balancer is None:
            self._balancer = RankBalancer.of(self._release, len(servers))
        if request.arrival_s - self._reported_s >= COUNTS_EVERY_S:
            self._reported_s = request.arrival_s
            self._balancer.loads = [RankLoad(each.num_waiting, each.num_running, each.kv_usage) for each in servers]
        self._balancer.in_flight = [server.num_requests for server in servers]
        return self._balancer.choose()


def rank_names(servers: Sequence[str], num_ranks: int) -> list[str]:
    """Return the names of the data-parallel ranks of all `servers`, in order. Each server has `num_ranks` ranks."""
    return [f"{server}-rank-{rank}" for server in servers for rank in range(num_ranks)]


def _of_ranks(combine: Callable[[Iterable[int]], int], name: str) -> Any:
    """Return a property that combines the values of the attribute `name` of all ranks."""
    return property(lambda self: combine(getattr(rank, name) for rank in self.ranks))


class _RanksTogether:
    """Several data-parallel ranks as one `RoutedServer`. The pools of the ranks have the same size."""

    num_requests: int = _of_ranks(sum, "num_requests")
    num_running: int = _of_ranks(sum, "num_running")
    num_waiting: int = _of_ranks(sum, "num_waiting")
    unit_tokens: int = _of_ranks(max, "unit_tokens")
    num_used_units: int = _of_ranks(sum, "num_used_units")
    prefill_tokens: int = _of_ranks(sum, "prefill_tokens")
    hit_tokens: int = _of_ranks(max, "hit_tokens")
    held_tokens: int = _of_ranks(max, "held_tokens")

    def __init__(self, number: int, ranks: Sequence[RoutedServer]) -> None:
        self.number, self.ranks = number, ranks

    @property
    def kv_usage(self) -> float:
        return sum(rank.kv_usage for rank in self.ranks) / len(self.ranks)


class ServersOfRanks:
    """Router for servers with data-parallel ranks. It chooses a server, and the server's front end then chooses a rank.

    `route` chooses among servers. The counts of a server are the sums over its ranks, and its cached prefix is the
    longest that any rank has.
    """

    def __init__(self, route: str | Router, num_ranks: int, release: str) -> None:
        """Choose the server by `route`, and one of its `num_ranks` ranks by the rule of vLLM `release`."""
        self._router, self._num_ranks = router_of(route, release), num_ranks
        self._new_front_end = partial(DataParallel, release)
        self._front_ends: dict[int, DataParallel] = {}

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        """Return the number of the chosen rank. The ranks of all servers are counted together, from 0."""
        size = self._num_ranks
        together = [
            _RanksTogether(number, servers[number * size : (number + 1) * size])
            for number in range(len(servers) // size)
        ]
        number = self._router(request, together)
        if number not in range(len(together)):
            raise UsageError(f"it returned {number!r} and should return the number of a server, 0 to "
                             f"{len(together) - 1}")  # fmt: skip
        front_end = self._front_ends.setdefault(number, self._new_front_end())
        return number * size + front_end(request, together[number].ranks)


_ROUTERS: Mapping[str, Callable[[str], Router]] = {
    "shortest": lambda _: shortest_queue,
    "round-robin": lambda _: RoundRobin(),
    "least-kv": lambda _: least_kv,
    "power-of-two": lambda _: PowerOfTwo(),
    "session": lambda _: SessionAffinity(),
    "prefix": lambda _: longest_prefix,
    "llm-d": lambda _: llm_d,
    "dynamo": lambda _: dynamo,
    "data-parallel": DataParallel,
}


def router_of(route: str | Router, release: str) -> Router:
    """Return the router for `route`: a name, the path of a Python file with a function `route`, or a router itself.

    The router `data-parallel` follows the rule of vLLM `release`.

    Raises:
        UnknownNameError: there is no router of this name.
        UsageError: the file has no function `route`, or cannot be run.
    """
    if not isinstance(route, str):
        return route
    if route.endswith(".py"):
        return _from_file(Path(route))
    if route not in _ROUTERS:
        raise UnknownNameError("route", route, ROUTE_NAMES)
    return _ROUTERS[route](release)


def _from_file(path: Path) -> Router:
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise UsageError(f"the router in {path} cannot be run: {type(error).__name__}: {error}.") from error
    router: object = names.get("route")
    if not callable(router):
        raise UsageError(f"{path} has no function route(request, servers), which returns the number of a server.")
    return router
