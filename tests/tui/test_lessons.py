"""Lessons: what a file may say, when captions come, what they claim, and how they play."""

from __future__ import annotations

import re
import textwrap
import xml.etree.ElementTree as ET
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.errors import UnknownNameError
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_NAMES
from kvsim_tui.app import KvsimApp
from kvsim_tui.dialogs.lesson_list import LessonsScreen
from kvsim_tui.facts.group_tables import table_rows
from kvsim_tui.facts.headlines import selection
from kvsim_tui.facts.owners import holdings, scatter_lines
from kvsim_tui.facts.preemption import preemption_at
from kvsim_tui.facts.requests import request_facts
from kvsim_tui.facts.schedule import Doing, schedule
from kvsim_tui.facts.tree_nodes import tree_at
from kvsim_tui.lessons import Guided, Lesson, LessonError, all_lessons, drawings, find_lesson, read_lesson
from kvsim_tui.lessons.beside_figures import with_drafts
from kvsim_tui.lessons.caption_figures import Figures
from kvsim_tui.lessons.drawings import Drawing
from kvsim_tui.lessons.reading import as_markdown, as_text
from kvsim_tui.look.states import ASCII, GLYPHS
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.colors import next_color
from kvsim_tui.pool.host_blocks import legend_now
from kvsim_tui.pool.layer_kinds import layer_kinds
from kvsim_tui.pool.paint import ColorBy, paint_colors
from kvsim_tui.screens.compare_runs import Compare
from kvsim_tui.screens.watch import Watch
from kvsim_tui.widgets.caption_box import CaptionBox
from kvsim_tui.widgets.lane import LaneFigures
from kvsim_tui.widgets.lesson_drawing import LessonDrawing, ScheduleChart
from kvsim_tui.widgets.pool_view import PoolView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.segment import Segment

    from kvsim.recording import Recording

SIZE = (120, 40)
NUMBERS = [str(lesson.number) for lesson in all_lessons()]

SMALL = """
title = "T"
summary = "S"
[machine]
model = "Meta-Llama-3-8B"
gpu = "H200"
kv_tokens = 200
[[run]]
policy = "paged"
[[request]]
id = "A"
prompt = 20
answer = 10
[[request]]
id = "B"
prompt = 20
answer = 4
[[caption]]
at = "start"
title = "one"
text = "A has {request.A.blocks} blocks."
[[caption]]
at = "request B finishes"
title = "two"
text = "{now.running} running"
"""


@pytest.fixture(scope="session")
def guided() -> Callable[[str], Guided]:
    """The lesson of a number, run once; at its beginning."""
    known: dict[str, Guided] = {}

    def play(number: str) -> Guided:
        if number not in known:
            known[number] = Guided(find_lesson(number))
        known[number].show(0)
        return known[number]

    return play


@pytest.fixture
def lesson_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "9-own.toml"
        file.write_text(text)
        return file

    return write


def screen_text(app: KvsimApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@pytest.mark.parametrize("number", NUMBERS)
def test_every_lesson_plays_and_its_captions_ascend(guided: Callable[[str], Guided], number: str) -> None:
    lesson = guided(number)
    frames = [caption.frame for caption in lesson.captions]
    assert frames == sorted(set(frames))
    assert len(frames) >= 3
    assert not any(re.search(r"[{}]|\bnan\b", caption.title + caption.text) for caption in lesson.captions)


_NAMED = (
    r"\{[^}]*\}|[Ll]esson \d|[Cc]aption \d|[Rr]ungs? \d( to \d)?|Blocks 3 and 4|B\+1|[PQRS]\d|servers? \d( and \d)?"
)


@pytest.mark.parametrize("number", NUMBERS)
def test_no_figure_is_typed(number: str) -> None:
    """Digits in a caption's text are inside braces, but for lengths that the same file gives to its requests, and
    numbers of lessons, rungs, blocks and models, which other tests look at.
    """
    lesson = find_lesson(number)
    allowed = {f"{row.prefix.tokens:{how}}" for row in lesson.workload if row.prefix for how in ("", ",")}
    for caption in lesson.captions:
        typed = set(re.findall(r"\d[\d,.]*", re.sub(_NAMED, "", caption.text)))
        assert {figure.rstrip(".,") for figure in typed} <= allowed, caption.title


def test_lesson_1_reserves_everything_and_uses_nothing(guided: Callable[[str], Guided]) -> None:
    lesson = guided("1")
    session = lesson.sessions[0]
    assert len(session.replay.live_requests()) == 4
    assert session.replay.waiting_requests().tolist() == [session.recording.row_of("E")]
    assert session.breakdown[SlotState.INTERNAL] > 0.95 * session.capacity
    assert not session.breakdown[SlotState.FREE], "every slot is reserved"
    lesson.show(lesson.captions[2].frame)
    assert session.recording.row_of("E") in session.replay.live_requests()
    assert session.recording.row_of("D") not in session.replay.live_requests()


def test_lesson_2_turns_finished_rows_into_padding(guided: Callable[[str], Guided]) -> None:
    lesson = guided("2")
    session = lesson.sessions[0]
    padding = []
    for caption in lesson.captions[:3]:
        lesson.show(caption.frame)
        padding.append(int(session.breakdown[SlotState.PADDING]))
        assert f"{padding[-1]:,}" in caption.text or caption.title.startswith("F has")
    assert padding == sorted(padding)
    assert session.breakdown[SlotState.PADDING] > session.breakdown[SlotState.TOKEN]


@pytest.mark.parametrize("number", ["2", "4"])
def test_held_rows_do_not_run_in_the_chart_either(guided: Callable[[str], Guided], number: str) -> None:
    session = guided(number).sessions[0]
    held = session.step_column("running") - session.charts.running
    for frame in range(session.player.last_frame + 1):
        session.player.go_to_frame(frame)
        session.show()
        assert held[frame] == session.num_complete_rows
    assert held.max() > 0


def test_lesson_3_hands_a_free_block_to_somebody_else(guided: Callable[[str], Guided]) -> None:
    lesson = guided("3")
    session = lesson.sessions[0]
    before, after = (session.recording.row_of(name) for name in ("B", "D"))
    held_by_b = set(session.replay.block_table(before)[1].tolist())
    lesson.show(lesson.captions[3].frame)
    assert held_by_b & set(session.replay.block_table(after)[1].tolist())
    for frame in range(session.player.last_frame):
        session.replay.seek(frame)
        written = session.replay.slots()[:, SlotState.TOKEN]
        partial = session.replay.owner[(written > 0) & (written < session.replay.unit_tokens)]
        assert len(partial) == len(np.unique(partial))


def test_lesson_4_is_won_by_continuous_batching(guided: Callable[[str], Guided]) -> None:
    lesson = guided("4")
    static, continuous = lesson.sessions
    assert continuous.player.last_frame < static.player.last_frame
    lesson.show(lesson.captions[1].frame)
    row = continuous.recording.row_of("E")
    assert row in continuous.replay.live_requests()
    assert row not in static.replay.live_requests()


def test_lesson_5_shares_blocks_and_keeps_them(guided: Callable[[str], Guided]) -> None:
    lesson = guided("5")
    session = lesson.sessions[0]
    prompts = session.recording.requests.prompt_tokens[:4].sum()
    assert prompts > session.capacity  # four copies would not have fitted
    lesson.show(lesson.captions[2].frame)
    assert session.replay.refs.max() == 4
    lesson.show(lesson.captions[3].frame)
    assert session.replay.live_requests().tolist() == [session.recording.row_of("E")]
    assert session.recording.requests.cached_tokens[session.recording.row_of("E")] == 160


def test_lesson_6_preempts_the_last_to_come(guided: Callable[[str], Guided]) -> None:
    lesson = guided("6")
    session = lesson.sessions[0]
    assert session.recording.requests.preemptions.tolist() == [0, 0, 1]
    lesson.show(lesson.captions[1].frame)
    assert not (session.replay.refs == 0).any(), "the picture of a full pool shows a full pool"
    assert "0 of 20 blocks are free" in lesson.captions[1].text
    lesson.show(lesson.captions[2].frame)
    assert session.replay.waiting_requests().tolist() == [session.recording.row_of("C")]
    assert "lost its 7 blocks" in lesson.captions[2].text
    assert "One of the blocks went to A; 6 are free again" in lesson.captions[2].text
    assert preemption_at(session, session.recording.row_of("C"), lesson.captions[2].frame).takers == ("A",)
    assert (session.replay.refs == 0).sum() == 6
    returns = lesson.captions[4].frame
    chunks = session.recording.schedule
    again = (chunks.request == session.recording.row_of("C")) & (chunks.step == returns)
    assert chunks.tokens[again].sum() > session.recording.requests.prompt_tokens[session.recording.row_of("C")]


def test_lesson_7_reads_the_weights_once_for_everybody(guided: Callable[[str], Guided]) -> None:
    lesson = guided("7")
    session = lesson.sessions[0]
    costs = []
    for caption in lesson.captions[:3]:
        lesson.show(caption.frame)
        costs.append(lesson.cost(session))
    alone, _, many = costs
    assert alone.weight_bytes == many.weight_bytes
    assert many.num_sequences > 20
    assert many.captured.alone_s < 3 * alone.captured.alone_s
    assert alone.captured.alone_s < 0.65 * alone.eager.alone_s
    assert alone.reading_s > 0.65 * alone.gpu_s


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("title =", "titel ="), "title: is missing; it should be text"),
        (("summary =", 'colour = "red"\nsummary ='), "colour: is not a key of this table; there are machine, run"),
        (('gpu = "H200"', 'gpu = "H2000"'), "machine.gpu: there is no GPU 'H2000'; did you mean"),
        (("kv_tokens = 200", ""), "machine.kv_gb: give the memory as kv_gb or as kv_tokens"),
        (("kv_tokens = 200", "kv_tokens = 200\nkv_gb = 1"), "machine.kv_gb: give the memory as kv_gb or as kv_tokens"),
        (("kv_tokens = 200", 'kv_tokens = "200"'), "machine.kv_tokens: should be a whole number, not '200'"),
        (('policy = "paged"', 'policy = "pages"'), "run 1.policy: should be paged or contiguous or static"),
        (('policy = "paged"', 'policy = "paged"\nreserve = "max"'), "run 1.reserve: is not a key of this table"),
        (('policy = "paged"', 'policy = "paged"\nblock_size = 0'), "run 1.policy: block_size should be at least 1"),
        (("prompt = 20", "prompt = true"), "request 1.prompt: should be a whole number, not True"),
        (("prompt = 20", "prompt = 0"), "request: request 'A' (row 0)"),
        (('at = "start"', 'at = "whenever"'), "caption 1.at: 'whenever' is no moment; try 'start'"),
        (('at = "start"', 'at = "first preemption"'), "caption 1.at: 'first preemption' does not happen in this run"),
        (('at = "start"', 'at = "request Z starts"'), "caption 1.at: there is no request 'Z'"),
        (('at = "start"', 'at = "start + soon"'), "caption 1.at: 'soon' should be a number of steps"),
        (('at = "start"', 'at = "request B finishes"'), "the captions 'one' and 'two' fall on the same step"),
        (("{request.A.blocks}", "{request.A.bricks}"), "caption 1.text: there is no figure {request.A.bricks}"),
        (("{request.A.blocks}", "{request.Z.blocks}"), "caption 1.text: there is no figure {request.Z.blocks}"),
        (('title = "one"', 'title = "one"\nfollow = "Z"'), "caption 1.follow: there is no request 'Z'; there are A, B"),
        (('title = "one"', 'title = "one"\nrun = "z"'), "caption 1.run: there is no run 'z'; there are paged"),
        (('title = "one"', 'title = "one"\ndraws = "tables"'), "caption 1.draws: should be reads or launches or table"),
        (('title = "one"', 'title = "one"\ndraws = "table"'), "caption 1.draws: the block table of the followed"),
        (("[machine]", "[machine"), "is not TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_file_and_key(
    lesson_file: Callable[[str], Path], change: tuple[str, str], complaint: str
) -> None:
    file = lesson_file(SMALL.replace(*change, 1))
    with pytest.raises(LessonError) as error:
        Guided(read_lesson(file))
    assert str(error.value).startswith(str(file))
    assert complaint in str(error.value)
    assert str(error.value).endswith(".")


def test_a_lesson_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LessonError, match="cannot be read"):
        read_lesson(tmp_path / "1-none.toml")
    with pytest.raises(LessonError, match="begin with its number"):
        read_lesson(tmp_path / "none.toml")
    with pytest.raises(UnknownNameError, match="there is no lesson '77'"):
        find_lesson("77")


@pytest.mark.parametrize(
    ("phrase", "frame"),
    [
        ("start", 0),
        ("step 2", 2),
        ("start + 3 steps", 3),
        ("step 2 - 1 step", 1),
        ("start - 1 step", 0),
        ("request A arrives", 0),
        ("0 s", 0),
    ],
)
def test_moments(lesson_file: Callable[[str], Path], phrase: str, frame: int) -> None:
    text = SMALL.replace('at = "start"', f'at = "{phrase}"')
    assert Guided(read_lesson(lesson_file(text))).captions[0].frame == frame


@pytest.mark.parametrize("number", NUMBERS)
def test_every_caption_fits_a_small_screen(guided: Callable[[str], Guided], number: str) -> None:
    for caption in guided(number).captions:
        assert len(textwrap.wrap(caption.text, 78, break_on_hyphens=False)) <= 6, caption.title


async def test_space_goes_from_caption_to_caption(guided: Callable[[str], Guided]) -> None:
    now_s = 0.0
    lesson = guided("6")
    app = KvsimApp(lesson, clock=lambda: now_s)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        shown = []
        for caption in lesson.captions:
            assert caption.title in screen_text(app)
            shown.append(lesson.player.frame)
            await pilot.press("space")
            now_s += 1e6
            app.tick()
            await pilot.pause()
        assert shown == [caption.frame for caption in lesson.captions]


async def test_brackets_go_along_the_captions(guided: Callable[[str], Guided]) -> None:
    lesson = guided("1")
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("]", "]", "[")
        assert lesson.player.frame == lesson.captions[1].frame
        assert lesson.captions[1].title in screen_text(app)


async def test_a_caption_follows_the_request_that_it_is_about(guided: Callable[[str], Guided]) -> None:
    lesson = guided("3")
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("]", "]", "]")
        await pilot.pause()
        assert lesson.sessions[0].followed == lesson.sessions[0].recording.row_of("D")


async def test_a_caption_that_follows_nobody_lights_everything(guided: Callable[[str], Guided]) -> None:
    lesson = guided("2")
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("]")
        assert lesson.sessions[0].followed == lesson.sessions[0].recording.row_of("F")
        await pilot.press("]")
        assert lesson.sessions[0].followed is None


async def test_the_same_request_is_followed_in_both_runs(guided: Callable[[str], Guided]) -> None:
    lesson = guided("8")
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("]", "]")
        assert [session.request_name(session.followed) for session in lesson.sessions] == ["H", "H"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "size"), [("3", (80, 24)), pytest.param("6", (80, 24), marks=pytest.mark.slow), ("6", (120, 40))]
)
async def test_pictures_stay_where_they_are_from_caption_to_caption(
    guided: Callable[[str], Guided], number: str, size: tuple[int, int]
) -> None:
    """A drawing that stands alone takes the pool's place."""
    lesson = guided(number)
    app = KvsimApp(lesson, clock=lambda: 0.0)
    regions = set()
    async with app.run_test(size=size) as pilot:
        for caption in lesson.captions:
            await pilot.pause()
            pool, drawing = app.query_one(PoolView), app.query_one(LessonDrawing)
            alone = caption.draws is not None and caption.draws.stands_alone
            assert pool.display is not alone
            if alone:
                ((title, lines),) = lesson.drawing(caption, drawing.size.width, GLYPHS, drawing.size.height)
                assert title in screen_text(app)
                assert len(lines) <= drawing.size.height
            else:
                regions.add(pool.region)
            await pilot.press("]")
    (region,) = regions
    assert region.height >= 3


def test_a_lesson_uses_the_profile_of_its_model_or_the_card_of_its_gpu(guided: Callable[[str], Guided]) -> None:
    calibrated = {
        number: {session.recording.meta.engine.get("calibrated") for session in guided(number).sessions}
        for number in ("1", "2", "3", "4")
    }
    assert calibrated == {"1": {True}, "2": {True}, "3": {True}, "4": {True}}


@pytest.mark.parametrize("number", ["4", "8"])
async def test_two_pools_name_their_requests_on_a_small_screen(guided: Callable[[str], Guided], number: str) -> None:
    """Beside each other, so that every row has a line for its name."""
    lesson = guided(number)
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        lesson.show(lesson.captions[1].frame)
        app.playback.show_frame(everything=True)
        await pilot.pause()
        left, right = app.playback.query(PoolView)
        assert (left.region.y, left.region.width) == (right.region.y, right.region.width)
        for pool, lane in zip((left, right), app.playback.sessions(), strict=True):
            holders = {lane.request_name(request) for request in lane.replay.live_requests().tolist()}
            named = "".join(pool.render_line(y).text for y in range(pool.size.height))
            assert {name for name in holders if name.isalpha()} <= set(named)


@pytest.mark.parametrize("number", ["1", "3", "4", "6", "11", "13"])
@pytest.mark.parametrize("size", [(60, 16), (60, 20), (80, 24), (200, 60)])
async def test_captions_and_pools_share_every_size(
    guided: Callable[[str], Guided], number: str, size: tuple[int, int]
) -> None:
    app = KvsimApp(guided(number), clock=lambda: 0.0)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert app.query_one(CaptionBox).size.height >= 2
        assert guided(number).captions[0].title in screen_text(app)
        box = app.query_one(CaptionBox)
        longest = max(guided(number).captions, key=lambda caption: len(caption.text))
        assert len(textwrap.wrap(longest.text, box.content_size.width)) < box.content_size.height
        shown = str(box.render())
        width, lines = box.content_size.width, box.content_size.height
        assert sum(len(textwrap.wrap(part, width, break_on_hyphens=False)) for part in shown.split("\n")) <= lines
        pictures = app.query(ScheduleChart if number == "4" else PoolView)
        assert min(picture.content_size.height for picture in pictures) >= 1


async def test_l_lists_the_lessons_and_plays_one(tiny: Recording) -> None:
    app = KvsimApp(Session(tiny), clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("l")
        assert isinstance(app.screen, LessonsScreen)
        for lesson in all_lessons():
            assert lesson.title in screen_text(app)
        await pilot.press("j", "k", "down", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.playback.guided is not None
        assert app.playback.guided.lesson.number == 2
        await pilot.press("l", "4")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.playback, Compare)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.playback, Watch)
        assert app.playback.guided is None


async def test_escape_closes_the_list(tiny: Recording) -> None:
    app = KvsimApp(Session(tiny), clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("l", "escape")
        assert isinstance(app.screen, Watch)


@pytest.mark.parametrize("symbols", [ASCII, GLYPHS])
def test_a_lesson_can_be_read(guided: Callable[[str], Guided], symbols: object) -> None:
    text = as_text(guided("2"), symbols)  # type: ignore[arg-type]
    assert max(map(len, text.splitlines())) <= 78
    assert text.isascii() == (symbols is ASCII)
    for caption in guided("2").captions:
        assert caption.title in text
    assert f"{GLYPHS.states[SlotState.PADDING] if symbols is GLYPHS else 'P'} padding" in text


@pytest.mark.parametrize("number", ["3", "4"])
def test_a_lesson_can_be_printed(guided: Callable[[str], Guided], number: str) -> None:
    text, figures = as_markdown(guided(number))
    assert len(figures) == len(guided(number).captions)
    for name, figure in figures.items():
        assert f"]({name})" in text
        assert ET.fromstring(figure).tag == "{http://www.w3.org/2000/svg}svg"


def test_lesson_9_splits_speed_into_memory_and_time(guided: Callable[[str], Guided]) -> None:
    lesson = guided("9")
    climbed = lesson.climb()
    words = lesson.captions[2].text
    rung = climbed[3]
    assert rung.gain == pytest.approx(rung.memory_gain, rel=0.01), "the whole gain is memory"
    assert f"Paged memory gives {rung.gain:.2f} times the tokens a second of contiguous memory" in words
    assert f"With room for all requests, it would give {rung.time_gain:.2f} times as many: the whole gain" in words
    assert rung.gain == pytest.approx(rung.memory_gain * rung.time_gain)
    labels = {str(session.recording.meta.engine["step_time"]) for session in lesson.sessions}
    assert len(labels) == 1, "the runs of a comparison have one engine's step times"


@pytest.mark.parametrize("number", [str(lesson.number) for lesson in all_lessons()])
def test_every_lesson_names_its_machine_and_ends_with_something_to_try(
    guided: Callable[[str], Guided], number: str
) -> None:
    lesson = guided(number)
    text = as_text(lesson, GLYPHS)
    assert f"About the figures: {lesson.lesson.model.name}" in text
    assert "Try it: " in lesson.captions[-1].text
    assert not any("Try it: " in caption.text for caption in lesson.captions[:-1])


@pytest.mark.parametrize("lesson", all_lessons(), ids=lambda lesson: str(lesson.number))
def test_every_lesson_has_a_page_with_a_picture_for_every_caption(lesson: Lesson) -> None:
    folder = Path(__file__).parents[2] / "docs" / "lessons"
    page = (folder / f"{lesson.file.stem}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {lesson.heading}")
    pictures = re.findall(r"\]\(([^)]+\.svg)\)", page)
    assert len(pictures) == len(lesson.captions)
    for picture in pictures:
        assert "textLength" not in (folder / picture).read_text(encoding="utf-8")
    assert lesson.file.stem in (folder / "README.md").read_text(encoding="utf-8")


def test_who_is_served_when_adds_up(guided: Callable[[str], Guided]) -> None:
    lesson = guided("4")
    static, continuous = lesson.sessions
    end_s = static.player.duration_s
    for session in (static, continuous):
        lines = schedule(session, 400, end_s)
        running = (lines == Doing.RUNNING).sum() / 400 * end_s
        assert running > 0
        idle = (lines == Doing.IDLE).sum()
        assert (idle > 0) == (session is static)
    first = schedule(static, 400, end_s)[0]
    assert set(first[:100].tolist()) == {Doing.RUNNING}
    assert schedule(static, 400, end_s)[4, 0] == Doing.WAITING


def test_lesson_10_gives_back_what_has_left_the_window(guided: Callable[[str], Guided]) -> None:
    lesson = guided("10")
    windows, uniform = lesson.sessions
    request = windows.recording.row_of("A")
    first, second, third, fourth, _ = lesson.captions
    free, held = [], []
    for caption in (first, second, third):
        lesson.show(caption.frame)
        free.append(int((windows.replay.refs == 0).sum()))
        held.append({row.kind.group.window: row.num_held for row in table_rows(windows, request, 1)})
    assert windows.slots[0, SlotState.EXPIRED] > windows.slots[1, SlotState.EXPIRED]
    assert free[1] - free[0] == held[0][128] - held[1][128] > 0
    # The last 127 tokens and the one that is computed stand in at most nine blocks of sixteen.
    assert held[2][128] <= 9 < held[2][None] > held[1][None]
    lesson.show(fourth.frame)
    assert len(windows.replay.live_requests()) > len(uniform.replay.live_requests())
    assert len(uniform.replay.waiting_requests()) == 1
    assert windows.player.duration_s < uniform.player.duration_s
    assert windows.recording.meta.pool.bytes_per_unit * 2 == uniform.recording.meta.pool.bytes_per_unit
    assert not uniform.slots[:, SlotState.EXPIRED].any()


async def test_a_lesson_says_what_colour_means_at_first(guided: Callable[[str], Guided]) -> None:
    lesson = guided("10")
    app = KvsimApp(lesson)
    async with app.run_test(size=SIZE) as pilot:
        pool = app.query_one("#pool-0", PoolView)
        kinds = layer_kinds(lesson.comparison.lanes[0].session.replay)  # type: ignore[union-attr]
        assert [kind.words for kind in kinds] == ["full attention", "sliding window of 128"]
        assert {kind.paint for kind in kinds} <= set(pool._canvas._paints.whole.tolist())
        for words in ("full attention", "sliding window of 128", "expired"):
            assert words in screen_text(app)
        await pilot.press("o")
        assert pool.color_by is not ColorBy.LAYERS
        meanings = set()
        for _ in ColorBy:
            meanings.add(pool.color_by)
            await pilot.press("o")
        assert ColorBy.LAYERS in meanings
        assert ColorBy.SHARING not in meanings  # nothing is cached in this lesson


def test_models_whose_layers_are_alike_are_not_coloured_by_layers(guided: Callable[[str], Guided]) -> None:
    replay = guided("6").sessions[0].replay
    shown, seen = ColorBy.OWNER, set()
    for _ in ColorBy:
        shown = next_color(shown, [replay])
        seen.add(shown)
    assert seen == {ColorBy.OWNER, ColorBy.STATE, ColorBy.AGE}


def test_lesson_11_reads_back_what_the_gpu_has_forgotten(guided: Callable[[str], Guided]) -> None:
    lesson = guided("11")
    hosted, without = lesson.sessions
    cached, waits_s = [], []
    for session in (hosted, without):
        requests, row = session.recording.requests, session.recording.row_of("E")
        cached.append(int(requests.cached_tokens[row]))
        waits_s.append(float(requests.first_token_s[row] - requests.arrival_s[row]))
    assert cached == [3200, 0]
    assert waits_s[0] < waits_s[1] / 2
    lesson.show(lesson.captions[2].frame)
    assert hosted.host is not None
    assert without.host is None
    assert hosted.host.loading[hosted.player.frame] == 50
    assert "50 blocks come back" in lesson.captions[2].text
    row = hosted.recording.row_of("E")
    assert request_facts(hosted, row).state == "waiting for the host's blocks"


_COLOURS = "red|orange|yellow|green|blue|purple|cream|violet|pink|brown|grey|gray|teal|dark|bright(?!er)"


@pytest.mark.parametrize("number", NUMBERS)
def test_captions_name_states_of_their_legend_and_no_colour(guided: Callable[[str], Guided], number: str) -> None:
    """Colours depend on the theme, and a page may have none; names of states are in every legend."""
    lesson = guided(number)
    for caption in lesson.captions:
        claim = caption.text.partition("Try it:")[0]
        assert not re.search(rf"\b({_COLOURS})\b", claim, re.IGNORECASE), caption.title
        lesson.show(caption.frame)
        named = {state for state, name in STATE_NAMES.items() if f"marked as {name}" in claim}
        for state in named:
            assert any(session.breakdown[state] for session in lesson.sessions), (caption.title, state)


@pytest.mark.parametrize("number", [number for number in NUMBERS if len(find_lesson(number).runs) > 1])
def test_both_halves_of_a_comparison_are_of_one_instant(guided: Callable[[str], Guided], number: str) -> None:
    lesson = guided(number)
    for caption in lesson.captions:
        lesson.show(caption.frame)
        clock_s = lesson.player.clock_s
        for session in lesson.sessions:
            frame = session.player.frame
            assert frame == 0 or session.times_s[frame] <= clock_s + 1e-9
            assert frame == session.player.last_frame or clock_s < session.times_s[frame + 1] + 1e-9


def test_lesson_1_draws_rows_of_one_height_with_less_than_a_character_of_tokens(
    guided: Callable[[str], Guided],
) -> None:
    lesson = guided("1")
    text = as_text(lesson, GLYPHS)
    for caption in lesson.captions[:3]:
        rows = text.partition(caption.title)[2].partition("pool of")[2].split("\n")[1:9:2]
        assert [row[1] for row in rows] == ["A", "B", "C", "D" if caption is not lesson.captions[2] else "E"]
    lesson.show(lesson.captions[1].frame)
    session = lesson.sessions[0]
    slots_a_character = 16384 / 75
    assert session.replay.computed(session.replay.live_requests()).max() < slots_a_character


@pytest.mark.parametrize("number", NUMBERS)
def test_running_means_in_a_caption_what_it_means_above_the_picture(
    guided: Callable[[str], Guided], number: str
) -> None:
    """A row that is held after its answer does not run."""
    lesson = guided(number)
    if lesson.sessions[0].rows is not None:
        pytest.skip("rows for training have no running requests")
    text = as_text(lesson, GLYPHS)
    for caption in lesson.captions:
        lesson.show(caption.frame)
        part = text.partition(caption.title)[2]
        for session in lesson.sessions:
            running = Figures(session, {}, lesson.cost(session), lesson.climb, lesson.found).fill("{now.running}")
            assert caption.draws is not None or f"{running} running" in part
    if number == "2":
        lesson.show(lesson.captions[2].frame)
        assert "for 2 answers" in lesson.captions[2].text


def test_lesson_2_has_the_same_step_times_as_lesson_7(guided: Callable[[str], Guided]) -> None:
    rates = [
        guided(number).sessions[0].recording.meta.engine["step_time"] for number in ("2", "7")
    ]  # the same model and GPU
    assert rates[0] == rates[1]


def test_lesson_3_says_which_blocks_are_whose(guided: Callable[[str], Guided]) -> None:
    lesson = guided("3")
    session, replay = lesson.sessions[0], lesson.sessions[0].replay
    rows = {name: session.recording.row_of(name) for name in "ABCD"}
    first, second, _, fourth, *_ = lesson.captions
    lesson.show(second.frame)
    positions, addresses = replay.block_table(rows["A"])
    by_position = addresses[np.argsort(positions)]
    assert f"got another, block {by_position[-1]}" in second.text
    written = replay.slots()[by_position - replay.first_unit, SlotState.TOKEN]
    assert written[:-1].tolist() == [16, 16]
    assert 0 < written[-1] < 16
    drawn = ["".join(segment.text for segment in line) for line in lesson.drawing(second, 78, GLYPHS)[0][1]]
    assert len(drawn) == len(by_position)
    for line, address, slots in zip(drawn, by_position.tolist(), written.tolist(), strict=True):
        assert f"block {address} " in line
        assert f"{slots} of 16 slots written" in line
        assert line.count("█") == slots
    seen_of: dict[str, set[int]] = {name: set() for name in rows}
    for frame in range(fourth.frame):
        replay.seek(frame)
        for name, row in rows.items():
            seen_of[name] |= set(replay.block_table(row)[1].tolist())
    lesson.show(fourth.frame)
    of_d = set(replay.block_table(rows["D"])[1].tolist())
    assert of_d & seen_of["B"] == {3, 4}
    assert "Blocks 3 and 4 were B's before" in " ".join(fourth.text.split())
    assert not of_d & (seen_of["A"] | seen_of["C"])
    assert first.draws is fourth.draws is Drawing.TABLE


def test_lesson_4_differs_in_the_schedule_alone(guided: Callable[[str], Guided]) -> None:
    lesson = guided("4")
    static, continuous = lesson.sessions
    steps = static.player.last_frame / continuous.player.last_frame
    times = static.player.duration_s / continuous.player.duration_s
    assert times == pytest.approx(steps, rel=0.01)
    assert re.search(r"A step takes (\d+\.\d) ms on both servers", lesson.captions[-1].text)
    for session in (static, continuous):
        mean_ms = session.player.duration_s / session.player.last_frame * 1e3
        assert f"{mean_ms:.1f} ms on both" in lesson.captions[-1].text
    text = as_text(lesson, GLYPHS)
    assert text.count(": who is served when") == 2 * len(lesson.captions)


def test_lesson_7_draws_bytes_and_clocks_to_scale(guided: Callable[[str], Guided]) -> None:
    lesson = guided("7")
    alone, launched, many, _ = lesson.captions

    def widths(lines: list[list[Segment]]) -> list[int]:
        return ["".join(segment.text for segment in line).count("█") for line in lines]

    for caption in (alone, many):
        lesson.show(caption.frame)
        cost = lesson.cost(lesson.sessions[0])
        weights, kv, *_ = widths(lesson.drawing(caption, 78, GLYPHS, 8)[0][1])
        assert kv / weights == pytest.approx(cost.kv_bytes / cost.weight_bytes, abs=1.5 / weights)
        assert f"{cost.captured.alone_s * 1e3:.1f} ms" in caption.text
    lesson.show(launched.frame)
    cost = lesson.cost(lesson.sessions[0])
    _, eager_host, eager_gpu, _, graph_host, graph_gpu = widths(lesson.drawing(launched, 78, GLYPHS, 6)[0][1])
    assert abs(eager_gpu - graph_gpu) <= 1, "the GPU works equally long"
    assert eager_host > 5 * graph_host / 2
    scale = eager_host / cost.eager.launch_s
    assert graph_gpu == pytest.approx(cost.gpu_s * scale, abs=1)


def test_lesson_9_draws_the_rungs_that_its_runs_are(guided: Callable[[str], Guided]) -> None:
    lesson = guided("9")
    climbed = lesson.climb()
    for session, rung in zip(lesson.sessions, climbed[1:4], strict=True):
        rate = session.recording.requests.output_tokens.sum() / session.player.duration_s
        assert rate == pytest.approx(rung.tokens_per_s, rel=1e-3), rung.name
    text = as_text(lesson, GLYPHS)
    for rung in climbed:
        assert f"{rung.tokens_per_s:,.0f} tokens/s" in text
        assert rung.name in text
    lesson.show(lesson.captions[0].frame)
    for session in lesson.sessions:
        assert str(len(session.replay.live_requests())) in lesson.captions[0].text
    assert climbed[4].mean_batch > climbed[3].mean_batch, "the cache makes room"
    assert [rung.memory_gain for rung in climbed[6:]] == pytest.approx([1, 1], abs=0.03), "about time alone"


def test_lesson_11_says_who_waits_with_memory(guided: Callable[[str], Guided]) -> None:
    assert "0 running, 1 waiting (1 for blocks from the host)" in as_text(guided("11"), GLYPHS)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_lesson_begins_with_its_subject(guided: Callable[[str], Guided], number: str) -> None:
    lesson = guided(number)
    for page in (as_text(lesson, GLYPHS), as_markdown(lesson)[0]):
        before, _, after = page.partition("About the figures: ")
        assert after, "provenance is told"
        assert lesson.captions[-1].title in before, "after everything else"


def test_lesson_12_compares_the_hits_of_both_caches_at_every_size(guided: Callable[[str], Guided]) -> None:
    lesson = guided("12")
    found = lesson.found()
    sizes = [num_tokens for num_tokens, _ in found]
    assert sizes == sorted(sizes)
    blocks, tree = zip(*(shares for _, shares in found), strict=True)
    assert blocks[0] < blocks[-1]
    assert tree[0] < tree[-1]
    assert blocks[-1] < tree[-1], "with memory for all, a block rounds away what a slot does not"
    drawn = lesson.drawing(lesson.captions[-1], 80, GLYPHS)
    assert len([line for line in drawn[0][1] if line]) == 2 * len(found)


def _percents(shares: Sequence[float]) -> list[str]:
    return [f"{100 * share:.0f}" for share in shares]


def test_lesson_12_gives_the_hits_of_both_caches_for_the_same_question(guided: Callable[[str], Guided]) -> None:
    lesson = guided("12")
    blocks, tree = lesson.sessions
    for caption, name in ((1, "A2"), (2, "B2"), (4, "A3")):
        text = lesson.captions[caption].text
        for session in (blocks, tree):
            requests = session.recording.requests
            assert str(requests.cached_tokens[session.recording.row_of(name)]) in re.findall(r"\d+", text)
    sizes = dict(lesson.found())
    last = lesson.captions[5].text
    assert "{} against {}% with 800".format(*_percents(sizes[800])) in last
    assert (
        "From 1,000 on, both keep everything, and the tree finds more, {1} against {0}%".format(*_percents(sizes[1000]))
        in last
    )
    assert "From 700 to 900 tokens of memory, blocks find more" in last
    assert all((blocks > tree) == (700 <= size <= 900) for size, (blocks, tree) in sizes.items())
    assert "Below 700, neither keeps enough" in last
    assert max(sizes[600]) < min(sizes[800])
    assert sizes[800][1] < sizes[800][0]
    assert sizes[1000][1] > sizes[1000][0]


def test_lesson_12_draws_the_tree_and_what_goes_first(guided: Callable[[str], Guided]) -> None:
    lesson = guided("12")
    caption, tree = lesson.captions[3], lesson.sessions[1]
    lesson.show(caption.frame)
    assert not tree.breakdown[SlotState.FREE], "the memory is full"
    before = tree_at(tree)
    ((_, drawn),) = lesson.drawing(caption, 118, GLYPHS, 15)
    lines = ["".join(segment.text for segment in line) for line in drawn]
    outside = len(tree.replay.occupied()) - before.num_units
    assert [line.split(" slots")[0].strip(" └") for line in lines] == [
        *(str(run.num_units) for run in before.nodes),
        str(outside),
    ]
    assert "in no node yet" in lines[-1]
    first = before.leaves[0]
    assert "goes first" in lines[before.nodes.index(first)]
    for place, run in enumerate(before.leaves[1:], 2):
        assert f"can go, as number {place}" in lines[before.nodes.index(run)]
    assert sum("locked by C2" in line for line in lines) == sum(bool(run.holders) for run in before.nodes)
    assert f"can go, here {len(before.leaves)}" in caption.text
    assert f"all its {first.num_units} slots in the next step" in caption.text
    assert f"keeps {before.num_units - before.num_locked} slots that no request uses" in caption.text
    ((_, folded),) = lesson.drawing(caption, 80, GLYPHS, 12)
    assert len(folded) == 12
    assert folded[-1][0].text.startswith(f"{len(before.nodes) - 11} more nodes")
    tree.player.go_to_frame(tree.player.frame + 1)
    tree.show()
    after = tree_at(tree)
    assert len(after.nodes) == len(before.nodes) - 1
    assert tree.breakdown[SlotState.FREE] == first.num_units - 1, "one slot was needed"
    assert len(after.leaves) == len(before.leaves), "the question above the leaf is a leaf now"


def test_lesson_12_says_below_each_pool_how_much_was_found(guided: Callable[[str], Guided]) -> None:
    lesson = guided("12")
    for number, name in ((1, "A2"), (2, "B2"), (4, "A3")):
        lesson.show(lesson.captions[number].frame)
        for session in lesson.sessions:
            session.followed = session.recording.row_of(name)
            found = session.recording.requests.cached_tokens[session.followed]
            assert selection(session).endswith(f", {found} tokens found, reading prompt")
            session.followed = None


def test_lesson_9_says_what_of_the_gain_over_static_batches_is_memory(guided: Callable[[str], Guided]) -> None:
    lesson = guided("9")
    _, static, contiguous, paged, *_ = lesson.climb()
    gain, on_time = contiguous.gain * paged.gain, contiguous.time_gain * paged.time_gain
    assert gain == pytest.approx(paged.tokens_per_s / static.tokens_per_s)
    assert on_time > gain, "none of it is memory"
    text = " ".join(lesson.captions[2].text.split())
    assert f"It gives {gain:.2f} times those of static batches, with room for all {on_time:.2f}: none of this" in text
    assert static.tokens_per_s == pytest.approx(static.ample_tokens_per_s, rel=0.01), "memory does not help it"
    ((_, drawn),) = lesson.drawing(lesson.captions[2], 100, GLYPHS, 12)
    lines = ["".join(segment.text for segment in line) for line in drawn if line]
    assert f"paged ×{gain:.2f}" in lines[0]
    assert f"paged ×{on_time:.2f}" in lines[1]
    assert f"paged ×{paged.gain:.2f}" in lines[2]
    assert f"paged ×{paged.time_gain:.2f}" in lines[3]


def test_lesson_8_has_placed_the_same_sequences_in_the_same_colours(guided: Callable[[str], Guided]) -> None:
    lesson = guided("8")
    padded, packed = lesson.sessions
    names = [[session.request_name(row) for row in range(8)] for session in (padded, packed)]
    for caption in lesson.captions:
        lesson.show(caption.frame)
        placed = [
            {session.request_name(row) for row in session.replay.live_requests().tolist()} & set("ABCDEFGH")
            for session in (padded, packed)
        ]
        assert placed[0] == placed[1]
    assert names[0] == names[1] == list("ABCDEFGH"), "a letter has the hue that it has in other lessons"
    lesson.show(lesson.captions[0].frame)
    for session in (padded, packed):
        first = [session.request_name(row) for row in session.replay.live_requests().tolist()]
        assert set(first) & set(names[0]) == {"C", "D", "E"}, "the longest are placed first"


def test_a_caption_without_a_drawing_shows_what_each_request_holds(guided: Callable[[str], Guided]) -> None:
    lesson = guided("6")
    lesson.show(lesson.captions[2].frame)
    session = lesson.sessions[0]
    lines = ["".join(segment.text for segment in line) for line in drawings.holders(session, 80, GLYPHS, 8)]
    held = {
        session.request_name(request): len(session.replay.block_table(request)[1])
        for request in session.replay.live_requests().tolist()
    }
    assert sorted(held) == ["A", "B"]
    for line in lines[:2]:
        assert f" {held[line[0]]} of 20 blocks " in line
    assert lines[2].split() == ["C", "waits"]
    lesson = guided("7")
    lesson.show(lesson.captions[3].frame)
    lines = ["".join(segment.text for segment in line) for line in drawings.holders(lesson.sessions[0], 80, GLYPHS, 6)]
    assert lines[-1].startswith("31 more")
    assert len(lines) == 6


def test_lesson_4_names_the_row_that_the_second_batch_waits_for(guided: Callable[[str], Guided]) -> None:
    lesson = guided("4")
    caption = lesson.captions[3]
    lesson.show(caption.frame)
    static, continuous = lesson.sessions
    assert continuous.player.at_end
    assert not len(continuous.replay.live_requests()), "its pool is empty"
    text = " ".join(caption.text.split())
    assert "second batch, E to H" in text
    assert "Now 1 of its four rows still generates, F's" in text
    computed = static.replay.computed(static.replay.live_requests())
    going_on = static.replay.live_requests()[computed < static.replay.full[static.replay.live_requests()]]
    assert [static.request_name(row) for row in static.replay.live_requests().tolist()] == list("EFGH")
    assert [static.request_name(row) for row in going_on.tolist()] == ["F"]


def test_lesson_4_says_how_many_times_as_long_and_why_a_block_is_missing(guided: Callable[[str], Guided]) -> None:
    lesson = guided("4")
    static, continuous = lesson.sessions
    assert continuous.replay.num_units == static.capacity // 16 - 1
    assert f"{continuous.replay.num_units}, and one that no request gets" in " ".join(lesson.captions[0].text.split())
    ratio = static.player.duration_s / continuous.player.duration_s
    assert f"{ratio:.1f} times as long" in lesson.captions[-1].text


@pytest.mark.parametrize("width", [50, 60, 78])
def test_no_cost_on_the_ladder_is_cut(guided: Callable[[str], Guided], width: int) -> None:
    lesson = guided("9")
    ((_, drawn),) = lesson.drawing(lesson.captions[3], width, GLYPHS)
    costs = ["".join(segment.text for segment in line) for line in drawn[1::2]]
    assert len(costs) == 8
    for line, cost in zip(costs, drawings._COSTS.values(), strict=True):
        assert line.endswith(f"cost: {cost}")
        assert len(line) <= width


def test_signs_of_the_host_map_and_digits_of_the_pool_are_explained_below(guided: Callable[[str], Guided]) -> None:
    parts = as_text(guided("11"), GLYPHS).split("\n\n")
    maps = [part for part in parts if part.startswith("host memory: ")]
    assert len(maps) == 5
    for sign, words in (("+", "going there"), ("=", "coming back")):
        for part in maps:
            _, drawn, key = part.split("\n")
            assert (sign in drawn) == bool(re.search(rf"\{sign} \w+ {words}", key)), "with the request whose copy it is"
    pools = [part for part in parts if part.startswith("GPU only, ")]
    for part in pools:
        blocks = "".join(re.findall(r"(?m)^ *\d* ([█○·▒×1-7]+)$", part))
        assert len(blocks) >= 99
        assert bool(re.search("[1-7]", blocks)) == ("1-7 eighths of a block" in " ".join(part.split()))
    assert "eighths" not in as_text(guided("3"), GLYPHS)


@pytest.mark.parametrize("number", ["9", "12", "13"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_drawing_in_place_of_the_pools_is_on_the_screen(
    guided: Callable[[str], Guided], number: str, size: tuple[int, int]
) -> None:
    lesson = guided(number)
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=size) as pilot:
        lesson.show(lesson.captions[-1].frame)
        app.playback.show_frame(everything=True)
        await pilot.pause()
        drawn = app.screen.query_one(LessonDrawing)
        ((title, lines),) = lesson.drawing(lesson.captions[-1], drawn.size.width, GLYPHS, drawn.size.height)
        assert title in screen_text(app)
        assert 0 < len(lines) <= drawn.size.height
        for y, line in enumerate(lines):
            assert "".join(segment.text for segment in line).split()[-1:] == drawn.render_line(y).text.split()[-1:]


def test_lesson_13_says_which_server_has_which_request(guided: Callable[[str], Guided]) -> None:
    lesson = guided("13")
    names = {
        run.label: set(session.recording.requests.id.tolist())
        for run, session in zip(lesson.lesson.runs, lesson.sessions, strict=True)
    }
    in_turn, by_prefix = ([f"{route}, server {server}" for server in (0, 1)] for route in ("in turn", "by prefix"))
    assert list(names) == [*in_turn, *by_prefix]
    assert "Q1" in names[in_turn[1]]
    assert "Q2" in names[in_turn[0]]
    assert {"Q1", "Q2"} <= names[by_prefix[1]]
    assert {name[0] for name in names[by_prefix[0]]} == {"P", "R"}
    assert {name[0] for name in names[by_prefix[1]]} == {"Q", "S"}
    assert {name[0] for label in in_turn for name in names[label]} == set("PQRS")
    burst = {f"P{letter}" for letter in "abcdef"}
    assert burst <= names[by_prefix[0]]
    assert burst & names[in_turn[0]]
    assert burst & names[in_turn[1]]


def test_lesson_13_gives_the_sums_of_its_fleets(guided: Callable[[str], Guided]) -> None:
    lesson = guided("13")
    drawn = "\n".join(
        "".join(segment.text for segment in line)
        for _, lines in lesson.drawing(lesson.captions[-1], 78, GLYPHS)
        for line in lines
    )
    for label, totals in lesson.fleets.items():
        mine = [one for run, one in zip(lesson.lesson.runs, lesson.sessions, strict=True) if run.fleet == label]
        requests = [one.recording.requests for one in mine]
        hits = sum(int(one.cached_tokens.sum()) for one in requests) / sum(
            int(one.prompt_tokens.sum()) for one in requests
        )
        assert f"{100 * hits:.0f}%" in drawn
        assert totals.duration_s == max(one.player.duration_s for one in mine)
        assert f"{totals.duration_s:.2f} s" in drawn
        assert f"{100 * hits:.0f}%" in lesson.captions[-1].text
    in_turn, by_prefix = lesson.fleets["in turn"], lesson.fleets["by prefix"]
    assert by_prefix.prefix_hit_tokens == by_prefix.one_pool_hit_tokens > in_turn.prefix_hit_tokens
    assert by_prefix.imbalance > in_turn.imbalance
    assert by_prefix.mean_duplicate_bytes == 0 < in_turn.mean_duplicate_bytes


def test_lesson_6_tells_the_price_of_each_remedy(guided: Callable[[str], Guided]) -> None:
    lesson = guided("6")
    more, plain, fewer, careful = lesson.remedies()
    session = lesson.sessions[0]
    assert plain.duration_s == session.player.duration_s
    assert plain.recomputed_tokens == preemption_at(session, 2, lesson.captions[2].frame).num_tokens
    assert more.recomputed_tokens == fewer.recomputed_tokens == careful.recomputed_tokens == 0
    assert more.duration_s < plain.duration_s < fewer.duration_s < careful.duration_s
    assert plain.longest_wait_s < fewer.longest_wait_s < careful.longest_wait_s
    text = lesson.captions[-1].text
    for one in (more, plain):
        assert f"{1e3 * one.duration_s:.0f} ms" in text
    for one in (fewer, careful):
        assert f"{1e3 * one.longest_wait_s:.0f} ms" in text


def test_lesson_7_ends_with_a_pool_that_is_short_of_memory(guided: Callable[[str], Guided]) -> None:
    lesson = guided("7")
    lesson.show(lesson.captions[-1].frame)
    [session] = lesson.sessions
    assert session.breakdown[SlotState.FREE] < 0.01 * session.capacity
    assert len(session.replay.waiting_requests()) > 0


def test_lesson_5_draws_no_memory_and_no_request_between_the_end_of_d_and_e(guided: Callable[[str], Guided]) -> None:
    (session,) = guided("5").sessions
    requests = session.recording.requests
    last, comes = requests.finished_s[session.recording.row_of("D")], requests.arrival_s[session.recording.row_of("E")]
    assert session.idle.begin_s.tolist() == [last]
    assert session.idle.end_s[0] == pytest.approx(comes, abs=0.02)
    (slots,) = session.idle.slots
    assert slots.sum() == session.capacity
    assert set(np.flatnonzero(slots)) <= {SlotState.CACHED, SlotState.FREE}
    found = int(requests.cached_tokens[session.recording.row_of("E")])
    frame = int(np.searchsorted(session.times_s, session.idle.end_s[0]))
    assert slots[SlotState.CACHED] >= session.slots[frame, SlotState.CACHED] + found, "what E finds was cached"
    assert session.idle.released_s(session.times_s[[frame]]).tolist() == [last]


@pytest.mark.parametrize(("number", "place"), [("4", 3), ("9", 1)])
async def test_a_caption_and_a_bar_give_one_share_of_served_tokens(
    guided: Callable[[str], Guided], number: str, place: int
) -> None:
    lesson = guided(number)
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=SIZE) as pilot:
        lesson.show(lesson.captions[place].frame)
        app.playback.show_frame(everything=True)
        await pilot.pause()
        shown = [re.search(r"(\d+%)", figures.render_line(0).text) for figures in app.playback.query(LaneFigures)]
        shares = {found[1] for found in shown if found}
    assert set(re.findall(r"[\d.]+%", lesson.captions[place].text)) <= shares


def test_lesson_10_says_which_blocks_have_expired(guided: Callable[[str], Guided]) -> None:
    lesson = guided("10")
    windows = lesson.sessions[0]
    first, second, *_ = lesson.captions
    lesson.show(first.frame)
    request = windows.recording.row_of("A")
    addresses = np.sort(windows.replay.block_table(request)[1])
    slots = windows.replay.slots(addresses - windows.replay.first_unit)
    whole = addresses[(slots[:, SlotState.EXPIRED] > 0) & (slots[:, SlotState.TOKEN] == 0)]
    part = addresses[(slots[:, SlotState.EXPIRED] > 0) & (slots[:, SlotState.TOKEN] > 0)]
    assert whole.tolist() == list(range(whole[0], whole[-1] + 1))
    named = f"blocks {whole[0]} to {whole[-1]}"
    assert f"marked as expired: {named}, a part of block {part[0]}" in first.text
    lesson.show(second.frame)
    assert set(whole.tolist()).isdisjoint(windows.replay.block_table(request)[1].tolist())
    assert f"given back {len(whole)} blocks, {named}" in second.text


@pytest.mark.parametrize("place", [0, 1])
async def test_a_small_screen_divides_blocks_that_have_expired_in_part(
    guided: Callable[[str], Guided], place: int
) -> None:
    lesson = guided("10")
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        lesson.show(lesson.captions[place].frame)
        app.playback.show_frame(everything=True)
        await pilot.pause()
        line = app.playback.query(PoolView).first().render_line(0)
        expired, window = (
            paint_colors(app.symbols.palette)[paint]
            for paint in (SlotState.EXPIRED, layer_kinds(lesson.sessions[0].replay)[1].paint)
        )
        cells = [segment.style for segment in line for _ in segment.text]
        colors = [{style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex} for style in cells if style]
        assert any(expired in one and window in other for one, other in pairwise(colors)), "one block, two colours"


async def test_memory_of_others_has_an_entry_in_the_legend_of_states(guided: Callable[[str], Guided]) -> None:
    lesson = guided("13")
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        for place, name, is_grey in ((1, "Q2", True), (2, "R4", True), (3, None, False)):
            lesson.show(lesson.captions[place].frame)
            app.playback.show_frame(everything=True)
            app.playback.follow_name(name)
            await pilot.pause()
            assert ("held by others" in screen_text(app)) is is_grey


async def test_a_title_explains_the_marks_that_are_there(guided: Callable[[str], Guided]) -> None:
    lesson = guided("2")
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        text = screen_text(app)
        assert "finished or is padding now" in text
        assert "full bar" not in text  # no line shows the running requests


def test_an_image_and_its_caches_have_one_scale() -> None:
    blocks, _, cache, _, *_, held_in_blocks, held_in_cache = drawings.image(391, 16_384, 16, 80, GLYPHS, 9)
    (_, in_blocks, _), (_, in_cache, free) = blocks, cache
    assert held_in_blocks[1].text.rstrip() == 2 * held_in_cache[1].text.rstrip(), "to the end, and until it is read"
    assert in_blocks.text == in_cache.text
    assert len(in_cache.text + free.text) == 80 - len(cache[0].text)


def test_one_request_holds_and_several_hold(guided: Callable[[str], Guided]) -> None:
    lesson = guided("7")
    for place, words in ((0, "1 request holds 4 blocks"), (3, r"\d+ requests hold [\d,]+ blocks")):
        lesson.show(lesson.captions[place].frame)
        session = lesson.sessions[0]
        assert re.match(words, scatter_lines(session, holdings(session), None, 120, "-")[1])


def test_lesson_11_says_whose_copies_are_on_their_way(guided: Callable[[str], Guided]) -> None:
    lesson = guided("11")
    hosted, caption = lesson.sessions[0], lesson.captions[1]
    lesson.show(caption.frame)
    assert hosted.host is not None
    slots = hosted.host.slots_at(hosted.replay.frame)
    going = {hosted.request_name(int(row)) for row in slots.owner[slots.is_storing]}
    kept = {hosted.request_name(int(row)) for row in slots.owner[(slots.owner >= 0) & ~slots.is_storing]}
    assert (going, kept) == ({"C"}, {"A", "B"})
    num_kept, num_going = (slots.owner >= 0).sum() - slots.is_storing.sum(), slots.is_storing.sum()
    assert f"copies of {num_kept} blocks, those of A and B; {num_going} blocks of C are still" in caption.text
    words = [text for _, text in legend_now(hosted, hued=True)]
    assert words == ["A kept", "B kept", "C going there"]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_lesson_3_says_which_slots_are_not_written(guided: Callable[[str], Guided], place: int) -> None:
    lesson = guided("3")
    session, caption = lesson.sessions[0], lesson.captions[place]
    lesson.show(caption.frame)
    assert caption.follow is not None
    positions, addresses = session.replay.block_table(session.recording.row_of(caption.follow))
    last = int(addresses[np.argmax(positions)])
    written = int(session.replay.slots()[last - session.replay.first_unit, SlotState.TOKEN])
    if caption.follow == "A":
        assert f"slots {written + 1} to 16 of block {last}" in caption.text
    ((_, drawn),) = lesson.drawing(caption, 80, GLYPHS)
    assert "".join(segment.text for segment in drawn[-1]).endswith(f"not {written + 1} to 16")


def test_lesson_4_shows_both_servers_as_its_caption_tells(guided: Callable[[str], Guided]) -> None:
    lesson = guided("4")
    static, continuous = lesson.sessions
    lesson.show(lesson.captions[2].frame)
    held = [static.request_name(row) for row in static.replay.live_requests().tolist()]
    assert held == list("ABCD")
    computed = static.replay.computed(static.replay.live_requests())
    is_padding = computed > static.replay.full[static.replay.live_requests()]
    assert is_padding.tolist() == [False, True, False, True]
    now = {continuous.request_name(row) for row in continuous.replay.live_requests().tolist()}
    assert now == {"A", "C", "E", "F"}
    time_s = continuous.player.clock_s
    for request in continuous.replay.live_requests().tolist():
        line = schedule(continuous, 2000, continuous.player.duration_s)[request]
        assert line[int(time_s / continuous.player.duration_s * 2000)] == Doing.RUNNING, "pool and lines agree"


@pytest.mark.parametrize("number", [number for number in NUMBERS if len(find_lesson(number).runs) > 1])
async def test_a_small_screen_has_a_picture_for_every_pool(guided: Callable[[str], Guided], number: str) -> None:
    """And the legend of host memory, and the schedule, because captions speak of them."""
    lesson = guided(number)
    app = KvsimApp(lesson, clock=lambda: 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        lesson.show(lesson.captions[0].frame)
        app.playback.show_frame(everything=True)
        await pilot.pause()
        pools = app.playback.query(PoolView)
        assert len(pools) == len(lesson.sessions)
        assert all(pool.size.height >= 3 and pool.size.width >= 20 for pool in pools)
        if "schedule" in lesson.draws:
            charts = app.playback.query(ScheduleChart)
            assert [chart.size.height for chart in charts] == [len(lesson.lesson.workload) + 1] * 2, "and the axis"
        if any(session.host is not None for session in lesson.sessions):
            assert "A going there" in screen_text(app)


def test_lesson_6_names_the_request_whose_end_makes_room(guided: Callable[[str], Guided]) -> None:
    lesson = guided("6")
    (session,) = lesson.sessions
    caption = lesson.captions[4]
    assert caption.text.startswith("B has ended, so there is room again")
    requests, time_s = session.recording.requests, session.times_s[caption.frame]
    ended = [str(name) for name, end_s in zip(requests.id, requests.finished_s, strict=True) if end_s <= time_s]
    assert ended == ["B"]
    none, most = (
        f"{100 * run.duration_s / session.recording.duration_s:.0f}%" for run in with_drafts(session.recording)[1:]
    )
    said = lesson.captions[5].text
    assert f"all takes {none} of the time" in said
    assert f"the last answer takes {most} of the time" in said
    assert int(none[:-1]) > 100 > int(most[:-1])


def test_lesson_7_tells_what_a_whole_step_is_made_of(guided: Callable[[str], Guided]) -> None:
    lesson = guided("7")
    for caption in (lesson.captions[0], lesson.captions[2]):
        lesson.show(caption.frame)
        cost = lesson.cost(lesson.sessions[0])
        ((_, drawn),) = lesson.drawing(caption, 80, GLYPHS)
        *_, line = ("".join(segment.text for segment in line) for line in drawn)
        whole, reading, other, host = (float(found) for found in re.findall(r"(\d+\.\d) ms", line))
        assert whole == pytest.approx(reading + other + host, abs=0.2)
        assert whole == pytest.approx(cost.captured.alone_s * 1e3, abs=0.06)
        assert len(line) <= 80
    session = lesson.sessions[0]
    assert session.recording.steps.prefill_tokens[session.player.frame] == 0, "each request computes one token"


def test_lesson_12_draws_the_run_that_was_cut_in_two(guided: Callable[[str], Guided]) -> None:
    lesson = guided("12")
    caption, tree = lesson.captions[2], lesson.sessions[1]
    lesson.show(caption.frame)
    found = int(tree.recording.requests.cached_tokens[tree.recording.row_of("B2")])
    ((_, drawn),) = lesson.drawing(caption, 80, GLYPHS)
    lines = ["".join(segment.text for segment in line) for line in drawn]
    upper = next(place for place, line in enumerate(lines) if line.startswith(f"{found} slots"))
    assert lines[upper].endswith("locked by B2")
    assert lines[upper + 1].lstrip(" └").endswith("prompt of B2 locked by B2")
    below = [line for line in lines[upper + 1 :] if line.startswith("  └")]
    assert "prompt of B1" in below[1], "the rest of the first question is below the shared part, too"
    assert f"finds {found} of its" in caption.text


def test_lesson_13_shows_what_the_followed_request_found(guided: Callable[[str], Guided]) -> None:
    lesson = guided("13")
    for place, name in ((1, "Q2"), (2, "R4")):
        caption = lesson.captions[place]
        lesson.show(caption.frame)
        found = [
            int(session.recording.requests.cached_tokens[session.recording.row_of(name)])
            for session in lesson.sessions
            if name in session.recording.requests.id
        ]
        assert len(found) == 2, "one server behind each router has it"
        assert found[0] < found[1]
        assert {f"{number:,}" for number in found} <= set(re.findall(r"\d[\d,]*\d|\d", caption.text))


@pytest.mark.parametrize(
    ("number", "size"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (row % 5 != 0))
        for row, case in enumerate(product(NUMBERS, ((80, 24), (120, 40))))
    ],
)
async def test_every_page_is_drawn_without_colours(
    guided: Callable[[str], Guided], number: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lesson = guided(number)
    app = KvsimApp(lesson, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=size) as pilot:
        for caption in lesson.captions:
            lesson.show(caption.frame)
            app.playback.show_frame(everything=True)
            await pilot.pause()
            assert caption.title in screen_text(app)


_OTHER_NAMES = {
    "contiguous memory": r"\breservations?\b",
    "paged memory": r"\bpages\b",
    "a request": r"\bsequences?\b",
    "a node": r"\bruns? of tokens\b",
    "given back": r"\blet(s|ting)? go\b",
}
"""Names of things in lessons, and other words for the same."""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_thing_has_one_name_in_all_lessons(number: str) -> None:
    lesson = find_lesson(number)
    texts = [lesson.title, lesson.summary, *(f"{caption.title} {caption.text}" for caption in lesson.captions)]
    texts = [re.sub(r"\{[^}]*\}", "", text) for text in texts]
    for name, other in _OTHER_NAMES.items():
        if name == "a request" and number in ("8", "12"):
            continue  # sequences for training, and tokens in sequence
        assert not [text for text in texts if re.search(other, text)], f"it is called {name}"


def test_lesson_13_shows_what_found_prefixes_gain(guided: Callable[[str], Guided]) -> None:
    lesson = guided("13")
    means_s = {}
    for label, totals in lesson.fleets.items():
        mine = [one for run, one in zip(lesson.lesson.runs, lesson.sessions, strict=True) if run.fleet == label]
        requests = [one.recording.requests for one in mine]
        means_s[label] = np.concatenate([one.first_token_s - one.arrival_s for one in requests]).mean()
        assert totals.ttft_s.mean == pytest.approx(means_s[label])
    assert means_s["by prefix"] < 0.7 * means_s["in turn"]
    in_turn, by_prefix = (f"{1e3 * means_s[label]:.0f} ms" for label in ("in turn", "by prefix"))
    assert f"First tokens come after {by_prefix}, not {in_turn}" in lesson.captions[-1].text
    text = "\n".join("".join(segment.text for segment in line) for line in _lines(lesson, -1, 80, 15))
    assert by_prefix in text
    assert in_turn in text
    assert "of its 1,760 tokens are found" in lesson.captions[1].text


def _lines(lesson: Guided, place: int, width: int, height: int) -> list[list[Segment]]:
    caption = lesson.captions[place]
    lesson.show(caption.frame)
    ((_, drawn),) = lesson.drawing(caption, width, GLYPHS, height)
    assert len(drawn) <= height
    assert all(sum(len(segment.text) for segment in line) <= width for line in drawn)
    return drawn


@pytest.mark.parametrize(("number", "place"), [("3", 4), ("6", 5), ("6", 6), ("7", 0), ("7", 1), ("7", 2), ("9", 2)])
@pytest.mark.parametrize(("width", "height"), [(80, 13), (118, 24)])
def test_a_picture_without_a_pool_fills_its_place(
    guided: Callable[[str], Guided], number: str, place: int, width: int, height: int
) -> None:
    assert len(_lines(guided(number), place, width, height)) >= 0.75 * height


def test_lesson_6_shows_who_waits_with_each_remedy(guided: Callable[[str], Guided]) -> None:
    lesson = guided("6")
    lines = ["".join(segment.text for segment in line) for line in _lines(lesson, 6, 118, 24)]
    for remedy in lesson.remedies():
        first = next(place for place, line in enumerate(lines) if line.startswith(remedy.name))
        assert f"last answer {1e3 * remedy.duration_s:.0f} ms" in lines[first]
        rows = lines[first + 1 : first + 4]
        assert [row[0] for row in rows] == list("ABC")
        waits = max(row.count("─") for row in rows) / 115 * max(each.duration_s for each in lesson.remedies())
        if not remedy.recomputed_tokens:
            assert waits == pytest.approx(remedy.longest_wait_s, abs=0.02)


def test_lesson_6_draws_the_memory_of_runs_with_drafts(guided: Callable[[str], Guided]) -> None:
    lesson = guided("6")
    lines = ["".join(segment.text for segment in line) for line in _lines(lesson, 5, 80, 12)]
    results = with_drafts(lesson.sessions[0].recording)
    most = max(result.session.player.last_frame for result in results)
    for number, result in enumerate(results):
        name, bar, held, _ = lines[4 * number : 4 * number + 4]
        assert name.startswith(f"{result.name}: runs out after {result.steps} steps ")
        assert bar.count("█") == round(result.steps / most * 53), "on the axis of the columns below"
        assert f"held, of {result.session.replay.num_units} blocks" in held


def test_lesson_7_compares_steps_with_fewer_requests(guided: Callable[[str], Guided]) -> None:
    lesson = guided("7")
    lesson.show(lesson.captions[2].frame)
    costs = lesson.costs(lesson.sessions[0])
    assert [cost.num_sequences for cost in costs] == [1, 2, 4, 8, 16, 32, 37]
    assert costs[-1] == lesson.cost(lesson.sessions[0])
    assert costs[-1].captured.alone_s < 1.6 * costs[0].captured.alone_s, "37 requests cost little more than one"
    text = "\n".join("".join(segment.text for segment in line) for line in _lines(lesson, 2, 80, 13))
    for cost in costs:
        assert f"{cost.num_sequences / cost.captured.alone_s:,.0f} tokens/s" in text


def test_lesson_9_draws_what_the_memory_held(guided: Callable[[str], Guided]) -> None:
    lesson = guided("9")
    *_, static, contiguous, paged = ("".join(segment.text for segment in line) for line in _lines(lesson, 2, 80, 14))
    for line, session in zip((static, contiguous, paged), lesson.sessions, strict=True):
        ends_s = np.append(session.times_s[1:], session.player.duration_s)
        weights = ends_s - session.times_s
        share = (session.slots[:, SlotState.TOKEN] * weights).sum() / weights.sum() / session.capacity
        assert f"{100 * share:.1f}% tokens" in line


def test_lesson_12_draws_what_both_caches_find(guided: Callable[[str], Guided]) -> None:
    lesson = guided("12")
    blocks, tree = ("".join(segment.text for segment in line) for line in _lines(lesson, 2, 80, 15)[-2:])
    assert " 80 found, 83 computed" in blocks
    assert " 88 found, 75 computed" in tree
    assert len(blocks[17:-22].split()) in (10, 11), "a blank separates blocks"
    assert len(tree[17:-22].split()) == 1


def test_the_schedule_of_lesson_4_has_a_time_axis(guided: Callable[[str], Guided]) -> None:
    lesson = guided("4")
    for caption in lesson.captions:
        lesson.show(caption.frame)
        for session in lesson.sessions:
            *rows, axis = lesson.timetable(session, 60, GLYPHS)
            assert len(rows) == 8
            words = "".join(segment.text for segment in axis)
            assert len(words) <= 60
            place = words.index("now") + len(words[words.index("now") :].rstrip().partition("  ")[0]) / 2
            clock = 3 + lesson.player.clock_s / lesson.sessions[0].player.duration_s * 57
            assert abs(place - clock) <= 5 or words.rstrip().endswith("s")
