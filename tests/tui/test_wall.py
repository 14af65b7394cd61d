"""The wall of pools: the figures of each server, who comes first, what is folded, and the way of a request."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim import profiles
from kvsim.errors import RecordingError
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import server_folders, write
from kvsim.simulation import Disaggregation, Machine, Replicas, simulate_fleet
from kvsim.workload import Constant, LogNormal, Poisson, SharedPrefixes, generate
from kvsim_tui import fleet_of, open_fleet
from kvsim_tui.app import KvsimApp
from kvsim_tui.export.picture_file import svg_of, wait_until_drawn
from kvsim_tui.facts.fleet_telling import about_all, beside_pool, why_waiting
from kvsim_tui.playback.fleet_servers import FleetServers
from kvsim_tui.screens.wall import Wall
from kvsim_tui.screens.watch import Watch
from kvsim_tui.widgets.fleet_queue_chart import FleetQueueChart
from kvsim_tui.widgets.headline import Headline
from kvsim_tui.widgets.pool_wall import PoolWall
from kvsim_tui.widgets.scrubber import GUTTER

from .test_snapshots import picture as picture  # noqa: PLC0414 - a fixture

if TYPE_CHECKING:
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion

    from kvsim.recording import Recording
    from kvsim.workload import Workload

POLICY = Paged(scheduler=ContinuousSettings(max_model_len=2048), cache=PagedSettings(block_size=16))


@pytest.fixture(scope="module")
def requests() -> Workload:
    return generate(
        60,
        arrivals=Poisson(rate_per_s=60.0),
        prompt=LogNormal(mean_tokens=120, sigma=0.5),
        output=LogNormal(mean_tokens=60, sigma=0.5),
        prefixes=SharedPrefixes(num_groups=5, tokens=320),
        seed=3,
    )


@pytest.fixture(scope="module")
def machine() -> Machine:
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    profile = profiles.match(gpu, model, "vllm")
    assert profile is not None
    return Machine(gpu=gpu, model=model, kv_bytes=120 * 16 * model.kv_bytes_per_token, step_time=profile.times)


@pytest.fixture(scope="module")
def recordings(requests: Workload, machine: Machine) -> list[Recording]:
    return simulate_fleet(requests, POLICY, machine, Replicas(number=3, route="round-robin"), engine="interpreted")[0]


@pytest.fixture(scope="module")
def apart(requests: Workload, machine: Machine) -> list[Recording]:
    pairs = Disaggregation(num_prefill=1, num_decode=2)
    return simulate_fleet(requests, POLICY, machine, pairs, engine="interpreted")[0]


def lines_of(app: KvsimApp) -> list[str]:
    wall = app.screen.query_one(PoolWall)
    return [wall.render_line(y).text for y in range(wall.size.height)]


def test_figures_are_those_of_the_steps(recordings: list[Recording]) -> None:
    fleet = fleet_of(recordings)
    for time_s in np.linspace(0, fleet.player.duration_s, 40):
        for recording, now in zip(recordings, fleet.at(float(time_s)), strict=True):
            steps, begun = recording.steps, recording.requests.first_scheduled_s <= time_s
            row = np.flatnonzero(steps.start_s <= time_s)
            busy = len(row) > 0 and time_s < recording.duration_s
            assert now.running == (steps.running[row[-1]] if busy else 0)
            assert now.waiting == (steps.waiting[row[-1]] if busy else 0)
            assert now.held_share == pytest.approx(
                1 - steps.free_units[row[-1]] / recording.meta.pool.num_units if busy else 0
            )
            assert now.prompt_tokens == recording.requests.prompt_tokens[begun].sum()
            assert now.hit_tokens == recording.requests.cached_tokens[begun].sum()


def test_a_strip_is_the_mean_share_held_in_each_column(recordings: list[Recording]) -> None:
    server, recording = fleet_of(recordings).servers[0], recordings[0]
    edges_s = np.linspace(0, recording.duration_s, 8)
    fine_s = np.linspace(0, recording.duration_s, 70_001)
    row = np.searchsorted(recording.steps.start_s, fine_s[:-1], side="right") - 1
    held = np.where(row >= 0, 1 - recording.steps.free_units[np.maximum(row, 0)] / recording.meta.pool.num_units, 0)
    assert server.held_between(edges_s) == pytest.approx(held.reshape(7, -1).mean(axis=1), abs=0.002)


async def test_the_fullest_come_first_and_the_others_are_folded_with_their_sums(recordings: list[Recording]) -> None:
    fleet = FleetServers.of(recordings * 20, [f"server {number}" for number in range(60)])
    app = KvsimApp(fleet, clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        lines, wall = lines_of(app), app.screen.query_one(PoolWall)
        now = fleet.at(fleet.player.clock_s)
        held = [now[number].held_share for number in wall.shown]
        assert held == sorted(held, reverse=True)
        assert held[0] == max(one.held_share for one in now)
        folded = next(line for line in lines if " more" in line)
        assert int(folded.split()[0]) == 60 - len(wall.shown)
        assert int(folded.split()[-1].replace(",", "")) == sum(
            now[number].waiting for number in range(60) if number not in wall.shown
        )


async def test_the_column_under_the_cursor_is_the_share_held_now(recordings: list[Recording]) -> None:
    app = KvsimApp(fleet_of(recordings), clock=lambda: 0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        wall, fleet = app.screen.query_one(PoolWall), app.screen.fleet
        clock = app.screen.query_one(FleetQueueChart)
        for share in (0.1, 0.35, 0.6, 0.9):
            fleet.player.go_to_time(share * fleet.player.duration_s)
            app.screen.show_panels()
            await pilot.pause()
            lines, now = lines_of(app), fleet.at(fleet.player.clock_s)
            height = wall._lines_each - 1
            for place, number in enumerate(wall.shown):
                top = 1 + place * wall._lines_each
                column = [line[GUTTER + clock.cursor_column] for line in lines[top : top + height]]
                eighths = sum(app.symbols.up.index(cell) for cell in column)
                assert eighths == max(round(now[number].held_share * height * 8), now[number].held_share > 0)


async def test_a_request_is_followed_from_server_to_server(apart: list[Recording]) -> None:
    app = KvsimApp(fleet_of(apart, ["prefill-0", "decode-0", "decode-1"]), clock=lambda: 0.0)
    async with app.run_test(size=(160, 40)) as pilot:
        await pilot.press("n")
        await pilot.pause()
        fleet, lines = app.screen.fleet, lines_of(app)
        visits = fleet.visits(fleet.followed)
        assert [fleet.servers[visit.server].kind for visit in visits] == ["prefill", "decode"]
        assert re.search(
            rf"{fleet.followed}  prefill-0: came [\d.]+ s, begins .* tokens found, done [\d.]+ s → decode-\d: "
            rf"fetches {visits[1].hit_tokens:,} tokens, begins [\d.]+ s, done [\d.]+ s",
            lines[-1],
        )
        here = [visit for visit in visits if visit.arrival_s <= fleet.player.clock_s < visit.end_s]
        assert sum(line.startswith("> ") for line in lines) == len(here) <= 1, "it is on one server at a time"
        assert f"{fleet.followed} is here" in lines[0]


async def test_a_server_opens_at_the_same_moment_and_escape_returns(recordings: list[Recording]) -> None:
    app = KvsimApp(fleet_of(recordings), clock=lambda: 0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n", "down", "enter")
        for _ in range(50):
            await pilot.pause(0.02)
            if isinstance(app.screen, Watch):
                break
        assert isinstance(app.screen, Watch)
        wall = app.screen_stack[-2]
        assert isinstance(wall, Wall)
        opened = wall.fleet.servers[wall.query_one(PoolWall).shown[1]]
        assert app.screen.session.recording.requests.id.tolist() == opened.ids.tolist()
        headline = app.screen.query_one(Headline)
        assert f" {opened.name} · simulation" in headline.render_line(0).text
        assert app.screen.player.clock_s == min(wall.player.clock_s, app.screen.player.duration_s)
        await pilot.press("escape")
        assert app.screen is wall


def test_numbers_are_a_row_for_each_server(recordings: list[Recording]) -> None:
    app = KvsimApp(fleet_of(recordings))
    rows = list(csv.DictReader(io.StringIO(app.playback_for(fleet_of(recordings)).csv_text())))
    assert sorted(row["server"] for row in rows) == ["server 0", "server 1", "server 2"]
    assert sum(int(row["waiting"]) for row in rows) == fleet_of(recordings).waiting_at(
        np.array([float(rows[0]["time_s"])])
    )


def test_folders_of_servers_are_a_fleet_in_the_order_of_their_numbers(
    recordings: list[Recording], tmp_path: Path
) -> None:
    for name in ("10", "9", "decode-0", "prefill-1", "prefill-0"):
        write(recordings[0], tmp_path / name)
    assert [each.name for each in server_folders(tmp_path)] == ["prefill-0", "prefill-1", "decode-0", "9", "10"]
    write(recordings[0], tmp_path / "other")  # no name of a server
    assert len(server_folders(tmp_path)) == 5
    assert server_folders(tmp_path / "9") == server_folders(tmp_path / "none") == []
    assert [each.name for each in open_fleet(server_folders(tmp_path)).servers][-1] == "server 10"


def test_a_fleet_without_steps_is_refused() -> None:
    with pytest.raises(RecordingError, match="no server of this fleet"):
        fleet_of([])


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids="{0[0]}x{0[1]}".format)
async def test_wall(recordings: list[Recording], picture: SnapshotAssertion, size: tuple[int, int]) -> None:
    app = KvsimApp(fleet_of(recordings), clock=lambda: 0.0)
    async with app.run_test(size=size) as pilot:
        if size == (120, 40):
            app.theme = "kvsim-light"
            await pilot.press("n")
        await wait_until_drawn(pilot)
        assert svg_of(app.screen, app.symbols) == picture


def test_a_server_says_what_the_head_of_its_queue_needs_and_what_is_free(recordings: list[Recording]) -> None:
    fleet, seen = fleet_of(recordings), 0
    for server, recording in zip(fleet.servers, recordings, strict=True):
        for step in range(len(recording.steps)):
            time_s = float(recording.steps.start_s[step])
            texts = why_waiting(fleet, server, time_s)
            assert not texts or recording.steps.waiting[step] > 0
            if texts and "needs" in texts[0]:
                name, need, free = re.match(r"(\S+) needs ([\d,]+) blocks?, ([\d,]+) free", texts[0]).groups()  # type: ignore[union-attr]
                row = recording.requests.id.tolist().index(name)
                assert int(need) == -(-recording.requests.prompt_tokens[row] // 16)
                assert int(free) == recording.steps.free_units[step] < int(need)
                seen += 1
            elif texts:
                assert re.match(r"\d+ preempted requests? waits? first, [\d,]+ blocks free", texts[0])
    assert seen > 20


def test_prefill_and_decode_servers_name_each_other(apart: list[Recording]) -> None:
    fleet = fleet_of(apart, ["prefill-0", "decode-0", "decode-1"])
    prefill, *decode = fleet.servers
    sends = apart[0].transfers
    assert sends is not None
    kept_s = float(np.median(sends.begin_s)) + 1e-6
    under_way = (sends.begin_s <= kept_s) & ~(sends.end_s <= kept_s)
    assert sum(prefill.handovers.kept_for(kept_s).values()) == under_way.sum() > 0
    for server in decode:
        came = server.handovers.came_from(fleet.player.duration_s)
        assert came == {0: len(server.requests)}
        fleet.player.go_to_time(fleet.player.duration_s)
        assert f"{came[0]} requests from prefill-0" in beside_pool(fleet, server, server.at(kept_s), 60)
    fleet.player.go_to_time(kept_s)
    lines = beside_pool(fleet, prefill, prefill.at(kept_s), 60)
    assert re.match(r"\d+ requests? kept for decode-[01]", lines[0])
    for room in range(28, 60):
        text = beside_pool(fleet, prefill, prefill.at(kept_s), room)[0]
        assert len(text) <= room
        assert re.fullmatch(
            r"\d+ requests? kept for (decode-[01](, (\d+ for decode-[01]|1 server more))?|[12] servers?)", text
        )


def test_a_full_bar_is_the_longest_queue_at_every_width(recordings: list[Recording]) -> None:
    fleet = fleet_of(recordings)
    moments = np.unique(np.concatenate([server.waiting[0] for server in fleet.servers]))
    assert fleet.most_waiting == fleet.waiting_at(moments).max()


async def test_a_fleet_in_which_no_request_waits_has_no_key_for_a_full_bar(
    recordings: list[Recording], machine: Machine
) -> None:
    few = generate(3, arrivals=Constant(rate_per_s=1.0), prompt=16, output=4)
    calm = simulate_fleet(few, POLICY, machine, Replicas(number=3, route="round-robin"), engine="interpreted")[0]
    for runs, has_key in ((calm, False), (recordings, True)):
        app = KvsimApp(fleet_of(runs), clock=lambda: 0.0)
        async with app.run_test(size=(80, 26)) as pilot:
            await pilot.pause()
            assert bool(app.screen.query_one(FleetQueueChart).legend_entries()) == has_key


async def test_two_lines_a_server_are_enough_to_say_why_requests_wait(recordings: list[Recording]) -> None:
    fleet = FleetServers.of(recordings * 3, [f"server {number}" for number in range(9)])
    fleet.player.go_to_time(0.5 * fleet.player.duration_s)
    app = KvsimApp(fleet, clock=lambda: 0.0)
    async with app.run_test(size=(80, 26)) as pilot:
        await pilot.pause()
        lines, wall = lines_of(app), app.screen.query_one(PoolWall)
        for place, number in enumerate(wall.shown):
            why = why_waiting(fleet, fleet.servers[number], fleet.player.clock_s)
            assert not why or any(text in lines[2 + 2 * place] for text in why)
        assert sum(bool(why_waiting(fleet, server, fleet.player.clock_s)) for server in fleet.servers) >= 3


def test_imbalance_compares_servers_of_one_kind_and_names_it(
    apart: list[Recording], recordings: list[Recording]
) -> None:
    fleet = fleet_of(apart, ["prefill-0", "decode-0", "decode-1"])
    now = fleet.at(fleet.player.duration_s)
    decoded = [state.computed for state in now[1:]]
    assert fleet.imbalance(now) == (pytest.approx(2 * max(decoded) / sum(decoded)), "decode")
    assert any(text.startswith("busiest decode computed") for text in about_all(fleet, now, 46))
    alike = fleet_of(recordings)
    assert alike.imbalance(alike.at(alike.player.duration_s))[1] == ""
