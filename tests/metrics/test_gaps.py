"""Means over time of sparse loads: what a step leaves holds until the next step begins, whatever the policy."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvsim.cli import cli
from kvsim.errors import StalledError
from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.metrics import Summary, summarize, waste
from kvsim.policies import Paged, Policy, Radix, RadixSettings, SGLangSettings, Static
from kvsim.policies.settings import ContinuousSettings, StaticSettings
from kvsim.recording import MemoryKind, Recording, RequestStatus, read
from kvsim.recording.tables import WHOLE_TABLE
from kvsim.replay import Replay
from kvsim.simulation import measure, simulate
from kvsim.workload import Workload

from ..replay.test_replay import Naive
from ..simulation.test_engines import POLICIES, machine_of, workloads

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Means:
    """Means over time, added up moment by moment."""

    occupancy: float
    waiting: float
    percent: np.ndarray[Any, Any]
    """Percent of the pool by state; NaN where nothing was said of a state."""


def moments(recording: Recording) -> list[tuple[int, bool, float]]:
    """Each step, and each output after which no step is in flight until another begins: step, which, and seconds."""
    steps, found = recording.steps, []
    for step in range(len(steps)):
        last = step == len(steps) - 1
        has_gap = not last and steps.output_seq[step] < steps.schedule_seq[step + 1]
        until_s = float(steps.end_s[step] if last or has_gap else steps.start_s[step + 1])
        found.append((step, False, until_s - float(steps.start_s[step])))
        if has_gap:
            found.append((step, True, float(steps.start_s[step + 1]) - until_s))
    return found


def waiting_at(recording: Recording, step: int, after_output: bool, holders: set[int]) -> int:
    """Requests that have arrived, have not ended, and hold nothing."""
    requests, steps = recording.requests, recording.steps
    if not after_output:
        return int(steps.waiting[step])
    has_come = (requests.arrival_seq <= steps.output_seq[step]) & (requests.status != RequestStatus.REFUSED)
    waits = has_come & ~(requests.finished_s <= steps.end_s[step])
    return len(set(np.flatnonzero(waits).tolist()) - holders)


def waited_in_gap_s(recording: Recording, step: int) -> float:
    """Sum of the times that requests wait for a static batch in the gap after a step."""
    requests, begin_s, end_s = recording.requests, recording.steps.end_s[step], recording.steps.start_s[step + 1]
    total = 0.0
    for row in np.flatnonzero(requests.status != RequestStatus.REFUSED).tolist():
        first_s, gone_s = requests.first_scheduled_s[row], requests.finished_s[row]
        left_s = gone_s if np.isnan(first_s) else first_s
        total += max(min(end_s, left_s) - max(begin_s, requests.arrival_s[row]), 0.0)
    return total


def by_hand(recording: Recording) -> Means:
    """Walk through the rows of a recording with one group, and ask every slot at every moment what it is for."""
    recording = Replay(recording).recording
    naive, capacity = Naive(recording), len(Naive(recording).units) * recording.meta.pool.unit_tokens
    lasted_s = held_s = waited_s = 0.0
    integral = np.zeros(NUM_STATES)
    for step, after_output, seconds in moments(recording):
        naive.advance(step, after_output=after_output)
        slots = naive.slots(step).sum(axis=0)
        waiting = waiting_at(recording, step, after_output, set(naive.tables))
        if recording.steps.unusable_units is not None and (waiting or not after_output):
            unusable = int(recording.steps.unusable_units[step]) * recording.meta.pool.unit_tokens
            unusable = min(unusable, int(slots[SlotState.FREE]))
            slots[[SlotState.FREE, SlotState.EXTERNAL]] += (-unusable, unusable)
        held = sum(bool(unit.holders) for unit in naive.units) * recording.meta.pool.unit_tokens
        lasted_s, held_s, integral = lasted_s + seconds, held_s + held * seconds, integral + slots * seconds
        is_static = recording.meta.policy_name == "static" and after_output
        waited_s += waited_in_gap_s(recording, step) if is_static else waiting * seconds
    scale = 1 / lasted_s / capacity
    return Means(occupancy=held_s * scale, waiting=waited_s / lasted_s, percent=100 * integral * scale)


def holders_by_hand(recording: Recording) -> Means:
    """Follow who holds each unit, for pools whose tables lose single blocks or have groups."""
    memory, num_units = recording.memory, recording.meta.pool.num_units or 0
    held: dict[tuple[int, int], dict[int, int]] = {}  # by request and group: the unit at each position
    lasted_s = held_s = 0.0
    row = 0
    for step, after_output, seconds in moments(recording):
        seq = (recording.steps.output_seq if after_output else recording.steps.schedule_seq)[step]
        while row < len(memory) and memory.seq[row] <= seq:
            table = held.setdefault((int(memory.request[row]), int(memory.groups[row])), {})
            begin, length = int(memory.position[row]), int(memory.length[row])
            if memory.kind[row] in (MemoryKind.APPEND, MemoryKind.SHARE):
                table.update({begin + nth: int(memory.address[row]) + nth for nth in range(length)})
            elif memory.kind[row] == MemoryKind.RELEASE and memory.address[row] == WHOLE_TABLE:
                table.clear()
            elif memory.kind[row] == MemoryKind.RELEASE:
                for nth in range(length):
                    del table[begin + nth]
            row += 1
        used = len({unit for table in held.values() for unit in table.values()})
        lasted_s, held_s = lasted_s + seconds, held_s + used * seconds
    occupancy = held_s / lasted_s / num_units
    return Means(occupancy=occupancy, waiting=np.nan, percent=np.full(NUM_STATES, np.nan))


def assert_means(found: Summary, expected: Means) -> None:
    assert found.mean_occupancy == pytest.approx(expected.occupancy, rel=1e-9, abs=1e-12)
    assert found.waste.pool_percent.sum() == pytest.approx(100)
    held = found.waste.pool_percent[[SlotState.CACHED, SlotState.FREE]].sum()
    assert held <= 100 * (1 - expected.occupancy) + 1e-9
    if not np.isnan(expected.percent).any():
        np.testing.assert_allclose(found.waste.pool_percent, expected.percent, rtol=1e-9, atol=1e-9)
        assert found.mean_waiting == pytest.approx(expected.waiting, rel=1e-9, abs=1e-9)


def sparse(workload: Workload, factor: float) -> Workload:
    return replace(workload, arrival_s=workload.arrival_s * factor)


SINGLE = Workload(arrival_s=10.0 * np.arange(20), prompt_tokens=[30] * 20, output_tokens=[4] * 20)


any_run = given(
    workload=workloads(),
    policy=POLICIES,
    factor=st.sampled_from([1.0, 5.0, 100.0]),
    room=st.sampled_from([0.6, 1.0, 3.0]),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@any_run
@example(workload=SINGLE, policy=Paged(scheduler=ContinuousSettings(max_model_len=48)), factor=1.0, room=3.0)
def test_means_are_what_the_events_add_up_to(**run: Any) -> None:
    assert_means_of_events(**run)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@any_run
def test_means_of_many_runs_are_what_the_events_add_up_to(**run: Any) -> None:
    assert_means_of_events(**run)


def assert_means_of_events(workload: Workload, policy: Policy, factor: float, room: float) -> None:
    workload, machine = sparse(workload, factor), machine_of(int(room * policy.max_model_len) + 40)
    try:
        recording = simulate(workload, policy, machine, engine="interpreted", refuse_misfits=True)
        measured = measure(workload, policy, machine, engine="interpreted", refuse_misfits=True)
    except StalledError:
        assume(False)
    assume(len(recording.steps) and recording.duration_s > recording.steps.start_s[0])
    expected = by_hand(recording)
    assert_means(summarize(recording), expected)
    assert_means(measured.summary, expected)
    mean_slots = waste(recording).mean_slots()
    np.testing.assert_allclose(100 * mean_slots / mean_slots.sum(), expected.percent, rtol=1e-9, atol=1e-9)


def test_requests_with_long_pauses_hold_the_pool_for_as_long_as_they_run() -> None:
    """A step that counts until the next one begins would make an idle server look busy."""
    recording = simulate(SINGLE, Paged(), machine_of(8192))
    busy_s = float((recording.requests.finished_s - recording.requests.first_scheduled_s).sum())
    summary = summarize(recording)
    assert busy_s < 0.02 * recording.duration_s
    assert 0 < summary.mean_occupancy < summary.peak_occupancy * busy_s / recording.duration_s * 1.01
    assert summary.mean_batch == pytest.approx(busy_s / (recording.duration_s - recording.steps.start_s[0]), rel=0.02)
    assert summary.mean_waiting == 0
    assert summary.waste.pool_percent[SlotState.CACHED] > 0


def test_requests_that_wait_for_a_static_batch_wait_in_the_gap() -> None:
    policy = Static(scheduler=StaticSettings(batch_size=2, timeout_s=3.0))
    workload = Workload(arrival_s=[0.0, 0.0, 10.0], prompt_tokens=[10] * 3, output_tokens=[2] * 3)
    recording = simulate(workload, policy, machine_of(20_000))
    assert recording.steps.start_s[2] == pytest.approx(13.0, abs=1e-9)
    expected = 3.0 / recording.duration_s
    assert summarize(recording).mean_waiting == pytest.approx(expected)
    assert summarize(recording).waiting_for.batch == pytest.approx(expected)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(workload=workloads(), factor=st.sampled_from([1.0, 20.0]), overlap=st.booleans(), caches=st.booleans())
def test_a_radix_tree_keeps_pages_while_nothing_runs(
    workload: Workload, factor: float, overlap: bool, caches: bool
) -> None:
    policy = Radix(
        scheduler=SGLangSettings(context_length=200, chunked_prefill_size=32, disable_overlap_schedule=not overlap),
        cache=RadixSettings(disable_radix_cache=not caches),
    )
    workload = sparse(workload, factor)
    try:
        recording = simulate(workload, policy, machine_of(700), refuse_misfits=True)
    except StalledError:
        assume(False)
    expected = holders_by_hand(recording)
    assert_means(summarize(recording), expected)
    assert_means(measure(workload, policy, machine_of(700), refuse_misfits=True).summary, expected)


SERVERS = {
    "offload": ("--vllm", "0.25.1", "--num-blocks", "130", "--kv-offloading-size", "0.2"),
    "windows": ("--model", "gemma-3-1b-it", "--num-blocks", "300", "--max-num-seqs", "4"),
    "pipeline": ("--num-blocks", "130", "--pipeline-parallel-size", "2"),
    "hicache": ("--policy", "radix", "--num-blocks", "1200", "--enable-hierarchical-cache"),
    "replicas": ("--num-blocks", "130", "--replicas", "2"),
    "prefill and decode": ("--num-blocks", "130", "--prefill", "1", "--decode", "1"),
}


@pytest.mark.parametrize(
    ("server", "rate"),
    [
        pytest.param(server, rate, marks=[pytest.mark.slow] * (row % 2 != column))
        for row, server in enumerate(SERVERS)
        for column, rate in enumerate(("0.5", "8"))
    ],
)
def test_servers_that_hold_blocks_without_a_step(server: str, rate: str, tmp_path: Path) -> None:
    """Blocks that a transfer still needs are held in the gap. The command and its recording have the same figures."""
    arguments = ("run", "--num-requests", "12", "--arrivals", "poisson", "--rate", rate, "--prompt-tokens", "200:0.5",
                 "--output-tokens", "20:0.5", "--shared-prefix", "2x64", "--max-model-len", "1024")  # fmt: skip
    arguments += () if server in ("replicas", "prefill and decode") else ("--no-band",)
    result = CliRunner().invoke(cli, [*arguments, *SERVERS[server], "--json", "-o", str(tmp_path / "r")])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    folders = [meta.parent for meta in (tmp_path / "r").rglob("meta.json")]
    folders.sort(key=lambda folder: ("decode" in folder.name, folder.name))  # prefill servers come first
    for folder, told in zip(folders, printed.get("servers", [printed]), strict=True):
        recording = read(folder)
        if not len(recording.steps):
            continue
        expected = holders_by_hand(recording)
        assert_means(summarize(recording), expected)
        assert told["mean_occupancy"] == pytest.approx(expected.occupancy, rel=1e-9)
        assert told["mean_waiting"] == pytest.approx(summarize(recording).mean_waiting, rel=1e-9, abs=1e-12)
