"""The entry points of a simulation: `simulate`, `record` and `measure`. Each runs a `SimulationRun`.

The workload has the requests and their arrival times, the engine schedules steps by the rules of the policy, and the
step-time model gives the duration of each step. The result is a `Recording`, as a recorder in a real engine writes it,
or only its figures. Sources of requests and servers share SimPy's clock. Between two of SimPy's events, a server's
engine runs many steps on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
import simpy

from kvsim.engine.arrays import column
from kvsim.engine.custom.custom_rules import CustomRules
from kvsim.engine.custom.optimal_eviction import OptimalEviction
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan, memory_of
from kvsim.engine.state import Engine
from kvsim.errors import UsageError, shortened
from kvsim.metrics import Limits
from kvsim.policies import AnyPolicy, Paged, Static, describe
from kvsim.policies.connectors import STORE, Connector
from kvsim.policies.custom import CustomPolicy, evicts
from kvsim.policies.data_parallel import steps_between_syncs
from kvsim.policies.drafts import drafts_of
from kvsim.policies.kinds import evicts_optimally
from kvsim.policies.releases import defaults_of
from kvsim.policies.settings import Order, PrefixEviction
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.recording import Meta, Recording, RecordingWriter
from kvsim.recording.row_sinks import RowSink, RowsInMemory
from kvsim.recording.tables import Transfers
from kvsim.setting_fields import is_finite, whole_number
from kvsim.simulation.dispatch import CachedKeys, Dispatcher
from kvsim.simulation.image_inputs import encoding_of, image_numbers_of, recorded_images
from kvsim.simulation.machine import Machine, release_of
from kvsim.simulation.measured import Measured
from kvsim.simulation.modes import begins_compiled, engine_for, may_compile
from kvsim.simulation.prefix_store import PrefixStore, SharedStore
from kvsim.simulation.results import FinalRows, Totals, largest_shape, requests_of, rows_of, vllm_failures
from kvsim.simulation.server import Exchanging, Horizon, ServerProcess
from kvsim.simulation.setup import Options, Setup, check_ranks
from kvsim.simulation.sources import (
    ClosedLoop,
    Conversations,
    KnownInAdvance,
    OpenLoop,
    SingleServerUsers,
    Source,
    Users,
)
from kvsim.simulation.store_records import CAPACITY, store_transfers
from kvsim.simulation.waiting_ranks import WaitingRanks
from kvsim.steptime import RankTimes, StepTimeModel
from kvsim.steptime.kernels import KernelsSeen
from kvsim.workload import Ragged, Workload


def simulate(workload: Workload, policy: AnyPolicy, machine: Machine, **options: Unpack[Options]) -> Recording:
    """Run `workload` to its end and return the recording.

    Args:
        workload: the requests. A policy does not know their `output_tokens`, except with `Reserve.POW2` and
            `Reserve.ORACLE`.
        policy: the rules that schedule requests and allocate memory.
        machine: the GPU, the model, the memory and the step times.
        options: see `Options`.

    Raises:
        UsageError: an option is out of range or contradicts another, or the run cannot be compiled.
        WorkloadError: a prompt leaves no room for an answer within the maximum length.
        BudgetError: a request needs more than the whole pool.
        StalledError: the first request in the queue can never be scheduled.
        IntegrityError: `check` found a defect.
    """
    rows = RowsInMemory()
    run = SimulationRun(Setup.of(workload, policy, machine, options, records=True), [rows])
    run.finish()
    return rows.finish(run.meta(), name=run.setup.name)


def record(workload: Workload, policy: AnyPolicy, machine: Machine, path: Path, **options: Unpack[Options]) -> Measured:
    """Run `workload`, and write its recording to folder `path` during the run, so that memory does not grow with steps.

    Arguments and exceptions are those of `simulate` and `write`. The result is that of `measure`.
    """
    measured, _ = record_setup(Setup.of(workload, policy, machine, options, records=True), path)
    return measured


def record_setup(setup: Setup, path: Path, sample_s: Sequence[float] = ()) -> tuple[Measured, list[CachedKeys]]:
    """Run `setup` on one server and record it to folder `path`, as `record` does.

    Also return the keys that the server has cached at each of the times `sample_s`, in seconds.
    """
    from kvsim.metrics.contradictions import refuse_contradictions  # noqa: PLC0415  most runs record nothing

    with RecordingWriter(path) as writer:
        run = SimulationRun(setup, [writer], sample_s=sample_s)
        [measured] = run.finish()
        writer.commit(run.meta(), replay_check=refuse_contradictions)
    return measured, run.samples


def measure(workload: Workload, policy: AnyPolicy, machine: Machine, **options: Unpack[Options]) -> Measured:
    """Run `workload` to its end; return its summary and the times of its requests, without the steps.

    Arguments and exceptions are those of `simulate`. Memory grows with the requests, not with the steps.
    """
    [measured] = SimulationRun(Setup.of(workload, policy, machine, options)).finish()
    return measured


class SimulationRun:
    """Simulation of a workload on one server, or on several servers with one router."""

    _num_ended = 0
    """Number of ended requests of all servers that the last call of the progress callback reported."""

    def __init__(
        self,
        setup: Setup,
        sinks: Sequence[RowSink] = (),
        *,
        num_replicas: int = 1,
        num_ranks: int = 1,
        dispatcher: Dispatcher | None = None,
        sample_s: Sequence[float] = (),
        store: PrefixStore | None = None,
    ) -> None:
        """Build the servers, and the source that sends requests to them. `finish` runs them.

        Args:
            setup: requests, policy and machine of the servers.
            sinks: `sinks[i]` receives the recording of engine `i`; empty: nothing is recorded.
            num_replicas: number of servers.
            num_ranks: number of data-parallel ranks of each server, each with an engine.
            dispatcher: chooses the server of each request; None: the one with the fewest requests.
            sample_s: times in seconds at which the cached keys of a single server are appended to `samples`.
            store: settings of the prefix store that all servers share; None without one.
        """
        self.setup = setup
        self.samples: list[CachedKeys] = []
        num_engines = num_replicas * num_ranks
        self._expected_rows = _expected_order(setup, num_engines) if evicts_optimally(setup.base) else None
        self._environment = simpy.Environment()
        check_ranks(setup, num_ranks)
        self.locksteps = self._locksteps(num_replicas)
        self.store = None if store is None else SharedStore(self._environment, setup, store)
        source = self._source(num_engines, dispatcher or Dispatcher.of(setup), sample_s)
        connector = None if store is None else store.connector(len(setup.workload))
        servers = self._build(source, [(setup, connector)] * num_engines, sinks, num_ranks, self.store)
        source.start(self._environment, servers)

    def _build(
        self,
        source: Source,
        kinds: Sequence[tuple[Setup, Connector | None]],
        sinks: Sequence[RowSink],
        num_ranks: int,
        exchange: Exchanging | None,
    ) -> list[ServerProcess]:
        """Build an engine for each of `kinds`, which has its setup and its connector; return their servers in order.

        Each `num_ranks` consecutive engines are the ranks of one server. The other arguments are those of `_replica`.
        """
        self._replicas = [
            self._replica(
                source,
                sinks[number] if sinks else None,
                setup=setup,
                connector=connector,
                exchange=exchange,
                lockstep=self.locksteps[number // num_ranks] if self.locksteps else None,
            )
            for number, (setup, connector) in enumerate(kinds)
        ]
        servers = [replica.server for replica in self._replicas]
        for number, lockstep in enumerate(self.locksteps):
            lockstep.ranks = servers[number * num_ranks : (number + 1) * num_ranks]
        return servers

    @property
    def engines(self) -> list[Engine]:
        """Engines of all servers, in the order of their numbers."""
        return [replica.server.driver.engine for replica in self._replicas]

    @property
    def idle_steps(self) -> tuple[int, ...]:
        """Number of steps without a batch of each data-parallel rank; empty if ranks do not wait for each other."""
        return tuple(number for lockstep in self.locksteps for number in lockstep.num_idle_steps)

    def finish(self) -> list[Measured]:
        """Run to the end, and return the results of each engine."""
        self._run_to_end()
        setup, hashes = self.setup, self.setup.recorded_hashes()
        return [
            replica.finish(setup.workload, hashes, self.meta(number), setup.name, self._store_transfers(replica.server))
            for number, replica in enumerate(self._replicas)
        ]

    def _run_to_end(self) -> None:
        """Run until all requests have ended, and let all servers read the rows of their last slice."""
        self._environment.run()
        for replica in self._replicas:
            replica.server.close()

    def _store_transfers(self, server: ServerProcess) -> Callable[[Engine, npt.NDArray[np.int64]], Transfers] | None:
        """Return a function that lists a server's loads from the prefix store and its writes; None without a store."""
        if (store := self.store) is None:
            return None
        loads, unit_tokens = store.loads.get(server, []), self.setup.pool.unit_tokens
        return lambda _, rows: store_transfers(rows, loads, store.writes, unit_tokens)

    def meta(self, number: int = 0) -> Meta:
        """Return the metadata of the results of engine `number`. The run must be over."""
        replica = self._replicas[number]
        meta = self.setup.meta(replica.step_time, vllm_failures(replica.server.driver.engine))
        if self.store is None:
            return meta
        capacity = self.store.content.capacity
        return replace(meta, engine={**meta.engine, "kv_connector": STORE, CAPACITY: capacity})

    def _locksteps(self, num_servers: int) -> list[WaitingRanks]:
        """Return, for each server, the object on which its ranks wait for each other; empty if ranks do not wait."""
        times = self.setup.machine.step_time
        if not isinstance(times, RankTimes):
            return []
        check_interval_steps = steps_between_syncs(release_of(self.setup.base))
        return [WaitingRanks(self._environment, times, check_interval_steps) for _ in range(num_servers)]

    def _source(self, num_engines: int, dispatcher: Dispatcher, sample_s: Sequence[float]) -> Source:
        """Return the source that sends the requests to the servers; the options and the workload decide which one."""
        # Sessions of turns                      -> Conversations
        # max_concurrency and arrival times      -> ClosedLoop in which no request is sent before it arrives
        # Neither users nor max_concurrency      -> KnownInAdvance for one server, OpenLoop for several
        # Users, or max_concurrency where all    -> SingleServerUsers if one server can send their requests to itself,
        #   requests arrive at once                 ClosedLoop otherwise
        # KnownInAdvance and SingleServerUsers are fast: the engine never returns to SimPy for the next request.
        setup, workload = self.setup, self.setup.workload
        users, most, turns = _users(setup.options), _max_concurrency(setup.options), workload.turns
        is_alone = num_engines == 1 and self.store is None
        if turns is not None and most is not None:
            raise UsageError("turns of sessions wait for answers, so they take no max_concurrency; give users instead.")
        if turns is not None:
            return Conversations(turns, workload.arrival_s, dispatcher, users)
        if most is not None and workload.arrival_s.any():
            return ClosedLoop(len(workload), Users(number=most), dispatcher, workload.arrival_s)
        if most is not None:
            users = Users(number=most)  # all requests arrive at once, so a limit of `most` is the same as `most` users
        if users is None:
            return KnownInAdvance(sample_s, self.samples) if is_alone else OpenLoop(workload.arrival_s, dispatcher)
        begin_at_once = users.per_s == math.inf
        if is_alone and begin_at_once and not setup.refused.any() and not isinstance(setup.base, Static):
            return SingleServerUsers(users)
        return ClosedLoop(len(workload), users, dispatcher)

    def _replica(
        self,
        source: Source,
        sink: RowSink | None,
        *,
        setup: Setup,
        connector: Connector | None,
        exchange: Exchanging | None,
        lockstep: WaitingRanks | None,
    ) -> Replica:
        """Build one engine with its server process and the objects that collect its results.

        `source` sends its requests. `sink` receives its recording; None: nothing is recorded. Its steps wait for the
        other ranks in `lockstep`; None: it waits for no ranks.

        `connector` has the settings of its KV connector, and `exchange` is the other side of the connector; None
        without one. With an `exchange`, the engine returns whenever requests have ended.
        """
        base, machine = setup.base, setup.machine
        # Each server counts for itself the steps outside the range that the profile was fitted to.
        step_time = setup.times.step_time
        step_time = step_time.anew() if isinstance(step_time, WatchedProfile) else step_time
        step_time = step_time.own if isinstance(step_time, RankTimes) else step_time
        answers = source.awaits_answers or exchange is not None
        plan = self._plan(setup, step_time, connector, answers=answers, records=sink is not None)
        totals = Totals(setup.pool, Limits.of(describe(setup.policy, base)))
        has_images = setup.workload.images is not None and plan.encoding is not None
        contents = image_numbers_of(setup.workload) if has_images else None
        tables = None if sink is None else FinalRows(sink, contents)
        watch = partial(_watch, step_time)
        kernels = KernelsSeen(machine.gpu, machine.model, setup.options.get("earlier", ()))
        server = ServerProcess(
            self._environment,
            _driver(setup, plan, step_time, connector),
            kernels=kernels if isinstance(base, Static) else None,
            listeners=(totals.take, watch) if tables is None else (totals.take, tables.take, watch),
            progress=self._progress(),
            horizon=self._horizon_of(source, exchange, is_alone=lockstep is None),
            exchange=exchange,
            lockstep=lockstep,
            rows=setup.rows,
        )
        return Replica(server, totals, tables, step_time)

    def _horizon_of(self, source: Source, exchange: Exchanging | None, *, is_alone: bool) -> Horizon:
        """Return the function that limits how far a server may run ahead of SimPy's clock.

        `is_alone` is True for a server that waits for no other ranks.
        """
        if self.store is not None:
            return self.store.horizon_s
        if exchange is None and is_alone:
            return source.horizon_s
        return lambda: float(self._environment.peek())

    def _plan(
        self, setup: Setup, step_time: StepTimeModel, connector: Connector | None, *, answers: bool, records: bool
    ) -> EnginePlan:
        """Return the inputs from which a server's engine is built. If `connector` is None, it has no KV connector.

        With `answers`, the engine returns whenever requests have ended. With `records`, it keeps the rows of the memory
        table and of the schedule.
        """
        base, model, options = setup.base, setup.machine.model, setup.options
        custom_policy = setup.policy if isinstance(setup.policy, CustomPolicy) else None
        eviction = None if self._expected_rows is None else OptimalEviction(self._expected_rows)
        return EnginePlan(
            setup.demand,
            base,
            setup.num_units,
            step_time,
            refused=setup.refused,
            layout=setup.layout,
            pipeline=setup.pipeline,
            retention_tokens=defaults_of(release_of(base)).retention_tokens,
            unit_bytes=setup.pool.bytes_per_unit,
            window_tokens=setup.pool.windows.window_tokens if setup.pool.windows else 0,
            num_window_units=setup.pool.windows.num_units if setup.pool.windows else 0,
            num_gpus=model.tensor_parallel_size,
            num_layers=model.num_kv_layers,
            answers=answers,
            lockstep=isinstance(setup.machine.step_time, RankTimes),
            connector=connector,
            stamp_at_entry=options.get("stamp_at_entry", False),
            records_memory=records,
            records_schedule=records,
            checking=options.get("check", False),
            drafts=drafts_of(base, setup.rows),
            encoding=encoding_of(setup.workload, setup.policy, base, model),
            rules=None if custom_policy is None else CustomRules(custom_policy, setup.num_units, eviction),
            eviction=eviction,
        )

    def times_of_admission(self) -> npt.NDArray[np.float64]:
        """Return the seconds at which the run's only server first scheduled each request; NaN for never."""
        [replica] = self._replicas
        return np.array(column(replica.server.driver.engine.times, "first_scheduled_s")[1:])

    def _progress(self) -> Callable[[Engine], None] | None:
        """Return a function that calls the option `progress` when requests of a server have ended; None without it."""
        progress, num_requests = self.setup.options.get("progress"), len(self.setup.workload)
        if progress is None:
            return None
        num_reported = 0

        def report(engine: Engine) -> None:
            nonlocal num_reported
            if num_new := int(engine.state.num_ended) - num_reported:
                num_reported += num_new
                self._num_ended += num_new
                progress(self._num_ended, num_requests)

        return report


def _watch(step_time: StepTimeModel, engine: Engine) -> None:
    """Report the largest step shape of a slice to `step_time`, if that is a `WatchedProfile`."""
    if isinstance(step_time, WatchedProfile) and (largest := largest_shape(engine)):
        step_time.saw(largest)


class Replica(NamedTuple):
    """One engine of a run: its server process, and the objects that collect its results."""

    server: ServerProcess
    totals: Totals
    tables: FinalRows | None
    step_time: StepTimeModel

    def finish(
        self,
        workload: Workload,
        hashes: Ragged[np.int64],
        meta: Meta,
        name: str,
        transfers_of: Callable[[Engine, npt.NDArray[np.int64]], Transfers] | None = None,
    ) -> Measured:
        """Return the results of the engine, and append its last tables to the recording.

        Args:
            workload: the requests of the run.
            hashes: the prompt hashes of the whole workload.
            meta: metadata of the results.
            name: name of the results.
            transfers_of: returns the transfers of the engine's requests, given by their rows; None without transfers.
        """
        engine = self.server.driver.engine
        rows = rows_of(engine)
        requests = requests_of(engine, workload, rows, hashes.take(rows))
        if self.tables is not None:
            transfers = None if transfers_of is None else transfers_of(engine, rows)
            self.tables.finish(requests, transfers, recorded_images(workload, rows))
        return self.totals.finish(engine, requests, meta, name)


def _driver(setup: Setup, plan: EnginePlan, step_time: StepTimeModel, connector: Connector | None) -> Driver:
    """Return the driver of a server's engine. The engine is compiled at the beginning, later during the run, or never.

    `connector` is that of `plan`; None without a KV connector.
    """
    choice = engine_for(setup.options.get("engine", "auto"), setup.policy)
    # All servers use the machine code that is compiled for one server, so the requests of all servers count.
    num_requests = len(setup.workload) * setup.rows.step
    num_output_tokens = int(setup.demand.output.sum()) * setup.rows.step
    # A check reads the engine at every step in Python, which is faster with objects than with the arrays of compiled
    # code. So existing machine code is then ignored.
    memory = None if setup.options.get("check", False) else memory_of(setup.base, connector)
    compiled = begins_compiled(num_requests, num_output_tokens, step_time=step_time, engine=choice, memory=memory)

    def compile_later() -> Engine | None:
        return plan.build(compiled=True) if may_compile(num_requests, step_time, choice) else None

    return Driver(plan.build(compiled=compiled), compiled=compiled, compile_later=compile_later)


def _expected_order(setup: Setup, num_replicas: int) -> list[int]:
    """Return the rows of the workload in the order in which optimal eviction expects admissions.

    Without priorities and turns, this is the order of arrival. Otherwise the run is first simulated with vLLM's
    eviction, and its order of admission is returned.
    """
    base, policy = setup.base, setup.policy
    assert isinstance(base, Paged)
    has_rule = isinstance(policy, CustomPolicy) and evicts(policy)
    for obstacle, applies in (
        ("host memory has a rule of its own, so take --kv-offloading-size 0", base.cache.kv_offloading_size > 0),
        ("the server of a request is not known, so take --replicas 1", num_replicas > 1 or setup.rows.step > 1),
        (f"the policy {policy.name!r} has a rule of its own, so take eviction lru", has_rule),
    ):
        if applies:
            raise UsageError(f"optimal eviction knows the requests of one prefix cache, and {obstacle}.")
    if setup.workload.turns is None and base.scheduler.order is Order.FCFS:
        return list(range(len(setup.workload)))
    options: Options = {**setup.options, "progress": None, "check": False, "engine": "auto"}
    with_lru = replace(base, cache=replace(base.cache, eviction=PrefixEviction.LRU))
    run = SimulationRun(Setup.of(setup.workload, with_lru, setup.machine, options))
    run.finish()
    # NaN, the time of a request that was never admitted, is sorted last.
    return [int(row) for row in np.argsort(run.times_of_admission(), kind="stable")]


def _max_concurrency(options: Options) -> int | None:
    """Return the option `max_concurrency`, after a check; None for no limit."""
    most = options.get("max_concurrency")
    if most is not None and options.get("users") is not None:
        raise UsageError(
            "users send requests in a closed loop, and max_concurrency limits arrivals; give one of the two."
        )
    if most is not None and most < 1:
        raise UsageError(f"max_concurrency should be at least 1, not {most}.")
    return most


def _users(options: Options) -> Users | None:
    """Return the users of a closed loop, after a check of their options. None for an open loop."""
    users, think_s = options.get("users"), options.get("think_s", 0.0)
    users_per_s = options.get("users_per_s", math.inf)
    if users is None:
        if think_s:
            raise UsageError(f"think_s is {think_s}, and only users in a closed loop think; give users as well.")
        if users_per_s != math.inf:
            raise UsageError(f"users_per_s is {users_per_s}, and there are no users; give users as well.")
        return None
    users = whole_number("users", users)
    if not (is_finite(think_s) and think_s >= 0):
        raise UsageError(f"think_s should be a number of seconds, 0 or more, not {shortened(think_s)}.")
    if users_per_s != math.inf and not (is_finite(users_per_s) and users_per_s > 0):
        raise UsageError(f"users_per_s should be a positive number, not {shortened(users_per_s)}.")
    return Users(number=users, think_s=think_s, per_s=users_per_s)
