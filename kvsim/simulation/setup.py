"""Setup of a run: requests, policy and machine, and what follows from them, such as the size of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from kvsim.engine.known_requests import Demand
from kvsim.errors import UnknownNameError, UsageError, described, shortened
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies import AnyPolicy, Paged, Pipeline, Policy, describe
from kvsim.profiles.extrapolation import provenance
from kvsim.recording import Meta, Pool
from kvsim.setting_fields import check_progress, whole_number
from kvsim.simulation.demand import (
    demand_of,
    hash_ahead_tokens,
    hash_tokens,
    provenance_of_hashes,
    recorded_hashes,
    refused,
)
from kvsim.simulation.feature_times import FeatureTimes, feature_times
from kvsim.simulation.image_inputs import encoder_limits, with_image_tokens
from kvsim.simulation.machine import Machine, check_stages, release_of
from kvsim.simulation.modes import EngineName
from kvsim.steptime import RankTimes, StepTimeModel
from kvsim.steptime.kernels import Batch
from kvsim.workload import Ragged, Workload

MOST_SERVERS = 1_000
"""Limit for the number of servers of one kind, and of data-parallel ranks."""
ProgressCallback = Callable[[int, int], None]
"""Function that is called from time to time with the numbers of ended requests and of all requests."""


class Options(TypedDict, total=False):
    """Options of a simulation. All have defaults."""

    refuse_misfits: bool
    """True to refuse and count requests that could never be served. False, the default: such a request is an error."""
    users: int | None
    """Number of users of a closed loop; None, the default, for an open loop.

    Each user waits for an answer before sending the next request, regardless of arrival times. In a workload with
    turns, each user has one session after the other.
    """
    max_concurrency: int | None
    """Largest number of requests that are sent and not answered at a time; other requests wait. None for no limit."""
    think_s: float
    """Seconds from an answer to the next request of the same user in a closed loop; 0 by default."""
    users_per_s: float
    """Number of users that begin per second in a closed loop. Infinity, the default: all begin at once."""
    stamp_at_entry: bool
    """True: a request's recorded arrival is when the engine added it. False, the default: when it was sent."""
    engine: EngineName
    """"interpreted", "compiled", or "auto" to compile runs that are long enough. Results are the same bit for bit."""
    earlier: tuple[Batch, ...]
    """Batches that the process of `generate()` ran before this run. Their kernels are loaded already."""
    check: bool
    """True to check every unit and every slot of memory at every step, as `--check` does; False by default."""
    progress: ProgressCallback | None
    """Function that is called to report progress; None for no reports."""
    command: str
    """Command line for the metadata; empty by default."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """All inputs of a run, and what follows from them, such as the pool. Several equal servers may share one setup."""

    workload: Workload
    policy: AnyPolicy
    base: Policy
    """The built-in policy that `policy` is or is based on, with all limits set."""
    machine: Machine
    times: FeatureTimes
    """Step times of this run, and their label."""
    options: Options
    pipeline: Pipeline
    pool: Pool
    layout: KVCacheLayout | None
    demand: Demand
    refused: npt.NDArray[np.bool_]
    """bool[requests]: True for requests that could never be served."""
    rows: range
    """`rows[i]` is the row in the fleet's whole workload of request `i` of this setup."""

    @classmethod
    def of(
        cls, workload: Workload, policy: AnyPolicy, machine: Machine, options: Options, *, records: bool = False
    ) -> Setup:
        """Return the setup of a run. With `records`, prompts get the keys that a recording needs for prompt hashes.

        Raises:
            UnknownNameError: there is no such option.
            UsageError, BudgetError, WorkloadError: see `simulate`.
        """
        for name in options.keys() - Options.__annotations__.keys():
            raise UnknownNameError("option of a simulation", name, Options.__annotations__)
        check_progress(options.get("progress"))
        base = machine.limited(policy)
        check_stages(machine, base)
        workload = with_image_tokens(workload, machine.model)
        pool, layout = machine.pool(policy), machine.layout(policy)
        assert pool.num_units is not None
        demand = demand_of(workload, base, layout, pool.num_units * pool.unit_tokens, recording=records)
        return cls(
            workload=workload,
            policy=policy,
            base=base,
            machine=machine,
            times=feature_times(machine, base, workload),
            options=options,
            pipeline=Pipeline.of(machine.model, release_of(base)),
            pool=pool,
            layout=layout,
            demand=demand,
            rows=range(len(workload)),
            refused=refused(
                workload, demand, base, layout, pool.num_units, refuse_misfits=options.get("refuse_misfits", False)
            ),
        )

    @property
    def name(self) -> str:
        """Name of the run's results: the policy and the workload."""
        return f"{self.policy.name}-{self.workload.name}"

    @property
    def num_units(self) -> int:
        """Number of units in the pool. A unit is what the policy allocates: a block, a page or a slot."""
        assert self.pool.num_units is not None
        return self.pool.num_units

    @property
    def arrivals_await_answers(self) -> bool:
        """True if requests are sent in reaction to answers: by users, with `max_concurrency`, or in sessions."""
        options = self.options
        has_users = options.get("users") is not None or options.get("max_concurrency") is not None
        return has_users or self.workload.turns is not None

    def every(self, stride: int, first_row: int) -> Setup:
        """Return the setup of a server with every `stride`-th request from `first_row` on. Prefixes keep their keys."""
        return replace(
            self,
            workload=self.workload.every(stride, first_row),
            demand=self.demand.every(stride, first_row),
            refused=self.refused[first_row::stride],
            rows=self.rows[first_row::stride],
        )

    def recorded_hashes(self) -> Ragged[np.int64]:
        """Return the prompt hashes of all requests, for a recording."""
        return recorded_hashes(self.workload, self.base, self.layout, self.demand, self.rows)

    def meta(self, step_time: StepTimeModel, failures: Mapping[str, int]) -> Meta:
        """Return the metadata of a server's finished run.

        `step_time` has the server's step times. `failures` is the result of `vllm_failures`.
        """
        machine = self.machine
        model = {key: value for key, value in asdict(machine.model).items() if value not in (None, (), "")}
        if machine.model.decode_context_parallel_size == 1:
            del model["decode_context_parallel_size"]
        drafting = machine.draft_layers(self.base) if isinstance(self.base, Paged) else ()
        draft_bytes = sum(machine.model.layer_bytes_per_token(layer) for layer in drafting)
        ahead = hash_ahead_tokens(self.workload, self.base)
        return Meta(
            source="simulation",
            engine={"name": "kvsim", "step_time": self.times.label, "calibrated": step_time.calibrated}
            | encoder_limits(self.workload, self.base, machine.model)
            | (asdict(self.pipeline) if self.pipeline.pipeline_parallel_size > 1 else {})
            | {cause: number for cause, number in failures.items() if number}
            | ({"hash_block_size": hash_tokens(self.workload, self.base, self.layout)} if self.pool.groups else {})
            | ({"num_hash_lookahead_tokens": ahead} if ahead else {}),
            gpu=machine.gpu.name,
            model=model
            | {"kv_bytes_per_token": machine.model.kv_bytes_per_token}
            | ({"num_draft_layers": len(drafting), "draft_bytes_per_token": draft_bytes} if drafting else {}),
            policy=describe(self.policy, self.base),
            pool=self.pool,
            command=self.options.get("command", ""),
            notes=self.workload.description,
            extra=provenance(step_time) | provenance_of_hashes(self.workload, self.base),
        )


def check_number_of_servers(flag: str, num_servers: object) -> None:
    """Check that the value of `flag` is a number of servers, from 1 to `MOST_SERVERS`."""
    if whole_number(flag, num_servers) > MOST_SERVERS:
        raise UsageError(f"{flag} should be at most {MOST_SERVERS:,} in a simulation, not {shortened(num_servers)}.")


def check_route(route: object) -> None:
    """Check that a router is given by name or as a function."""
    if not (isinstance(route, str) or callable(route)):
        raise UsageError(f"--route should be a name, a Python file or a function, not {described(route)}.")


def check_number_of_ranks(num_ranks: int) -> None:
    """Refuse more than `MOST_SERVERS` data-parallel ranks."""
    check_number_of_servers("--data-parallel-size", num_ranks)


def check_ranks(setup: Setup, num_ranks: int) -> None:
    """Check that the machine's model is served by `num_ranks` data-parallel ranks, with step times for them."""
    model, times = setup.machine.model, setup.machine.step_time
    if model.data_parallel_size != num_ranks:
        raise UsageError(
            f"{model.name} is served by {model.data_parallel_size} data-parallel ranks, which kvsim run, compare and "
            f"fit simulate, not by {num_ranks}; leave --data-parallel-size out here."
        )
    if model.divides_experts_among_ranks and not isinstance(times, RankTimes):
        raise UsageError("the steps of ranks that share experts wait for each other, and the step times are those of a "
                         "server alone; take those of a machine card, or kvsim.steptime.RankTimes.")  # fmt: skip
