"""Several equal servers behind one router: on one clock, or each by itself if none affects another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, Unpack

from kvsim.policies import AnyPolicy
from kvsim.policies.custom import CustomPolicy
from kvsim.policies.routers import RouteName, Router
from kvsim.recording import Recording, RecordingBuilder, write
from kvsim.recording.tables import Requests
from kvsim.simulation.dispatch import CachedKeys, Dispatcher, DuplicatePrefixes, sampled_arrivals
from kvsim.simulation.machine import Machine
from kvsim.simulation.measured import Measured
from kvsim.simulation.prefill_decode import Disaggregation, PrefillDecodeRun, check_policy
from kvsim.simulation.setup import Options, Setup
from kvsim.simulation.simulation_run import SimulationRun, record_setup
from kvsim.workload import Workload

Result = TypeVar("Result")


class Spread(Protocol):
    """Makes calls that do not depend on each other, one after the other or on several cores."""

    def __call__(self, call: Callable[[Any, int], Result], common: Any, numbers: range, /) -> Iterable[Result]:
        """Yield the results of `call(common, number)` in the order of `numbers`."""


def in_turn(call: Callable[[Any, int], Result], common: Any, numbers: range) -> Iterator[Result]:
    """Make the calls one after the other, in this process."""
    for number in numbers:
        yield call(common, number)


class Fleet(NamedTuple):
    """Measurements of several equal servers behind one router."""

    servers: list[Measured]
    mean_duplicate_blocks: float
    """Cached prefix blocks that another server holds, too, on average over the arrivals; each prefix once less."""
    most_duplicate_blocks: int
    num_prefill: int = 0
    """Servers at the beginning of the list that compute prompts for the others; 0 where each does both."""
    clients: Sequence[Requests] = ()
    """Requests of the servers that answer, as the clients see them; empty where each server does both."""
    fetched_blocks: int = 0
    """Blocks that servers have fetched from each other."""


def measure_apart(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    apart: Disaggregation,
    route: RouteName | str | Router,
    **options: Unpack[Options],
) -> Fleet:
    """Run `workload` on prefill and decode servers, and return the measurements of each.

    Args:
        workload: the requests of all servers.
        policy: how each server schedules them: the paged policy.
        machine: the machine of each server.
        apart: servers of each kind and the links between them.
        route: chooses the prefill server of each request; decode servers are chosen by the shortest queue.
        options: see `Options`.

    Raises what `simulate` does.
    """
    check_policy(policy)
    run = _run_apart(Setup.of(workload, policy, machine, options), apart, route)
    return _finish_kinds(run)


def simulate_apart(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    apart: Disaggregation,
    route: RouteName | str | Router,
    **options: Unpack[Options],
) -> tuple[list[Recording], Fleet]:
    """Run as `measure_apart` does, and return the recording of each server as well."""
    check_policy(policy)
    setup = Setup.of(workload, policy, machine, options, records=True)
    builders = [RecordingBuilder() for _ in range(apart.num_prefill + apart.num_decode)]
    fleet = _finish_kinds(_run_apart(setup, apart, route, builders))
    servers = zip(builders, fleet.servers, strict=True)
    return [builder.finish(measured.meta, name=setup.name) for builder, measured in servers], fleet


def record_apart(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    path: Path,
    apart: Disaggregation,
    route: RouteName | str | Router,
    **options: Unpack[Options],
) -> Fleet:
    """Run as `measure_apart` does, and write the recordings to `path/prefill-N` and `path/decode-N`."""
    recordings, fleet = simulate_apart(workload, policy, machine, apart, route, **options)
    for name, recording in zip(names_apart(apart.num_prefill, len(recordings)), recordings, strict=True):
        write(recording, path / name)
    return fleet


def names_apart(num_prefill: int, num_servers: int) -> list[str]:
    """Return the names of prefill and decode servers, in order."""
    return [*(f"prefill-{n}" for n in range(num_prefill)), *(f"decode-{n}" for n in range(num_servers - num_prefill))]


def _run_apart(
    setup: Setup, apart: Disaggregation, route: RouteName | str | Router, builders: Sequence[RecordingBuilder] = ()
) -> PrefillDecodeRun:
    return PrefillDecodeRun(setup, apart, (Dispatcher.of(setup, route), Dispatcher.of(setup)), builders)


def _finish_kinds(run: PrefillDecodeRun) -> Fleet:
    """Run prefill and decode servers to the end."""
    measured = run.finish()
    return Fleet(
        measured,
        run.duplicates.mean_blocks,
        run.duplicates.most_blocks,
        num_prefill=run.apart.num_prefill,
        clients=run.clients(measured),
        fetched_blocks=run.fetched_blocks,
    )


def measure_replicas(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    num_replicas: int,
    route: RouteName | str | Router,
    route_lag_s: float = 0.0,
    *,
    spread: Spread = in_turn,
    **options: Unpack[Options],
) -> Fleet:
    """Run `workload` on several equal servers behind one router, and return the measurements of each server.

    Args:
        workload: the requests of all servers.
        policy: how each server schedules them.
        machine: the machine of each server.
        num_replicas: number of servers.
        route: chooses the server of each request: a name, a Python file with a function `route`, or a `Router`.
        route_lag_s: the router sees prefix caches as they were this many seconds before the request.
        spread: makes the runs of servers that do not depend on each other.
        options: see `Options`.

    Raises what `simulate` does.
    """
    setup = Setup.of(workload, policy, machine, options)
    dispatcher = Dispatcher.of(setup, route, route_lag_s)
    if _are_apart(setup, route, num_replicas):
        return _finish_apart(Apart.of(setup, num_replicas), _measure_one, spread)
    return _finish(SimulationRun(setup, num_replicas=num_replicas, dispatcher=dispatcher), dispatcher)


def simulate_replicas(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    num_replicas: int,
    route: RouteName | str | Router,
    route_lag_s: float = 0.0,
    **options: Unpack[Options],
) -> tuple[list[Recording], Fleet]:
    """Run as `measure_replicas` does, and return the recording of each server as well."""
    setup = Setup.of(workload, policy, machine, options, records=True)
    return _simulate(setup, num_replicas, route, route_lag_s)


def record_replicas(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    path: Path,
    num_replicas: int,
    route: RouteName | str | Router,
    route_lag_s: float = 0.0,
    *,
    spread: Spread = in_turn,
    **options: Unpack[Options],
) -> Fleet:
    """Run as `measure_replicas` does, and write the recording of server `n` to the folder `path/n`."""
    setup = Setup.of(workload, policy, machine, options, records=True)
    if _are_apart(setup, route, num_replicas):
        return _finish_apart(Apart.of(setup, num_replicas, path=path), _record_one, spread)
    recordings, fleet = _simulate(setup, num_replicas, route, route_lag_s)
    for number, recording in enumerate(recordings):
        write(recording, path / str(number))
    return fleet


def _simulate(
    setup: Setup, num_replicas: int, route: RouteName | str | Router, route_lag_s: float
) -> tuple[list[Recording], Fleet]:
    """Run the servers and keep their recordings in memory."""
    dispatcher = Dispatcher.of(setup, route, route_lag_s)
    builders = [RecordingBuilder() for _ in range(num_replicas)]
    if _are_apart(setup, route, num_replicas):
        fleet = _finish_apart(Apart.of(setup, num_replicas, builders=builders), _measure_one, in_turn)
    else:
        fleet = _finish(SimulationRun(setup, builders, num_replicas=num_replicas, dispatcher=dispatcher), dispatcher)
    servers = zip(builders, fleet.servers, strict=True)
    return [builder.finish(measured.meta, name=setup.name) for builder, measured in servers], fleet


def _are_apart(setup: Setup, route: RouteName | str | Router, num_replicas: int) -> bool:
    """Tell whether no server affects another: each request's server and arrival are known beforehand.

    A custom policy may keep a state of its own, which all servers share.
    """
    is_known = route == "round-robin" and not setup.is_closed_loop and len(setup.workload) >= num_replicas
    return is_known and not isinstance(setup.policy, CustomPolicy)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Apart:
    """Servers that get one request after the other in turn, so that each can be run by itself."""

    setup: Setup
    num_servers: int
    sample_s: tuple[float, ...]
    """Times of the samples of prefixes that several servers hold, in seconds."""
    path: Path | None = None
    builders: Sequence[RecordingBuilder] = ()

    @classmethod
    def of(
        cls, setup: Setup, num_servers: int, *, path: Path | None = None, builders: Sequence[RecordingBuilder] = ()
    ) -> Apart:
        """Return the servers of `setup`, recorded to folders in `path` or to `builders`, if any."""
        arrival_s = setup.workload.arrival_s
        rows = sampled_arrivals(len(arrival_s), num_servers) if setup.demand.keys.values.size else range(0)
        sample_s = tuple(float(arrival_s[row]) for row in rows)
        return cls(setup=setup, num_servers=num_servers, sample_s=sample_s, path=path, builders=builders)


def _measure_one(apart: Apart, number: int) -> tuple[Measured, list[CachedKeys]]:
    """Run one server by itself."""
    builders = [apart.builders[number]] if apart.builders else []
    run = SimulationRun(apart.setup.every(apart.num_servers, number), builders, sample_s=apart.sample_s)
    [measured] = run.finish()
    return measured, run.samples


def _record_one(apart: Apart, number: int) -> tuple[Measured, list[CachedKeys]]:
    """Run one server by itself and record it."""
    assert apart.path is not None
    return record_setup(apart.setup.every(apart.num_servers, number), apart.path / str(number), apart.sample_s)


def _finish_apart(
    apart: Apart, serve: Callable[[Apart, int], tuple[Measured, list[CachedKeys]]], spread: Spread
) -> Fleet:
    """Run each server by itself, and count the prefixes that several held at the same times."""
    options, num_requests = apart.setup.options.copy(), len(apart.setup.workload)
    progress, num_ended = options.pop("progress", None), 0
    measured, samples = [], []
    alone = replace(apart, setup=replace(apart.setup, options=options))
    for one, taken in spread(serve, alone, range(apart.num_servers)):
        measured.append(one)
        samples.append(taken)
        num_ended += len(one.requests)
        if progress:
            progress(num_ended, num_requests)
    duplicates = DuplicatePrefixes(num_requests, samples)
    return Fleet(measured, duplicates.mean_blocks, duplicates.most_blocks)


def _finish(run: SimulationRun, dispatcher: Dispatcher) -> Fleet:
    """Run servers on one clock to the end."""
    measured, duplicates = run.finish(), dispatcher.duplicates
    return Fleet(measured, duplicates.mean_blocks, duplicates.most_blocks)
