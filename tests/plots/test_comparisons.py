"""Latency, queue, lifetimes, free extents, roofline, sweeps and agreement: asked for their data, not their pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.errors import RecordingError, UnknownNameError, UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import served_model
from kvsim.metrics import latencies
from kvsim.models import Model
from kvsim.plots import RunPoint, plans, points_of_table
from kvsim.plots.agreement import agreement
from kvsim.plots.colors import THEMES
from kvsim.plots.comparisons import hits_capacity, throughput_block_size, throughput_memory
from kvsim.plots.free_extents import FreeMemory, free_extents
from kvsim.plots.latency import latency
from kvsim.plots.lifetimes import lifetimes, lifetimes_of
from kvsim.plots.queue import queue
from kvsim.plots.roofline_plot import StepWork, roofline
from kvsim.plots.words import seconds
from kvsim.policies import Contiguous, Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Meta, Pool, RecordingBuilder, RequestStatus, find, read
from kvsim.replay import Replay
from kvsim.replay.free_memory import free_extent_lengths
from kvsim.simulation import Machine, simulate
from kvsim.workload import Ragged, Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.plots import Picture
    from kvsim.recording import Recording

SETTINGS = ContinuousSettings(max_model_len=256, max_num_batched_tokens=256)


def words_on(picture: Picture) -> str:
    return " ".join(text.get_text() for text in picture.texts).replace("\n", " ")


def paged_run(machine: Machine, *, block_size: int = 16, shared: bool = True) -> Recording:
    """Six requests of 64 + 4 tokens, apart in time, whose prompts begin alike for 32 tokens."""
    hashes = [[1, 2, 10 + row, 20 + row] if shared else [] for row in range(6)]
    workload = Workload(
        arrival_s=np.arange(6) * 5.0,
        prompt_tokens=[64] * 6,
        output_tokens=[4] * 6,
        prompt_hashes=Ragged.from_rows(hashes, np.int64),
    )
    policy = Paged(scheduler=SETTINGS, cache=PagedSettings(block_size=block_size))
    return simulate(workload, policy, machine)


@pytest.fixture(scope="module")
def sharing(make_machine: Callable[[int], Machine]) -> Recording:
    return paged_run(make_machine(640))


def test_latency_curves_are_the_quantiles(paged: Recording) -> None:
    ttft, tpot, e2e = latency(paged).axes
    times = latencies(paged)
    for axes, values in ((ttft, times.ttft_s), (tpot, times.tpot_s[~np.isnan(times.tpot_s)]), (e2e, times.e2e_s)):
        x, y = (np.asarray(data) for data in axes.get_lines()[0].get_data())
        assert x[y == 50] == pytest.approx(np.median(values))
        assert x[[0, -1]] == pytest.approx([values.min(), values.max()])
    assert f"at most {seconds(float(np.median(times.ttft_s)))} for their first token" in words_on(latency(paged))


def test_latency_of_a_run_in_which_nobody_finished(by_hand: Recording) -> None:
    requests = replace(by_hand.requests, status=np.zeros(2, np.uint8))
    picture = latency(replace(by_hand, requests=requests))
    assert np.isnan(np.asarray(picture.axes[0].get_lines()[0].get_xdata(), float)).all()


def test_a_column_of_print_has_panels_below_each_other(paged: Recording) -> None:
    tops = [axes.get_position().y1 for axes in latency(paged, purpose="paper").axes]
    assert tops == sorted(tops, reverse=True)
    assert len(set(tops)) == 3


def test_the_queue_is_the_column_of_the_steps(by_hand: Recording) -> None:
    waiting = queue(by_hand).axes[0].patches[0].get_data()[0]  # type: ignore[attr-defined]
    assert waiting[[0, 200, 400, 599]] == pytest.approx([3, 2, 1, 0])
    assert "1.5 requests wait on average, 3 at worst" in words_on(queue(by_hand))


def test_an_empty_queue_is_said_in_words(by_hand: Recording) -> None:
    calm = replace(by_hand, steps=replace(by_hand.steps, waiting=0 * by_hand.steps.waiting))
    picture = queue(calm)
    assert "No request waits" in words_on(picture)
    assert picture.axes[0].get_ylim() == (0, 1)


def test_an_unknown_wait_is_in_neither_the_curve_nor_the_words(paged: Recording) -> None:
    first_s = paged.requests.first_scheduled_s.copy()
    first_s[::3] = np.nan
    some = replace(paged, requests=replace(paged.requests, first_scheduled_s=first_s))
    waits_s = latencies(some).wait_s
    known_s = waits_s[~np.isnan(waits_s)]
    assert 0 < len(known_s) < len(waits_s)
    picture = queue(some)
    drawn_s = np.asarray(picture.axes[1].get_lines()[0].get_ydata(), float)
    assert known_s.min() - 1e-9 <= drawn_s.min() <= drawn_s.max() <= known_s.max() + 1e-9
    assert f"the mean wait is {seconds(float(known_s.mean()))}" in picture.alt_text
    at_once = replace(some.requests, arrival_s=np.zeros_like(some.requests.arrival_s))
    (drawn_s,) = queue(replace(some, requests=at_once)).axes[1].get_lines()[0].get_ydata()
    waits_s = latencies(replace(some, requests=at_once)).wait_s
    assert drawn_s == pytest.approx(np.nanmean(waits_s)), "all requests are in one bin"


def test_a_queue_without_a_known_wait_has_no_curve_of_waits(paged: Recording) -> None:
    unknown = np.full_like(paged.requests.first_scheduled_s, np.nan)
    picture = queue(replace(paged, requests=replace(paged.requests, first_scheduled_s=unknown)))
    assert len(picture.axes[1].get_lines()[0].get_ydata()) == 0
    assert "the mean wait is unknown" in picture.alt_text


@pytest.mark.parametrize("kind", ["by_hand", "paged", "static"])
def test_every_time_axis_has_two_numbers_to_be_read_by(kind: str, request: pytest.FixtureRequest) -> None:
    for axes in latency(request.getfixturevalue(kind)).axes:
        low, high = axes.get_xlim()
        assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2
        assert {label.get_text() for label in axes.get_xticklabels(minor=True)} <= {""}


def test_queues_of_very_different_lengths_share_a_logarithmic_axis(by_hand: Recording) -> None:
    long = replace(by_hand, name="long", steps=replace(by_hand.steps, waiting=1000 * by_hand.steps.waiting))
    assert queue(by_hand).axes[0].get_yscale() == "linear"
    assert queue(by_hand, long).axes[0].get_yscale() == "symlog"


def test_memory_is_held_from_the_step_that_took_it_to_the_output_that_gave_it_back(by_hand: Recording) -> None:
    life = lifetimes_of(Replay(by_hand))
    assert life.held_s.tolist() == [4.0, 4.0]
    assert life.num_units.tolist() == [16, 16]
    assert life.used_by_at_least().tolist() == [100.0] + [0.0] * 31
    assert "Half of the memory is freed within 4 s; none of it serves several requests" in words_on(lifetimes(by_hand))
    assert len(lifetimes(by_hand).axes) == 1, "nothing is reused, so there is no panel of it"


def test_shared_prefixes_are_counted_by_request(sharing: Recording) -> None:
    life = lifetimes_of(Replay(sharing))
    assert sharing.requests.cached_tokens.tolist() == [0] + [32] * 5
    # Two blocks serve all six; each request has 3 more (its own 2, and one for its answer).
    assert life.units_by_uses[:8].tolist() == [0, 18, 0, 0, 0, 0, 2, 0]
    assert life.used_by_at_least()[5] == pytest.approx(10.0)
    picture = lifetimes(sharing)
    assert len(picture.axes) == 2
    assert "10% of it serves several requests" in words_on(picture)


def test_a_preempted_request_is_no_second_user_of_its_own_blocks(make_machine: Callable[[int], Machine]) -> None:
    workload = Workload(arrival_s=[0.0] * 8, prompt_tokens=[40] * 8, output_tokens=[60] * 8)
    recording = simulate(workload, Paged(scheduler=SETTINGS, cache=PagedSettings(block_size=4)), make_machine(320))
    assert recording.num_preemptions
    assert (recording.memory.kind == 1).any(), "it finds its own blocks again"
    assert lifetimes_of(Replay(recording)).used_by_at_least()[1] == 0


def test_a_prefix_from_before_the_recording_is_nobodys_second_use() -> None:
    builder = RecordingBuilder()
    requests = [builder.arrived(f"r{nth}", 0.0, 4, 1) for nth in range(2)]
    builder.begin_event()
    builder.append_blocks(requests[0], 0, [1])
    builder.share_blocks(requests[1], 0, [2])
    columns = {"prefill_tokens": 0, "decode_tokens": 0, "num_scheduled": 0, "running": 2, "waiting": 0}
    number = builder.step(**columns, preempted=0, free_units=2, start_s=0.0)
    builder.begin_event()
    builder.output(number, 1.0)
    pool = Pool(unit_tokens=4, num_units=4, bytes_per_unit=1)
    meta = Meta(source="vllm", engine={}, gpu="", model={}, policy={"name": "paged"}, pool=pool)
    assert lifetimes_of(Replay(builder.finish(meta))).units_by_uses[:3].tolist() == [0, 1, 0]


@pytest.mark.parametrize("num_steps", [5, 100])
def test_memory_that_grows_by_the_step_is_held_from_the_step_on_in_which_it_came(num_steps: int) -> None:
    """However a recording says it: in a row per step, or in one row for all of them."""
    lives = []
    for at_once in (False, True):
        builder = RecordingBuilder()
        builder.arrived("r", 0.0, 4, num_steps)
        for step in range(num_steps):
            builder.begin_event()
            if step == 0:
                builder.append_extent(0, 0, 0, 4, 4, 1 if at_once else None)
            elif not at_once or step == 1:
                builder.append_extent(0, 3 + step, 3 + step, 1, 1, num_steps - 1 if at_once else None)
            builder.scheduled(0, step + 3 if step else 0, 1 if step else 4, float(step))
            columns = {"prefill_tokens": 0, "decode_tokens": 1, "num_scheduled": 1, "running": 1, "waiting": 0}
            number = builder.step(**columns, preempted=0, free_units=0, start_s=float(step))
            builder.begin_event()
            builder.emitted(0, step + 1.0)
            builder.output(number, step + 1.0)
        builder.release(0, num_steps + 3, 0)
        builder.ended(0, RequestStatus.FINISHED, float(num_steps))
        pool = Pool(unit_tokens=1, num_units=num_steps + 3, bytes_per_unit=1)
        meta = Meta(source="simulation", engine={}, gpu="", model={}, policy={"name": "static"}, pool=pool)
        lives.append(lifetimes_of(Replay(builder.finish(meta))))
    by_step, in_one_row = (life.quantiles_s() for life in lives)
    assert by_step[0] == 1.0
    assert by_step[-1] == num_steps
    assert lives[1].num_units.sum() == num_steps + 3
    np.testing.assert_allclose(in_one_row, by_step, atol=0 if num_steps == 5 else num_steps / 32)


def test_free_extents_are_measured_between_those_that_are_held(by_hand: Recording) -> None:
    replay = Replay(by_hand)
    replay.seek(0)
    assert free_extent_lengths(replay).tolist() == [8], "two extents of 16 in a pool of 40"
    free = FreeMemory.of(replay)
    assert free.percent_by_length[3] == pytest.approx(100)
    assert (free.num_extents, free.asked_slots, free.too_short_percent) == (1, 12, 100)


def test_a_reservation_is_marked_among_the_free_extents(by_hand: Recording) -> None:
    picture = free_extents(by_hand)
    assert [text.get_text().strip() for text in picture.axes[0].texts] == ["one request: 12"]
    assert "by-hand: 100% of the free memory is in pieces too short for one request" in words_on(picture)


def test_free_memory_in_pieces_long_enough_is_not_called_short(make_machine: Callable[[int], Machine]) -> None:
    workload = Workload(arrival_s=[0.0], prompt_tokens=[10], output_tokens=[5])
    recording = simulate(workload, Contiguous(scheduler=SETTINGS), make_machine(5000))
    assert " 0% of the free memory is in pieces too short" in words_on(free_extents(recording))


def test_pages_need_no_neighbours(sharing: Recording) -> None:
    assert not free_extents(sharing).axes[0].texts


def test_the_work_of_a_step_follows_from_the_schedule(make_machine: Callable[[int], Machine]) -> None:
    machine = make_machine(640)
    recording = paged_run(machine, shared=False)
    work, model = StepWork.of(recording, machine.model), machine.model
    assert work.prefill.tolist() == ([True] + [False] * 3) * 6
    pairs = 64 * 65 / 2
    assert work.flops[0] == pytest.approx(
        64 * model.flops_per_token + model.flops_per_logits + pairs * model.flops_per_attention_pair
    )
    assert work.streamed_bytes[:2] - model.weight_bytes == pytest.approx(np.array([64, 65]) * model.kv_bytes_per_token)
    assert work.duration_s[0] == pytest.approx(recording.steps.end_s[0] - recording.steps.start_s[0])


def test_no_simulated_step_is_above_the_roof(sharing: Recording) -> None:
    axes = roofline(sharing).axes[0]
    gpu = find_gpu("H200")
    dots = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    assert sum(len(np.asarray(line.get_xdata())) for line in dots) == len(sharing.steps)
    for line in dots:
        x, y = (np.asarray(data, float) for data in line.get_data())
        assert (y <= np.minimum(x * gpu.bandwidth_bytes_per_s, gpu.dense_flops) / 1e12).all()


def test_roofline_of_a_real_run_names_its_gpu(paged: Recording) -> None:
    picture = roofline(paged)
    assert "H200: 4.8 TB/s, 989 TFLOP/s" in picture.legends[0].get_texts()[0].get_text()
    assert Model.from_shape(paged.meta.model).name in picture.alt_text


def test_roofline_needs_a_gpu_and_time(by_hand: Recording, sharing: Recording) -> None:
    with pytest.raises(UnknownNameError, match="A GPU"):
        roofline(by_hand)
    steps = replace(sharing.steps, end_s=sharing.steps.start_s)
    with pytest.raises(RecordingError, match="no step that took time"):
        roofline(replace(sharing, steps=replace(steps, start_s=np.zeros(len(steps)), end_s=np.zeros(len(steps)))))


def test_a_sweep_is_drawn_in_the_order_of_its_axis(make_machine: Callable[[int], Machine]) -> None:
    runs = [paged_run(make_machine(tokens)) for tokens in (640, 160, 320)]
    (line,) = throughput_memory(*runs).axes[0].get_lines()
    x, y = (np.asarray(data, float) for data in line.get_data())
    assert (np.diff(x) > 0).all()
    by_size = sorted(runs, key=lambda run: run.meta.pool.num_units or 0)
    assert y == pytest.approx([RunPoint.of(run).output_tokens_per_s for run in by_size])
    assert [plan.kind for plan in plans(runs)][-2:] == ["throughput-memory", "hits-capacity"]


def test_hits_are_a_share_of_the_prompt_tokens(sharing: Recording) -> None:
    assert RunPoint.of(sharing).hit_percent == pytest.approx(100 * 5 * 32 / (6 * 64))
    assert "41.7% are cache hits" in words_on(hits_capacity(sharing))


def test_a_bound_is_told_apart_and_the_headline_says_what_is_left(sharing: Recording) -> None:
    point = RunPoint.of(sharing)
    bound = replace(point, series="paged (optimal eviction)", hit_percent=point.hit_percent + 20)
    picture = hits_capacity(bound, point)
    assert "paged finds 41.7% of the prompt tokens, and the bound is 61.7%" in words_on(picture)
    first, last = picture.axes[0].get_lines()
    assert (first.get_label(), last.get_label()) == ("paged", "paged (optimal eviction)")
    assert first.get_color() != last.get_color() == THEMES["light"].muted


def test_block_sizes_are_compared_in_output_and_waste(make_machine: Callable[[int], Machine]) -> None:
    runs = [paged_run(make_machine(640), block_size=size, shared=False) for size in (8, 64)]
    above, below = throughput_block_size(*runs).axes
    assert [label.get_text() for label in below.get_xticklabels()] == ["8", "64"]
    waste = np.asarray(below.get_lines()[0].get_ydata(), float)
    assert waste[1] > waste[0] > 0
    assert len(above.get_lines()) == 1
    assert "throughput-block-size" in [plan.kind for plan in plans(runs)]


def test_policies_of_a_comparison_are_no_sweep(by_hand: Recording, paged: Recording) -> None:
    assert not {"throughput-memory", "throughput-block-size"} & {plan.kind for plan in plans([by_hand, paged])}


def test_points_come_from_a_table_too(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text(
        "series,kv_bytes,unit_tokens,output_tokens_per_s,unused_percent,hit_percent,more\n"
        "paged,1073741824,16,100,0.5,10,x\npaged,2147483648,16,150,0.25,20,x\n"
    )
    points = points_of_table(file)
    assert points[1] == RunPoint(
        series="paged",
        kv_bytes=2.0**31,
        unit_tokens=16,
        output_tokens_per_s=150.0,
        unused_percent=0.25,
        hit_percent=20.0,
    )
    assert "At best 150 tokens per second, with paged and 2 GiB" in words_on(throughput_memory(*points))
    file.write_text("series,kv_bytes\npaged,1\n")
    with pytest.raises(UsageError, match="unit_tokens is missing"):
        points_of_table(file)
    file.write_text("series,kv_bytes,unit_tokens,output_tokens_per_s,unused_percent,hit_percent\npaged,much,16,1,1,1\n")
    with pytest.raises(UsageError, match="a cell is empty or no number"):
        points_of_table(file)


def test_more_policies_than_lines_are_refused() -> None:
    points = [
        RunPoint(series=str(n), kv_bytes=1.0, unit_tokens=1, output_tokens_per_s=1, unused_percent=0, hit_percent=0)
        for n in range(5)
    ]
    with pytest.raises(UsageError, match="runs of 5 policies"):
        throughput_memory(*points)


def test_a_run_agrees_with_itself(sharing: Recording) -> None:
    picture = agreement(sharing, sharing)
    assert "within 0.0% of the measured" in words_on(picture)
    for axes in picture.axes:
        x, y = axes.get_lines()[-1].get_data()
        assert np.asarray(x).tolist() == np.asarray(y).tolist()


def test_agreement_matches_requests_by_their_ids(sharing: Recording) -> None:
    order = np.arange(6)[::-1]
    backwards = {
        name: getattr(sharing.requests, name)[order]
        for name in ("id", "arrival_s", "first_scheduled_s", "first_token_s", "finished_s", "status", "output_tokens")
    }
    picture = agreement(sharing, replace(sharing, requests=replace(sharing.requests, **backwards)))
    assert "within 0.0% of the measured" in words_on(picture)


def test_agreement_needs_requests_in_common(sharing: Recording, by_hand: Recording) -> None:
    other = replace(by_hand, requests=replace(by_hand.requests, id=np.array(["x", "y"])))
    with pytest.raises(UsageError, match="no finished request in common"):
        agreement(sharing, other)


def test_a_run_and_its_simulation_are_set_side_by_side(paged: Recording, sharing: Recording) -> None:
    plan = next(plan for plan in plans([sharing, paged]) if plan.kind == "agreement")
    assert plan.rows == (1, 0), "the measured run comes first"


def test_figures_of_one_recording_are_named_after_it(by_hand: Recording, paged: Recording) -> None:
    stems = [plan.file_stem for plan in plans([by_hand, paged])]
    assert len(stems) == len(set(stems))
    assert {"waste-bars", "memory-map-by-hand", "roofline-vllm-h200-llama-3-8b-sharegpt-pressure"} <= set(stems)
    assert "memory-map" in [plan.file_stem for plan in plans([by_hand])]


@pytest.mark.parametrize(
    ("value_s", "said"),
    [(0.00523, "5.23 ms"), (0.9996, "1 s"), (2.11, "2.11 s"), (382, "382 s"), (2321, "39 min"), (48_062, "13.4 h")],
)
def test_durations_are_said_as_people_say_them(value_s: float, said: str) -> None:
    assert seconds(value_s) == said


@pytest.mark.parametrize("name", ["vllm-2xh200-llama-3-8b-light", "vllm-h200-llama-3-8b-fp8-light"])
def test_a_roofline_counts_what_one_gpu_reads_as_the_model_is_served(name: str) -> None:
    recording = read(find(name))
    model = served_model(recording.meta)
    work = StepWork.of(recording, model)
    read_kv = work.streamed_bytes - 16_060_522_496 / model.tensor_parallel_size
    assert read_kv.min() >= 0
    assert read_kv.max() % (recording.meta.pool.bytes_per_unit // 16) == 0
    assert roofline(recording).figure.axes
