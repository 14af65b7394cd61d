"""A store of prefixes that servers share: its account, what it finds, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cli import cli
from kvsim.errors import IntegrityError, RecordingError, UsageError
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.policies import Contiguous, Paged
from kvsim.policies.connectors import KvLink
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording
from kvsim.recording.check import check
from kvsim.recording.tables import TransferKind, Transfers
from kvsim.simulation import Fleet, Machine, PrefixStore, Replicas, measure_fleet, simulate_fleet
from kvsim.simulation.prefix_store import StoredPrefixes
from kvsim.simulation.store_records import CAPACITY, check_loads
from kvsim.workload import Poisson, SharedPrefixes, Uniform, Workload, generate

POLICY = Paged(
    scheduler=ContinuousSettings(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=40),
    cache=PagedSettings(block_size=4),
)
SYNCHRONOUS = replace(POLICY, scheduler=replace(POLICY.scheduler, async_scheduling=False))
BLOCK_GIB = 4 * 131072 / 2**30
FAST = KvLink(gb_per_s=50.0, latency_s=0.0001)


def requests(number: int = 60, rate_per_s: float = 60.0, num_prefixes: int = 6, seed: int = 3) -> Workload:
    return generate(
        number,
        arrivals=Poisson(rate_per_s=rate_per_s),
        prompt=Uniform(low=4, high=24),
        output=Uniform(low=2, high=24),
        prefixes=SharedPrefixes(num_groups=num_prefixes, tokens=24),
        seed=seed,
    )


@pytest.fixture
def machine(make_machine: Callable[[int], Machine]) -> Machine:
    return make_machine(120)


def serve(machine: Machine, store: PrefixStore | None, **options: Any) -> tuple[list[Recording], Fleet]:
    servers = Replicas(number=3, route="round-robin", store=store)
    return simulate_fleet(requests(), POLICY, machine, servers, **options)


@given(
    capacity=st.integers(1, 12),
    puts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8)), max_size=30),
)
def test_a_stored_block_has_all_blocks_before_it(capacity: int, puts: list[tuple[int, int]]) -> None:
    chains = [[0, 1, *(10 * group + place for place in range(2, 8))] for group in range(3)]
    content = StoredPrefixes(capacity)
    for group, length in puts:
        content.put(chains[group][:length])
        content.check(chains)
        assert content.num_leading(chains[group][:length]) == min(length, capacity)
    assert content.num_written == len(content) + content.num_evicted


def test_a_wrong_account_of_the_store_is_found() -> None:
    content = StoredPrefixes(4)
    content.put([1, 2, 3])
    content.num_evicted += 1
    with pytest.raises(IntegrityError, match="3 of 4 blocks; 3 were written and 1 evicted"):
        content.check()
    content.num_evicted = 0
    del content._used[1]
    content.num_evicted = 1
    with pytest.raises(IntegrityError, match="without one before it"):
        content.check([[1, 2, 3]])


@pytest.mark.parametrize("options", [{}, {"users": 5}], ids=str)
@pytest.mark.parametrize("blocks", [1000, 12])
def test_every_account_is_right_and_what_is_loaded_stands_in_the_recordings(
    machine: Machine, blocks: int, options: dict[str, Any]
) -> None:
    recordings, fleet = serve(machine, PrefixStore(gib=blocks * BLOCK_GIB, link=FAST), check=True, **options)
    assert fleet.store is not None
    for each in recordings:
        refuse_contradictions(each, Path())
    assert blocks_of(recordings, TransferKind.LOAD) == fleet.store.loaded_blocks
    assert fleet.store.most_blocks <= blocks
    assert (fleet.store.evicted_blocks > 0) == (blocks == 12)
    assert sum(len(each.requests) for each in recordings) == len(requests())


def test_more_room_finds_more_and_a_store_finds_more_than_none(machine: Machine) -> None:
    def hits(store: PrefixStore | None) -> int:
        return sum(int(server.summary.prefix_hit_tokens) for server in serve(machine, store)[1].servers)

    none, small, large = hits(None), hits(PrefixStore(gib=8 * BLOCK_GIB)), hits(PrefixStore(gib=1000 * BLOCK_GIB))
    assert none < small < large


def test_a_slow_link_costs_time_and_both_engines_agree(machine: Machine) -> None:
    slow = PrefixStore(gib=1.0, link=KvLink(latency_s=0.05))
    fast = PrefixStore(gib=1.0, link=FAST)
    (one, _), (other, _) = (serve(machine, slow, engine=engine) for engine in ("interpreted", "compiled"))
    for interpreted, compiled in zip(one, other, strict=True):
        assert np.array_equal(interpreted.requests.finished_s, compiled.requests.finished_s)
    waits = [
        np.mean(np.concatenate([each.requests.first_token_s - each.requests.arrival_s for each in runs]))
        for runs in (serve(machine, fast)[0], one)
    ]
    assert waits[1] > 1.5 * waits[0]


def test_a_preempted_request_loads_its_own_prompt(make_machine: Callable[[int], Machine]) -> None:
    """All prompts were stored while their requests ran, and nothing is stored after the first preemption."""
    alike = {"prompt_tokens": [12] * 4, "output_tokens": [40] * 4, "max_tokens": [40] * 4, "prefix_tokens": [12] * 4}
    own = {"prefix_group": [0, 1, 2, 3], "prefix_names": ("a", "b", "c", "d")}
    servers = Replicas(number=1, store=PrefixStore(gib=1.0, link=FAST))
    (run,), _ = simulate_fleet(Workload(arrival_s=np.zeros(4), **alike, **own), POLICY, make_machine(72), servers)
    assert run.transfers is not None
    loaded = run.transfers.request[run.transfers.kind == TransferKind.LOAD]
    assert len(loaded)
    assert run.requests.preemptions[loaded].all()


def test_one_server_alone_has_a_store_too(machine: Machine) -> None:
    store = PrefixStore(gib=1.0)
    fleet = measure_fleet(requests(), POLICY, machine, Replicas(number=1, store=store), check=True)
    assert fleet.store is not None
    assert fleet.store.loaded_blocks > 0


def test_what_is_not_modelled_is_refused(machine: Machine) -> None:
    store = Replicas(number=2, store=PrefixStore(gib=1.0))
    offloading = replace(POLICY, cache=replace(POLICY.cache, kv_offloading_size=1.0))
    uncached = replace(POLICY, cache=replace(POLICY.cache, enable_prefix_caching=False))
    for policy, words in (
        (Contiguous(scheduler=POLICY.scheduler), "paged policy"),
        (offloading, "--kv-offloading-size"),
        (uncached, "caching"),
    ):
        roomy = replace(machine, kv_bytes=10 * machine.kv_bytes)
        with pytest.raises(UsageError, match=words):
            measure_fleet(requests(), policy, roomy, store)
    with pytest.raises(UsageError, match="no room for a block"):
        measure_fleet(requests(), POLICY, machine, Replicas(number=2, store=PrefixStore(gib=1e-6)))
    for gib in (0.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="above 0 and finite"):
            PrefixStore(gib=gib)


@pytest.mark.parametrize("others", [["--prefill", "1", "--decode", "1"], ["--failed-loads", "0.1"]])
def test_flags_that_do_not_go_with_a_store_are_refused(others: list[str]) -> None:
    done = CliRunner().invoke(cli, ["run", "--prefix-store-gib", "1", *others])
    assert done.exit_code
    assert "--prefix-store-gib" in f"{done.exception}" or "prefix store" in f"{done.exception}"


def blocks_of(recordings: list[Recording], kind: TransferKind) -> int:
    tables = [each.transfers for each in recordings if each.transfers is not None]
    assert len(tables) == len(recordings)
    return sum(int(each.blocks[each.kind == kind].sum()) for each in tables)


def recorded(machine: Machine, capacity: int = 12) -> list[tuple[Path, Recording]]:
    """Servers with a small store, from which blocks are evicted."""
    recordings, fleet = serve(machine, PrefixStore(gib=capacity * BLOCK_GIB, link=FAST))
    assert fleet.store is not None
    assert fleet.store.loaded_blocks
    assert fleet.store.evicted_blocks
    return [(Path(str(number)), recording) for number, recording in enumerate(recordings)]


def changed(servers: list[tuple[Path, Recording]], change: Callable[[Transfers], Transfers]) -> list[Any]:
    return [(folder, replace(each, transfers=change(each.transfers))) for folder, each in servers]  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [6, 12, 40])
@pytest.mark.parametrize("gb_per_s", [0.01, 50.0])
@pytest.mark.parametrize("policy", [POLICY, SYNCHRONOUS], ids=["async", "sync"])
def test_every_load_is_found_in_the_content_that_the_recorded_writes_build(
    machine: Machine, capacity: int, gb_per_s: float, policy: Paged
) -> None:
    store = PrefixStore(gib=capacity * BLOCK_GIB, link=KvLink(gb_per_s=gb_per_s, latency_s=0.001))
    servers = Replicas(number=3, route="shortest", store=store)
    recordings, fleet = simulate_fleet(requests(rate_per_s=300.0), policy, machine, servers)
    assert fleet.store is not None
    pairs = [(Path(str(number)), recording) for number, recording in enumerate(recordings)]
    loaded = blocks_of(recordings, TransferKind.LOAD)
    assert check_loads(pairs) == loaded == fleet.store.loaded_blocks > 0
    written = blocks_of(recordings, TransferKind.WRITE)
    assert written >= fleet.store.written_blocks - capacity


def test_every_load_of_a_request_that_is_preempted_and_loads_again_is_recorded_and_checked(
    make_machine: Callable[[int], Machine],
) -> None:
    """Small pools: requests are preempted, find their prompts in the store, and load them once more."""
    servers = Replicas(number=2, route="shortest", store=PrefixStore(gib=1.0, link=FAST))
    load = requests(rate_per_s=300.0, num_prefixes=12, seed=0)
    recordings, fleet = simulate_fleet(load, POLICY, make_machine(72), servers, check=True)
    assert fleet.store is not None
    again = []
    for number, recording in enumerate(recordings):
        check(recording, Path())
        refuse_contradictions(recording, Path())
        transfers = recording.transfers
        assert transfers is not None
        rows = np.flatnonzero(transfers.kind == TransferKind.LOAD)
        assert (np.diff(transfers.begun_seq[rows]) >= 0).all()
        for request in np.unique(transfers.request[rows]).tolist():
            mine = rows[transfers.request[rows] == request]
            assert (transfers.begun_seq[mine[1:]] > transfers.ended_seq[mine[:-1]]).all()  # one after the other
            assert len(mine) <= 1 + recording.requests.preemptions[request]
            again += [(number, row) for row in mine[:-1].tolist()]
    assert again
    assert blocks_of(recordings, TransferKind.LOAD) == fleet.store.loaded_blocks
    pairs = [(Path(str(number)), recording) for number, recording in enumerate(recordings)]
    assert check_loads(pairs) == fleet.store.loaded_blocks
    number, row = again[0]

    def move(transfers: Transfers) -> Transfers:
        """Let the earlier of two loads take more blocks than the store ever had of the prompt."""
        blocks = transfers.blocks.copy()
        blocks[row] += 1
        return replace(transfers, blocks=blocks)

    pairs[number] = changed([pairs[number]], move)[0]
    with pytest.raises(RecordingError, match=f"row {row}: "):
        check_loads(pairs)


def test_a_load_without_its_write_is_a_contradiction(machine: Machine) -> None:
    servers = recorded(machine)
    assert check_loads(servers)

    def drop_writes(transfers: Transfers) -> Transfers:
        rows = transfers.kind != TransferKind.WRITE
        return Transfers(**{name: getattr(transfers, name)[rows] for name, _ in Transfers.columns()})

    with pytest.raises(
        RecordingError, match=r"transfers.parquet, row \d+: \d+ blocks are loaded, and the prefix store"
    ):
        check_loads(changed(servers, drop_writes))
    late = changed(servers, lambda transfers: replace(transfers, end_s=transfers.end_s + 100.0))
    with pytest.raises(RecordingError, match="the prefix store holds 0 of the"):
        check_loads(late)


def test_a_load_of_an_evicted_block_is_a_contradiction(machine: Machine) -> None:
    """With a smaller store, blocks would have been evicted before they are loaded."""
    smaller = [
        (folder, replace(each, meta=replace(each.meta, engine={**each.meta.engine, CAPACITY: 2})))
        for folder, each in recorded(machine)
    ]
    with pytest.raises(RecordingError, match="the prefix store holds"):
        check_loads(smaller)


def test_the_folder_of_a_fleet_is_checked_and_what_it_loads(tmp_path: Path) -> None:
    folder = str(tmp_path / "fleet")
    flags = [
        "--replicas",
        "2",
        "--prefix-store-gib",
        "1",
        "--num-blocks",
        "300",
        "--num-requests",
        "30",
        "--rate",
        "30",
    ]
    load = ["--arrivals", "poisson", "--shared-prefix", "4x320", "--prompt-tokens", "50", "--output-tokens", "10"]
    assert CliRunner().invoke(cli, ["run", *flags, *load, "-o", folder]).exit_code == 0
    printed = CliRunner().invoke(cli, ["info", folder, "--check"], catch_exceptions=False).output
    assert "its 2 servers keep to the format (30 requests" in printed
    assert "; the prefix store held each of " in printed
    assert "has the recordings of 2 servers" in str(CliRunner().invoke(cli, ["info", folder]).exception)
    refused = CliRunner().invoke(cli, ["verify", f"{folder}/0"])
    assert "the server loads from a prefix store" in str(refused.exception)
