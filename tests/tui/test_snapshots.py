"""What the screen looks like.

After a change that was meant: `pytest tests/tui --snapshot-update`, and look at the pictures.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

import kvsim_tui as tui
from kvsim.errors import UsageError
from kvsim_tui.app import KvsimApp
from kvsim_tui.export.picture_file import svg_of, wait_until_drawn
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.playback.compared_runs import ComparedRuns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion

    from kvsim.recording import Recording


class SvgExtension(SingleFileSnapshotExtension):
    """One file per picture, that a browser can show."""

    _write_mode = WriteMode.TEXT
    file_extension = "svg"


@pytest.fixture
def picture(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(SvgExtension)


async def _draw(app: KvsimApp, size: tuple[int, int], *keys: str) -> str:
    async with app.run_test(size=size) as pilot:
        await pilot.press(*keys)
        await wait_until_drawn(pilot)
        return svg_of(app.screen, app.symbols)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("name", ["paged", "static"])
async def test_screen(
    make_app: Callable[..., KvsimApp],
    shipped: Callable[[str], Recording],
    picture: SnapshotAssertion,
    name: str,
    size: tuple[int, int],
) -> None:
    recording = shipped(name)
    assert await _draw(make_app(recording, at_s=0.6 * recording.duration_s, by_owner=True), size) == picture


async def test_following_a_request(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], picture: SnapshotAssertion
) -> None:
    app = make_app(shipped("paged"), at_s=10.0)
    assert await _draw(app, (160, 48), "tab", "down", "down", "down", "enter") == picture


async def test_single_slots(make_app: Callable[..., KvsimApp], tiny: Recording, picture: SnapshotAssertion) -> None:
    assert await _draw(make_app(tiny, at_s=1.0), (80, 24)) == picture


async def test_no_color(
    make_app: Callable[..., KvsimApp],
    shipped: Callable[[str], Recording],
    picture: SnapshotAssertion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert await _draw(make_app(shipped("static"), at_s=5.0), (120, 40)) == picture


async def test_ascii(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], picture: SnapshotAssertion
) -> None:
    assert await _draw(make_app(shipped("paged"), at_s=10.0, ascii=True), (80, 24)) == picture


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("kind", ["compare", "lesson"])
async def test_guided_and_compared(
    three_runs: list[Recording], picture: SnapshotAssertion, kind: str, size: tuple[int, int]
) -> None:
    opening = ComparedRuns(three_runs, at_s=0.2) if kind == "compare" else Guided(find_lesson("1"))
    assert await _draw(KvsimApp(opening, clock=lambda: 0.0, flash_s=0), size, *(["]"] * (kind == "lesson"))) == picture


@pytest.mark.parametrize("kind", ["compare", "lesson"])
async def test_guided_and_compared_without_color(
    three_runs: list[Recording], picture: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    opening = ComparedRuns(three_runs, at_s=0.2) if kind == "compare" else Guided(find_lesson("1"))
    assert await _draw(KvsimApp(opening, clock=lambda: 0.0, flash_s=0), (120, 40)) == picture


async def test_light(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], picture: SnapshotAssertion
) -> None:
    app = make_app(shipped("paged"), at_s=10.0)
    async with app.run_test(size=(120, 40)) as pilot:
        app.theme = "kvsim-light"
        await pilot.pause()
        await pilot.press("right")
        await wait_until_drawn(pilot)
        assert svg_of(app.screen, app.symbols) == picture


async def test_list_of_lessons(make_app: Callable[..., KvsimApp], tiny: Recording, picture: SnapshotAssertion) -> None:
    assert await _draw(make_app(tiny), (80, 24), "l") == picture


async def test_help(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], picture: SnapshotAssertion
) -> None:
    assert await _draw(make_app(shipped("paged"), at_s=10.0), (120, 40), "?") == picture


def test_a_screenshot_has_the_same_bytes_every_time(shipped: Callable[[str], Recording], tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        tui.screenshot(shipped("large"), tmp_path / name, at_s=0.5, size=(100, 30))
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "two.svg"]


def test_a_screenshot_that_cannot_be_written_leaves_nothing(tiny: Recording, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose a folder that exists"):
        tui.screenshot(tiny, tmp_path / "missing" / "file.svg")
    assert not list(tmp_path.iterdir())


def test_importing_the_package_loads_no_textual() -> None:
    code = "import sys, kvsim_tui; sys.exit('textual' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
