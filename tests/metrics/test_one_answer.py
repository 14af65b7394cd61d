"""A mean over time has one value: in a run, its recording, its figures, its trace and the wall of its servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.exporters import write_perfetto
from kvsim.memory.waste import SlotState
from kvsim.metrics import Summary, summarize, time_mean
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.plots.occupancy import occupancy
from kvsim.plots.queue import queue
from kvsim.plots.waste_bars import waste_bars
from kvsim.recording import Recording, read
from kvsim.replay.host_memory import host_memory
from kvsim_tui import open_fleet
from kvsim_tui.facts.telling import story_of
from kvsim_tui.playback.session import Session

from ..exporters.test_perfetto import Trace

if TYPE_CHECKING:
    from pathlib import Path

SERVERS = {
    "paged": ("--num-blocks", "130"),
    "contiguous": ("--policy", "contiguous", "--num-blocks", "130"),
    "static": ("--policy", "static", "--num-blocks", "260", "--batch-size", "4", "--batch-timeout", "25"),
    "radix": ("--policy", "radix", "--num-blocks", "2000"),
    "windows": ("--policy", "radix", "--model", "gpt-oss-20b", "--num-blocks", "2000"),
    "hicache": ("--policy", "radix", "--num-blocks", "1100", "--enable-hierarchical-cache"),
    "offload": ("--vllm", "0.25.1", "--num-blocks", "130", "--kv-offloading-size", "0.2"),
    "replicas": ("--num-blocks", "130", "--replicas", "2"),
    "prefill and decode": ("--num-blocks", "130", "--prefill", "1", "--decode", "1"),
}
LOADS = {"sparse": 10.0, "dense": 0.02}
"""Seconds from one request to the next; each takes about 50 ms."""


@pytest.fixture(
    params=[
        pytest.param((server, load), id=f"{server}-{load}", marks=[pytest.mark.slow] * (row % 2 != column))
        for row, server in enumerate(SERVERS)
        for column, load in enumerate(LOADS)
    ]
)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> list[tuple[dict[str, Any], Path]]:
    """Figures that `kvsim run` prints of each server, and the folder of the server's recording."""
    server, load = request.param
    rows = [
        f"{LOADS[load] * number},{150 + 40 * (number % 5)},{4 + number % 3},{number % 4},128" for number in range(20)
    ]
    requests = tmp_path / "requests.csv"
    requests.write_text("\n".join(("arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens", *rows, "")))
    arguments = ("run", "--workload", str(requests), "--max-model-len", "1024", *SERVERS[server], "--json")
    arguments += () if server in ("replicas", "prefill and decode") else ("--no-band",)
    result = CliRunner().invoke(cli, [*arguments, "-o", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    without = CliRunner().invoke(cli, list(arguments))
    assert without.exit_code == 0, without.output
    recorded, measured = (json.loads(text.stdout) for text in (result, without))
    folders = sorted(
        (meta.parent for meta in (tmp_path / "run").rglob("meta.json")),
        key=lambda folder: ("decode" in folder.name, folder.name),
    )
    told = [document.get("servers", [document]) for document in (recorded, measured)]
    for one, other in zip(*told, strict=True):
        assert [one[name] for name in NAMES] == [other[name] for name in NAMES]
    return [(figures, folder) for figures, folder in zip(told[0], folders, strict=True) if figures["num_steps"]]


NAMES = ("mean_batch", "mean_occupancy", "mean_waiting", "waiting_for", "waste")


def test_run_info_wall_figures_and_trace_agree(served: list[tuple[dict[str, Any], Path]], tmp_path: Path) -> None:
    fleet = open_fleet([folder for _, folder in served])
    for (told, folder), server in zip(served, fleet.servers, strict=True):
        recording = read(folder)
        summary = summarize(recording, refuse_contradictions(recording, folder))
        for name in ("mean_batch", "mean_occupancy", "mean_waiting"):
            assert told[name] == pytest.approx(getattr(summary, name), rel=1e-9, abs=1e-12)
        begin_s, end_s = float(recording.steps.start_s[0]), recording.duration_s
        assert server.held_between(np.array([begin_s, end_s])) == pytest.approx(summary.mean_occupancy, rel=1e-9)
        times_s = np.linspace(begin_s, end_s, 20_001)
        assert server.waiting_at(times_s).mean() == pytest.approx(summary.mean_waiting, rel=0.02, abs=1e-3)
        assert np.mean([server.at(time_s).held_share for time_s in times_s[::20]]) == pytest.approx(
            summary.mean_occupancy, rel=0.1, abs=1e-3
        )
        assert_figures(recording, summary)
        assert_trace(recording, summary, Trace(write_perfetto(recording, tmp_path / f"{folder.name}.pftrace")))
        assert_story(recording, summary)


def assert_figures(recording: Recording, summary: Summary) -> None:
    panels = [axes.patches[0].get_data()[0] for axes in occupancy(recording).axes]
    means = (100 * summary.mean_occupancy, summary.mean_batch, summary.mean_waiting)
    assert [panel.mean() for panel in panels] == pytest.approx(means, rel=1e-9, abs=1e-9)
    assert queue(recording).axes[0].patches[0].get_data()[0].mean() == pytest.approx(summary.mean_waiting, abs=1e-9)
    bars: Any = waste_bars(recording).axes[0].containers
    shown = {bar.get_label().split(":")[0]: bar.patches[0].get_width() for bar in bars}
    expected = sorted(share for share in summary.waste.pool_percent if share > 0)
    assert sorted(shown.values()) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def assert_trace(recording: Recording, summary: Summary, trace: Trace) -> None:
    begin_s, end_s = float(recording.steps.start_s[0]), recording.duration_s

    def mean(name: str) -> float:
        counter = trace.counters.get(name, [(0, 0)])
        time_s = np.clip([at / 1e9 for at, _ in counter], begin_s, end_s)
        return float(time_mean(np.append(time_s, end_s), np.array([*(value for _, value in counter), 0])))

    pool = recording.meta.pool
    assert mean("waiting") == pytest.approx(summary.mean_waiting, rel=1e-6, abs=1e-6)
    for state in SlotState:
        share = 100 * mean(state.name.lower()) / (pool.bytes_per_slot * (pool.capacity_slots or 1))
        if pool.capacity_slots is not None:
            assert share == pytest.approx(summary.waste.pool_percent[state], rel=1e-6, abs=1e-4)
    if pool.windows is not None:
        assert_windows(recording, trace)
    host = host_memory(recording)
    if host is not None:
        # A copy is under way from its step's schedule to the output that reports it, or until another step begins.
        copies, steps = recording.copies, recording.steps
        assert copies is not None
        assert len(copies)
        last = np.where(copies.reported_step < 0, len(steps) - 1, copies.reported_step)
        until_s = np.append(steps.start_s, end_s)[last + 1]
        is_left = np.append(steps.output_seq[:-1] < steps.schedule_seq[1:], [True])[last] & (copies.reported_step >= 0)
        until_s = np.where(is_left, steps.end_s[last], until_s)
        lasted_s = float((until_s - steps.start_s[copies.begun_step]).sum()) / (end_s - begin_s)
        found = (mean("going there") + mean("coming back")) / pool.bytes_per_unit
        assert found == pytest.approx(lasted_s, rel=1e-6, abs=1e-6)


def assert_windows(recording: Recording, trace: Trace) -> None:
    """Between steps the counter has what the output has left: without a running request, none of the windows' units."""
    steps = recording.steps
    assert recording.meta.pool.windows is not None
    assert steps.running_after is not None
    assert steps.free_window_units_after is not None
    time_s = [at / 1e9 for at, _ in trace.counters["windows held"]]
    in_gap = np.flatnonzero(steps.running_after[:-1] >= 0)
    newest = np.searchsorted(time_s, steps.end_s[in_gap] + 1e-9, side="right") - 1
    held = (
        np.array([value for _, value in trace.counters["windows held"]])[newest]
        / recording.meta.pool.windows.bytes_per_unit
    )
    assert held.tolist() == (recording.meta.pool.windows.num_units - steps.free_window_units_after[in_gap]).tolist()
    assert (held[steps.running_after[in_gap] == 0] == 0).all()
    assert max(value for _, value in trace.counters["windows held"]) > 0


def assert_story(recording: Recording, summary: Summary) -> None:
    parts = story_of(Session(recording)).parts
    waits = [part for part in parts if part.endswith("wait on average")]
    assert len(waits) <= (summary.mean_waiting >= 0.5)
    assert all(part == f"{summary.mean_waiting:,.0f} wait on average" for part in waits)
    held = [part for part in parts if part.startswith("held back by")]
    assert len(held) <= (max(summary.waiting_for.batch, summary.waiting_for.tokens) >= 0.5)
