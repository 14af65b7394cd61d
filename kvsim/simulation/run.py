"""Put a workload through a policy on a clock.

Requests arrive when the workload says, the engine works through its steps, and the step-time model says how long each
takes. The result is a `Recording`, as from a real engine. Two engines give the same one: in Python there is one SimPy
event per step at most, never one per token; the compiled one does without.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import simpy

from kvsim.errors import BudgetError, UsageError
from kvsim.extrapolation import provenance
from kvsim.hardware import Gpu
from kvsim.kernels import Batch, KernelsSeen
from kvsim.models import Model
from kvsim.policies import Paged, Policy, Static, describe
from kvsim.recording import Meta, Pool, Recording, RecordingBuilder, RecordingWriter
from kvsim.recording.model import MAX_UNITS
from kvsim.simulation.arrivals import Arrivals, ProgressCallback, provenance_of_hashes
from kvsim.simulation.choice import EngineName, runs_compiled
from kvsim.simulation.compiled.packing import Lengths
from kvsim.simulation.continuous import continuous_engine
from kvsim.simulation.measured import Measured
from kvsim.simulation.recorder import Recorder
from kvsim.simulation.static import static_engine
from kvsim.simulation.tally import Tally
from kvsim.steptime import StepTimeModel
from kvsim.workload import Workload

if TYPE_CHECKING:
    from kvsim.simulation.compiled.drive import CompiledRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the workload runs on."""

    gpu: Gpu
    model: Model
    kv_bytes: int
    """Memory for keys and values."""
    step_time: StepTimeModel

    def pool(self, policy: Policy) -> Pool:
        """The pool that `policy` makes of the memory.

        Raises:
            BudgetError: not even one unit fits, or more than `MAX_UNITS`.
        """
        bytes_per_unit = policy.unit_tokens * self.model.kv_bytes_per_token
        num_units = self.kv_bytes // bytes_per_unit
        first_unit = 0
        if isinstance(policy, Paged):  # block 0 exists and is never handed out
            num_units, first_unit = num_units - 1, 1
        if num_units < 1:
            raise BudgetError(
                f"{self.kv_bytes} bytes of KV memory hold no usable unit of {policy.unit_tokens} tokens of "
                f"{self.model.name}, which takes {bytes_per_unit} bytes; give it more memory."
            )
        if num_units > MAX_UNITS:
            raise BudgetError(
                f"{self.kv_bytes} bytes of KV memory are {num_units:,} units of {policy.unit_tokens} tokens of "
                f"{self.model.name}, and a pool may have {MAX_UNITS:,}; give it less memory or larger units."
            )
        return Pool(
            unit_tokens=policy.unit_tokens, num_units=num_units, first_unit=first_unit, bytes_per_unit=bytes_per_unit
        )


class Options(TypedDict, total=False):
    """How a workload is put through a policy; all may be left out."""

    refuse_misfits: bool
    """Refuse requests that could never be served, and count them, instead of raising."""
    concurrency: int | None
    """Send so many requests at a time, whatever their arrival times (closed loop), each of which arrives when it is
    sent; None for open loop."""
    stamp_at_entry: bool
    """Record as a request's arrival the moment at which the engine had let it in, as a recorder inside the engine does,
    instead of the moment at which it was sent."""
    leap: bool
    """Take uneventful steps many at a time, as by default: the result is the same as step by step, bit for bit."""
    engine: EngineName
    """`python`, `compiled` (with the part `kvsim[fast]`), or `auto`: compiled where it can be and where that pays.

    Times and recordings are the same bit for bit, sums up to their rounding.
    """
    earlier: tuple[Batch, ...]
    """What the process of `generate()` has behind it: it has those batches' kernels."""
    check: bool
    """Verify at every step that the slots of the pool add up; step by step."""
    progress: ProgressCallback | None
    """Called now and then with the number of requests that have ended, and of all."""
    command: str
    """Goes into the provenance."""


def simulate(workload: Workload, policy: Policy, machine: Machine, **options: Unpack[Options]) -> Recording:
    """Run `workload` to its end and return what happened.

    Args:
        workload: the requests; their `output_tokens` is known to the simulation, not to the policy (but see `Reserve`).
        policy: how they are scheduled and how memory is shared out.
        machine: the GPU, the model, the memory and the clock.
        options: see `Options`.

    Raises:
        UsageError: `concurrency` is below 1, or `engine` is one that cannot do this run.
        MissingExtraError: `engine` is one that is not installed.
        WorkloadError: a request is longer than the longest sequence that is allowed.
        BudgetError: a request needs more than the whole pool.
        StalledError: the head of the queue can never be scheduled.
        IntegrityError: `check` found a defect.
    """
    builder = RecordingBuilder()
    _report(workload, policy, machine, builder, options)
    return builder.finish(_meta(workload, policy, machine, options), name=_name(workload, policy))


def record(workload: Workload, policy: Policy, machine: Machine, path: Path, **options: Unpack[Options]) -> Path:
    """Run `workload` and write the recording to folder `path` while it runs: memory does not grow with the steps.

    Takes and raises what `simulate` and `write` do.
    """
    with RecordingWriter(path) as writer:
        builder = RecordingBuilder(writer)
        _report(workload, policy, machine, builder, options)
        builder.close()
        return writer.commit(_meta(workload, policy, machine, options))


def _report(workload: Workload, policy: Policy, machine: Machine, builder: RecordingBuilder, options: Options) -> None:
    """Run `workload` on the engine for it, and report everything to `builder`."""
    if (compiled := _compiled(workload, policy, machine, options)) is None:
        _run(workload, policy, machine, builder, options)
    else:
        compiled.run(builder)


def measure(workload: Workload, policy: Policy, machine: Machine, **options: Unpack[Options]) -> Measured:
    """Run `workload` to its end and return its summary and the times of its requests: no step is kept.

    Takes and raises what `simulate` does. Memory grows with the requests, not with the steps.
    """
    if isinstance(policy, Static) and (options.get("check") or not options.get("leap", True)):
        return Measured.of(simulate(workload, policy, machine, **options))
    name = _name(workload, policy)
    if (compiled := _compiled(workload, policy, machine, options)) is not None:
        totals = compiled.run()
        return totals.summarize(_meta(workload, policy, machine, options), name)
    tally = Tally(workload, policy, machine.pool(policy))
    _run(workload, policy, machine, tally, options)
    return tally.finish(_meta(workload, policy, machine, options), name=name)


def _name(workload: Workload, policy: Policy) -> str:
    return f"{policy.name}-{workload.name}"


def _compiled(workload: Workload, policy: Policy, machine: Machine, options: Options) -> CompiledRun | None:
    """The run on the compiled engine, if that is the one for it."""
    pool = machine.pool(policy)
    step_by_step = options.get("check", False) or not options.get("leap", True)
    engine = options.get("engine", "auto")
    if not runs_compiled(workload, policy, pool, machine.step_time, engine=engine, step_by_step=step_by_step):
        return None
    assert not isinstance(policy, Static)
    misfits = Lengths.of(workload, policy.max_model_len).misfits(policy, pool)
    if misfits.any() and not options.get("refuse_misfits"):
        return None  # the other engine says what is wrong with which of them
    from kvsim.simulation.compiled.drive import CompiledRun  # noqa: PLC0415  takes numba, half a second

    return CompiledRun(
        workload=workload,
        policy=policy,
        pool=pool,
        step_time=machine.step_time,
        concurrency=_concurrency(options),
        stamp_at_entry=options.get("stamp_at_entry", False),
        progress=options.get("progress"),
    )


def _concurrency(options: Options) -> int | None:
    concurrency = options.get("concurrency")
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"concurrency should be at least 1, not {concurrency}.")
    return concurrency


def _run(workload: Workload, policy: Policy, machine: Machine, recorder: Recorder, options: Options) -> None:
    """Run `workload` on the engine in Python, reporting to `recorder`."""
    arrivals = Arrivals(
        workload,
        policy,
        recorder,
        refuse_misfits=options.get("refuse_misfits", False),
        concurrency=_concurrency(options),
        stamp_at_entry=options.get("stamp_at_entry", False),
        progress=options.get("progress"),
    )
    environment = simpy.Environment()
    engine: Callable[..., Generator[simpy.Event, None, None]]
    if isinstance(policy, Static):
        kernels = KernelsSeen(machine.gpu, machine.model, options.get("earlier", ()))
        engine = partial(static_engine, environment, policy, kernels)
    else:
        engine = partial(continuous_engine, environment, policy)
    environment.process(
        engine(
            machine.pool(policy), machine.step_time, arrivals, recorder,
            leap=options.get("leap", True), check=options.get("check", False),
        )
    )  # fmt: skip
    environment.run()


def _meta(workload: Workload, policy: Policy, machine: Machine, options: Options) -> Meta:
    """Where the results of a run come from; asked for when it is over."""
    model = {key: value for key, value in asdict(machine.model).items() if value not in (None, (), "")}
    return Meta(
        source="simulation",
        engine={"name": "kvsim", "step_time": machine.step_time.label, "calibrated": machine.step_time.calibrated},
        gpu=machine.gpu.name,
        model=model | {"kv_bytes_per_token": machine.model.kv_bytes_per_token},
        policy=describe(policy),
        pool=machine.pool(policy),
        command=options.get("command", ""),
        notes=workload.description,
        extra=provenance(machine.step_time) | provenance_of_hashes(workload, policy),
    )
