"""Data-parallel ranks as prefill and decode servers, and with a store of prefixes: each rank has its own connector."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.cli import cli
from kvsim.conformance import verify_recording
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.policies import Paged
from kvsim.policies.connectors import KvLink
from kvsim.policies.routers import DataParallel
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording, RequestStatus, server_folders
from kvsim.recording.check import check
from kvsim.recording.tables import TransferKind
from kvsim.simulation import Disaggregation, Machine, PrefixStore, Replicas, measure_fleet, simulate_fleet
from kvsim.simulation.dispatch import Dispatcher
from kvsim.simulation.setup import Setup
from kvsim.simulation.store_records import check_loads
from kvsim.workload import Poisson, SharedPrefixes, Uniform, Workload, generate

from ..thinned import one_of

POLICY = Paged(
    scheduler=ContinuousSettings(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=40),
    cache=PagedSettings(block_size=4),
)
SYNCHRONOUS = replace(POLICY, scheduler=replace(POLICY.scheduler, async_scheduling=False))
OLD = replace(POLICY, scheduler=replace(POLICY.scheduler, vllm="0.25.1"))
POLICIES = {"0.33.0": POLICY, "synchronous": SYNCHRONOUS, "0.25.1": OLD}
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES.values(), ids=[*POLICIES])
SLOW = KvLink(latency_s=0.05)


def requests(number: int = 40, rate_per_s: float = 200.0, seed: int = 3, num_prefixes: int = 4) -> Workload:
    return generate(
        number,
        arrivals=Poisson(rate_per_s=rate_per_s),
        prompt=Uniform(low=4, high=24),
        output=Uniform(low=2, high=24),
        prefixes=SharedPrefixes(num_groups=num_prefixes, tokens=16),
        seed=seed,
    )


def ranks(number: int = 2, num_blocks: int = 60) -> Machine:
    """Ranks that share experts, so that their steps wait for each other."""
    made = kvsim.machine(
        "H200", "Qwen3-30B-A3B", data_parallel_size=number, enable_expert_parallel=True, num_blocks=num_blocks
    )
    return replace(made, kv_bytes=num_blocks * 4 * made.model.kv_bytes_per_token)


def dense(number: int = 2, num_blocks: int = 60) -> Machine:
    """Ranks whose steps do not wait."""
    made = kvsim.machine("H200", "Llama-3-8B", num_blocks=num_blocks)
    model = made.model.served(data_parallel_size=number) if number > 1 else made.model
    return replace(made, model=model, kv_bytes=num_blocks * 4 * made.model.kv_bytes_per_token)


def apart(prefill: int = 1, decode: int = 2, **more: Any) -> Disaggregation:
    return Disaggregation(num_prefill=prefill, num_decode=decode, ranks=2, **more)


TRANSFERS = ({}, {"link": SLOW}, {"failed_share": 0.4, "recomputes": True}, {"failed_share": 0.4})


@pytest.mark.parametrize("served", one_of(3, product(POLICIES, TRANSFERS)), ids=str)  # each of both is in one that runs
def test_every_prompt_is_computed_and_read_once_by_ranks_that_wait(served: tuple[str, dict[str, Any]]) -> None:
    """With `check`, the account of each rank is checked at every step, and in the end none holds a block."""
    policy, more = POLICIES[served[0]], served[1]
    recordings, fleet = simulate_fleet(requests(), policy, ranks(), apart(**more), check=True)
    prefilled, answered = (
        sorted(np.concatenate([each.requests.id for each in side])) for side in (recordings[:2], recordings[2:])
    )
    assert prefilled == answered == sorted(requests().ids)
    status = np.concatenate([each.requests.status for each in recordings[2:]])
    if more.get("failed_share") and not more.get("recomputes"):
        assert 4 < (status == RequestStatus.ABORTED).sum() < 30
    else:
        assert (status == RequestStatus.FINISHED).all()
    totals = fleet.totals()
    assert (totals.num_servers, totals.num_prefill, totals.num_ranks, len(totals.idle_steps)) == (6, 2, 2, 6)
    for recording in recordings:
        check(recording, Path())
        refuse_contradictions(recording, Path())
        verdict = verify_recording(recording, compiled=False)
        assert verdict.equal, verdict


def test_a_rank_that_only_loads_takes_part_in_steps_and_keeps_the_others_awake() -> None:
    """One request: while its prompt crosses a slow link, both ranks of its decode server take idle steps."""
    fast, slow = (
        measure_fleet(requests(1), POLICY, ranks(), apart(1, 1, link=link)) for link in (KvLink(latency_s=0.0), SLOW)
    )
    assert fast.idle_steps[:2] == slow.idle_steps[:2]  # the prefill server sleeps until its blocks are read
    one_step_s = 0.02
    assert min(slow.idle_steps[2:]) >= min(fast.idle_steps[2:]) + SLOW.latency_s / one_step_s
    [sent] = [each for each in slow.clients if len(each)]
    assert sent.first_token_s[0] - sent.arrival_s[0] > SLOW.latency_s


@EVERY_POLICY
def test_ranks_that_do_not_wait_are_as_many_servers(policy: Paged) -> None:
    """Two ranks of a dense model on each side are two prefill and two decode servers behind the same routers."""

    class BehindFrontEnds(Disaggregation):
        def dispatchers(self, setup: Setup) -> tuple[Dispatcher, Dispatcher]:
            release = policy.scheduler.vllm
            return Dispatcher.of(setup, DataParallel(release)), Dispatcher.of(setup, DataParallel(release))

    of_ranks = measure_fleet(requests(), policy, dense(), apart(1, 1), check=True)
    servers = measure_fleet(requests(), policy, dense(1), BehindFrontEnds(num_prefill=2, num_decode=2), check=True)
    assert not of_ranks.idle_steps
    for one, other in zip(of_ranks.servers, servers.servers, strict=True):
        assert list(one.requests.id) == list(other.requests.id)
        assert np.array_equal(one.requests.finished_s, other.requests.finished_s)


@EVERY_POLICY
@pytest.mark.parametrize("capacity", [12, 1000])
def test_ranks_load_what_other_ranks_have_stored(policy: Paged, capacity: int) -> None:
    machine = ranks(num_blocks=24)
    block_gib = 4 * machine.model.kv_bytes_per_token / 2**30
    store = PrefixStore(gib=capacity * block_gib, link=KvLink(latency_s=0.0001))
    servers = Replicas(number=2, store=store).on(machine, policy)
    recordings, fleet = simulate_fleet(requests(60), policy, machine, servers, check=True)
    assert fleet.store is not None
    assert fleet.store.loaded_blocks > 0
    assert (fleet.store.evicted_blocks > 0) == (capacity == 12)
    assert fleet.totals().num_finished == 60
    for recording in recordings:
        check(recording, Path())
        refuse_contradictions(recording, Path())
    named = [(Path(name), recording) for name, recording in zip(fleet.names, recordings, strict=True)]
    assert check_loads(named) == sum(loaded_blocks(each) for each in recordings)


def loaded_blocks(recording: Recording) -> int:
    transfers = recording.transfers
    assert transfers is not None
    return int(transfers.blocks[transfers.kind == TransferKind.LOAD].sum())


def test_ranks_in_turn_with_a_store_that_none_shares_are_separate_servers() -> None:
    """Every rank has prompts of its own, and the store has room for all."""
    load = replace(requests(60, num_prefixes=12), prefix_group=np.arange(60, dtype=np.int32) % 12)
    store, fast = PrefixStore(gib=1.0, link=KvLink(latency_s=0.0001)), dense(3, num_blocks=24)
    together = measure_fleet(load, POLICY, fast, Replicas(number=1, route="round-robin", store=store).on(fast, POLICY))
    assert together.store is not None
    loaded = 0
    for rank, served in enumerate(together.servers):
        one = Replicas(number=1, store=store)
        alone = measure_fleet(load.every(3, rank), POLICY, dense(1, num_blocks=24), one)
        assert alone.store is not None
        loaded += alone.store.loaded_blocks
        assert np.array_equal(served.requests.cached_tokens, alone.servers[0].requests.cached_tokens)
        assert served.requests.finished_s == pytest.approx(alone.servers[0].requests.finished_s, abs=1e-12)
    assert loaded == together.store.loaded_blocks > 0


@pytest.mark.parametrize("kind", ["apart", "store"])
def test_both_engines_agree(kind: str) -> None:
    pytest.importorskip("numba")
    machine = ranks(num_blocks=24)
    store = PrefixStore(gib=1.0, link=KvLink(latency_s=0.0001))
    servers = apart(link=SLOW) if kind == "apart" else Replicas(number=2, store=store).on(machine, POLICY)
    one, other = (simulate_fleet(requests(), POLICY, machine, servers, engine=e) for e in ("interpreted", "compiled"))
    assert one[1].idle_steps == other[1].idle_steps
    for interpreted, compiled in zip(one[0], other[0], strict=True):
        assert np.array_equal(interpreted.steps.end_s, compiled.steps.end_s)
        assert np.array_equal(interpreted.memory.address, compiled.memory.address)


def test_a_rank_that_loads_from_host_memory_does_not_delay_the_others() -> None:
    """Over a link of 1 MB/s, the load of a block takes 0.4 s; the other rank takes its steps meanwhile."""
    machine = ranks(num_blocks=24)
    policy = replace(OLD, cache=replace(OLD.cache, kv_offloading_size=0.1, load_gb_per_s=1e-3))
    recordings, fleet = simulate_fleet(
        requests(24), policy, machine, Replicas(number=1).on(machine, policy), check=True
    )
    assert fleet.totals().num_finished == 24
    assert all(each.copies is not None and each.copies.kind.any() for each in recordings)
    for each in recordings:
        decodes = (each.steps.decode_tokens > 0)[:-1]
        assert np.diff(each.steps.start_s)[decodes].max() < 0.2


any_ranks = given(
    seed=st.integers(0, 99),
    rate_per_s=st.sampled_from([20.0, 200.0, 2000.0]),
    num_blocks=st.integers(24, 80),
    latency_s=st.sampled_from([0.0, 0.001, 0.03]),
    shape=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    has_experts=st.booleans(),
    users=st.sampled_from([None, 5]),
)


@settings(max_examples=5, deadline=None)
@any_ranks
def test_nothing_is_lost_between_ranks(**drawn: Any) -> None:
    assert_nothing_is_lost(**drawn)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@any_ranks
def test_nothing_is_lost_between_many_ranks(**drawn: Any) -> None:
    assert_nothing_is_lost(**drawn)


def assert_nothing_is_lost(
    seed: int, rate_per_s: float, num_blocks: int, latency_s: float, shape: tuple[int, int], has_experts: bool,
    users: int | None,
) -> None:  # fmt: skip
    machine = (ranks if has_experts else dense)(2, num_blocks)
    servers = apart(*shape, link=KvLink(latency_s=latency_s), failed_share=0.2, recomputes=True)
    load = requests(20, rate_per_s, seed)
    fleet = measure_fleet(load, POLICY, machine, servers, check=True, users=users)
    assert fleet.totals().num_finished == 20
    store = PrefixStore(gib=0.001, link=KvLink(latency_s=latency_s))
    fleet = measure_fleet(
        load, POLICY, machine, Replicas(number=2, store=store).on(machine, POLICY), check=True, users=users
    )
    assert fleet.totals().num_finished == 20


MACHINE = ["--model", "Qwen3-30B-A3B", "--gpu", "H200", "--data-parallel-size", "2", "--enable-expert-parallel"]
LOAD = ["--num-requests", "20", "--prompt-tokens", "50", "--output-tokens", "20", "--shared-prefix", "4x320"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, [*arguments], catch_exceptions=False)


def test_the_command_line_names_every_rank_of_both_kinds(tmp_path: Path) -> None:
    flags = [*MACHINE, *LOAD, "--prefill", "1", "--decode", "2"]
    printed = invoke("run", *flags, "-o", str(tmp_path / "fleet")).output
    assert printed.startswith("1 prefill and 2 decode servers of 2 data-parallel ranks finished 20 requests")
    assert "decode 1, rank 1" in printed
    names = [f"{server}-rank-{rank}" for server in ("prefill-0", "decode-0", "decode-1") for rank in "01"]
    assert [each.name for each in server_folders(tmp_path / "fleet")] == names
    assert "its 6 servers keep to the format" in invoke("info", str(tmp_path / "fleet"), "--check").output
    compared = json.loads(invoke("compare", *flags, "--json").stdout)
    assert list(compared) == ["3 servers of 2 ranks", "1 prefill, 2 decode of 2 ranks"]
    assert all(each["num_finished"] == 20 for each in compared.values())


def test_the_command_line_gives_ranks_a_store(tmp_path: Path) -> None:
    flags = [*MACHINE, *LOAD, "--replicas", "2", "--prefix-store-gib", "2", "--arrivals", "poisson", "--rate", "8"]
    printed = invoke("run", *flags, "-o", str(tmp_path / "fleet")).output
    assert printed.startswith("2 servers of 2 data-parallel ranks finished 20 requests")
    assert "the prefix store held each of" in invoke("info", str(tmp_path / "fleet"), "--check").output


def test_python_takes_ranks_apart_and_saves_them_by_name(tmp_path: Path) -> None:
    run = kvsim.simulate(requests(), machine=ranks(), prefill=1, decode=1)
    assert len(run) == 4
    run.save(tmp_path / "fleet")
    assert [each.name for each in server_folders(tmp_path / "fleet")][::3] == ["prefill-0-rank-0", "decode-0-rank-1"]
