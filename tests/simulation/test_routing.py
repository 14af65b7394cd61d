"""Routers of a fleet: what they see is what the servers hold, and looking changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.errors import StalledError, UnknownNameError, UsageError
from kvsim.experiments.workers import on_all_cores
from kvsim.policies import Paged, Radix, Static
from kvsim.policies.data_parallel import RankBalancer
from kvsim.policies.releases import DEFAULT_RELEASE, NEWEST
from kvsim.policies.routers import (
    ROUTE_NAMES,
    RoundRobin,
    RoutedRequest,
    RoutedServer,
    Router,
    dynamo,
    llm_d,
    router_of,
)
from kvsim.policies.settings import ContinuousSettings, PagedSettings, StaticSettings
from kvsim.recording import read
from kvsim.simulation import Fleet, Machine, Replicas, measure, measure_fleet, record_fleet
from kvsim.simulation.fleet import Spread, in_turn
from kvsim.workload import Poisson, SharedPrefixes, Uniform, Workload, generate

POLICY = Paged(
    scheduler=ContinuousSettings(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=40),
    cache=PagedSettings(block_size=4),
)
NUM_SERVERS = 3
TIMES = ("first_scheduled_s", "first_token_s", "finished_s", "cached_tokens", "preemptions")


def requests(rate_per_s: float = 200.0, number: int = 40) -> Workload:
    return generate(
        number,
        arrivals=Poisson(rate_per_s=rate_per_s),
        prompt=Uniform(low=4, high=24),
        output=Uniform(low=2, high=24),
        prefixes=SharedPrefixes(num_groups=4, tokens=16),
        seed=3,
    )


@pytest.fixture
def machine(make_machine: Callable[[int], Machine]) -> Machine:
    return make_machine(120)


def serve(
    workload: Workload, machine: Machine, route: str | Router, *, route_lag_s: float = 0.0, **options: Any
) -> Fleet:
    return measure_fleet(workload, POLICY, machine, behind(route, route_lag_s), **options)


def behind(route: str | Router, route_lag_s: float = 0.0) -> Replicas:
    return Replicas(number=NUM_SERVERS, route=route, route_lag_s=route_lag_s)


def differ(one: Fleet, other: Fleet) -> list[str]:
    pairs = list(zip(one.servers, other.servers, strict=True))
    return [
        name
        for name in TIMES
        for ours, theirs in pairs
        if not np.array_equal(getattr(ours.requests, name), getattr(theirs.requests, name), equal_nan=True)
    ]


class Looking(RoundRobin):
    """Round robin that reads everything that a router may see."""

    def __call__(self, request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        for server in servers:
            assert server.num_requests == server.num_waiting + server.num_running >= 0
            assert 0 <= server.kv_usage <= 1
            assert 0 <= server.held_tokens <= server.hit_tokens < request.prompt_tokens
            assert server.held_tokens <= server.num_used_units * server.unit_tokens
            assert server.prefill_tokens >= 0
        return super().__call__(request, servers)


@pytest.mark.parametrize("engine", ["interpreted", "compiled"])
@pytest.mark.parametrize("users", [None, 5])
def test_looking_changes_nothing(machine: Machine, engine: Any, users: int | None) -> None:
    options: dict[str, Any] = {"engine": engine, "users": users, "check": engine == "interpreted"}
    assert (
        differ(serve(requests(), machine, "round-robin", **options), serve(requests(), machine, Looking(), **options))
        == []
    )


@pytest.mark.parametrize("route", ROUTE_NAMES)
def test_both_engines_route_alike(machine: Machine, route: str) -> None:
    fleets = [serve(requests(), machine, route, engine=engine) for engine in ("interpreted", "compiled")]
    assert differ(*fleets) == []
    assert sum(len(run.requests) for run in fleets[0].servers) == len(requests())


DRAFTING = replace(
    POLICY,
    scheduler=replace(POLICY.scheduler, speculative_config='{"method": "ngram", "num_speculative_tokens": 2}'),
)


@pytest.mark.parametrize(("spread", "policy"), [(in_turn, POLICY), (on_all_cores, POLICY), (in_turn, DRAFTING)])
def test_servers_run_apart_as_on_one_clock(machine: Machine, spread: Spread, policy: Paged, tmp_path: Path) -> None:
    """Servers of a round robin depend on no other, and are run by themselves; a router of one's own wants one clock."""
    workload = requests(number=600)
    apart = measure_fleet(workload, policy, machine, behind("round-robin"), spread=spread)
    together = measure_fleet(workload, policy, machine, behind(RoundRobin()))
    assert differ(apart, together) == []
    assert [repr(run.summary.as_dict()) for run in apart.servers] == [
        repr(run.summary.as_dict()) for run in together.servers
    ]
    assert replace(apart, servers=[]) == replace(together, servers=[])
    assert apart.most_duplicate_blocks > 0
    record_fleet(workload, policy, machine, behind("round-robin"), tmp_path / "apart", spread=spread)
    record_fleet(workload, policy, machine, behind(RoundRobin()), tmp_path / "together")
    for number in map(str, range(NUM_SERVERS)):
        one, other = read(tmp_path / "apart" / number), read(tmp_path / "together" / number)
        assert one.meta == other.meta
        for table in ("requests", "steps", "schedule", "memory"):
            assert getattr(one, table).to_arrow().equals(getattr(other, table).to_arrow()), table


def test_a_row_is_named_as_in_the_workload(machine: Machine) -> None:
    lengths = [4] * 9
    lengths[7] = 50  # more than a step may compute, and prompts are not chunked
    workload = Workload(arrival_s=np.arange(9.0), prompt_tokens=lengths, output_tokens=[2] * 9)
    whole = replace(POLICY, scheduler=replace(POLICY.scheduler, enable_chunked_prefill=False))
    with pytest.raises(StalledError, match="row 7"):
        measure_fleet(workload, whole, machine, behind("round-robin"))


def test_round_robin_is_separate_servers(machine: Machine) -> None:
    workload, fleet = requests(), serve(requests(), machine, "round-robin")
    for number, run in enumerate(fleet.servers):
        alone = measure(Workload.from_requests(list(workload)[number::NUM_SERVERS]), POLICY, machine)
        for name in TIMES:
            np.testing.assert_array_equal(getattr(run.requests, name), getattr(alone.requests, name), err_msg=name)


def test_what_a_router_sees_is_what_a_request_finds(machine: Machine) -> None:
    seen: dict[float, int] = {}

    def note(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        seen[request.arrival_s] = servers[request.row % 2].hit_tokens
        return request.row % 2

    workload = requests(rate_per_s=1.0)  # each has ended before the next comes
    fleet = serve(workload, machine, note)
    tables = [run.requests for run in fleet.servers]
    found = {at_s: hits for each in tables for at_s, hits in zip(each.arrival_s, each.cached_tokens, strict=True)}
    assert found == seen
    assert max(seen.values()) == 16


def hits(fleet: Fleet) -> int:
    return sum(int(run.requests.cached_tokens.sum()) for run in fleet.servers)


def test_routes_that_see_prefixes_find_more(machine: Machine) -> None:
    blind = hits(serve(requests(20.0, 100), machine, "round-robin"))
    for route in ("prefix", "session"):
        assert hits(serve(requests(20.0, 100), machine, route)) > blind, route


def test_a_late_view_is_that_of_before(machine: Machine) -> None:
    workload = requests(20.0, 100)
    late = serve(workload, machine, "prefix", route_lag_s=1e6)  # no server held anything yet
    assert differ(late, serve(workload, machine, "shortest")) == []
    assert differ(serve(workload, machine, "prefix", route_lag_s=1e-9), serve(workload, machine, "prefix")) == []
    assert hits(serve(workload, machine, "prefix", route_lag_s=1.0)) < hits(serve(workload, machine, "prefix"))


def test_what_is_held_twice_is_counted_once_less(make_machine: Callable[[int], Machine]) -> None:
    workload = generate(
        NUM_SERVERS * 10,
        arrivals=Poisson(rate_per_s=1.0),
        prompt=Uniform(low=1, high=1),
        output=Uniform(low=2, high=2),
        prefixes=SharedPrefixes(num_groups=1, tokens=16),
        seed=1,
    )
    fleet = measure_fleet(workload, POLICY, make_machine(400), behind("round-robin"))
    assert fleet.most_duplicate_blocks == (NUM_SERVERS - 1) * 16 // 4
    two_gpus = replace(make_machine(400), model=make_machine(400).model.served(tensor_parallel_size=2))
    totals = measure_fleet(workload, POLICY, two_gpus, behind("round-robin")).totals()
    assert totals.most_duplicate_bytes == fleet.most_duplicate_blocks * totals.block_bytes
    alone = measure_fleet(workload, POLICY, make_machine(400), behind("prefix"))
    assert alone.most_duplicate_blocks == 0


@dataclass(frozen=True)
class Seen:
    """A server as a router sees it, written down."""

    number: int
    num_waiting: int = 0
    num_running: int = 0
    num_used_units: int = 0
    prefill_tokens: int = 0
    hit_tokens: int = 0
    held_tokens: int = 0
    unit_tokens: int = 16
    num_units: int = 100

    @property
    def num_requests(self) -> int:
        return self.num_waiting + self.num_running

    @property
    def kv_usage(self) -> float:
        return self.num_used_units / self.num_units


REQUEST = RoutedRequest(row=0, prompt_tokens=160, priority=0, session=-1, arrival_s=0.0)


@pytest.mark.parametrize(
    ("servers", "chosen"),
    [
        ((Seen(0, num_waiting=4), Seen(1, num_waiting=0)), 1),
        # 2 * 0 + 2 * 0.9 + 3 * 0.8 = 4.2 against 2 * 1 + 2 * 1 = 4.0
        ((Seen(0, num_waiting=4, num_used_units=10, hit_tokens=128), Seen(1)), 0),
        # 2 * 0 + 2 * 0.9 + 3 * 0.7 = 3.9 against 4.0
        ((Seen(0, num_waiting=4, num_used_units=10, hit_tokens=112), Seen(1)), 1),
    ],
)
def test_llm_d_weighs_queue_memory_and_prefix(servers: Sequence[Seen], chosen: int) -> None:
    assert llm_d(REQUEST, servers) == chosen


@pytest.mark.parametrize(
    ("servers", "chosen"),
    [
        # 10 blocks to compute and 10 more in use on either; 3 in use already on one
        ((Seen(0, num_used_units=3), Seen(1)), 1),
        # 2 + 15 + 2 against 10 + 0 + 10
        ((Seen(0, num_used_units=15, hit_tokens=128, held_tokens=128), Seen(1)), 0),
        # 2 + 17 + 2 against 20
        ((Seen(0, num_used_units=17, hit_tokens=128, held_tokens=128), Seen(1)), 1),
        # 2 + 7 + 10 and 2 + 9 + 10 against 20: what is only cached comes into use
        ((Seen(0, num_used_units=7, hit_tokens=128), Seen(1)), 0),
        ((Seen(0, num_used_units=9, hit_tokens=128), Seen(1)), 1),
        # 16 tokens of another prompt are one block more
        ((Seen(0, prefill_tokens=16), Seen(1)), 1),
    ],
)
def test_dynamo_adds_blocks_to_compute_and_blocks_in_use(servers: Sequence[Seen], chosen: int) -> None:
    assert dynamo(REQUEST, servers) == chosen


def test_a_router_of_ones_own(tmp_path: Path, machine: Machine) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def route(request, servers):\n    return request.row % len(servers)\n")
    assert differ(serve(requests(), machine, str(file)), serve(requests(), machine, "round-robin")) == []
    file.write_text("def choose(request, servers):\n    return 0\n")
    with pytest.raises(UsageError, match=r"has no function route\(request, servers\)"):
        router_of(str(file), DEFAULT_RELEASE)
    file.write_text("1 / 0\n")
    with pytest.raises(UsageError, match=r"cannot be run: ZeroDivisionError"):
        router_of(str(file), DEFAULT_RELEASE)


def test_what_cannot_be_routed_is_refused(machine: Machine) -> None:
    with pytest.raises(UnknownNameError, match="no route"):
        router_of("shortst", DEFAULT_RELEASE)
    with pytest.raises(UsageError, match=r"the router returned 7 for the request in row 0, .* 0 to 2"):
        serve(requests(), machine, lambda request, servers: 7)  # noqa: ARG005
    with pytest.raises(UsageError, match=r"the router failed at the request in row 0: AttributeError"):
        serve(requests(), machine, lambda request, servers: servers.first)  # noqa: ARG005
    with pytest.raises(UsageError, match="the route 'prefix' looks prefixes up in blocks"):
        measure_fleet(requests(), Radix(), machine, Replicas(number=2, route="prefix"))
    with pytest.raises(UsageError, match="--route-lag needs arrivals that are known beforehand"):
        serve(replace(requests()), machine, "prefix", route_lag_s=1.0, users=3)


def test_the_fleet_adds_its_servers_up() -> None:
    arguments = "run --replicas 3 --route prefix --num-requests 80 --json --arrivals poisson --rate 20"
    arguments += " --prompt-tokens 200 --output-tokens 20 --shared-prefix 4x512"
    result = CliRunner().invoke(cli, arguments.split())
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    fleet, servers = document["fleet"], document["servers"]
    for name in ("num_finished", "output_tokens", "num_preemptions", "prefix_hit_tokens", "prefix_queried_tokens"):
        assert fleet[name] == sum(server[name] for server in servers), name
    assert 0 < fleet["prefix_hit_tokens"] <= fleet["one_pool_hit_tokens"] == 76 * 512
    assert fleet["imbalance"] >= 1


def test_ranks_are_chosen_as_by_the_front_end_of_vllm() -> None:
    """Requests that came since the last report count, and so do those that wait on a full rank."""

    @dataclass
    class Rank:
        number: int
        num_waiting: int = 0
        num_running: int = 0
        kv_usage: float = 0.0
        num_requests: int = 0

    ranks: Any = [Rank(0, num_running=3), Rank(1, num_waiting=2, kv_usage=0.9), Rank(2, num_running=3)]
    choose = router_of("data-parallel", NEWEST)

    def send(at_s: float) -> int:
        chosen = choose(RoutedRequest(row=0, prompt_tokens=8, priority=0, session=-1, arrival_s=at_s), ranks)
        ranks[chosen].num_requests += 1
        return chosen

    assert [send(0.0), send(0.05)] == [0, 2]  # 2 waiting at 90 % weigh 6.8, more than 3 running
    ranks[1].kv_usage = 0.1
    assert send(0.06) == 2  # not heard of yet; of equal ones, the scan begins a rank later each time
    assert send(0.2) == 1


@pytest.mark.parametrize(("release", "chosen"), [("0.25.1", 0), ("0.33.0", 1)])
def test_newer_front_ends_count_their_own_unanswered_requests(release: str, chosen: int) -> None:
    """Also one that the reports of the ranks do not have: it was sent to a rank that it named itself."""
    front_end = RankBalancer.of(release, 2)
    assert front_end.choose(rank=0) == 0
    assert front_end.choose() == chosen
    front_end = RankBalancer.of(release, 2)
    front_end.answered(front_end.choose(rank=0))
    assert front_end.choose() == 0


@pytest.mark.parametrize("engine", ["interpreted", "compiled"])
def test_servers_that_wait_for_a_full_batch_do_not_wait_for_each_other(machine: Machine, engine: Any) -> None:
    """Too few users to fill a batch: each server goes on when its oldest request has waited long enough."""
    policy = Static(scheduler=StaticSettings(batch_size=8, timeout_s=0.02, max_model_len=64))
    options: Any = {"users": 5, "think_s": 0.03, "engine": engine, "refuse_misfits": True}
    fleet = measure_fleet(requests(), policy, machine, behind("shortest"), **options)
    assert sum(run.summary.num_finished + run.summary.num_refused for run in fleet.servers) == len(requests())
    for run in fleet.servers:
        begins_s, arrived_s = run.requests.first_scheduled_s, run.requests.arrival_s
        for begin_s in np.unique(begins_s[~np.isnan(begins_s)]):
            assert (begin_s - arrived_s[begins_s == begin_s]).max() >= 0.02 - 1e-9


@pytest.mark.parametrize("lag_s", [-1.0, float("inf"), float("nan")])
def test_a_lag_that_is_no_time_is_refused(lag_s: float) -> None:
    with pytest.raises(UsageError, match="--route-lag should be a number of seconds, 0 or more"):
        Replicas(number=2, route="prefix", route_lag_s=lag_s)
