"""Host memory as a second tier, from the command line to the pictures: what is copied is counted, shown and drawn."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.calibration.observed import Observed, observe, with_offload
from kvsim.calibration.predict import predict
from kvsim.cli import cli
from kvsim.errors import UsageError
from kvsim.experiments import sweeps
from kvsim.exporters import write_perfetto
from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.plots.sweep_figures import draw_host_memory
from kvsim.plots.waste_bars import waste_bars
from kvsim.policies import Paged
from kvsim.policies.releases import OFFLOAD_RELEASE
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.recording import Recording, eventlog, find, read
from kvsim.recording.tables import CopyKind
from kvsim.replay.host_memory import host_memory
from kvsim.simulation import Machine, simulate
from kvsim.workload import LogNormal, Poisson, Workload, generate
from kvsim_tui.app import KvsimApp
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.host_blocks import LOADING, map_keys, slots_per_cell
from kvsim_tui.pool.paint import EMPTY
from kvsim_tui.widgets.host_map import HostMap

from ..conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

LOG = REPOSITORY / "tests/conformance/recorded_offload/off02.jsonl.gz"
NO_OFFLOAD = "vllm-h200-granite-350m-gsm8k"
SHORT = ("--num-requests", "30", "--num-blocks", "200", "--prompt-tokens", "200:0.5", "--output-tokens", "40:0.5")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("log")
    (folder / eventlog.FILE_NAME).write_bytes(gzip.decompress(LOG.read_bytes()))
    return read(folder)


def test_blocks_on_the_host_and_on_the_link_are_those_of_the_copies(recording: Recording) -> None:
    host, copies = host_memory(recording), recording.copies
    assert host is not None
    assert copies is not None
    for step in range(len(recording.steps)):
        begun = copies.begun_step <= step
        under_way = begun & ((copies.reported_step < 0) | (copies.reported_step >= step))
        assert host.used[step] == len(np.unique(copies.slot[begun])) <= host.num_slots
        for kind, count in ((CopyKind.STORE, host.storing), (CopyKind.LOAD, host.loading)):
            assert count[step] == (under_way & (copies.kind == kind)).sum()
    assert host.loading.max() > 0
    assert host.loading[-1] == host.storing[-1] == 0
    for after_output in (False, True):
        assert host.copying_at(len(recording.steps), after_output=after_output) == (0, 0), "the end of the recording"


def test_a_trace_has_a_track_of_host_memory(recording: Recording, tmp_path: Path) -> None:
    written = write_perfetto(recording, tmp_path / "t.pftrace").read_bytes()
    for name in (b"host memory", b"on the host", b"going there", b"coming back"):
        assert name in written


@pytest.mark.parametrize(("height", "ascii_only"), [(24, False), (45, False), (45, True)])
async def test_the_screen_has_a_map_of_host_memory(recording: Recording, height: int, *, ascii_only: bool) -> None:
    host = host_memory(recording)
    assert host is not None
    step = int(np.argmax(host.loading))
    app = KvsimApp(
        Session(recording, at_s=float(recording.steps.start_s[step])), clock=lambda: 0.0, flash_s=0, ascii=ascii_only
    )
    async with app.run_test(size=(140, height)) as pilot:
        await pilot.pause()
        shown = app.screen.query_one(HostMap)
        title, lines = str(shown.border_title), [shown.render_line(line).text for line in range(shown.size.height)]
    assert f"{host.used[step] - host.storing[step]:,} of {host.num_slots:,} blocks" in title
    assert f"{host.loading[step]:,} coming back" in title
    assert len(lines) == (4 if height == 45 else 1)
    assert ("coming back" in lines[-1]) == (height == 45)
    assert not ascii_only or ("=" in lines[0] and "= coming back" in lines[-1])


def test_the_figure_shows_hits_times_and_preemptions_by_size(tmp_path: Path) -> None:
    def row(size: float, hit_percent: float, ttft_s: float, num_preemptions: int) -> dict[str, Any]:
        return {
            "kv_offloading_size": size, "hit_percent": hit_percent, "ttft_s.mean": ttft_s,
            "num_preemptions": num_preemptions, "source": "times: none", "error": "",
        }  # fmt: skip

    table = tmp_path / "sweep.parquet"
    sweeps._write({"a": row(64.0, 20.0, 1.0, 7), "b": row(0.0, 5.0, 4.0, 3)}, table)
    picture = draw_host_memory(table)
    for axes in picture.axes:
        assert axes.get_ylim() == pytest.approx((0, 1.1 * max(axes.get_lines()[0].get_ydata()) or 1.0))
    drawn = [np.asarray(axes.lines[0].get_ydata()).tolist() for axes in picture.axes]
    assert drawn == [[5.0, 20.0], [4.0, 1.0], [3, 7]]
    assert [label.get_text() for label in picture.axes[-1].get_xticklabels()] == ["0", "64"]
    sweeps._write({"a": row(0.0, 20.0, 1.0, 7), "b": row(0.0, 5.0, 4.0, 3)}, table)
    with pytest.raises(UsageError, match="several runs with the same kv-offloading-size"):
        draw_host_memory(table)


def test_the_flags_reach_the_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = (
        "--vllm",
        OFFLOAD_RELEASE,
        "--kv-offloading-size",
        "0.5",
        "--kv-offloading-block-size",
        "32",
        "--kv-offloading-eviction",
        "arc",
    )
    command = ["run", *SHORT, *flags, "--kv-offloading-gb-per-s", "20", "--check", "--json", "-o", str(folder)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    copies = read(folder).copies
    assert copies is not None
    stores = copies.kind == CopyKind.STORE
    assert summary["swapped_out_bytes"] == stores.sum() * (2 << 20)
    assert copies.slot.max() < 128  # of 4 MiB each
    policy = summary["settings"]["policy_settings"]
    assert (policy["kv_offloading_eviction"], policy["load_gb_per_s"]) == ("arc", 20)


def test_the_host_pays_for_every_step_sequence_copy_and_piece() -> None:
    """One request at a time and nothing scheduled ahead: nothing hides what the host does."""
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    machine = Machine(gpu=gpu, model=model, kv_bytes=200 << 21, step_time=step_times(gpu, model, "vllm"))
    work = Workload(arrival_s=[0.0], prompt_tokens=[330], output_tokens=[12])
    scheduler = ContinuousSettings(max_model_len=600, async_scheduling=False, vllm=OFFLOAD_RELEASE)
    names = ("offload_step_s", "offload_sequence_s", "copy_submit_s", "copy_piece_s")

    def run(**costs: float) -> Recording:
        cache = PagedSettings(kv_offloading_size=1, **dict.fromkeys(names, 0.0) | costs)
        return simulate(work, Paged(scheduler=scheduler, cache=cache), machine, engine="interpreted")

    free = run()
    copies = free.copies
    assert copies is not None
    assert len(copies.kind) == 20, "blocks of the prompt"
    due = {"offload_step_s": 12, "offload_sequence_s": 12, "copy_submit_s": 1, "copy_piece_s": 20 * model.num_layers}
    for name, times in due.items():
        dearer = run(**{name: 1e-4})
        assert dearer.requests.finished_s[0] - free.requests.finished_s[0] == pytest.approx(times * 1e-4, rel=1e-6), (
            name
        )


def pressed(**costs: float) -> Recording:
    """Requests that preempt each other, with steps scheduled ahead."""
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    machine = Machine(gpu=gpu, model=model, kv_bytes=60 << 21, step_time=step_times(gpu, model, "vllm"))
    work = Workload(arrival_s=[0.0] * 6, prompt_tokens=[100, 130, 160, 90, 140, 120], output_tokens=[120] * 6)
    cache = PagedSettings(**{"kv_offloading_size": 1} | costs)
    return simulate(
        work, Paged(scheduler=ContinuousSettings(max_model_len=600, vllm=OFFLOAD_RELEASE), cache=cache), machine
    )


def test_the_host_pays_for_every_block_whose_freeing_is_put_off() -> None:
    """With so dear a block the host is the slow clock, so that the next step waits for what the first victims had."""
    free, dear, dearer = (pressed(offload_deferred_block_s=each) for each in (0.0, 0.01, 0.02))
    step = int(np.flatnonzero(free.steps.preempted)[0])
    victims = np.flatnonzero(free.requests.preemptions > 0)
    assert free.steps.preempted[step] == len(victims) > 1, "one victim leads to the next"
    schedule = free.schedule
    last = [np.flatnonzero((schedule.request == victim) & (schedule.step < step))[-1] for victim in victims]
    computed = schedule.computed_before[last] + schedule.tokens[last] * schedule.repeats[last]
    num_blocks = int((-(-computed // 16)).sum())
    begins = [run.steps.start_s[step + 1] for run in (free, dear, dearer)]
    assert begins[1] > begins[0]
    assert begins[2] - begins[1] == pytest.approx(0.01 * num_blocks, rel=1e-6)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_calibration_knows_what_the_offload_costs_the_host(ahead: bool) -> None:
    """The steps of a simulation are predicted from what they held; without that cost most of them are not."""
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    watched = step_times(gpu, model, "vllm")
    times = watched.times if isinstance(watched, WatchedProfile) else watched
    machine = Machine(gpu=gpu, model=model, kv_bytes=900 << 21, step_time=watched)
    lengths = {"prompt": LogNormal(mean_tokens=300, sigma=0.5), "output": LogNormal(mean_tokens=40, sigma=0.5)}
    work = generate(30, arrivals=Poisson(rate_per_s=60), seed=1, **lengths)
    scheduler = ContinuousSettings(max_model_len=4000, async_scheduling=ahead, vllm=OFFLOAD_RELEASE)
    cache = PagedSettings(kv_offloading_size=1, offload_sequence_s=1e-3)
    recording = simulate(work, Paged(scheduler=scheduler, cache=cache), machine)
    plain = observe(recording)
    known = with_offload(plain, recording, cache, model.num_layers)

    def hit(observed: Observed) -> float:
        """The share of the steps whose end is predicted."""
        return float((np.abs(predict(times, observed).end_s - observed.end_s) < 1e-9).mean())

    assert hit(known) > 0.9  # a store that is handed over by a call with nothing to compute is in no step
    assert hit(plain) < 0.5


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--kv-offloading-eviction", "arc"), "requires --kv-offloading-size"),
        (("--kv-offloading-size", "1", "--swap-gib", "1"), "give only one"),
        (("--kv-offloading-size", "0.001"), "hold no host block of 2097152 bytes"),
        (("--kv-offloading-size", "1", "--kv-offloading-block-size", "24"), "a multiple of the block size"),
        (("--kv-offloading-size", "-1"), "--kv-offloading-size should be at least 0"),
        (("--kv-offloading-size", "1000000"), "at most 999,999"),
        (("--kv-offloading-size", "1", "--policy", "static"), "it is for paged"),
    ],
)
def test_what_does_not_go_together_is_refused(flags: tuple[str, ...], sentence: str) -> None:
    done = CliRunner().invoke(cli, ["run", "--vllm", OFFLOAD_RELEASE, *SHORT, *flags])
    assert done.exit_code != 0
    assert sentence in " ".join(str(done.exception or "").split() + done.output.split())


@pytest.mark.parametrize("is_full", [False, True])
def test_the_map_of_host_memory_is_the_copies_that_were_decided_so_far(recording: Recording, is_full: bool) -> None:
    """Slot by slot and step by step, from the rows of the table and nothing else."""
    shown = pressed(kv_offloading_size=0.05) if is_full else recording
    host, copies = host_memory(shown), shown.copies
    assert host is not None
    assert copies is not None
    rows = sorted(zip(copies.copy, copies.kind, copies.begun_step, copies.reported_step, copies.slot, copies.request,
                      strict=True))  # fmt: skip
    overwritten = 0
    for step in range(len(shown.steps)):
        owner, going, coming, gave_way = {}, set(), set(), set()
        for _, kind, begun, reported, slot, request in rows:
            if begun > step:
                continue
            if reported < 0 or reported >= step:
                (going if kind == CopyKind.STORE else coming).add(slot)
            if kind == CopyKind.STORE:
                if begun == step and slot in owner:
                    gave_way.add(slot)
                owner[slot] = request
        slots = host.slots_at(step)
        assert {slot: slots.owner[slot] for slot in np.flatnonzero(slots.owner >= 0)} == owner
        for mask, expected in ((slots.is_storing, going), (slots.is_loading, coming), (slots.is_overwritten, gave_way)):
            assert set(np.flatnonzero(mask)) == expected
        overwritten += len(gave_way)
    assert (overwritten > 0) == is_full


def test_a_cell_of_the_map_shows_what_is_seldom(recording: Recording) -> None:
    host = host_memory(recording)
    assert host is not None
    frame = int(np.argmax(host.loading))
    whole = map_keys(host.slots_at(frame), host.num_slots, 1, half_blocks=False)
    together = map_keys(host.slots_at(frame), 1, 1, half_blocks=False)
    assert whole.shape == (1, host.num_slots)
    assert (whole & 0xFF == LOADING).sum() == host.slots_at(frame).is_loading.sum() > 0
    assert together[0, 0] & 0xFF == LOADING
    assert slots_per_cell(host.num_slots, 7) == -(-host.num_slots // 7)
    nothing = map_keys(host.slots_at(0), host.num_slots + 3, 1, half_blocks=False)[0, -3:] & 0xFF
    assert set(nothing.tolist()) == {EMPTY}


def test_waste_bars_say_how_much_of_host_memory_keeps_copies(recording: Recording) -> None:
    host, steps = host_memory(recording), recording.steps
    assert host is not None
    lasted = np.diff([*steps.start_s, steps.end_s[-1]])
    share = sum(host.used[: len(steps)] * lasted) / lasted.sum() / host.num_slots
    labels = [text.get_text() for text in waste_bars(recording).axes[0].texts]
    assert any(f"of host memory, {100 * share:.0f}% of it with copies" in label for label in labels)
    assert not any("host memory" in text.get_text() for text in waste_bars(read(find(NO_OFFLOAD))).axes[0].texts)
