"""Put a workload through a policy on a clock.

Requests arrive when the workload says, the engine works through its steps, and the step-time model says how long each
takes. The result is a `Recording`, as from a real engine. SimPy composes sources of requests and servers; a server's
engine takes its steps without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import simpy

from kvsim.engine.coefficients import coefficients_of
from kvsim.engine.custom_rules import CustomRules
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan, memory_of
from kvsim.engine.state import Engine
from kvsim.errors import BudgetError, UnknownNameError, UsageError
from kvsim.hardware import GIB, Gpu
from kvsim.kv_groups import CacheSettings, KVCacheLayout, bytes_per_block, cache_layout
from kvsim.kv_groups.grouping import hashed_by_mode
from kvsim.metrics import Limits
from kvsim.models import Model
from kvsim.policies import AnyPolicy, Contiguous, Paged, Pipeline, Policy, Radix, Static, base_of, describe, limited
from kvsim.policies.custom import CustomPolicy
from kvsim.policies.releases import DEFAULT, defaults_of, rules_of
from kvsim.policies.routers import SEES_PREFIXES, RoutedRequest, RouteName, Router, router_of
from kvsim.policies.settings import EngineDefaults
from kvsim.profiles.extrapolation import Watched, provenance
from kvsim.recording import Meta, Pool, Recording, RecordingBuilder, RecordingWriter, write
from kvsim.recording.model import MAX_UNITS
from kvsim.simulation.demand import demand_of, hash_tokens, provenance_of_hashes, recorded_hashes, refused
from kvsim.simulation.dispatch import Dispatcher
from kvsim.simulation.measured import Measured
from kvsim.simulation.modes import EngineName, begins_compiled, engine_for, may_compile
from kvsim.simulation.results import FinalRows, Totals, largest_shape, requests_of, rows_of
from kvsim.simulation.server import ServerProcess
from kvsim.simulation.sources import (
    ClosedLoop,
    Conversations,
    KnownInAdvance,
    OneServersUsers,
    OpenLoop,
    Source,
    Users,
)
from kvsim.steptime import StepTimeModel
from kvsim.steptime.kernels import Batch, KernelsSeen
from kvsim.workload import Ragged, Workload

ProgressCallback = Callable[[int, int], None]
"""Called now and then with the number of requests that have ended, and of all."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Machine:
    """Machine of a run: a GPU, a model as it is served, memory for its cache, and step times."""

    gpu: Gpu
    model: Model
    kv_bytes: int
    """Memory for keys and values: on one GPU, or on one of every stage of a pipeline, added up."""
    step_time: StepTimeModel

    def __repr__(self) -> str:
        num_gpus = self.model.tensor_parallel_size * self.model.pipeline_parallel_size
        gpus = f"{num_gpus}x" if num_gpus > 1 else ""
        return (
            f"<Machine: {gpus}{self.gpu.name}, {self.model.name}, {self.kv_bytes / GIB:.2f} GiB of KV, "
            f"times: {self.step_time.label.partition(';')[0]}>"
        )

    def limited(self, policy: AnyPolicy) -> Policy:
        """Return the built-in policy that `policy` is or is based on, with the limits that it has on this machine."""
        is_a100, release = self.gpu.name.startswith("A100"), _release_of(base_of(policy))
        defaults = EngineDefaults.of("llm", self.gpu.memory_bytes, is_a100=is_a100, release=release)
        return limited(policy, self.model.max_position_embeddings, defaults)

    def layout(self, policy: AnyPolicy) -> KVCacheLayout | None:
        """Return the KV-cache groups of the model in the blocks of `policy`; None if its memory has no blocks.

        Raises:
            UsageError: vLLM could not serve the model with such blocks.
        """
        base = self.limited(policy)
        if not isinstance(base, Paged):
            return None
        settings = CacheSettings(
            max_model_len=base.max_model_len,
            max_num_batched_tokens=base.scheduler.max_num_batched_tokens,
            block_size=base.cache.block_size,
            enable_prefix_caching=base.cache.enable_prefix_caching,
            keeps_every_state=defaults_of(base.scheduler.vllm).keeps_every_state,
            hybrid_manager=base.cache.hybrid_manager and not base.cache.uniform_cache,
            uniform=base.cache.uniform_cache,
        )
        of_stages = bytes_per_block(self.model, settings)
        layout = replace(cache_layout(self.model, settings), bytes_per_block=sum(of_stages))
        if isinstance(policy, CustomPolicy) and policy.allocator is not None and not layout.is_uniform:
            raise UsageError(
                f"{self.model.name} has layers of several kinds, and the allocator of {policy.name!r} hands out units "
                "of one; take a model whose layers are alike, or leave the memory to vLLM's cache."
            )
        if base.cache.enable_prefix_caching:
            if rules_of(base.scheduler.vllm).hashes_aligned_states:
                layout = hashed_by_mode(layout)
            _check_hashes(self.model, layout)
        return layout

    def pool(self, policy: AnyPolicy) -> Pool:
        """Return the pool of `policy` in that memory.

        Raises:
            BudgetError: not even one unit fits, or more than `MAX_UNITS`.
            UsageError: vLLM could not serve the model with such blocks.
        """
        layout = self.layout(policy)
        if layout is None:
            _check_tokens(self.model, policy)
        unit_tokens, bytes_per_unit = policy.unit_tokens, policy.unit_tokens * self.model.kv_bytes_per_token
        if layout is not None:
            unit_tokens, bytes_per_unit = layout.scheduler_block_size, layout.bytes_per_block
        num_units = self.kv_bytes // bytes_per_unit
        first_unit = 0
        if isinstance(base_of(policy), Paged):  # block 0 exists and is never handed out
            num_units, first_unit = num_units - 1, 1
        elif isinstance(policy, Radix):  # page 0 comes on top
            first_unit = 1
        if num_units < 1:
            raise BudgetError(
                f"{self.kv_bytes} bytes of KV memory hold no usable unit of {unit_tokens} tokens of "
                f"{self.model.name}, which takes {bytes_per_unit} bytes; give it more memory."
            )
        if num_units > MAX_UNITS:
            raise BudgetError(
                f"{self.kv_bytes} bytes of KV memory are {num_units:,} units of {unit_tokens} tokens of "
                f"{self.model.name}, and a pool may have {MAX_UNITS:,}; give it less memory or larger units."
            )
        return Pool(
            unit_tokens=unit_tokens,
            num_units=num_units,
            first_unit=first_unit,
            bytes_per_unit=bytes_per_unit,
            groups=layout.groups if layout is not None and (layout.has_windows or not layout.is_uniform) else (),
        )


def _check_hashes(model: Model, layout: KVCacheLayout) -> None:
    """Refuse groups whose prefixes vLLM cannot hash: it stops when it starts."""
    hashed, sizes = layout.hash_block_size, [group.block_size for group in layout.groups]
    if any(size % hashed for size in sizes):
        raise UsageError(
            f"prefixes of {model.name} cannot be cached: vLLM hashes {hashed:,} tokens at a time, and the blocks of "
            f"its groups hold {', '.join(map(str, sizes))}; leave --prefix-caching out, or choose another --block-size."
        )


def _check_tokens(model: Model, policy: AnyPolicy) -> None:
    """Refuse what would come out wrong: where memory is handed out by tokens, a recurrent state has no place."""
    if model.recurrent_layers:
        raise UsageError(
            f"{model.name} has {len(model.recurrent_layers)} recurrent layers, whose states are no tokens, and the "
            f"{policy.name} policy hands out memory by tokens; take the paged one."
        )
    if isinstance(policy, Radix) and not cache_layout(model, CacheSettings(max_model_len=8)).is_uniform:
        raise UsageError(
            f"{model.name} has layers with windows, for which SGLang has a second pool, and the radix policy is "
            "simulated with one; take --policy paged, or another --model."
        )


def _release_of(policy: Policy) -> str:
    """Return the release whose rules a policy follows; for other schedulers, the default."""
    return DEFAULT if isinstance(policy, Static | Radix) else policy.scheduler.vllm


def _check_stages(machine: Machine, policy: Policy) -> None:
    """Refuse step times of a whole model for an engine that has its stages at work on several steps."""
    size, num_known = machine.model.pipeline_parallel_size, len(coefficients_of(machine.step_time)) or 1
    if num_known not in (1, size) or (num_known == 1 < size and not isinstance(policy, Static)):
        raise UsageError(
            f"the machine has {size} pipeline stages, and its step times are those of {num_known}; take the times of a "
            "machine card for both."
        )
    ahead = isinstance(policy, Paged | Contiguous) and policy.scheduler.async_scheduling
    if Pipeline.of(machine.model, _release_of(policy)).tokens_ahead(async_scheduling=ahead) > 1:
        raise UsageError(
            f"vLLM serves {machine.model.name} with its model runner V1, which in a pipeline of more than two stages "
            "schedules sequences past their last token, and the account of memory does not follow that; take two "
            "stages, or synchronous scheduling (--no-async-scheduling)."
        )


class Options(TypedDict, total=False):
    """Options of a simulation; all have defaults."""

    refuse_misfits: bool
    """Refuse requests that could never be served, and count them, instead of raising."""
    users: int | None
    """Number of users; each waits for an answer before sending the next request, regardless of arrival times (closed
    loop), or has one session of turns after the other. None for an open loop."""
    max_concurrency: int | None
    """Largest number of requests that clients have sent and not seen answered; others wait. None for no limit."""
    think_s: float
    """Seconds between an answer and the next request of a user, in a closed loop."""
    users_per_s: float
    """Users that begin per second in a closed loop, until all have begun; infinity, the default, for all at once."""
    stamp_at_entry: bool
    """Record as a request's arrival the moment at which the engine had let it in, as a recorder inside the engine does,
    instead of the moment at which it was sent."""
    engine: EngineName
    """`interpreted`, `compiled`, or `auto`: compiled where the run is long enough to gain by it.

    Times and recordings are the same bit for bit.
    """
    earlier: tuple[Batch, ...]
    """Batches that the process of `generate()` has behind it: it has their kernels."""
    check: bool
    """Verify the account of every unit and every slot at every step."""
    progress: ProgressCallback | None
    """Called now and then with the number of requests that have ended, and of all."""
    command: str
    """Goes into the provenance."""


def simulate(workload: Workload, policy: AnyPolicy, machine: Machine, **options: Unpack[Options]) -> Recording:
    """Run `workload` to its end and return the results.

    Args:
        workload: the requests; their `output_tokens` is known to the simulation, not to the policy (but see `Reserve`).
        policy: how they are scheduled and how memory is shared out.
        machine: the GPU, the model, the memory and the clock.
        options: see `Options`.

    Raises:
        UsageError: `users` is below 1, `think_s` is negative or without it, or the run cannot be compiled.
        WorkloadError: a request is longer than the longest sequence that is allowed.
        BudgetError: a request needs more than the whole pool.
        StalledError: the head of the queue can never be scheduled.
        IntegrityError: `check` found a defect.
    """
    builder = RecordingBuilder()
    run = Run(workload, policy, machine, options, [builder])
    run.finish()
    return builder.finish(run.meta(), name=run.name)


def record(workload: Workload, policy: AnyPolicy, machine: Machine, path: Path, **options: Unpack[Options]) -> Measured:
    """Run `workload` and write the recording to folder `path` while it runs: memory does not grow with the steps.

    Takes and raises what `simulate` and `write` do. Returns what `measure` does.
    """
    from kvsim.metrics.contradictions import refuse_contradictions  # noqa: PLC0415  most runs record nothing

    with RecordingWriter(path) as writer:
        builder = RecordingBuilder(writer)
        run = Run(workload, policy, machine, options, [builder])
        [measured] = run.finish()
        builder.close()
        writer.commit(run.meta(), play=refuse_contradictions)
    return measured


def measure(workload: Workload, policy: AnyPolicy, machine: Machine, **options: Unpack[Options]) -> Measured:
    """Run `workload` to its end and return its summary and the times of its requests: no step is kept.

    Takes and raises what `simulate` does. Memory grows with the requests, not with the steps.
    """
    [measured] = Run(workload, policy, machine, options).finish()
    return measured


class Fleet(NamedTuple):
    """Measurements of several equal servers behind one router."""

    servers: list[Measured]
    mean_duplicate_blocks: float
    """Cached prefix blocks that another server holds, too, on average over the arrivals; each prefix once less."""
    most_duplicate_blocks: int


def measure_replicas(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    num_replicas: int,
    route: RouteName | str | Router,
    route_lag_s: float = 0.0,
    **options: Unpack[Options],
) -> Fleet:
    """Run `workload` on several equal servers behind one router, and return the measurements of each server.

    `route` chooses the server of each request: a name, a Python file with a function `route`, or a `Router`. It sees
    prefix caches as they were `route_lag_s` before the request. Takes and raises what `simulate` does otherwise.
    """
    run = Run(workload, policy, machine, options, num_replicas=num_replicas, route=route, route_lag_s=route_lag_s)
    return run.finish_fleet()


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
    builders = [RecordingBuilder() for _ in range(num_replicas)]
    run = Run(
        workload, policy, machine, options, builders, num_replicas=num_replicas, route=route, route_lag_s=route_lag_s
    )
    fleet = run.finish_fleet()
    return [builder.finish(run.meta(), name=run.name) for builder in builders], fleet


def record_replicas(
    workload: Workload,
    policy: AnyPolicy,
    machine: Machine,
    path: Path,
    num_replicas: int,
    route: RouteName | str | Router,
    route_lag_s: float = 0.0,
    **options: Unpack[Options],
) -> Fleet:
    """Run as `measure_replicas` does, and write the recording of server `n` to the folder `path/n`."""
    recordings, fleet = simulate_replicas(workload, policy, machine, num_replicas, route, route_lag_s, **options)
    for number, recording in enumerate(recordings):
        write(recording, path / str(number))
    return fleet


class Run:
    """A workload on one server, or on several behind one router."""

    def __init__(
        self,
        workload: Workload,
        policy: AnyPolicy,
        machine: Machine,
        options: Options,
        builders: Sequence[RecordingBuilder] = (),
        *,
        num_replicas: int = 1,
        route: RouteName | str | Router = "shortest",
        route_lag_s: float = 0.0,
    ) -> None:
        """Get ready; what there is to record of server `n` goes to `builders[n]`, if there are any."""
        for name in options.keys() - Options.__annotations__.keys():
            raise UnknownNameError("option of a simulation", name, Options.__annotations__)
        self.workload, self.policy, self.machine, self.options = workload, policy, machine, options
        self._base = machine.limited(policy)
        self._release = _release_of(self._base)
        self._pipeline = Pipeline.of(machine.model, self._release)
        _check_stages(machine, self._base)
        self.pool, self._layout = machine.pool(policy), machine.layout(policy)
        assert self.pool.num_units is not None
        self._num_slots = self.pool.num_units * self.pool.unit_tokens
        self.name = f"{policy.name}-{workload.name}"
        self._environment = simpy.Environment()
        self._demand = demand_of(workload, self._base, self._layout, self._num_slots, recording=bool(builders))
        self._refused = self._find_refused()
        self._dispatcher = self._dispatch(route, route_lag_s)
        source = self._source(num_replicas)
        self._replicas = [
            self._replica(source, builders[number] if builders else None) for number in range(num_replicas)
        ]
        source.start(self._environment, [replica.server for replica in self._replicas])

    def finish(self) -> list[Measured]:
        """Run to the end and return what it adds up to, for each server."""
        self._environment.run()
        hashes = recorded_hashes(self.workload, self._base, self._layout, self._demand)
        return [replica.finish(self.workload, hashes, self.meta(), self.name) for replica in self._replicas]

    def finish_fleet(self) -> Fleet:
        """Run to the end and return what it adds up to, for each server, and what several servers hold."""
        duplicates = self._dispatcher.duplicates
        return Fleet(self.finish(), duplicates.mean_blocks, duplicates.most_blocks)

    def meta(self) -> Meta:
        """Return the provenance of the results, once the run is over."""
        machine = self.machine
        model = {key: value for key, value in asdict(machine.model).items() if value not in (None, (), "")}
        return Meta(
            source="simulation",
            engine={"name": "kvsim", "step_time": machine.step_time.label, "calibrated": machine.step_time.calibrated}
            | (asdict(self._pipeline) if self._pipeline.pipeline_parallel_size > 1 else {})
            | ({"vllm_failures": num_failures} if (num_failures := self._num_failures()) else {})
            | ({"hash_block_size": hash_tokens(self.workload, self._base, self._layout)} if self.pool.groups else {}),
            gpu=machine.gpu.name,
            model=model | {"kv_bytes_per_token": machine.model.kv_bytes_per_token},
            policy=describe(self.policy, self._base),
            pool=self.pool,
            command=self.options.get("command", ""),
            notes=self.workload.description,
            extra=provenance(machine.step_time) | provenance_of_hashes(self.workload, self._base),
        )

    def _num_failures(self) -> int:
        """Count the failures that would have ended vLLM, over all servers."""
        return sum(int(replica.server.driver.engine.state.num_failures) for replica in self._replicas)

    def _find_refused(self) -> npt.NDArray[np.bool_]:
        num_units, refuse = self.pool.num_units, self.options.get("refuse_misfits", False)
        assert num_units is not None
        return refused(self.workload, self._demand, self._base, self._layout, num_units, refuse_misfits=refuse)

    def _dispatch(self, route: RouteName | str | Router, lag_s: float) -> Dispatcher:
        """Return what sends each request to a server.

        Raises:
            UsageError: the route or the lag means nothing for this run.
        """
        if isinstance(self._base, Radix) and route in SEES_PREFIXES:
            raise UsageError(
                f"the route {route!r} looks prefixes up in blocks, and the radix policy keeps a tree of tokens; take "
                "--route shortest, round-robin, least-kv, power-of-two or session."
            )
        is_closed = self.options.get("users") is not None or self.options.get("max_concurrency") is not None
        if lag_s and (is_closed or self.workload.turns is not None):
            raise UsageError(
                "--route-lag needs arrivals that are known beforehand, and users and sessions send requests when "
                "others are answered; leave it out."
            )
        workload, num_units = self.workload, self.pool.num_units
        assert num_units is not None
        sessions = workload.prefix_group if workload.turns is None else workload.turns.session

        def describe_request(row: int, at_s: float) -> RoutedRequest:
            return RoutedRequest(
                row=row,
                prompt_tokens=int(workload.prompt_tokens[row]),
                priority=int(workload.priority[row]),
                session=int(sessions[row]),
                arrival_s=at_s,
            )

        return Dispatcher(router_of(route), describe_request, num_units, lag_s=lag_s)

    def _source(self, num_replicas: int) -> Source:
        users, most, dispatcher = _users(self.options), _most_at_once(self.options), self._dispatcher
        turns = self.workload.turns
        if turns is not None and most is not None:
            raise UsageError("turns of sessions wait for answers, so they take no max_concurrency; give users instead.")
        if turns is not None:
            return Conversations(turns, self.workload.arrival_s, dispatcher, users)
        if most is not None and self.workload.arrival_s.any():
            return ClosedLoop(len(self.workload), Users(number=most), dispatcher, self.workload.arrival_s)
        users = Users(number=most) if most is not None else users  # all arrive at once
        if users is None:
            return KnownInAdvance() if num_replicas == 1 else OpenLoop(self.workload.arrival_s, dispatcher)
        known = num_replicas == 1 and users.per_s == math.inf and not self._refused.any()
        if known and not isinstance(self._base, Static):
            return OneServersUsers(users)
        return ClosedLoop(len(self.workload), users, dispatcher)

    def _replica(self, source: Source, builder: RecordingBuilder | None) -> Replica:
        policy, machine, options, num_units = self._base, self.machine, self.options, self.pool.num_units
        assert num_units is not None
        own = self.policy if isinstance(self.policy, CustomPolicy) else None
        size, choice = len(self.workload), engine_for(options.get("engine", "auto"), own)
        # A check looks at everything at every step, in Python, which reads objects faster than arrays.
        memory = None if options.get("check", False) else memory_of(policy)
        compiled = begins_compiled(size, int(self._demand.output.sum()), machine.step_time, choice, memory)
        plan = EnginePlan(
            self._demand,
            policy,
            num_units,
            machine.step_time,
            refused=self._refused,
            layout=self._layout,
            pipeline=self._pipeline,
            retention_tokens=defaults_of(self._release).retention_tokens,
            unit_bytes=self.pool.bytes_per_unit,
            num_gpus=machine.model.tensor_parallel_size,
            num_layers=machine.model.num_kv_layers,
            answers=source.awaits_answers,
            stamp_at_entry=options.get("stamp_at_entry", False),
            records_memory=builder is not None,
            records_schedule=builder is not None,
            checking=options.get("check", False),
            rules=None if own is None else CustomRules(own, num_units),
        )

        def compile_later() -> Engine | None:
            return plan.build(compiled=True) if may_compile(size, machine.step_time, choice) else None

        driver = Driver(plan.build(compiled=compiled), compiled=compiled, compile_later=compile_later)
        totals = Totals(self.pool, Limits.of(describe(self.policy, self._base)))
        tables = None if builder is None else FinalRows(builder)
        listeners = (totals.take, self._watch) if tables is None else (totals.take, tables.take, self._watch)
        kernels = KernelsSeen(machine.gpu, machine.model, options.get("earlier", ()))
        server = ServerProcess(
            self._environment,
            driver,
            kernels=kernels if isinstance(policy, Static) else None,
            listeners=listeners,
            horizon=source.horizon_s,
        )
        return Replica(server, totals, tables)

    def _watch(self, engine: Engine) -> None:
        """Report the largest steps of a slice to a model that asks for them, and the progress."""
        step_time, progress = self.machine.step_time, self.options.get("progress")
        if isinstance(step_time, Watched) and (largest := largest_shape(engine)):
            step_time.saw(largest)
        if progress:
            num_ended = sum(replica.server.driver.engine.state.num_ended for replica in self._replicas)
            progress(int(num_ended), len(self.workload))


class Replica(NamedTuple):
    """One server of a run, and its listener."""

    server: ServerProcess
    totals: Totals
    tables: FinalRows | None

    def finish(self, workload: Workload, hashes: Ragged[np.int64], meta: Meta, name: str) -> Measured:
        """Return the results; requests are numbered in order of arrival."""
        self.server.close()
        engine = self.server.driver.engine
        rows = rows_of(engine)
        requests = requests_of(engine, workload, rows, hashes.take(rows))
        if self.tables is not None:
            self.tables.finish(requests)
        return self.totals.finish(engine, requests, meta, name)


def _most_at_once(options: Options) -> int | None:
    """Return the largest number of requests that clients send at once; None if they send all that arrive.

    Raises:
        UsageError: there are users as well, or fewer than one.
    """
    most = options.get("max_concurrency")
    if most is not None and options.get("users") is not None:
        raise UsageError(
            "users send requests in a closed loop, and max_concurrency limits arrivals; give one of the two."
        )
    if most is not None and most < 1:
        raise UsageError(f"max_concurrency should be at least 1, not {most}.")
    return most


def _users(options: Options) -> Users | None:
    """Return the users of a closed loop; None in an open one.

    Raises:
        UsageError: there are settings of users and no users; or a figure cannot be right.
    """
    users, think_s = options.get("users"), options.get("think_s", 0.0)
    users_per_s = options.get("users_per_s", math.inf)
    if users is None:
        if think_s:
            raise UsageError(f"think_s is {think_s}, and only users in a closed loop think; give users as well.")
        if users_per_s != math.inf:
            raise UsageError(f"users_per_s is {users_per_s}, and there are no users; give users as well.")
        return None
    if users < 1:
        raise UsageError(f"users should be at least 1, not {users}.")
    if not 0 <= think_s < math.inf:
        raise UsageError(f"think_s should be a number of seconds, 0 or more, not {think_s}.")
    if not users_per_s > 0:
        raise UsageError(f"users_per_s should be a positive number, not {users_per_s}.")
    return Users(number=users, think_s=think_s, per_s=users_per_s)
