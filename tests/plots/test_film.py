"""Films: what is in a frame, and that the files are small, whole and the same every time."""

from __future__ import annotations

import base64
import json
import re
import shutil
import tracemalloc
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import ImageColor
from PIL.GifImagePlugin import GifImageFile

from kvsim.cli import cli
from kvsim.display.palette import channels_of
from kvsim.errors import RecordingError, UsageError
from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.metrics import waste
from kvsim.plots import film_of, film_picture
from kvsim.plots.colors import THEMES
from kvsim.plots.film_page import write_page
from kvsim.plots.film_picture import frame_images, write_gif, write_mp4
from kvsim.replay import Replay

from ..conftest import PRESSURE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from PIL import Image

    from kvsim.plots.colors import Theme
    from kvsim.plots.film import Film
    from kvsim.recording import Recording

MIB = 1 << 20


def test_a_frame_is_the_pool_at_that_moment(by_hand: Recording) -> None:
    film = film_of([by_hand], num_frames=9)
    (reel,) = film.reels
    assert film.times_s.tolist() == np.linspace(0, 4, 9).tolist()
    replay, slots = Replay(by_hand), waste(by_hand)
    for row, time_s in enumerate(film.times_s.tolist()):
        frame = replay.frame_at(time_s)
        replay.seek(frame)
        assert reel.states[row].tolist() == replay.slots().argmax(axis=1).tolist()
        assert reel.shares_percent[row] == pytest.approx(100 * slots.slots[frame] / slots.capacity)
    assert reel.waiting.tolist() == [3, 3, 2, 2, 1, 1, 0, 0, 0]
    assert reel.finished.tolist() == [0] * 8 + [2]
    assert reel.about == "40 KiB, 40 slots"


def test_a_large_pool_is_sampled(static: Recording) -> None:
    (reel,) = film_of([static], num_frames=4).reels
    assert reel.states.shape == (4, 3200)
    assert re.search(r", one of every [0-9.]+ shown$", reel.about)


def test_reels_share_a_clock_and_the_shorter_one_stands_still(by_hand: Recording) -> None:
    steps = replace(by_hand.steps, start_s=by_hand.steps.start_s * 2, end_s=by_hand.steps.end_s * 2)
    slow = replace(by_hand, name="slow", steps=steps)
    film = film_of([by_hand, slow], num_frames=5, until_s=8.0)
    assert [reel.end_s for reel in film.reels] == [4.0, 8.0]
    assert (film.reels[0].states[2:] == film.reels[0].states[-1]).all()
    assert film_of([by_hand, slow], num_frames=5, until_s=2.0).times_s[-1] == 2.0


@pytest.mark.parametrize(("slower", "end_s"), [(1.2, 4.8), (2.0, 5.0), (100.0, 5.0)])
def test_a_run_that_is_much_longer_is_not_filmed_to_its_end(by_hand: Recording, slower: float, end_s: float) -> None:
    """Otherwise the shortest would be over in the first frames."""
    steps = replace(by_hand.steps, start_s=by_hand.steps.start_s * slower, end_s=by_hand.steps.end_s * slower)
    film = film_of([replace(by_hand, name="slow", steps=steps), by_hand], num_frames=5)
    assert film.times_s[-1] == pytest.approx(end_s)


@pytest.mark.parametrize(
    ("count", "arguments", "sentence"),
    [
        (5, {"num_frames": 3}, "5 recordings were given; give 1 to 4"),
        (0, {"num_frames": 3}, "0 recordings"),
        (1, {"num_frames": 1}, "a film of 1 frames was asked for"),
        (1, {"num_frames": 3, "until_s": 0.0}, r"end at a time above 0 s, not at 0\.0"),
        (1, {"num_frames": 3, "until_s": float("nan")}, "not at nan"),
    ],
)
def test_films_that_cannot_be(by_hand: Recording, count: int, arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        film_of([by_hand] * count, **arguments)  # type: ignore[arg-type]


def test_nothing_moves_where_no_time_passes(frozen: Recording) -> None:
    with pytest.raises(RecordingError, match="lasts no time"):
        film_of([frozen], num_frames=3)


def test_a_gif_shows_the_cells_in_their_colours(by_hand: Recording, tmp_path: Path) -> None:
    film = film_of([by_hand], num_frames=3)
    with GifImageFile(write_gif(film, tmp_path / "a.gif", frames_per_s=10, max_bytes=MIB)) as gif:
        assert gif.n_frames == 3
        assert gif.info["duration"] == 100
        assert gif.info["loop"] == 0
    picture = np.asarray(next(frame_images(film)).convert("RGB"))
    for state in (SlotState.TOKEN, SlotState.RESERVED, SlotState.FREE, SlotState.INTERNAL):
        color = [int(THEMES["light"].states[state][place : place + 2], 16) for place in (1, 3, 5)]
        area = (picture == color).all(axis=2).sum() > 1000
        assert area == bool((film.reels[0].states[0] == state).any()), state


def test_the_same_film_has_the_same_bytes(by_hand: Recording, paged: Recording, tmp_path: Path) -> None:
    film = film_of([by_hand, paged], num_frames=4)
    for write, ending in ((write_gif, "gif"), (write_page, "html")):
        first, second = (
            write(film, tmp_path / f"{name}.{ending}", frames_per_s=8, max_bytes=MIB).read_bytes() for name in "ab"
        )
        assert first == second
    assert len(list(tmp_path.iterdir())) == 4


def test_a_gif_drops_frames_to_stay_small(paged: Recording, tmp_path: Path) -> None:
    film = film_of([paged], num_frames=12)
    whole = write_gif(film, tmp_path / "whole.gif", frames_per_s=10, max_bytes=MIB).stat().st_size
    small = write_gif(film, tmp_path / "small.gif", frames_per_s=10, max_bytes=whole // 2)
    assert small.stat().st_size <= whole // 2
    with GifImageFile(small) as gif:
        assert gif.n_frames < 12
        assert gif.n_frames * gif.info["duration"] == pytest.approx(1200), "it takes as long as before"
    with pytest.raises(UsageError, match=r"two frames of this film take .* more than the 1,000 allowed"):
        write_gif(film, tmp_path / "tiny.gif", frames_per_s=10, max_bytes=1000)
    assert not (tmp_path / "tiny.gif").exists()


def test_a_page_has_its_data_in_it(by_hand: Recording, tmp_path: Path) -> None:
    rude = replace(by_hand, name='</script><b>"rude"')
    film = film_of([rude], num_frames=6)
    page = write_page(film, tmp_path / "a.html", frames_per_s=8, max_bytes=MIB).read_text(encoding="utf-8")
    assert not re.search(r"@[A-Z]+@", page)
    assert page.count("</script>") == 2
    assert "<b>" not in page.replace(r"<\/script><b>", "")
    assert not re.search(r'(src|href)="http', page), "it needs nothing from anywhere"
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    data = json.loads(match[1])
    (reel,) = data["reels"]
    assert sorted(data["colors"]) == ["dark", "light"], "the page follows the reader's system"
    for theme, colors in data["colors"].items():
        assert colors[SlotState.TOKEN] == THEMES[theme].states[SlotState.TOKEN]
        assert colors[NUM_STATES:] == list(THEMES[theme].owners)
    codes = np.frombuffer(zlib.decompress(base64.b64decode(reel["packed"])), np.uint8).reshape(6, reel["cells"])
    states, owners = film.reels[0].states, film.reels[0].owners
    hues = np.where((states == SlotState.TOKEN) & (owners >= 0), NUM_STATES + owners, states)
    assert film.by_owner
    assert (codes == hues).all()
    assert reel["name"] == rude.name
    with pytest.raises(UsageError, match="the page takes"):
        write_page(film, tmp_path / "b.html", frames_per_s=8, max_bytes=1000)


def test_a_dark_film_has_the_colours_of_the_dark_interface(by_hand: Recording, static: Recording) -> None:
    for recording in (by_hand, static):
        film = film_of([recording], num_frames=3)
        light, dark = (
            [np.asarray(image.convert("RGB")) for image in frame_images(film, theme)] for theme in ("light", "dark")
        )
        for theme, frames in (("light", light), ("dark", dark)):
            colors = THEMES[theme]  # type: ignore[index]
            corner = frames[0][0, 0].tolist()
            assert corner == list(ImageColor.getrgb(colors.ground))
            packed = np.unique(np.stack(frames).astype(np.int64) @ [1 << 16, 1 << 8, 1])
            shown = {(color >> 16, color >> 8 & 255, color & 255) for color in packed.tolist()}
            held = {channels_of(color) for color in (*colors.owners, colors.states[SlotState.PADDING])}
            assert shown & held
            assert ImageColor.getrgb(colors.ink) in shown
        assert [frame.shape for frame in light] == [frame.shape for frame in dark]


def test_a_theme_is_of_films_that_do_not_follow_the_readers_system(tmp_path: Path) -> None:
    films = []
    for theme in ("light", "dark"):
        flags = ["animate", PRESSURE, "-o", str(tmp_path / f"{theme}.gif"), "--length", "1"]
        made = CliRunner().invoke(cli, [*flags, "--theme", theme])
        assert made.exit_code == 0, made.output
        with GifImageFile(str(tmp_path / f"{theme}.gif")) as image:
            films.append(image.convert("L").getpixel((0, 0)))
    assert films[0] > 250
    assert films[1] < 40
    for name in ("a.html", "a.svg"):
        flags = ["animate", PRESSURE, "-o", str(tmp_path / name), "--theme", "dark"]
        refused = CliRunner().invoke(cli, flags)
        assert isinstance(refused.exception, UsageError | SystemExit)
        assert not (tmp_path / name).exists()


def test_an_mp4_needs_ffmpeg(by_hand: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film = film_of([by_hand], num_frames=3)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs ffmpeg, which is not on the PATH"):
        write_mp4(film, tmp_path / "a.mp4", frames_per_s=10, max_bytes=MIB)
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\necho broken codec >&2\nexit 3\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    with pytest.raises(UsageError, match=r"ffmpeg could not write .*a\.mp4: broken codec; a \.gif or \.html needs no"):
        write_mp4(film, tmp_path / "a.mp4", frames_per_s=10, max_bytes=MIB)
    assert [path.name for path in tmp_path.iterdir()] == ["ffmpeg"]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("no program", "ffmpeg cannot be run: "),
        ("#!/bin/sh\nexec /bin/sleep 60\n", "ffmpeg did not end within 2 seconds; "),
    ],
)
def test_an_ffmpeg_that_does_not_start_or_end_is_a_sentence(
    by_hand: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, sentence: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(film_picture, "_ENCODING_S", 0.0)
    (tmp_path / "ffmpeg").write_text(script)
    (tmp_path / "ffmpeg").chmod(0o755)
    with pytest.raises(UsageError, match=rf"{sentence}.*a \.gif or \.html needs no ffmpeg"):
        write_mp4(film_of([by_hand], num_frames=2), tmp_path / "a.mp4", frames_per_s=10, max_bytes=MIB)
    assert [path.name for path in tmp_path.iterdir()] == ["ffmpeg"]


def test_frames_reach_ffmpeg_one_at_a_time(by_hand: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film = film_of([by_hand], num_frames=40)
    frames = [image.convert("RGB").tobytes() for image in frame_images(film)]
    copies = tmp_path / "ffmpeg"  # it writes what it reads
    copies.write_text(f"#!/bin/sh\nfor last; do :; done\nexec {shutil.which('cat')} > $last\n")
    copies.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    tracemalloc.start()
    try:
        written = write_mp4(film, tmp_path / "a.mp4", frames_per_s=10, max_bytes=1 << 30)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written.read_bytes().startswith(b"".join(frames))
    assert most_bytes < 10 * len(frames[0]) < len(b"".join(frames)) / 3


def test_an_ffmpeg_that_ends_early_gets_no_more_frames(
    by_hand: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def counted(film: Film, theme: Theme) -> Iterator[Image.Image]:
        for image in frame_images(film, theme):
            drawn.append(image)
            yield image

    monkeypatch.setattr(film_picture, "frame_images", counted)
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\nexec 0<&-\necho disk full >&2\nexit 1\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="disk full"):
        write_mp4(film_of([by_hand], num_frames=400), tmp_path / "a.mp4", frames_per_s=10, max_bytes=MIB)
    assert len(drawn) < 400


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_an_mp4_is_one(by_hand: Recording, tmp_path: Path) -> None:
    film = film_of([by_hand], num_frames=3)
    first, second = (
        write_mp4(film, tmp_path / name, frames_per_s=10, max_bytes=MIB).read_bytes() for name in ("a.mp4", "b.mp4")
    )
    assert first[4:8] == b"ftyp"
    assert first == second


def test_all_panes_share_one_legend(by_hand: Recording, paged: Recording, static: Recording) -> None:
    assert film_of([by_hand], num_frames=3).by_owner, "few requests, each with a hue"
    for together in ([by_hand, static], [paged], [by_hand, paged]):
        film = film_of(together, num_frames=3)
        assert not film.by_owner, "padding, or more scattered requests than hues"
        picture = np.asarray(next(frame_images(film)).convert("RGB")).reshape(-1, 3)
        drawn = {tuple(color) for color in np.unique(picture, axis=0).tolist()}
        assert not drawn & {channels_of(color) for color in THEMES["light"].owners}


def test_cells_that_a_request_has_just_taken_light_up(paged: Recording) -> None:
    film = film_of([paged], num_frames=60)
    owners = film.reels[0].owners
    taken = (owners[1:] != owners[:-1]) & (owners[1:] >= 0)
    images = [np.asarray(image.convert("RGB")) for image in frame_images(film)]
    lit = np.array([(image == channels_of("#ffb300")).all(axis=2).sum() for image in images])
    in_legend, per_cell = lit[0], (lit[1:] - lit[0]) / np.maximum(taken.sum(axis=1), 1)
    assert 100 < in_legend < 200
    assert taken.sum() > 50
    assert set(per_cell[taken.any(axis=1)].tolist()) == {per_cell.max()}
    assert not per_cell[~taken.any(axis=1)].any()
