"""Panels that come and go, what the inspector knows, what is listed, and what can be saved."""

from __future__ import annotations

import csv
import io
import shutil
from typing import TYPE_CHECKING

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import find, read
from kvsim.recording.tables import MemoryKind
from kvsim.simulation import Machine, simulate
from kvsim.workload import Ragged, Workload
from kvsim_tui.app import KvsimApp
from kvsim_tui.export import picture_file
from kvsim_tui.export.svg import CELL
from kvsim_tui.facts.group_tables import block_extents
from kvsim_tui.facts.headlines import headline
from kvsim_tui.facts.units import unit_heading, unit_story
from kvsim_tui.look.states import COLOR
from kvsim_tui.playback.compared_runs import ComparedRuns
from kvsim_tui.playback.run_events import EventFilter, EventKind
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.layer_kinds import layer_kinds
from kvsim_tui.widgets.block_table import BlockTable
from kvsim_tui.widgets.inspector import Inspector
from kvsim_tui.widgets.pool_view import PoolView
from kvsim_tui.widgets.scrubber import GUTTER
from kvsim_tui.widgets.timeline_chart import TimelineChart

from .test_app import text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from kvsim.recording import Recording

NAMES = {"1": "waste", "2": "timeline", "3": "inspector", "4": "queue", "5": "events"}


def visible(app: KvsimApp) -> set[str]:
    return {name for name in NAMES.values() if app.query_one(f"#{name}").size.area}


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_numbers_show_and_hide_panels(
    make_app: Callable[..., KvsimApp], tiny: Recording, size: tuple[int, int]
) -> None:
    app = make_app(tiny)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        before = visible(app)
        for key, name in NAMES.items():
            for expected in (before ^ {name}, before):
                await pilot.press(key)
                await pilot.pause()
                assert visible(app) == expected, key


async def test_m_gives_the_pool_the_whole_body(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        pool = app.query_one(PoolView)
        before = pool.size
        await pilot.press("m")
        await pilot.pause()
        assert pool.size.width == 120
        assert pool.size.height > before.height
        await pilot.press("m")
        await pilot.pause()
        assert pool.size == before


def test_generations_of_a_block(pressure: Recording) -> None:
    session = Session(pressure)
    unit = 129
    taken = [stay for stay in session.stays(unit) if stay.begin_frame <= session.player.last_frame]
    memory = pressure.memory
    appended = [
        row
        for row in range(len(memory))
        if memory.kind[row] == MemoryKind.APPEND
        and memory.address[row] <= unit + 1 < memory.address[row] + memory.length[row]
    ]
    assert taken[-1].generation == len(appended)
    for stay in taken:
        session.replay.seek(stay.begin_frame)
        if stay.end_frame > stay.begin_frame:
            assert session.replay.refs[unit] > 0
    session.player.go_to_frame(taken[2].begin_frame)
    assert unit_heading(session, unit) == "block 130"
    story = dict(unit_story(session, unit, 3))
    assert story["allocated"] == f"{taken[2].generation} so far, {len(appended)} in all"
    assert story["before"].startswith(session.request_name(taken[0].request))


def test_whoever_shares_a_block_is_named_and_so_is_its_hash(tiny: Recording) -> None:
    from dataclasses import replace

    hashes = Ragged.from_rows([[-1], [5], []], tiny.requests.prompt_hashes[0].dtype)
    session = Session(replace(tiny, requests=replace(tiny.requests, prompt_hashes=hashes)), at_s=1.0)
    assert dict(unit_story(session, 0, 3))["prefix hash"] == "f" * 16
    assert "prefix hash" not in dict(unit_story(session, 1, 3))


async def test_what_is_under_the_mouse_is_in_the_tooltip_and_in_the_inspector(
    make_app: Callable[..., KvsimApp], tiny: Recording
) -> None:
    app = make_app(tiny)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.hover(PoolView, offset=(3, 2))
        await pilot.pause()
        assert "held by first" in str(app.query_one(PoolView).tooltip)
        assert any(line.text.startswith("block 1 ") for line in app.query_one(Inspector).write())
        await pilot.hover("#headline")
        await pilot.pause()
        assert app.query_one(PoolView).tooltip is None
        assert app.playback.session.hovered is None  # type: ignore[attr-defined]


async def test_f_filters_the_list_and_the_jumps(make_app: Callable[..., KvsimApp], pressure: Recording) -> None:
    app = make_app(pressure)
    async with app.run_test(size=(200, 60)) as pilot:
        session = next(iter(app.playback.sessions()))
        seen = {}
        for _ in range(3):
            await pilot.press("f", "home", "]")
            at = session.listed_events.frame == session.player.frame
            seen[session.event_filter] = set(session.listed_events.kind[at].tolist())
        assert seen[EventFilter.SHORTAGES] == {EventKind.PREEMPTED}
        assert seen[EventFilter.FINISHES] == {EventKind.FINISHED}
        assert session.event_filter is EventFilter.ALL
        app.playback.follow(pressure.row_of("r266"))
        for _ in range(3):
            await pilot.press("f")
        assert session.event_filter is EventFilter.FOLLOWED
        assert set(session.listed_events.request.tolist()) == {pressure.row_of("r266")}


async def test_x_saves_the_numbers(
    three_runs: list[Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = KvsimApp(ComparedRuns(three_runs), clock=lambda: 0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("end", "x")
    (file,) = tmp_path.iterdir()
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["policy"] for row in rows] == ["paged", "contiguous", "static"]  # fastest first
    assert {row["tokens_served"] for row in rows} == {str(three_runs[0].requests.output_tokens.sum())}
    for row in rows:
        states = [int(value) for name, value in row.items() if name.endswith("_slots") and name != "capacity_slots"]
        assert sum(states) == int(row["capacity_slots"])


@pytest.mark.parametrize("converter", [True, False])
async def test_capital_s_saves_a_png_where_that_is_possible(
    make_app: Callable[..., KvsimApp],
    tiny: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    converter: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    if converter:
        script = tmp_path / "convert"
        script.write_text("#!/bin/sh\ncat >/dev/null\nprintf PNG\n")
        script.chmod(0o755)
    monkeypatch.setattr(picture_file.shutil, "which", lambda _: str(tmp_path / "convert") if converter else None)
    app = make_app(tiny)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S")
        await app.workers.wait_for_complete()
        await pilot.pause()
        said = " ".join(notification.message for notification in app._notifications)
    if converter:
        assert (tmp_path / "tiny-step0.png").read_bytes() == b"PNG"
    else:
        assert (tmp_path / "tiny-step0.svg").read_text().startswith("<svg")
        assert "PNG needs rsvg-convert: install librsvg2-bin" in said


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("#!/bin/sh\ncat >/dev/null\necho no font >&2\nexit 3\n", "failed with exit status 3: 'no font'"),
        ("#!/no/such/shell\n", "cannot be run: No such file or directory"),
    ],
)
async def test_a_converter_that_fails_is_not_said_to_be_missing(
    make_app: Callable[..., KvsimApp],
    tiny: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    converter = tmp_path / "rsvg-convert"
    converter.write_text(script)
    converter.chmod(0o755)
    monkeypatch.setattr(picture_file.shutil, "which", lambda _: str(converter))
    with pytest.raises(UsageError, match=f"rsvg-convert {sentence}; an SVG needs no converter"):
        picture_file.png_of("<svg/>")
    app = make_app(tiny)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S")
        await app.workers.wait_for_complete()
        await pilot.pause()
        said = " ".join(notification.message for notification in app._notifications)
    assert sentence in said
    assert (tmp_path / "tiny-step0.svg").read_text().startswith("<svg")


def test_a_converter_that_does_not_end_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = tmp_path / "rsvg-convert"
    converter.write_text("#!/bin/sh\nexec sleep 60\n")
    converter.chmod(0o755)
    monkeypatch.setattr(picture_file.shutil, "which", lambda _: str(converter))
    monkeypatch.setattr(picture_file, "_CONVERSION_S", 0.1)
    with pytest.raises(UsageError, match=r"did not end within 0\.1 seconds; an SVG needs no converter"):
        picture_file.png_of("<svg/>")


@pytest.mark.skipif(shutil.which("rsvg-convert") is None, reason="needs rsvg-convert")
async def test_a_png_has_its_letters_in_their_columns(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        png = picture_file.png_of(picture_file.svg_of(app.screen, app.symbols))
        text = app.screen._compositor.render_strips()[0].text.rstrip()
    pixels = matplotlib.image.imread(io.BytesIO(png))
    # The last letter of the first line is in its column, and nothing is in the one behind it.
    wide, tall = CELL
    assert pixels.shape[1] == 2 * (80 * wide + 24)
    left = 2 * (12 + len(text) * wide)
    first_line = pixels[2 * 13 : 2 * (11 + tall), :, :3].std(axis=0).max(axis=1)
    assert first_line[left - 2 * wide : left].max() > 0.05
    assert first_line[left + 4 : left + 2 * wide].max() < 0.02


async def test_the_tables_of_a_followed_request_have_a_row_for_each_kind_of_layers() -> None:
    """Opened on a followed request, whose height the style sheet settles only after the lines were written."""
    gpu, model = find_gpu("H200"), find_model("gemma-3-4b-it")
    machine = Machine(gpu=gpu, model=model, kv_bytes=1 << 30, step_time=step_times(gpu, model, "vllm"))
    work = Workload(arrival_s=[0.0, 0.0], prompt_tokens=[1500, 100], output_tokens=[30, 30])
    recording = simulate(work, Paged(scheduler=ContinuousSettings(max_model_len=4000)), machine)
    session = Session(recording)
    session.followed = 0
    app = KvsimApp(session, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=(130, 42)) as pilot:
        await pilot.pause()
        await pilot.press("right")
        await pilot.pause()
        table = app.query_one(BlockTable)
        lines = "\n".join(table.render_line(y).text for y in range(table.size.height))
    for kind in layer_kinds(session.replay):
        assert kind.words in lines
    assert "held" in lines


async def test_a_block_table_that_is_too_long_counts_what_it_hides_and_scrolls(pressure: Recording) -> None:
    session = Session(pressure, at_s=3.1)
    session.followed = pressure.row_of("r112")
    app = KvsimApp(session, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        table = app.query_one(BlockTable)

        def lines() -> list[str]:
            return [table.render_line(y).text.strip() for y in range(table.size.height)]

        assert table.num_lines > table.size.height
        newest = lines()
        assert newest[0] == f"… {table.num_lines - table.size.height + 1} blocks before, scroll"
        assert newest[-1] == "16–60 → 1417–1373"
        table.focus()
        await pilot.press(*["up"] * 20)
        oldest = lines()
        assert oldest[0].startswith("0→")
        assert oldest[-1].endswith("blocks after, scroll")
        await pilot.press(*["down"] * 20)
        assert lines() == newest


async def test_an_inspector_without_room_leaves_out_earlier_holders_first(pressure: Recording) -> None:
    session = Session(pressure, at_s=9.0)
    session.followed = int(session.replay.live_requests()[-1])
    app = KvsimApp(session, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=(120, 60)) as pilot:
        app.query_one(PoolView).select(300)
        await pilot.pause()
        roomy = text_of(app.query_one(Inspector))
        assert "before  " in roomy
        await pilot.resize_terminal(120, 38)
        await pilot.pause()
        tight = text_of(app.query_one(Inspector))
    assert "before  " not in tight
    assert "queued for" in tight


@given(st.lists(st.integers(0, 40), unique=True, max_size=30), st.randoms(use_true_random=False))
def test_extents_of_a_table_tell_each_of_its_blocks_once(addresses: list[int], random: Random) -> None:
    order = list(range(len(addresses)))
    random.shuffle(order)
    extents = block_extents(np.array(order, np.int64), np.array([addresses[at] for at in order], np.int64))
    told = [
        (extent.position + at, extent.address + extent.step * at) for extent in extents for at in range(extent.length)
    ]
    assert told == list(enumerate(addresses))
    assert [extent.words(COLOR) for extent in block_extents(np.arange(5), np.array([7, 6, 5, 9, 2]))] == [
        "0–2 → 7–5",
        "3→9",
        "4→2",
    ]


def test_a_headline_counts_the_gpus_of_a_model() -> None:
    session = Session(read(find("vllm-2xh200-llama-3-8b-light")))
    model_and_gpus = headline(session, short=False)[2]
    assert model_and_gpus.endswith("on 2 x H200")
    assert headline(session, short=True)[2].endswith("on 2 x H200")


async def test_a_line_through_all_charts_marks_the_frame_whose_values_are_at_the_left(
    make_app: Callable[..., KvsimApp], pressure: Recording
) -> None:
    app = make_app(pressure)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        chart, session = app.query_one(TimelineChart), app.playback.session
        for share in (0.2, 0.5, 0.8):
            session.player.go_to_time(share * session.player.duration_s)
            app.playback.show_panels()
            await pilot.pause()
            lines = [chart.render_line(y).text for y in range(chart.size.height)]
            assert {line[GUTTER + chart.cursor_column] for line in lines[:-1]} == {"┃"}
            now, preempted = session.player.frame, session.recording.steps.preempted
            counts = {name: session.step_column(name)[now] for name in ("running", "waiting")}
            counts["preempted"] = preempted[: now + 1].sum()
            labels = [line[:GUTTER].split() for line in lines[-4:-1]]
            assert labels == [[name, f"{number:,}"] for name, number in counts.items()]
