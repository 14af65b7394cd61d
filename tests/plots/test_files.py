"""Pictures on disk."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import UsageError
from kvsim.plots import OF_A_SWEEP, save
from kvsim.plots.everything import OF_ONE, OF_SEVERAL
from kvsim.plots.waste_bars import waste_bars

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.recording import Recording


FIGURES = OF_SEVERAL | OF_ONE | OF_A_SWEEP


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "roofline"])
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_picture_has_the_same_bytes(by_hand: Recording, tmp_path: Path, name: str, kind: str) -> None:
    first, second = (save(FIGURES[name](by_hand, size=(4, 4)), tmp_path / f"{run}.{kind}").read_bytes() for run in "ab")
    assert first == second
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])
    assert b"matplotlib" not in first.lower() or kind == "svg", "a new version of a library is no news about the data"


def test_the_words_lie_beside_the_picture_and_nothing_else(by_hand: Recording, tmp_path: Path) -> None:
    picture = waste_bars(by_hand)
    assert save(picture, tmp_path / "where.png") == tmp_path / "where.png"
    assert {path.name for path in tmp_path.iterdir()} == {"where.png", "where.alt.txt"}
    words = (tmp_path / "where.alt.txt").read_text(encoding="utf-8")
    assert words == picture.alt_text + "\n"
    assert "token" in words


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.PNG.txt"])
def test_an_unknown_extension_is_refused(by_hand: Recording, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        save(waste_bars(by_hand), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(by_hand: Recording, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.*No such file"):
        save(waste_bars(by_hand), tmp_path / "nowhere" / "figure.png")


def test_a_picture_that_fails_leaves_the_old_one(by_hand: Recording, tmp_path: Path) -> None:
    target = tmp_path / "figure.png"
    target.write_bytes(b"old")
    picture = waste_bars(by_hand)
    picture.set_size_inches(1e6, 1e6)
    with pytest.raises(ValueError, match="too large"):
        save(picture, target)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


def test_drawing_needs_no_window_and_no_global_state() -> None:
    code = "import sys, kvsim.plots; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
