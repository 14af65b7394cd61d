"""Every key and every gesture, on a screen without a terminal."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from textual.events import MouseScrollDown
from textual.widgets import Input

import kvsim_tui
from kvsim.errors import RecordingError
from kvsim.recording import Memory, Requests, Schedule, Steps
from kvsim.workload import Ragged
from kvsim_tui.app import KvsimApp
from kvsim_tui.dialogs.find_dialog import FindScreen
from kvsim_tui.dialogs.help import HelpScreen
from kvsim_tui.export.picture_file import wait_until_drawn
from kvsim_tui.look.states import ASCII, COLOR, DARK, GLYPHS, Symbols
from kvsim_tui.look.wording import pace
from kvsim_tui.playback.session import Session
from kvsim_tui.screens.playback import PlaybackScreen
from kvsim_tui.widgets.block_table import BlockTable
from kvsim_tui.widgets.event_list import EventList
from kvsim_tui.widgets.inspector import Inspector
from kvsim_tui.widgets.key_line import KeyLine
from kvsim_tui.widgets.panel import Panel
from kvsim_tui.widgets.pool_view import PoolView
from kvsim_tui.widgets.timeline_chart import GUTTER, TimelineChart
from kvsim_tui.widgets.waiting_list import Queue

from ..thinned import one_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.recording import Recording

SIZE = (120, 40)


@pytest.fixture
def paged(shipped: Callable[[str], Recording]) -> Recording:
    return shipped("paged")


def text_of(panel: Panel) -> str:
    return "\n".join(line.text for line in panel.write())


def screen_text(app: KvsimApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def test_keys_move_by_steps(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        session = app.playback.session
        for keys, frame in (
            ("right", 1001),
            ("left", 999),
            ("shift+right", 1010),
            ("shift+left", 990),
            ("right right left", 1001),
            ("home", 0),
            ("end", 2922),
            ("home left", 0),
        ):
            session.player.go_to_frame(1000)
            await pilot.press(*keys.split())
            assert (session.player.frame, session.replay.frame) == (frame, frame), keys


async def test_space_plays_at_the_chosen_speed_and_pauses(paged: Recording) -> None:
    now_s = 100.0
    session = Session(paged)
    app = KvsimApp(session, clock=lambda: now_s)
    begin_s = session.player.clock_s
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space")
        assert app.playback.session.player.playing
        now_s += 10.0
        app.tick()
        await pilot.press("space")
        assert not app.playback.session.player.playing
        assert app.playback.session.player.clock_s == pytest.approx(begin_s + 10.0 * app.playback.session.player.speed)
        assert app.playback.session.replay.frame == app.playback.session.replay.frame_at(
            app.playback.session.player.clock_s
        )
        now_s += 10.0
        app.tick()
        assert app.playback.session.player.clock_s == pytest.approx(begin_s + 10.0 * app.playback.session.player.speed)


async def test_plus_and_minus_change_the_speed(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        first = app.playback.session.player.speed
        await pilot.press("+")
        assert app.playback.session.player.speed > first
        assert f"paused · {pace(app.playback.session.player.speed)} " in screen_text(app)
        await pilot.press("minus", "minus")
        assert app.playback.session.player.speed < first


async def test_brackets_visit_preemptions(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    preempting = np.flatnonzero(paged.steps.preempted)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("]")
        assert app.playback.session.player.frame == preempting[0]
        await pilot.press("]", "[")
        assert app.playback.session.player.frame == preempting[0]
        await pilot.press("[")
        assert app.playback.session.player.frame == preempting[0]


async def test_in_a_static_batch_brackets_visit_the_rows_that_turn_into_padding(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("static"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("]")
        frame = app.playback.session.player.frame
        assert frame > 0
        assert frame in app.playback.session.events.frame


async def test_arrows_and_letters_move_the_cursor_in_a_focused_pool(
    make_app: Callable[..., KvsimApp], paged: Recording
) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        frame, pool = app.playback.session.player.frame, app.query_one(PoolView)
        await pilot.press("tab", "down")
        assert pool.cursor == 0
        width = pool.tiling.columns
        await pilot.press("down", "right", "right", "j", "l", "k", "h", "up", "left")
        assert pool.cursor == 1
        await pilot.press("down")
        assert pool.cursor == width + 1
        assert app.playback.session.selected == pool.cursor
        assert app.playback.session.player.frame == frame
        await pilot.press("escape", "right")
        assert pool.cursor is None
        assert app.playback.session.player.frame == frame + 1


async def test_enter_follows_and_escape_lets_go(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("tab", "down", "down", "enter")
        cursor = app.query_one(PoolView).cursor
        assert app.playback.session.followed is not None
        assert app.playback.session.followed == app.playback.session.replay.owner[cursor]
        name = app.playback.session.request_name(app.playback.session.followed)
        assert f"request {name}" in text_of(app.query_one(Inspector))
        _, addresses = app.playback.session.replay.block_table(app.playback.session.followed)
        assert str(addresses[-1]) in text_of(app.query_one(BlockTable))
        await pilot.press("escape")
        assert app.playback.session.followed is None


async def test_a_narrow_screen_says_what_is_selected(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=(80, 24)) as pilot:
        assert "where the memory is now" in screen_text(app)
        await pilot.press("tab", "down", "enter")
        await pilot.pause()
        assert "block 1: 16 tokens, held by" in screen_text(app)


async def test_a_narrow_screen_says_that_the_bar_is_of_the_whole_pool(
    make_app: Callable[..., KvsimApp], paged: Recording
) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await pilot.pause()
        session = app.playback.session
        assert session.followed is not None
        assert f"memory of all requests · {session.request_name(session.followed)}: " in screen_text(app)


async def test_a_narrow_screen_describes_a_block_once(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    for size, holds_most in ((80, 24), True), ((120, 24), False):
        app = make_app(paged, at_s=10.0)
        async with app.run_test(size=size) as pilot:
            await pilot.press("tab", "right")
            await pilot.pause()
            text = screen_text(app)
            assert len(re.findall(r"block \d+: \d+ tokens", text)) == 1
            assert ("holds most" in text) == holds_most


async def test_a_click_selects_and_a_double_click_follows(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        pool = app.query_one(PoolView)
        await pilot.click(PoolView, offset=(7, 3))  # the first line is the title
        assert pool.cursor == pool._unit_at(7, 2) > 0
        assert app.playback.session.followed is None
        number = pool.cursor + app.playback.session.replay.first_unit
        assert f"block {number}" in text_of(app.query_one(Inspector))
        await pilot.click(PoolView, offset=(7, 3), times=2)
        await pilot.pause()
        assert app.playback.session.followed == app.playback.session.replay.owner[pool.cursor]


async def test_the_wheel_scrolls_a_zoomed_pool(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("large"))
    async with app.run_test(size=SIZE) as pilot:
        pool = app.query_one(PoolView)
        await pilot.press("z", "z")
        begin = pool.num_lines_painted
        await pilot._post_mouse_events([MouseScrollDown], widget=PoolView, offset=(5, 5))
        assert pool.scroll_offset.y > 0
        assert pool.num_lines_painted > begin


async def test_z_goes_to_single_slots_and_back(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        pool = app.query_one(PoolView)
        shown = [(pool.tiling.detail.name, str(pool.border_title))]
        for key in ("z", "z", "z", "Z", "Z", "Z"):
            await pilot.press(key)
            shown.append((pool.tiling.detail.name, str(pool.border_title)))
        assert [detail for detail, _ in shown] == ["PART", "FILL", "SLOTS", "SLOTS", "FILL", "PART", "PART"]
        assert "1 cell = 1 block" in shown[0][1]
        assert "1 cell = 1 slot" in shown[2][1]


async def test_slash_finds_a_request_by_its_id(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", *"r266", "enter")
        assert app.playback.session.followed == paged.row_of("r266")


async def test_slash_finds_a_block_by_its_number(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", *"#1599", "enter")
        assert app.query_one(PoolView).cursor == 1598


async def test_a_search_in_vain_says_so_and_escape_closes_it(
    make_app: Callable[..., KvsimApp], paged: Recording
) -> None:
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press(*"nobody", "enter")
        assert isinstance(app.screen, FindScreen)
        assert "no such request" in screen_text(app)
        assert app.screen.query_one(Input).value == "nobody"
        await pilot.press("escape")
        assert not isinstance(app.screen, FindScreen)
        assert app.playback.session.followed is None


async def test_dragging_the_timeline_scrubs(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        width = app.query_one(TimelineChart).size.width - GUTTER - 1
        await pilot.mouse_down(TimelineChart, offset=(GUTTER + width // 2, 5))
        middle = app.playback.session.player.clock_s
        assert middle == pytest.approx(paged.duration_s / 2, rel=0.02)
        await pilot.hover(TimelineChart, offset=(GUTTER + width // 4, 5))
        assert app.playback.session.player.clock_s == pytest.approx(paged.duration_s / 4, rel=0.04)
        await pilot.mouse_up(TimelineChart, offset=(GUTTER + width // 4, 5))
        after = app.playback.session.player.clock_s
        await pilot.hover(TimelineChart, offset=(GUTTER + width // 2, 5))
        assert app.playback.session.player.clock_s == after
        assert app.playback.session.replay.frame == app.playback.session.replay.frame_at(after)


async def test_a_click_in_the_queue_follows(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.click(Queue, offset=(2, 3))  # the title, the heading, why it waits, then the head of the queue
        await pilot.pause()
        assert app.playback.session.followed == app.playback.session.replay.waiting_requests()[0]


async def test_a_click_on_an_event_jumps_to_it(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.click(EventList, offset=(3, 5))
        await pilot.pause()
        events = app.playback.session.events
        assert app.playback.session.player.frame == events.frame[4]
        assert app.playback.session.followed == events.request[4]


async def test_arrows_walk_along_a_focused_event_list(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=(200, 60)) as pilot:
        app.query_one(EventList).focus()
        frames = app.playback.session.events.frame
        visited = []
        for key in ("enter", "down", "j", "down", "up", "k"):
            await pilot.press(key)
            visited.append(app.playback.session.player.frame)
        assert visited == [frames[0], frames[1], frames[2], frames[3], frames[2], frames[1]]


async def test_s_saves_a_picture_that_names_the_step(
    make_app: Callable[..., KvsimApp], paged: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("right", "s")
    (file,) = tmp_path.iterdir()
    assert file.name == f"{paged.name}-step1.svg"
    assert file.read_text(encoding="utf-8").startswith("<svg")


async def test_question_mark_explains_every_state_and_key(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.press("?")
        assert isinstance(app.screen, HelpScreen)
        shown = screen_text(app)
        for word in ("padding", "held for nothing", "play or pause", "follow the request", "quit"):
            assert word in shown
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)


async def test_the_clock_runs_on_behind_the_help(paged: Recording) -> None:
    now_s = 0.0
    app = KvsimApp(Session(paged), clock=lambda: now_s)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space", "?")
        now_s += 10.0
        for _ in range(5):
            app.tick()
        assert isinstance(app.screen, HelpScreen)
        assert app.playback.session.replay.frame == app.playback.session.player.frame > 0


async def test_panels_take_turns_while_playing(paged: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick that drew all of them would take too long for thirty in a second."""
    now_s, shown = 0.0, Counter[str]()
    app = KvsimApp(Session(paged), clock=lambda: now_s)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("space")
        app._timer.pause()
        panels = list(app.playback.query("WasteBar, TimelineChart, Panel, EventList"))
        for panel in panels:
            monkeypatch.setattr(panel, "show_frame", partial(shown.update, [str(panel.id)]))
        for tick in range(1, 25):
            before = shown.total()
            now_s = tick / 30
            app.tick()
            assert shown.total() <= before + 1
        assert shown == {str(panel.id): 3 for panel in panels}
        await pilot.press("space")
        assert shown == {str(panel.id): 4 for panel in panels}


async def test_the_footer_of_a_small_screen_names_the_way_out(
    make_app: Callable[..., KvsimApp], paged: Recording
) -> None:
    app = make_app(paged)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until_drawn(pilot)
        footer = screen_text(app).splitlines()[-1]
        assert "? Help q Quit" in footer


async def test_q_quits(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("q")
        await pilot.pause()
    assert app.return_code == 0


async def test_the_clock_may_tick_once_more_when_all_screens_have_gone(
    make_app: Callable[..., KvsimApp], paged: Recording
) -> None:
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space", "q")
    assert not app.screen_stack
    app.tick()


@pytest.mark.parametrize(
    ("size", "visible"),
    [
        ((80, 24), {"pool", "waste", "timeline"}),
        ((120, 30), {"pool", "waste", "timeline", "inspector", "queue"}),
        ((120, 40), {"pool", "waste", "timeline", "inspector", "table", "queue"}),
        ((200, 60), {"pool", "waste", "timeline", "inspector", "table", "queue", "events"}),
        ((59, 24), set()),
        ((80, 15), set()),
    ],
)
async def test_wide_terminals_get_more_panels(
    make_app: Callable[..., KvsimApp], paged: Recording, size: tuple[int, int], visible: set[str]
) -> None:
    app = make_app(paged)
    async with app.run_test(size=size):
        panels = ("pool", "waste", "timeline", "inspector", "table", "queue", "events")
        assert {name for name in panels if app.query_one(f"#{name}").size.area} == visible
        assert ("Please enlarge" in screen_text(app)) == (not visible)


async def test_a_terminal_can_be_resized_at_any_time(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=(200, 60)) as pilot:
        for size in ((80, 24), (40, 10), (161, 50), (100, 16)):
            await pilot.resize_terminal(*size)
            await pilot.press("right")
        assert "pool, 1 cell = " in screen_text(app)


async def test_a_step_repaints_only_the_lines_that_changed(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("large"), at_s=0.5)
    async with app.run_test(size=(200, 60)) as pilot:
        pool = app.query_one(PoolView)
        before = pool.num_lines_painted
        await pilot.press(*["right"] * 20)
        # 500 requests write a token each per step, in the 2,000 lowest of 94,580 blocks.
        assert pool.num_lines_painted - before <= 20 * 4


def test_colour_glyphs_or_letters(paged: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(paged)
    assert _plain(KvsimApp(session).symbols) == COLOR
    assert _plain(KvsimApp(session, ascii=True).symbols) == ASCII
    monkeypatch.setenv("NO_COLOR", "1")
    assert _plain(KvsimApp(session).symbols) == GLYPHS
    assert _plain(KvsimApp(session, ascii=True).symbols) == ASCII


def _plain(symbols: Symbols) -> Symbols:
    """Without the colours that a theme has lent them."""
    return replace(symbols, palette=DARK)


@pytest.mark.parametrize("name", ["paged", "static"])
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_plain_ascii_is_plain(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], name: str, size: tuple[int, int]
) -> None:
    app = make_app(shipped(name), at_s=5.0, ascii=True)
    async with app.run_test(size=size) as pilot:
        await pilot.press("tab", "down", "right", "enter")
        assert screen_text(app).isascii()


async def test_names_from_a_recording_are_not_markup(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=(200, 60)) as pilot:
        app.playback.follow(2)
        await pilot.pause()
        assert "request [bold]third" in screen_text(app)
        assert "refused" in text_of(app.query_one(Inspector))


async def test_the_smallest_recording_there_can_be(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    empty = {
        "requests": {
            name: getattr(tiny.requests, name)[:0]
            for name, spec in Requests.columns()
            if name != "prompt_hashes" and not spec.optional
        },
        "steps": {name: column[:1] for name, _ in Steps.columns() if (column := getattr(tiny.steps, name)) is not None},
        "schedule": {
            name: column[:0] for name, _ in Schedule.columns() if (column := getattr(tiny.schedule, name)) is not None
        },
    }
    recording = replace(
        tiny,
        meta=replace(tiny.meta, pool=replace(tiny.meta.pool, num_units=1)),
        requests=replace(tiny.requests, prompt_hashes=Ragged.empty(0, np.int64), **empty["requests"]),
        steps=replace(tiny.steps, **empty["steps"]),
        schedule=replace(tiny.schedule, **empty["schedule"]),
        memory=Memory.empty(),
    )
    app = make_app(recording)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press(
            "end", "[", "]", "slash", "escape", "tab", "down", "enter", "tab", "down", "enter", "space", "z"
        )
        assert "1 block" in screen_text(app)


async def test_a_long_recording_shows_its_pool_before_it_is_added_up(paged: Recording) -> None:
    session = Session(paged, at_s=10.0, count_later=True)
    expected = Session(paged, at_s=10.0)
    assert not session.slots.any()
    assert np.array_equal(session.breakdown, expected.breakdown)
    app = KvsimApp(session, clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert np.array_equal(session.slots, expected.slots)
        assert app.query_one("#waste").size.height == 2 + 1


async def test_the_queue_is_reached_by_keyboard(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("tab", "tab")
        queue = app.query_one(Queue)
        assert app.focused is queue
        waiting, running = queue._waiting_and_running()
        await pilot.press("enter")
        assert app.playback.session.followed == running[0]
        await pilot.press(*["down"] * 12, "enter")
        assert app.playback.session.followed == running[12]
        assert app.playback.session.request_name(running[12]) in text_of(queue)
        await pilot.press(*["k"] * 14, "enter")
        assert app.playback.session.followed == waiting[-2]
        await pilot.press("escape")
        assert app.focused is None


async def test_n_goes_from_request_to_request(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged, at_s=10.0)
    async with app.run_test(size=SIZE) as pilot:
        replay = app.playback.session.replay
        requests = [*replay.live_requests().tolist(), *replay.waiting_requests().tolist()]
        newest = replay.live_requests()[-1]
        seen = []
        for key in ("enter", "n", "N", "N"):
            await pilot.press(key)
            seen.append(app.playback.session.followed)
        at = requests.index(newest)
        assert seen == [requests[at], requests[at + 1], requests[at], requests[at - 1]]


async def test_control_c_leaves(make_app: Callable[..., KvsimApp], paged: Recording) -> None:
    app = make_app(paged)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", "ctrl+c")
        assert app._leaving


@pytest.mark.parametrize("drawn_in", one_of(2, product([False, True], [60, 80, 100, 120, 200])), ids=str)
async def test_the_footer_cuts_no_key(
    make_app: Callable[..., KvsimApp], paged: Recording, drawn_in: tuple[bool, int]
) -> None:
    ascii_only, width = drawn_in
    app = make_app(paged, ascii=ascii_only)
    async with app.run_test(size=(width, 30)) as pilot:
        await wait_until_drawn(pilot)
        footer = screen_text(app).splitlines()[-1]
        begin, _, end = footer.rpartition("ctrl+p" if ascii_only else "▏^p")
        assert end.rstrip() == " palette"
        arrows = "left/right" if ascii_only else "←→"
        every = f"space Play o Colour v Owners d Why {arrows} Step [] Event ? Help q Quit nN Request +- Speed"
        every += " zZ Zoom / Find c Compare l Lessons s Save "
        shown = f"{begin.rstrip()} "
        assert every.startswith(shown)
        left_out = every.removeprefix(shown).split(" ")[:2]
        assert shown == every or len(shown) + len(" ".join(left_out)) > len(begin)


async def test_a_click_on_a_key_presses_it_and_a_pointer_tells_what_it_does(
    make_app: Callable[..., KvsimApp], paged: Recording
) -> None:
    app = make_app(paged)
    async with app.run_test(size=(120, 30)) as pilot:
        await wait_until_drawn(pilot)
        (keys,) = app.screen.query(KeyLine)
        footer = screen_text(app).splitlines()[-1]
        frame = app.playback.player.frame
        await pilot.hover(keys, offset=(footer.index("→ Step"), 0))
        assert keys.tooltip == "Step"
        await pilot.click(keys, offset=(footer.index("→ Step"), 0))
        assert app.playback.player.frame == frame + 1
        await pilot.click(keys, offset=(footer.index("←→"), 0))
        assert app.playback.player.frame == frame
        await pilot.hover(keys, offset=(footer.index("▏") - 1, 0))
        assert keys.tooltip is None
        await pilot.click(keys, offset=(footer.index("Help"), 0))
        assert app.screen.query("#help")


async def test_a_screen_begins_once(
    make_app: Callable[..., KvsimApp], tiny: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def begin(screen: PlaybackScreen) -> None:
        begun.append(screen)

    monkeypatch.setattr(PlaybackScreen, "show_headline", begin)
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert begun == [app.playback]


def test_what_cannot_be_opened_ends_the_interface_with_its_own_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a terminal, where a recording is read while the interface shows its progress."""
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.headless_driver:HeadlessDriver")

    def read(_: object) -> Recording:
        raise RecordingError("there is no recording 'nosuch'.")

    with pytest.raises(RecordingError, match=r"^there is no recording 'nosuch'\.$"):
        kvsim_tui.run(read)
