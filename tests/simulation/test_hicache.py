"""SGLang's HiCache on the clock: every slot is accounted for, a recording gives the same figures, copies take time."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.errors import BudgetError, UsageError
from kvsim.exporters import write_perfetto
from kvsim.fitting import SGLangServer
from kvsim.metrics import summarize
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.policies import Radix, RadixSettings
from kvsim.recording import Recording, read
from kvsim.recording.check import check
from kvsim.recording.tables import CopyKind
from kvsim.replay.host_memory import host_memory
from kvsim.simulation import EngineName, measure, simulate
from kvsim.simulation.simulation_run import record
from kvsim_tui.app import KvsimApp
from kvsim_tui.facts.requests import request_facts
from kvsim_tui.facts.tree import tree_lines
from kvsim_tui.playback.session import Session
from kvsim_tui.widgets.host_map import HostMap

from ..thinned import one_of
from .test_radix import GPU, MODEL, SCHEDULING, WINDOWED, machine_of, workload

POLICIES = ("write_through", "write_through_selective", "write_back")
NUM_TOKENS = 640
SMALL = ("--policy", "radix", "--num-requests", "20", "--kv-gib", "0.1", "--prompt-tokens", "60", "--output-tokens",
         "12", "--shared-prefix", "4x100", "--enable-hierarchical-cache")  # fmt: skip


def policy_of(**cache: Any) -> Radix:
    return Radix(scheduler=SCHEDULING, cache=RadixSettings(enable_hierarchical_cache=True, **cache))


def recorded(policy: Radix, *, engine: EngineName = "interpreted") -> Recording:
    """Record the requests of `test_radix` on a small pool; the account is checked at every step if interpreted."""
    return simulate(workload(), policy, machine_of(NUM_TOKENS), engine=engine, check=engine == "interpreted")


CACHES = (
    {},
    {"page_size": 16, "hicache_ratio": 0.3},
    {"page_size": 4, "hicache_size": 0.01},
    {"page_size": 4, "hicache_ratio": 0.001},
    {"page_size": 4, "store_gb_per_s": 0.02, "load_gb_per_s": 0.01},
)


@pytest.mark.parametrize("served", one_of(2, product(CACHES, POLICIES)), ids=str)
def test_every_slot_is_accounted_for_and_every_table_agrees(served: tuple[dict[str, object], str]) -> None:
    cache, write_policy = served
    recording = recorded(policy_of(hicache_write_policy=write_policy, **cache))
    check(recording, Path("recording"))
    refuse_contradictions(recording, Path("recording"))
    assert (recording.requests.output_tokens == workload().output_tokens).all()


def test_a_slow_link_holds_up_a_server_that_evicts_to_the_host() -> None:
    speeds = {"store_gb_per_s": 0.05, "load_gb_per_s": 0.05}
    fast, slow = (
        recorded(policy_of(page_size=4, hicache_write_policy="write_back", **chosen)) for chosen in ({}, speeds)
    )
    assert slow.duration_s > 1.5 * fast.duration_s


def test_a_step_waits_for_the_pages_that_it_loads() -> None:
    recording = recorded(policy_of(page_size=4, load_gb_per_s=0.01))
    copies, steps = recording.copies, recording.steps
    assert copies is not None
    is_load = copies.kind == CopyKind.LOAD
    loaded = np.bincount(copies.begun_step[is_load], minlength=len(steps))
    least_s = loaded * recording.meta.pool.bytes_per_unit / 0.01e9
    assert (loaded > 0).any()
    assert (steps.end_s - steps.start_s >= least_s).all()
    # The scheduler finds a load finished in the pass that schedules the step after the reported one, or later.
    following = np.append(steps.start_s, np.inf)[copies.reported_step[is_load] + 1]
    assert (following >= steps.start_s[copies.begun_step[is_load]] + least_s[copies.begun_step[is_load]]).all()


def test_a_run_and_its_recording_give_the_same_figures(tmp_path: Path) -> None:
    policy, machine = policy_of(page_size=4), machine_of(NUM_TOKENS)
    measured = measure(workload(), policy, machine, engine="interpreted")
    written = record(workload(), policy, machine, tmp_path / "run", engine="interpreted")
    recording = read(tmp_path / "run")
    again = summarize(recording)
    for name in ("swapped_out_units", "swapped_in_units", "loaded_tokens", "prefix_hit_tokens", "swapped_in_bytes"):
        assert getattr(measured.summary, name) == getattr(written.summary, name) == getattr(again, name), name
    assert recording.copies is not None
    kinds = np.bincount(recording.copies.kind, minlength=2)
    assert kinds.tolist() == [again.swapped_out_units, again.swapped_in_units]
    assert again.loaded_tokens > 0
    np.testing.assert_allclose(measured.summary.waste.pool_percent, again.waste.pool_percent, rtol=1e-9)


def test_host_memory_shows_the_copies_step_by_step() -> None:
    recording = recorded(policy_of(page_size=4))
    host, copies = host_memory(recording), recording.copies
    assert host is not None
    assert copies is not None
    assert host.num_slots == 2 * NUM_TOKENS // 4 + 1
    for step in range(len(recording.steps)):
        begun = copies.begun_step <= step
        under_way = begun & (copies.reported_step >= step)
        for kind, count in ((CopyKind.STORE, host.storing), (CopyKind.LOAD, host.loading)):
            assert count[step] == (under_way & (copies.kind == kind)).sum()
        assert host.used[step] <= host.num_slots
    assert host.loading[-1] == host.storing[-1] == 0


async def test_the_screen_and_a_trace_show_host_memory(tmp_path: Path) -> None:
    recording = recorded(policy_of(page_size=4, load_gb_per_s=0.02))
    host, copies = host_memory(recording), recording.copies
    assert host is not None
    assert copies is not None
    step = int(np.argmax(host.loading))
    session = Session(recording, at_s=float(recording.steps.start_s[step]))
    app = KvsimApp(session, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=(140, 45)) as pilot:
        await pilot.pause()
        title = str(app.screen.query_one(HostMap).border_title)
    assert f"{host.used[step] - host.storing[step]:,} of {host.num_slots:,} blocks" in title
    assert f"{host.storing[step]:,} going there" in title
    assert f"{host.loading[step]:,} coming back" in title
    under_way = (copies.kind == CopyKind.LOAD) & (copies.begun_step <= step) & (copies.reported_step >= step)
    state = request_facts(session, int(copies.request[under_way][0])).state
    assert state.startswith("running: ")
    assert state.endswith(", its prefix comes from the host")
    cached = np.flatnonzero(session.replay.cached)
    assert ("locked by", "no request: it can be evicted, unless a copy locks it") in tree_lines(session, int(cached[0]))
    assert b"host memory" in write_perfetto(recording, tmp_path / "t.pftrace").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("write_policy", POLICIES)
def test_machine_code_records_the_same(write_policy: str) -> None:
    policy = policy_of(page_size=4, hicache_write_policy=write_policy, hicache_ratio=0.7, store_gb_per_s=1.0)
    one, other = (recorded(policy, engine=way) for way in ("interpreted", "compiled"))
    assert one.copies is not None
    assert other.copies is not None
    for name in ("requests", "steps", "schedule", "memory", "copies"):
        assert getattr(one, name).to_arrow() == getattr(other, name).to_arrow(), name


def test_more_host_memory_brings_more_hits() -> None:
    hits = [
        int(recorded(policy_of(page_size=4, hicache_ratio=ratio)).requests.cached_tokens.sum()) for ratio in (0.01, 3)
    ]
    assert hits[0] < hits[1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--hicache-ratio", "2"], "--hicache-ratio requires --enable-hierarchical-cache"),
        (["--enable-hierarchical-cache", "--hicache-ratio", "0"], "--hicache-ratio should be above 0, not 0"),
        (["--enable-hierarchical-cache", "--hicache-write-policy", "never"], "'never' is not one of"),
        (["--enable-hierarchical-cache", "--disable-radix-cache"], "leave one out"),
        (["--enable-hierarchical-cache", "--hicache-size", "0.000001"], "hold no slot"),
        (["--enable-hierarchical-cache", "--model", "gpt-oss-20b"], "HiCache beside layers with windows"),
        (["--kv-offloading-gb-per-s", "20"], "or --enable-hierarchical-cache; give one."),
    ],
)
def test_what_is_not_simulated_is_refused_in_a_sentence(flags: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["run", "--policy", "radix", "--num-requests", "2", *flags])
    assert result.exit_code != 0
    assert says in str(result.exception) + result.output
    assert isinstance(result.exception, UsageError | BudgetError | SystemExit)


def test_a_server_s_line_names_the_storage_tier_as_not_modelled() -> None:
    line = ["python", "-m", "sglang.launch_server", "--model-path", "Llama-3-8B", "--enable-hierarchical-cache",
            "--hicache-ratio", "2", "--hicache-storage-backend", "file"]  # fmt: skip
    result = CliRunner().invoke(cli, ["run", "--num-requests", "4", *line])
    assert result.exit_code == 0, result.output
    assert "a storage tier below HiCache's host memory is not modelled" in result.output
    assert "host memory" in result.output


def test_the_answer_says_what_was_copied_and_that_its_times_are_a_model() -> None:
    result = CliRunner().invoke(cli, ["run", *SMALL, "--kv-offloading-gb-per-s", "20"])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "20.0 GB/s there and 20.0 GB/s back, write_through; the times of copies are a model" in words
    assert "copied there in" in words
    assert "tokens were not computed" in words


def test_a_fit_states_hicache_by_sglang_s_arguments_alone() -> None:
    cache = RadixSettings(enable_hierarchical_cache=True, hicache_size=40.0, store_gb_per_s=12.0)
    server = SGLangServer(gpu=GPU, model=MODEL, name="Llama-3-8B", cache=cache)
    assert "--enable-hierarchical-cache --hicache-size 40.0" in server.command()
    assert "gb-per-s" not in server.command()
    result = CliRunner().invoke(cli, ["fit", *SMALL[:2], "--enable-hierarchical-cache", "--rate", "2", "--points", "0",
                                      "--prompt-tokens", "60", "--output-tokens", "12"])  # fmt: skip
    assert result.exit_code == 0, result.output


def test_the_size_of_host_memory_is_explained() -> None:
    flags = ["size", "--policy", "radix", "--gpu", "H200", "--model", "Llama-3-8B", "--enable-hierarchical-cache"]
    by_ratio, by_size = (
        CliRunner().invoke(cli, [*flags, *more, "--json"])
        for more in (["--hicache-ratio", "1.5"], ["--hicache-size", "8"])
    )
    assert '"num_host_slots": 61036' in by_size.output  # 8e9 bytes of 131,072 a slot, and one page
    assert by_ratio.exit_code == 0
    refused = CliRunner().invoke(cli, ["size", "--gpu", "H200", "--model", "Llama-3-8B", "--enable-hierarchical-cache"])
    assert "has no effect with --policy paged: it is for radix" in str(refused.exception)
    windows = CliRunner().invoke(cli, [*flags[:5], "--model", WINDOWED.name, "--enable-hierarchical-cache"])
    assert "HiCache beside layers with windows" in str(windows.exception)
