"""The hot paths of a simulation: `pytest benchmarks/bench_simulation.py --benchmark-only`.

Each is a bar of its own, so that a change that slows one of them down shows where. Whole workloads, and the figures to
set beside other simulators, are in `throughput.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.engine.coefficients import no_times
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import Demand
from kvsim.engine.paged import block_pool
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.profiles import find
from kvsim.simulation import EngineName, Machine, measure, simulate
from kvsim.steptime import StepShape
from kvsim.workload import LogNormal, Poisson, Ragged, Workload, generate

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SCHEDULER = ContinuousSettings(max_num_seqs=256, max_num_batched_tokens=2_048)
POLICIES: dict[str, Policy] = {
    "paged": Paged(scheduler=SCHEDULER, cache=PagedSettings(enable_prefix_caching=False)),
    "paged, prefix cache": Paged(scheduler=SCHEDULER),
    "contiguous": Contiguous(scheduler=SCHEDULER),
    "static": Static(),
}


@pytest.fixture(scope="module")
def workload() -> Workload:
    """A thousand requests, just below what the machine can serve."""
    lengths = LogNormal(mean_tokens=200, sigma=0.8, maximum=2_000)
    return generate(1_000, arrivals=Poisson(rate_per_s=30.0), prompt=lengths, output=lengths, seed=0)


def machine_of(num_blocks: int) -> Machine:
    model = find_model("Meta-Llama-3-8B")
    return Machine(
        gpu=find_gpu("H200"),
        model=model,
        kv_bytes=num_blocks * 16 * model.kv_bytes_per_token,
        step_time=find("vllm-h200-llama-3-8b"),
    )


@pytest.mark.parametrize("engine", ["interpreted", "compiled"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_measure(benchmark: BenchmarkFixture, workload: Workload, policy: Policy, engine: EngineName) -> None:
    measure(workload.head(1), policy, machine_of(30_208), engine=engine)  # compiled, or loaded
    measured = benchmark(measure, workload, policy, machine_of(30_208), engine=engine)
    assert measured.summary.num_finished == len(workload)


@pytest.mark.parametrize("engine", ["interpreted", "compiled"])
def test_measure_under_pressure(benchmark: BenchmarkFixture, workload: Workload, engine: EngineName) -> None:
    measure(workload.head(1), POLICIES["paged"], machine_of(1_000), engine=engine)
    measured = benchmark(measure, workload.scaled_rate(10.0), POLICIES["paged"], machine_of(1_000), engine=engine)
    assert measured.summary.num_preemptions > 100


@pytest.mark.parametrize("engine", ["interpreted", "compiled"])
def test_simulate(benchmark: BenchmarkFixture, workload: Workload, engine: EngineName) -> None:
    simulate(workload.head(1), POLICIES["paged"], machine_of(30_208), engine=engine)
    recording = benchmark(simulate, workload, POLICIES["paged"], machine_of(30_208), engine=engine)
    assert len(recording.requests) == len(workload)


def test_step_time_of_one_step(benchmark: BenchmarkFixture) -> None:
    benchmark(find("vllm-h200-llama-3-8b").step_time, StepShape(50, 50, 0, 20_000, 0))


def test_allocate_and_free_blocks(benchmark: BenchmarkFixture) -> None:
    num_blocks, nothing = 30_208, np.zeros(1, np.int64)
    demand = Demand(
        prompt=nothing + 400, output=nothing + 1, limit=nothing + 1, priority=nothing, arrival_s=np.zeros(1),
        keys=Ragged.empty(1, np.int64),
    )  # fmt: skip
    plan = EnginePlan(demand, POLICIES["paged"], num_blocks, no_times(), refused=np.zeros(1, np.bool_))
    engine = plan.build()

    def allocate_and_free() -> None:
        for index in range(25):
            engine.entries[index] = block_pool.allocate(engine)[0]
        block_pool.free(engine, 0, 25)

    benchmark(allocate_and_free)
    assert engine.state.num_free == num_blocks
