"""`kvsim animate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]
PRESSURE = "vllm-h200-llama-3-8b-sharegpt-pressure"


def test_a_gif_is_small_enough_for_a_post_by_default(kvsim: Run, tmp_path: Path) -> None:
    done = kvsim("animate", PRESSURE, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "pool.gif\n", "")
    assert (tmp_path / "pool.gif").stat().st_size < 5_000_000


def test_two_runs_on_one_page(kvsim: Run, tmp_path: Path) -> None:
    done = kvsim("animate", PRESSURE, PRESSURE, "-o", "two.html", "--length", "1", "--until", "5", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "two.html").read_text(encoding="utf-8").count('"name":') == 2


def test_a_film_that_ends_before_a_run_says_so(kvsim: Run, tmp_path: Path) -> None:
    done = kvsim("animate", PRESSURE, "hf-h200-llama-3-8b-sharegpt-batch16", "--length", "1", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "pool.gif\n")
    assert done.stderr.startswith("the film ends at ")
    assert "--until" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-o", "x.avi"), "x.avi ends in .avi; a film is written as .gif, .mp4, .html, .svg."),
        (("--length", "0"), "--length should be above 0 and below 10,000, not 0.0."),
        (("--frames-per-second", "nan"), "--frames-per-second should be above 0"),
        (("--until", "-1"), "--until should be a time above 0 s, not -1.0."),
        ((PRESSURE,) * 4, "5 recordings were given; give 1 to 4"),
        (("--max-mib", "0.001", "--length", "0.2"), "two frames of this film take"),
    ],
)
def test_what_cannot_be_filmed(kvsim: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = kvsim("animate", PRESSURE, *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"kvsim: {sentence}")
    assert not list(tmp_path.iterdir())


def test_a_race_is_written_as_svg(kvsim: Run, tmp_path: Path) -> None:
    done = kvsim("animate", PRESSURE, PRESSURE, "-o", "race.svg", "--length", "20", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<animate" in (tmp_path / "race.svg").read_text()
