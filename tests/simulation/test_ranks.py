"""Data-parallel ranks: what each holds, and steps that wait for each other where ranks share experts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import kvsim
from kvsim.cli import cli
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.routers import DataParallel, RoutedRequest, RoutedServer, ServersOfRanks
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording, RequestStatus, read, server_folders
from kvsim.simulation import Fleet, Machine, Replicas, measure, measure_fleet, simulate_fleet
from kvsim.sizing.budget import plan_budget
from kvsim.sizing.pool_settings import PoolSettings
from kvsim.steptime import Pace, at_pace
from kvsim.steptime.ranks import IDLE_STEP, RankStep, RankTimes
from kvsim.steptime.shapes import StepShape
from kvsim.workload import Poisson, Uniform, Workload, generate

POLICY = Paged(
    scheduler=ContinuousSettings(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=40),
    cache=PagedSettings(block_size=4),
)
SYNCHRONOUS = replace(POLICY, scheduler=replace(POLICY.scheduler, async_scheduling=False))
OLD = replace(POLICY, scheduler=replace(POLICY.scheduler, vllm="0.25.1"))


def requests(number: int = 40, rate_per_s: float = 200.0) -> Workload:
    prompt, output = Uniform(low=4, high=24), Uniform(low=2, high=24)
    return generate(number, arrivals=Poisson(rate_per_s=rate_per_s), prompt=prompt, output=output, seed=3)


def ranks(number: int = 2, num_blocks: int = 40) -> Machine:
    made = kvsim.machine(
        "H200", "Qwen3-30B-A3B", data_parallel_size=number, enable_expert_parallel=True, num_blocks=num_blocks
    )
    return replace(made, kv_bytes=num_blocks * 4 * made.model.kv_bytes_per_token)


def serve(
    workload: Workload, policy: Paged = POLICY, number: int = 2, *, host: float = 1.0, **more: Any
) -> tuple[list[Recording], Fleet]:
    """Simulate ranks whose hosts take `host` times as long as usual."""
    machine = ranks(number)
    times = machine.step_time
    assert isinstance(times, RankTimes)
    machine = replace(machine, step_time=replace(times, own=at_pace(Pace(host=host), times.own)))
    return simulate_fleet(workload, policy, machine, Replicas(number=1).on(machine, policy), **more)


@pytest.mark.parametrize("policy", [POLICY, SYNCHRONOUS, OLD], ids=["0.33.0", "synchronous", "0.25.1"])
@pytest.mark.parametrize("options", [{}, {"users": 7}, {"max_concurrency": 5}], ids=str)
def test_every_request_is_answered_and_steps_of_ranks_end_together(policy: Paged, options: dict[str, Any]) -> None:
    """With `check`, the account of each rank is checked at every step. The hosts are never late."""
    recordings, fleet = serve(requests(), policy, 3, check=True, host=0.1, **options)
    status = np.concatenate([each.requests.status for each in recordings])
    assert sorted(np.concatenate([each.requests.id for each in recordings])) == sorted(requests().ids)
    assert (status == RequestStatus.FINISHED).all()
    kernels = [np.unique(each.steps.end_s) for each in recordings]
    many = max(kernels, key=len)
    for each in kernels:  # a rank sees its output later only if its host was late, or before when it has no batch
        assert np.isin(np.round(each, 9), np.round(np.concatenate([many, *kernels]), 9)).all()
    num_together = (sum(len(each.steps) for each in recordings) + sum(fleet.idle_steps)) / 3
    num_ends = len(np.unique(np.round(np.concatenate(kernels), 9)))
    assert num_ends < 1.25 * num_together, "of ranks that do not wait, every step has an end of its own"
    assert sum(len(each.steps) for each in recordings) + sum(fleet.idle_steps) >= 3 * len(many)


def test_ranks_sleep_when_none_has_requests_for_as_many_steps_as_the_release_says() -> None:
    """One request: the other rank takes part in every step; then both idle until they agree."""
    for policy, check_interval_steps in ((POLICY, 16), (OLD, 32)):
        recordings, fleet = serve(requests(1), policy)
        [busy] = [number for number, each in enumerate(recordings) if len(each.requests)]
        num_steps = len(recordings[busy].steps)
        together = -(-num_steps // check_interval_steps) * check_interval_steps
        assert fleet.idle_steps[1 - busy] in (together, together + check_interval_steps)
        assert fleet.idle_steps[busy] == fleet.idle_steps[1 - busy] - num_steps


def test_a_request_alone_takes_the_steps_of_its_rank_and_idle_steps_of_the_others() -> None:
    machine = ranks()
    times = machine.step_time
    assert isinstance(times, RankTimes)
    recordings, _ = serve(requests(1), SYNCHRONOUS)
    [busy] = [each for each in recordings if len(each.requests)]
    prompt, output = int(busy.requests.prompt_tokens[0]), int(busy.requests.output_tokens[0])
    for step in range(1, output):
        cost = times.step_time(StepShape(1, 1, 0, prompt + step, 0))
        assert busy.steps.end_s[step] - busy.steps.start_s[step] == pytest.approx(cost.prepare_s + cost.gpu_s, rel=0.02)


@pytest.mark.parametrize("options", [{}, {"users": 7, "think_s": 0.02}], ids=str)
def test_both_engines_agree(options: dict[str, Any]) -> None:
    interpreted, compiled = (serve(requests(), engine=engine, **options) for engine in ("interpreted", "compiled"))
    assert interpreted[1].idle_steps == compiled[1].idle_steps
    for one, other in zip(interpreted[0], compiled[0], strict=True):
        assert np.array_equal(one.steps.end_s, other.steps.end_s)
        assert np.array_equal(one.memory.address, other.memory.address)


def test_ranks_of_a_dense_model_are_servers_of_their_own(make_machine: Any) -> None:
    alone: Machine = make_machine(160)
    dense = replace(alone, model=alone.model.served(data_parallel_size=3))
    fleet = measure_fleet(requests(), POLICY, dense, Replicas(number=1).on(dense, POLICY))
    others = measure_fleet(requests(), POLICY, alone, Replicas(number=3, route=DataParallel(POLICY.scheduler.vllm)))
    assert not fleet.idle_steps
    for one, other in zip(fleet.servers, others.servers, strict=True):
        assert np.array_equal(one.requests.finished_s, other.requests.finished_s)


@pytest.mark.parametrize("servers", [1, 2])
def test_the_route_of_ranks_follows_the_release_of_the_run_also_where_it_is_named(servers: int) -> None:
    """Since 0.27, a front end counts its own unanswered requests on each rank; so the two releases choose otherwise."""
    machine, load = ranks(4 // servers), requests(200)
    answered_s = {}
    for policy in (OLD, POLICY):
        named, alike = (
            measure_fleet(load, policy, machine, Replicas(number=servers, route=route).on(machine, policy))
            for route in ("data-parallel", DataParallel(policy.scheduler.vllm))
        )
        answered_s[policy.scheduler.vllm] = [each.requests.finished_s.tolist() for each in named.servers]
        assert answered_s[policy.scheduler.vllm] == [each.requests.finished_s.tolist() for each in alike.servers]
    assert answered_s["0.25.1"] != answered_s[POLICY.scheduler.vllm]


def test_a_step_lasts_as_long_as_that_of_the_slowest_rank_and_experts_see_the_tokens_of_all() -> None:
    times = ranks().step_time
    assert isinstance(times, RankTimes)
    few, many = StepShape(2, 2, 0, 400, 0), StepShape(1, 4096, 4096, 0, 4096**2 // 2)
    one, other = times.together([RankStep(few, 1.0), RankStep(many, 1.2)], 0.0)
    assert one.done_s == other.done_s
    own = times.own.step_time(many)
    assert one.done_s >= 1.2 + own.prepare_s + own.gpu_s + times.experts_s(4098)
    assert times.experts_s(8192) > times.experts_s(4098) > times.experts_s(2)
    idle = times.together([RankStep(few, 1.0), RankStep(IDLE_STEP, 1.0, has_batch=False)], 5.0)
    assert idle[0].done_s > 5.0 + times.own.step_time(few).gpu_s
    assert times.experts_s(1 << 21) == pytest.approx(2 * times.experts_s(1 << 20))


@pytest.mark.parametrize("num_tokens", [1, 32, 4096])
def test_the_time_of_a_step_is_that_beside_idle_steps(num_tokens: int) -> None:
    times = ranks(4).step_time
    assert isinstance(times, RankTimes)
    shape = StepShape(num_tokens, num_tokens, 0, 200 * num_tokens, 0)
    steps = times.together([RankStep(shape, 1.0), *[RankStep(IDLE_STEP, 1.0, has_batch=False)] * 3], 0.0)
    cost = times.step_time(shape)
    assert steps[0].done_s == pytest.approx(1 + max(cost.prepare_s + cost.gpu_s, cost.launch_s))


@pytest.mark.parametrize(("name", "number"), [("Qwen3-30B-A3B", 2), ("DeepSeek-V3", 8), ("DeepSeek-V3", 16)])
@pytest.mark.parametrize("whole", [True, False])
def test_experts_are_divided_among_all_ranks_and_other_weights_are_on_each(name: str, number: int, whole: bool) -> None:
    model = find_model(name)
    served = model.served(data_parallel_size=number, enable_expert_parallel=whole)
    others = model.weight_bytes - model.expert_bytes
    assert served.weight_bytes_on_gpu == pytest.approx(others + model.expert_bytes / number)
    assert served.kv_bytes_per_token == model.kv_bytes_per_token
    budget = plan_budget(find_gpu("H200"), served, PoolSettings(max_model_len=8192))
    [weights] = [term for term in budget.terms if term.label == "weights"]
    assert -weights.size_bytes == pytest.approx(served.weight_bytes_on_gpu, abs=2)


def test_experts_that_do_not_divide_evenly_take_a_whole_one_more() -> None:
    model = find_model("Qwen3-30B-A3B").served(data_parallel_size=3, enable_expert_parallel=True)
    assert model.expert_share_on_gpu == 43 / 128
    with pytest.raises(UsageError, match="cannot be divided among 5 GPUs; give --enable-expert-parallel"):
        find_model("Qwen3-30B-A3B").served(data_parallel_size=5)
    with pytest.raises(UsageError, match="has no experts"):
        find_model("Meta-Llama-3-8B").served(enable_expert_parallel=True)


def test_ranks_are_refused_where_one_server_is_simulated_or_times_are_of_one() -> None:
    machine = ranks()
    with pytest.raises(UsageError, match="served by 2 data-parallel ranks"):
        measure(requests(), POLICY, machine)
    with pytest.raises(UsageError, match="served by 2 data-parallel ranks"):
        measure_fleet(requests(), POLICY, machine, Replicas(number=4))
    alone = replace(machine, step_time=machine.step_time.own)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="step times are those of a server alone"):
        measure_fleet(requests(), POLICY, alone, Replicas(number=1, ranks=2))
    with pytest.raises(UsageError, match="one stage holds all layers; leave out --pipeline-parallel-size"):
        measure_fleet(requests(), POLICY, replace(machine, model=machine.model.served(
            data_parallel_size=2, pipeline_parallel_size=2)), Replicas(number=1, ranks=2))  # fmt: skip
    with pytest.raises(UsageError, match="take a machine card"):
        kvsim.machine("H200", "Qwen3-30B-A3B", data_parallel_size=2, times="vllm-h200-llama-3-8b")


MACHINE = ["--model", "Qwen3-30B-A3B", "--gpu", "H200"]
LOAD = ["--num-requests", "20", "--prompt-tokens", "50", "--output-tokens", "20"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, [*arguments], catch_exceptions=False)


def test_a_servers_line_runs_as_ranks() -> None:
    line = "vllm serve Qwen/Qwen3-30B-A3B -dp 2 -ep --max-model-len 4096"
    result = invoke("run", *MACHINE[2:], *LOAD, "--json", "--from", line)
    fleet = json.loads(result.stdout)["fleet"]
    assert (fleet["num_servers"], fleet["num_finished"], len(fleet["idle_steps"])) == (2, 20, 2)
    flags = ["--data-parallel-size", "2", "--enable-expert-parallel", "--max-model-len", "4096", "--defaults", "server"]
    same = invoke("run", *MACHINE, *LOAD, *flags, "--json")
    assert json.loads(same.stdout)["fleet"] == fleet


def test_a_comparison_has_ranks_beside_tensor_parallelism_and_whole_servers() -> None:
    result = invoke("compare", *MACHINE, *LOAD, "--data-parallel-size", "2", "--enable-expert-parallel", "--json")
    found = json.loads(result.stdout)
    assert list(found) == ["2 data-parallel ranks", "tensor parallel over 2", "2 servers with all weights"]
    pools = [each["pool_bytes"] for each in found.values()]
    assert pools[0] > pools[2]  # a rank has half of the experts
    assert all(each["num_finished"] == 20 for each in found.values())


@pytest.mark.parametrize("policy", [POLICY, SYNCHRONOUS, OLD], ids=["0.33.0", "synchronous", "0.25.1"])
def test_servers_of_ranks_in_turn_are_as_many_separate_servers(policy: Paged) -> None:
    """Ranks wait for those of their own server only, and each front end knows its own ranks only.

    Decisions are equal; times are equal but for the last bits, since the common clock adds other intervals.
    """
    machine, load, number = ranks(), requests(), 3
    together = measure_fleet(
        load, policy, machine, Replicas(number=number, route="round-robin").on(machine, policy), check=True
    )
    for server in range(number):
        own = load.every(number, server)
        alone = measure_fleet(own, policy, machine, Replicas(number=1).on(machine, policy))
        of_server = slice(2 * server, 2 * server + 2)
        assert together.idle_steps[of_server] == alone.idle_steps
        for one, other in zip(together.servers[of_server], alone.servers, strict=True):
            assert list(one.requests.id) == list(other.requests.id)
            assert one.num_steps == other.num_steps
            assert np.array_equal(one.requests.cached_tokens, other.requests.cached_tokens)
            assert one.requests.finished_s == pytest.approx(other.requests.finished_s, abs=1e-12)


@pytest.mark.parametrize("route", ["shortest", "least-kv", "prefix", "llm-d", "dynamo", "session", "power-of-two"])
def test_one_server_of_ranks_behind_a_router_is_that_server(route: str) -> None:
    machine = ranks(3)
    routed = Replicas(number=1, ranks=3, route=ServersOfRanks(route, 3, POLICY.scheduler.vllm))
    behind, alone = (
        measure_fleet(requests(), POLICY, machine, servers)
        for servers in (routed, Replicas(number=1).on(machine, POLICY))
    )
    for one, other in zip(behind.servers, alone.servers, strict=True):
        assert np.array_equal(one.requests.finished_s, other.requests.finished_s)


@pytest.mark.parametrize("options", [{}, {"users": 9, "think_s": 0.02}], ids=str)
def test_every_request_is_on_one_rank_of_one_server(options: dict[str, Any]) -> None:
    machine = ranks()
    servers = Replicas(number=2, route="least-kv").on(machine, POLICY)
    recordings, fleet = simulate_fleet(requests(), POLICY, machine, servers, check=True, **options)
    assert sorted(np.concatenate([each.requests.id for each in recordings])) == sorted(requests().ids)
    totals = fleet.totals()
    assert (totals.num_servers, totals.num_ranks, totals.num_finished, totals.num_lost) == (4, 2, 40, 0)


def test_a_router_sees_the_ranks_of_a_server_together() -> None:
    seen: list[list[tuple[int, int, float]]] = []

    def route(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        seen.append([(each.number, each.num_running + each.num_waiting, each.kv_usage) for each in servers])
        return request.row % 2

    machine = ranks()
    fleet = measure_fleet(
        requests(rate_per_s=1e6), POLICY, machine, Replicas(number=2, route=route).on(machine, POLICY)
    )
    assert [len(run.requests) for run in fleet.servers] == [10, 10, 10, 10]
    assert [row[0] for row in seen[11]] == [0, 1]
    assert [row[1] for row in seen[11]] == [6, 5]
    with pytest.raises(UsageError, match="should return the number of a server, 0 to 1"):
        measure_fleet(requests(), POLICY, machine, Replicas(number=2, route=lambda *_: 2).on(machine, POLICY))


def test_a_fleet_of_ranks_has_a_line_and_a_recording_for_each_rank(tmp_path: Path) -> None:
    flags = [*MACHINE, *LOAD, "--data-parallel-size", "2", "--replicas", "2", "-o", str(tmp_path / "fleet")]
    printed = invoke("run", *flags).output
    assert printed.startswith("2 servers of 2 data-parallel ranks finished 20 requests")
    assert "1, rank 0" in printed
    folders = server_folders(tmp_path / "fleet")
    assert [each.name for each in folders] == [f"server-{server}-rank-{rank}" for server in "01" for rank in "01"]
    assert sum(len(read(each).requests) for each in folders) == 20


def test_ranks_that_are_not_padded_to_one_graph_exchange_unequal_numbers_of_tokens() -> None:
    times = ranks().step_time
    assert isinstance(times, RankTimes)
    prompt = StepShape(1, 900, 900, 900, 900 * 901 // 2)
    alone = [RankStep(prompt, 0.0), RankStep(IDLE_STEP, 0.0)]
    without = replace(times, unequal_s=0.0)
    later_s = times.together(alone, 0.0)[1].launched_s - without.together(alone, 0.0)[1].launched_s
    assert later_s == pytest.approx(times.unequal_s)
    for equal in ([RankStep(prompt, 0.0)] * 2, [RankStep(StepShape(8, 8, 0, 800, 0), 0.0), RankStep(IDLE_STEP, 0.0)]):
        assert times.together(equal, 0.0) == without.together(equal, 0.0)


def test_a_named_machine_captures_graphs_for_its_largest_batch() -> None:
    settings: dict[str, Any] = {"data_parallel_size": 2, "enable_expert_parallel": True, "max_num_seqs": 64}
    of_ranks = kvsim.machine("H200", "Qwen3-30B-A3B", **settings).step_time
    assert of_ranks.own.max_captured_tokens == 128  # type: ignore[attr-defined]


@given(
    tokens=st.lists(st.integers(1, 1200), min_size=2, max_size=3),
    begins_s=st.lists(st.floats(0, 0.05), min_size=3, max_size=3),
    free_s=st.floats(0, 0.1),
    host=st.sampled_from([1.0, 20.0]),
)
def test_no_step_of_ranks_is_done_before_it_is_launched(
    tokens: list[int], begins_s: list[float], free_s: float, host: float
) -> None:
    times = ranks().step_time
    assert isinstance(times, RankTimes)
    slow = replace(times, own=at_pace(Pace(host=host), times.own))
    steps = [
        RankStep(shape=StepShape(each, 1, each, 0, 0), begin_s=begin_s)
        for each, begin_s in zip(tokens, begins_s, strict=False)
    ]
    timed = slow.together(steps, free_s)
    assert len({step.done_s for step in timed}) == 1
    assert all(step.begin_s <= step.launched_s <= step.done_s for step in timed)
