"""Simulation of fleets: several servers with one router.

They share a clock, or are simulated one by one if none can affect another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, Unpack

from kvsim.errors import UsageError, shortened
from kvsim.metrics.fleet_totals import FleetCounts, FleetTotals, fleet_totals
from kvsim.metrics.summary import Summary
from kvsim.policies import AnyPolicy, Paged, base_of
from kvsim.policies.connectors import KvLink
from kvsim.policies.custom import CustomPolicy
from kvsim.policies.routers import RouteName, Router, ServersOfRanks, rank_names
from kvsim.recording import Recording, write
from kvsim.recording.row_sinks import RowSink, RowsInMemory
from kvsim.setting_fields import check_instance, is_finite
from kvsim.simulation.dispatch import CachedKeys, Dispatcher, DuplicatePrefixes, sampled_arrivals
from kvsim.simulation.machine import Machine, release_of
from kvsim.simulation.measured import Measured
from kvsim.simulation.prefill_decode import Disaggregation, PrefillDecodeRun, check_policy
from kvsim.simulation.prefix_store import PrefixStore
from kvsim.simulation.setup import Options, Setup, check_number_of_ranks, check_number_of_servers, check_route
from kvsim.simulation.simulation_run import SimulationRun, record_setup
from kvsim.workload import Workload

Result = TypeVar("Result")


class Spread(Protocol):
    """Function that makes independent calls, one after the other or on several cores."""

    def __call__(self, call: Callable[[Any, int], Result], common: Any, numbers: range, /) -> Iterable[Result]:
        """Yield the result of `call(common, number)` for each of `numbers`, in their order."""


def in_turn(call: Callable[[Any, int], Result], common: Any, numbers: range) -> Iterator[Result]:
    """Make the calls one after the other in this process; a `Spread`."""
    for number in numbers:
        yield call(common, number)


@dataclass(frozen=True, slots=True)
class Fleet(FleetCounts):
    """Results of the servers of a fleet."""

    servers: list[Measured]
    """Results of each server, or of each data-parallel rank of each server."""
    names: Sequence[str] = ()
    """Names of the servers, which are those of their recordings' folders; empty for a single server."""

    def summaries(self) -> list[Summary]:
        """Return the summary of each server, named "server 0", "server 1" and so on. A single server keeps its name."""
        found = [server.summary for server in self.servers]
        if len(found) == 1:
            return found
        return [replace(summary, policy=f"server {number}") for number, summary in enumerate(found)]

    def totals(self, summaries: Sequence[Summary] | None = None) -> FleetTotals:
        """Return the totals of all servers. `summaries` replace those of `Fleet.summaries`."""
        requests = [server.requests for server in self.servers]
        return fleet_totals(self.servers[0].meta, summaries or self.summaries(), requests, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Equal servers behind one router. If a server has data-parallel ranks, its front end chooses the rank."""

    number: int
    route: RouteName | str | Router | None = None
    """Router that chooses the server of each request: a name, a Python file with a function `route`, or a `Router`.

    For a single server with ranks, the router chooses the rank. If it is None, vLLM's front end chooses the rank of a
    single server with ranks; otherwise the router is "shortest".
    """
    ranks: int = 1
    """Number of data-parallel ranks of each server."""
    route_lag_s: float = 0.0
    """Age in seconds of the prefix hits that the router sees."""
    store: PrefixStore | None = None
    """Prefix store that all servers share; None without one."""

    def __post_init__(self) -> None:
        check_number_of_servers("--replicas", self.number)
        check_number_of_ranks(self.ranks)
        if self.route is not None:
            check_route(self.route)
        if not (is_finite(self.route_lag_s) and self.route_lag_s >= 0):
            raise UsageError(
                f"--route-lag should be a number of seconds, 0 or more, not {shortened(self.route_lag_s)}."
            )
        check_instance("the prefix store", self.store, PrefixStore | None, "a kvsim.simulation.PrefixStore")

    def on(self, machine: Machine, policy: AnyPolicy) -> Replicas:
        """Return these servers, each with as many data-parallel ranks as the model of `machine` says.

        Raises:
            UsageError: there are several ranks, and the policy is not vLLM's.
        """
        ranks = machine.model.data_parallel_size
        if ranks > 1 and not isinstance(base_of(policy), Paged):
            raise UsageError("--data-parallel-size is vLLM's; take --policy paged, or --replicas for servers of "
                             "another policy.")  # fmt: skip
        return replace(self, ranks=ranks)

    @property
    def link(self) -> KvLink | None:
        """Link of each server to the prefix store; None without a store."""
        return None if self.store is None else self.store.link

    @property
    def route_name(self) -> str:
        """Name of the route, with the default in place of None. Empty for a custom router."""
        route = self._route
        return route if isinstance(route, str) else ""

    @property
    def _route(self) -> RouteName | str | Router:
        return self.route or ("data-parallel" if self.ranks > 1 and self.number == 1 else "shortest")

    def router(self, release: str) -> RouteName | str | Router:
        """Return the router that chooses among all engines: one engine per server, or per data-parallel rank.

        If servers have ranks, front ends choose ranks as in vLLM `release`.
        """
        if self.ranks > 1 and self.number > 1:
            return ServersOfRanks(self._route, self.ranks, release)
        return self._route

    @property
    def num_engines(self) -> int:
        """Number of engines: one for each rank of each server."""
        return self.number * self.ranks

    def names(self) -> list[str]:
        """Return one name for each server; if servers have several ranks, one name for each rank."""
        if self.number == 1 or self.ranks == 1:
            return [str(number) for number in range(self.num_engines)]
        return rank_names([f"server-{number}" for number in range(self.number)], self.ranks)


Servers = Replicas | Disaggregation
"""Servers of a fleet: equal servers, or prefill and decode servers."""


def measure_fleet(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    servers: Servers,
    *,
    spread: Spread = in_turn,
    **options: Unpack[Options],
) -> Fleet:
    """Run `workload` on several servers, and return the results of each.

    Args:
        workload: the requests of all servers.
        policy: the rules by which each server schedules and allocates.
        machine: the machine of each server.
        servers: the number of servers of each kind, and their router.
        spread: makes the runs of servers that are simulated one by one, for example on several cores.
        options: see `Options`.

    Raises the exceptions of `simulate`.
    """
    return _serve(_setup(workload, policy, machine, servers, options), servers, spread)


def simulate_fleet(
    workload: Workload, policy: AnyPolicy, machine: Machine, servers: Servers, **options: Unpack[Options]
) -> tuple[list[Recording], Fleet]:
    """Run `workload` as `measure_fleet` does. Return the recording of each server, and the results."""
    return _simulate(_setup(workload, policy, machine, servers, options, records=True), servers)


def record_fleet(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    servers: Servers,
    path: Path,
    *,
    spread: Spread = in_turn,
    **options: Unpack[Options],
) -> Fleet:
    """Run `workload` as `measure_fleet` does, and write each server's recording to the folder of its name in `path`."""
    setup = _setup(workload, policy, machine, servers, options, records=True)
    if isinstance(servers, Replicas) and _are_independent(setup, servers):
        return _serve_separately(setup, servers, spread, path=path)
    recordings, fleet = _simulate(setup, servers)
    for name, recording in zip(servers.names(), recordings, strict=True):
        write(recording, path / name)
    return fleet


def _setup(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    servers: Servers,
    options: Options,
    *,
    records: bool = False,
) -> Setup:
    if isinstance(servers, Disaggregation):
        check_policy(policy)
    return Setup.of(workload, policy, machine, options, records=records)


def _simulate(setup: Setup, servers: Servers) -> tuple[list[Recording], Fleet]:
    """Run the servers with their recordings in memory; return the recordings and the results."""
    rows = [RowsInMemory() for _ in servers.names()]
    fleet = _serve(setup, servers, in_turn, rows)
    of_servers = zip(rows, fleet.servers, strict=True)
    return [each.finish(measured.meta, name=setup.name) for each, measured in of_servers], fleet


def _serve(setup: Setup, servers: Servers, spread: Spread, sinks: Sequence[RowSink] = ()) -> Fleet:
    """Run the servers to the end. Server `i` is recorded to `sinks[i]`; nothing is recorded if `sinks` is empty."""
    if isinstance(servers, Disaggregation):
        return _finish_prefill_decode(PrefillDecodeRun(setup, servers, sinks))
    dispatcher = Dispatcher.of(setup, servers.router(release_of(setup.base)), servers.route_lag_s)
    if _are_independent(setup, servers):
        return _serve_separately(setup, servers, spread, sinks=sinks)
    run = SimulationRun(setup, sinks, num_replicas=servers.number, num_ranks=servers.ranks,
                        dispatcher=dispatcher, store=servers.store)  # fmt: skip
    measured, duplicates = run.finish(), dispatcher.duplicates
    return Fleet(
        measured,
        servers.names(),
        mean_duplicate_blocks=duplicates.mean_blocks,
        most_duplicate_blocks=duplicates.most_blocks,
        num_ranks=servers.ranks,
        idle_steps=run.idle_steps,
        store=None if run.store is None else run.store.totals,
    )


def _finish_prefill_decode(run: PrefillDecodeRun) -> Fleet:
    measured = run.finish()
    return Fleet(
        measured,
        run.disaggregation.names(),
        mean_duplicate_blocks=run.duplicates.mean_blocks,
        most_duplicate_blocks=run.duplicates.most_blocks,
        num_prefill=run.disaggregation.num_prefill_ranks,
        clients=run.clients(measured),
        fetched_blocks=run.fetched_blocks,
        num_ranks=run.disaggregation.ranks,
        idle_steps=run.idle_steps,
    )


def _are_independent(setup: Setup, servers: Replicas) -> bool:
    """Tell whether servers can be simulated one by one, because none affects another.

    The conditions: round-robin routing, an open loop, at least one request for each server, no ranks and no store.
    Servers of a custom policy share its Python object, so they may affect each other.
    """
    return (
        servers.route == "round-robin"
        and servers.ranks == 1
        and servers.store is None
        and not setup.arrivals_await_answers
        and len(setup.workload) >= servers.number
        and not isinstance(setup.policy, CustomPolicy)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SeparateServers:
    """Servers with round-robin routing that are simulated one by one, and recorded to `path` or `sinks` if given."""

    setup: Setup
    """Setup of the requests of all servers."""
    number: int
    sample_s: Sequence[float]
    """Times in seconds at which each server's cached prefix keys are read."""
    path: Path | None
    """Folder with a subfolder for each server's recording, named by the server's number."""
    sinks: Sequence[RowSink]

    def run(self, number: int) -> tuple[Measured, list[CachedKeys]]:
        """Run server `number` by itself; return its results, and its cached keys at each sample time."""
        setup = self.setup.every(self.number, number)
        if self.path is not None:
            return record_setup(setup, self.path / str(number), self.sample_s)
        run = SimulationRun(setup, self.sinks[number : number + 1], sample_s=self.sample_s)
        [measured] = run.finish()
        return measured, run.samples


def _serve_separately(
    setup: Setup, servers: Replicas, spread: Spread, *, path: Path | None = None, sinks: Sequence[RowSink] = ()
) -> Fleet:
    """Run each server by itself, and count the prefixes that several servers had cached at the same time."""
    arrival_s, options = setup.workload.arrival_s, setup.options.copy()
    # The runs, which may be in other processes, do not call the callback: progress is reported below, for all servers.
    progress = options.pop("progress", None)
    sampled = sampled_arrivals(len(arrival_s), servers.number) if setup.demand.keys.values.size else range(0)
    separate = _SeparateServers(
        setup=replace(setup, options=options),
        number=servers.number,
        sample_s=[float(arrival_s[row]) for row in sampled],
        path=path,
        sinks=sinks,
    )
    measured, samples, num_ended = [], [], 0
    for of_server, keys in spread(_SeparateServers.run, separate, range(servers.number)):
        measured.append(of_server)
        samples.append(keys)
        num_ended += len(of_server.requests)
        if progress:
            progress(num_ended, len(arrival_s))
    duplicates = DuplicatePrefixes(len(arrival_s), samples)
    return Fleet(
        measured,
        servers.names(),
        mean_duplicate_blocks=duplicates.mean_blocks,
        most_duplicate_blocks=duplicates.most_blocks,
    )
