"""Three policies on one clock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

import kvsim_tui as tui
from kvsim.errors import BudgetError, RecordingError
from kvsim_tui.app import KvsimApp
from kvsim_tui.dialogs.find_dialog import FindScreen
from kvsim_tui.facts.telling import gap_of, story_of_comparison
from kvsim_tui.look.states import COLOR
from kvsim_tui.look.wording import duration
from kvsim_tui.playback.compared_runs import ComparedRuns
from kvsim_tui.playback.served import tokens_served
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.paint import ColorBy
from kvsim_tui.screens.compare_runs import Compare
from kvsim_tui.screens.watch import Watch
from kvsim_tui.widgets.lane import LaneFigures
from kvsim_tui.widgets.pool_view import PoolView
from kvsim_tui.widgets.race_chart import DurationChart
from kvsim_tui.widgets.scrubber import GUTTER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvsim.recording import Recording
    from kvsim.replay.replay import Replay

SIZE = (120, 40)


@pytest.fixture
def comparison(three_runs: list[Recording]) -> ComparedRuns:
    return ComparedRuns(three_runs)


def make(comparison: ComparedRuns) -> KvsimApp:
    return KvsimApp(comparison, clock=lambda: 0.0)


def screen_text(app: KvsimApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def test_a_still_shows_the_runs_when_the_fastest_is_half_done(three_runs: list[Recording]) -> None:
    still = tui._opened(three_runs, None)
    durations_s = [session.player.duration_s for session in map(Session, three_runs)]
    assert max(durations_s) > 2 * min(durations_s), "half of the slowest run would be after the end of the fastest"
    assert isinstance(still, ComparedRuns)
    assert still.player.clock_s == pytest.approx(min(durations_s) / 2)
    assert not any(lane.over for lane in still.lanes)


def test_a_comparison_of_no_recordings_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no recording to compare"):
        tui.screenshot([], tmp_path / "picture.svg")


def served_naively(replay: Replay) -> list[int]:
    """Token by token, step by step."""
    schedule, requests = replay.recording.schedule, replay.recording.requests
    best = np.zeros(len(requests), int)
    computed_in: list[list[tuple[int, int]]] = [[] for _ in range(replay.num_frames - 1)]
    for step, request, before, tokens, repeat in zip(
        schedule.step, schedule.request, schedule.computed_before, schedule.tokens, schedule.repeats, strict=True
    ):
        for nth in range(repeat):
            computed_in[step + nth].append((request, before + tokens * (nth + 1)))
    total = [0]
    for row in computed_in:
        for request, computed in row:
            answer = computed - replay.pad[request] - requests.prompt_tokens[request] + 1
            best[request] = max(best[request], min(answer, requests.output_tokens[request]))
        total.append(int(best.sum()))
    return total


def test_tokens_served_are_counted_once(three_runs: list[Recording], pressure: Recording) -> None:
    for recording in (*three_runs, pressure):
        replay = Session(recording).replay
        assert tokens_served(replay).tolist() == served_naively(replay)
    assert pressure.num_preemptions > 0


def test_the_fastest_comes_first_and_all_share_the_clock(comparison: ComparedRuns) -> None:
    durations = [lane.session.player.duration_s for lane in comparison.lanes]
    assert durations == sorted(durations)
    comparison.player.go_to_time(durations[1] / 2)
    comparison.show()
    assert [lane.session.replay.frame for lane in comparison.lanes] == [
        lane.session.replay.frame_at(durations[1] / 2) for lane in comparison.lanes
    ]


def test_a_run_that_is_over_stays_as_it_ended(comparison: ComparedRuns) -> None:
    best = comparison.lanes[0]
    comparison.player.go_to_time((best.session.player.duration_s + comparison.player.duration_s) / 2)
    comparison.show()
    assert best.over
    assert not comparison.lanes[-1].over
    assert best.session.served[best.session.player.frame] == best.session.served[-1]


def test_brackets_visit_refusals_and_the_ends_of_runs(comparison: ComparedRuns) -> None:
    player = comparison.player
    visited = []
    while player.jump(1):
        visited.append(player.clock_s)
    ends = {lane.session.player.duration_s for lane in comparison.lanes}
    assert ends <= set(visited)
    assert len(visited) == 4  # the refusal comes at the same moment everywhere


async def test_the_gap_is_on_the_screen(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("]", "]")
        await pilot.pause()
        text = screen_text(app)
        assert re.search(r"served +█+ +100%", text)
        assert re.search(r"tokens/s +\d+ over the run", text)
        assert re.search(r"done +after", text)
        assert text.count("1 refused") == 3
        assert re.search(r"in all +[^ ]+ m?s, ×\d", text)
        assert "the fastest" in text
        for label in ("static", "contiguous", "paged"):
            assert label in text


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40), (200, 60)])
async def test_every_pool_has_room_at_every_size(comparison: ComparedRuns, size: tuple[int, int]) -> None:
    app = make(comparison)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        sizes = [pool.size for pool in app.query(PoolView)]
        assert min(height for _, height in sizes) >= (1 if size[1] > 16 else 0)
        assert max(sizes) == min(sizes) or size[0] % 3


async def test_keys_move_all_pools(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        frames = []
        for key in ("right", "shift+right", "left", "end", "home"):
            await pilot.press(key)
            frames.append(comparison.player.frame)
            for lane in comparison.lanes:
                player = lane.session.player
                assert player.frame == player.last_frame or player.clock_s == max(
                    comparison.player.clock_s, player.begin_s
                )
        assert frames == [1, 11, 10, comparison.player.last_frame, 0]
        levels = [pool.tiling for pool in app.query(PoolView)]
        await pilot.press("z")
        assert [pool.tiling for pool in app.query(PoolView)] != levels


async def test_playing_pauses_at_the_end(three_runs: list[Recording]) -> None:
    now_s = 0.0
    comparison = ComparedRuns(three_runs)
    app = KvsimApp(comparison, clock=lambda: now_s)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space")
        now_s += 1e6
        app.tick()
        assert comparison.player.at_end
        assert not comparison.player.playing


async def test_a_request_is_followed_in_every_pool(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("right", "tab", "down", "enter")
        await pilot.pause()
        names = {lane.session.request_name(lane.session.followed or 0) for lane in comparison.lanes}
        assert len(names) == 1
        await pilot.press("escape", "slash", *"q3", "enter")
        await pilot.pause()
        assert not isinstance(app.screen, FindScreen)
        assert [lane.session.followed for lane in comparison.lanes] == [3, 3, 3]
        assert "q3:" in screen_text(app)


async def test_dragging_scrubs_all(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        width = app.query_one(DurationChart).axis_width
        await pilot.mouse_down(DurationChart, offset=(GUTTER + width // 2, 3))
        assert comparison.player.clock_s == pytest.approx(comparison.player.duration_s / 2, rel=0.05)
        await pilot.mouse_up(DurationChart, offset=(GUTTER + width // 2, 3))


async def test_a_click_selects_in_one_pool(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.click("#pool-1", offset=(3, 1))
        await pilot.pause()
        assert [lane.session.selected is not None for lane in comparison.lanes] == [False, True, False]


async def test_c_compares_and_returns(three_runs: list[Recording]) -> None:
    app = KvsimApp(Session(three_runs[0]), clock=lambda: 0.0, runs=lambda: three_runs)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.playback, Compare)
        await pilot.press("space", "c")
        await pilot.pause()
        assert isinstance(app.playback, Watch)
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.playback, Watch)


async def test_a_comparison_of_runs_that_have_all_ended_by_now_opens_halfway(three_runs: list[Recording]) -> None:
    *faster, slowest = sorted(three_runs, key=lambda run: run.duration_s)
    assert faster[-1].duration_s < slowest.duration_s
    session = Session(slowest, at_s=slowest.duration_s)
    app = KvsimApp(session, clock=lambda: 0.0, runs=lambda: faster)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.playback.player.clock_s == pytest.approx(faster[0].duration_s / 2)


async def test_what_cannot_be_compared_is_said(three_runs: list[Recording]) -> None:
    def fail() -> Sequence[Recording]:
        raise BudgetError("no room at all.")

    for runs, sentence in ((fail, "no room at all"), (None, "no requests here")):
        app = KvsimApp(Session(three_runs[0]), clock=lambda: 0.0, runs=runs)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.press("c")
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert isinstance(app.playback, Watch)
            assert sentence in " ".join(notification.message for notification in app._notifications)


async def test_a_comparison_begins_to_play_when_somebody_asks_for_it(three_runs: list[Recording]) -> None:
    now_s = 0.0
    app = KvsimApp(Session(three_runs[0]), clock=lambda: now_s, runs=lambda: three_runs)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.playback.player.playing
        now_s = 1.0
        app.tick()
        assert app.playback.player.clock_s > 0


def test_a_greeting_plays_and_a_moment_does_not(three_runs: list[Recording]) -> None:
    assert tui._opened(three_runs, None, live=True).player.playing
    assert not tui._opened(three_runs, 0.1, live=True).player.playing
    assert not tui._opened(three_runs, None).player.playing


async def test_bars_tell_how_long_each_run_takes(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("end")
        await pilot.pause()
        race = app.query_one(DurationChart)
        spans = [race.render_line(y).text[GUTTER:].count(COLOR.held) for y in range(3)]
    durations = [lane.session.player.duration_s for lane in comparison.lanes]
    assert spans == sorted(spans)
    assert spans[0] / spans[2] == pytest.approx(durations[0] / durations[2], abs=0.05)


def test_the_share_of_memory_is_what_ample_memory_would_take_away(three_runs: list[Recording]) -> None:
    comparison = ComparedRuns(three_runs)
    slow, fast = comparison.lanes[-1].session, comparison.lanes[0].session
    assert slow.served[-1] == fast.served[-1]
    assert not any("memory" in part for part in story_of_comparison(comparison).parts)
    gap = slow.player.duration_s / fast.player.duration_s
    order = [three_runs.index(run) for run in three_runs]
    rates = [100.0 if run.name == slow.recording.name else 200.0 for run in three_runs]
    assert order == [0, 1, 2]
    comparison.set_ample_throughput(rates)
    assert comparison.ample_tokens_per_s[-1] == 100.0
    story, near = story_of_comparison(comparison), comparison.lanes[1].label
    assert re.search(
        rf"longer: {near} ×[\d.]+ \(memory alone\), static ×{gap:,.1f} \(memory ×{gap / 2:,.1f} of it\)$",
        story.parts[0],
    )
    assert re.search(rf"; {near} ×[\d.]+ \(memory\), static ×{gap:,.1f} \(memory ×{gap / 2:,.1f}\)$", story.shorter[0])
    assert gap_of(comparison, 0).factor == "the fastest"
    assert gap_of(comparison, 1).reason == "memory alone"
    assert gap_of(comparison, len(comparison.lanes) - 1).reason == f"memory ×{gap / 2:,.1f} of it"
    comparison.set_ample_throughput([100.0 if run.name == slow.recording.name else 100.0 * gap for run in three_runs])
    both, last = story_of_comparison(comparison), gap_of(comparison, len(comparison.lanes) - 1)
    assert both.parts[0].endswith(f"static ×{gap:,.1f} (padding, not memory)")
    assert both.shorter[0].endswith(f"static ×{gap:,.1f} (padding)")
    assert last.in_full == f"{last.duration}, ×{gap:,.1f} (padding, not memory)"


async def test_what_ample_memory_would_bring_is_said_once_it_is_known(three_runs: list[Recording]) -> None:
    app = KvsimApp(ComparedRuns(three_runs), ample=lambda: [1234.0, 1234.0, 1234.0])
    async with app.run_test(size=SIZE) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        screen = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert len(re.findall("1,234 with ample memory|1,234, ample memory", screen)) == 3
        assert re.search("memory alone|memory ×", screen)


@pytest.mark.parametrize("size", [(120, 40), (160, 50)])
async def test_every_figure_of_a_run_has_a_label_in_the_same_line_of_all_runs(
    three_runs: list[Recording], size: tuple[int, int]
) -> None:
    comparison = ComparedRuns(three_runs)
    fast, *_, slow = comparison.lanes
    gap = slow.session.player.duration_s / fast.session.player.duration_s
    comparison.set_ample_throughput(
        [100.0 if run.name == slow.session.recording.name else 100.0 * gap for run in three_runs]
    )
    async with make(comparison).run_test(size=size) as pilot:
        await pilot.pause()
        lanes = [
            [figures.render_line(y).text for y in range(figures.size.height)]
            for figures in pilot.app.screen.query(LaneFigures)
        ]
    labels = [[line[:9].strip() for line in lane if line.strip()] for lane in lanes]
    assert labels[-1] == ["served", "memory", "running", "waiting", "in all", "tokens/s", "", "reason"]
    assert all(lane == labels[-1][: len(lane)] for lane in labels)
    assert "padding, not memory" in lanes[-1][-1]
    assert "with ample memory" in lanes[-1][-2]
    assert "the fastest" in lanes[0][4]
    assert not any("…" in line for lane in lanes for line in lane)


async def test_tokens_have_one_colour_in_the_pools_and_in_the_bars(comparison: ComparedRuns) -> None:
    async with make(comparison).run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert {pool.color_by for pool in pilot.app.screen.query(PoolView)} == {ColorBy.STATE}
        assert "■ tokens" in screen_text(pilot.app)
        assert "of any request" not in screen_text(pilot.app)


async def test_lanes_without_room_for_a_picture_have_names(three_runs: list[Recording]) -> None:
    app = KvsimApp(ComparedRuns(three_runs))
    async with app.run_test(size=(60, 16)) as pilot:
        await pilot.pause()
        screen = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
    for label in ("static", "contiguous", "paged"):
        assert f"\u2500{label}\u2500" in screen


async def test_every_run_of_four_has_a_line_on_the_time_axis(three_runs: list[Recording]) -> None:
    comparison = ComparedRuns([*three_runs, three_runs[0]], ["one", "two", "three", "four"])
    async with make(comparison).run_test(size=SIZE) as pilot:
        await pilot.pause()
        race = pilot.app.screen.query_one(DurationChart)
        labels = [race.render_line(y).text[:GUTTER].split()[0] for y in range(race.size.height)]
        assert labels == [*(lane.label for lane in comparison.lanes), "time"]


@pytest.mark.parametrize("theme", ["kvsim-dark", "kvsim-light", "kvsim-contrast"])
async def test_four_runs_have_whole_words_and_equal_lines_on_a_narrow_screen(
    three_runs: list[Recording], theme: str
) -> None:
    names = ["contiguous", "static", "paged", "the same again"]
    app = make(ComparedRuns([*three_runs, three_runs[-1]], names))
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = theme
        await pilot.pause()
        await pilot.pause()
        lines = screen_text(app).splitlines()
        places = [next(nth for nth, line in enumerate(lines) if line.startswith(name)) for name in names]
        assert sorted(places) == list(range(min(places), min(places) + 12, 3))
        screen = pilot.app.screen
        axis = [
            screen.query_one(DurationChart).render_line(y).text
            for y in range(screen.query_one(DurationChart).size.height)
        ]
        lanes = screen.comparison.lanes
        assert [line[:GUTTER].split("  ")[0].strip() for line in axis[:-1]] == [lane.label for lane in lanes]
        assert all(duration(lane.session.player.duration_s) in line for lane, line in zip(lanes, axis, strict=False))
        assert axis[-1].rstrip().endswith(duration(screen.query_one(DurationChart).edges_s(1)[-1]))
        assert any("served: of output tokens; memory: of " in line for line in lines)
        for place in places:
            assert re.search(r"(\d+ running · .*waiting|done after)", lines[place])
            assert lines[place + 1].startswith("served  ")
            assert re.search(r" \d+% of tokens$", lines[place + 1].rstrip())
            assert lines[place + 2].startswith("memory  ")
        assert "…" not in "".join(lines[1:-1])


async def test_keys_of_a_single_run_are_not_listed_and_say_what_they_need(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        footer = screen_text(app).splitlines()[-1]
        assert "Owners" not in footer
        assert "Why" not in footer
        await pilot.press("v", "d")
        assert all("Watch one run" in notification.message for notification in app._notifications)
        assert len(app._notifications) == 2


async def test_the_end_of_a_bar_does_not_divide_its_share(comparison: ComparedRuns) -> None:
    app = make(comparison)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        for share in np.linspace(0, 1, 25):
            comparison.player.go_to_time(share * comparison.player.duration_s)
            app.screen.show_panels()
            for figures in app.query(LaneFigures):
                served = figures.render_line(0)
                done = [segment for segment in served if "%" in segment.text]
                assert len(done) == 1, "one segment has the whole share"
                assert re.search(r"\d+%( of tokens)?$", done[0].text)


@pytest.mark.parametrize("flash_s", [0.0, 60.0])
async def test_highlighted_changes_have_a_key_while_they_are_there(comparison: ComparedRuns, flash_s: float) -> None:
    app = KvsimApp(comparison, clock=lambda: 0.0, flash_s=flash_s)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(*["right"] * 4)
        await pilot.pause()
        assert ("last step: ■ taken" in screen_text(app)) is (flash_s > 0)
