"""Every command that writes keeps what it did not write, or a person has edited, and replaces what it did."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.errors import UsageError
from kvsim.files.overwriting import may_replace
from kvsim.plots import may_save

FLAG = "--overwrite replaces it"
SHIPPED = "hf-h200-granite-350m-batch500"
FEW = ("--num-requests", "3", "--engine", "interpreted", "--no-band")
FILM = ("--length", "1", "--frames-per-second", "2")
WRITES = {
    "rec": ("run", *FEW, "-o", "rec"),
    "servers": ("run", *FEW[:-1], "--replicas", "2", "-o", "servers"),
    "compared": ("compare", "--num-requests", "3", "-o", "compared"),
    "page": ("report", "rec", "-o", "page"),
    "w.parquet": ("import", "rec", "-o", "w.parquet"),
    "t.parquet": ("sweep", "--num-requests", "3", "--vary", "num-blocks=100,200", "--jobs", "1", "-o", "t.parquet"),
    "f.png": ("plot", "queue", "rec", "-o", "f.png"),
    "f.svg": ("plot", "queue", "rec", "-o", "f.svg"),
    "f.pdf": ("plot", "queue", "rec", "-o", "f.pdf"),
    "s.svg": ("tui", "rec", "--screenshot", "s.svg"),
    "s.png": ("tui", "rec", "--screenshot", "s.png"),
    "a.gif": ("animate", "rec", *FILM, "-o", "a.gif"),
    "a.html": ("animate", "rec", *FILM, "-o", "a.html"),
    "a.svg": ("animate", "rec", "-o", "a.svg"),
    "a.mp4": ("animate", "rec", *FILM, "-o", "a.mp4"),
    "l/1-room-for-the-longest-answer.md": ("explain", "1", "--markdown", "-o", "l"),
    "mine.toml": ("calibrate", SHIPPED, "--gpu-from", "auto", "-o", "mine.toml"),
}
NEEDS = {"s.png": "rsvg-convert", "a.mp4": "ffmpeg"}
Type = Callable[..., tuple[int, str, str]]


def _contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("page", "f.pdf"))) for name in WRITES]
)
def test_again_is_fine_and_over_what_was_changed_is_not(type_command: Type, tmp_path: Path, name: str) -> None:
    if name in NEEDS and shutil.which(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    if "rec" in WRITES[name][1:3] and name != "rec":
        assert type_command(*WRITES["rec"])[0] == 0
    target, arguments = tmp_path / name, WRITES[name]
    assert type_command(*arguments)[0] == 0
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o077)
    assert type_command(*arguments)[0] == 0
    assert {path.stat().st_mode & 0o077 for path in (target, *target.rglob("*"))} == {0}
    files = sorted(path for path in (target, *target.rglob("*")) if path.is_file())
    for changed in files:
        whole = changed.read_bytes()
        flipped = whole[:8] + bytes([whole[8] ^ 1]) + whole[9:]
        for content in (whole[: len(whole) // 2], flipped, b'It says "Made by: kvsim plot".\n'):
            changed.write_bytes(content)
            with pytest.raises(UsageError, match=f"{FLAG}|nothing was overwritten"):
                may_replace(target, arguments[0], overwrite=False, is_folder=target.is_dir())
        if changed == files[0]:
            before = _contents(target)
            code, _, complaint = type_command(*arguments)
            assert (code, FLAG in complaint or "nothing was overwritten" in complaint) == (2, True)
            assert _contents(target) == before
        changed.write_bytes(whole)
    may_replace(target, arguments[0], overwrite=False, is_folder=target.is_dir())


def test_a_text_that_a_person_wrote_beside_a_figure_stays(type_command: Type, tmp_path: Path) -> None:
    assert type_command(*WRITES["rec"])[0] == 0
    for name in ("f.png", "f.svg", "f.pdf"):
        words = (tmp_path / name).with_suffix(".alt.txt")
        assert type_command(*WRITES[name], "--overwrite")[0] == 0
        words.write_text("How long requests wait.\n")
        code, _, complaint = type_command(*WRITES[name])
        assert (code, FLAG in complaint) == (2, True)
        assert words.read_text() == "How long requests wait.\n"
        words.unlink()
        may_save(tmp_path / name, "plot", overwrite=False)


def test_a_figure_may_be_drawn_in_another_format_beside_the_first(type_command: Type, tmp_path: Path) -> None:
    assert type_command(*WRITES["rec"])[0] == 0
    drawn = [("plot", "queue", "rec", "-o", f"f.{ending}") for ending in ("png", "pdf", "png")]
    assert [type_command(*arguments)[::2] for arguments in drawn] == [(0, "")] * 3
    (tmp_path / "f.alt.txt").write_text("How long requests wait.\n")
    code, _, complaint = type_command(*drawn[1])
    assert (code, FLAG in complaint) == (2, True)
    assert (tmp_path / "f.alt.txt").read_text() == "How long requests wait.\n"


def test_what_another_command_wrote_is_not_replaced(type_command: Type, tmp_path: Path) -> None:
    names = ("rec", "compared", "w.parquet", "f.png", "s.svg")
    for name in names:
        assert type_command(*WRITES[name])[0] == 0, name
    files = names[2:]
    for name in files:
        before = (tmp_path / name).read_bytes()
        for other in files:
            if name != other and not (other == "f.png" and name == "w.parquet"):
                code, _, complaint = type_command(*WRITES[other][:-1], name)
                assert code == 2, (name, other)
                assert FLAG in complaint or "is written as" in complaint, (name, other)
        assert (tmp_path / name).read_bytes() == before
    for arguments in (WRITES["rec"], WRITES["compared"]):
        other = "compared" if arguments[0] == "run" else "rec"
        code, _, complaint = type_command(*arguments[:-1], other)
        assert (code, FLAG in complaint) == (2, True), complaint


def test_a_sweep_leaves_what_a_person_keeps_beside_its_points(type_command: Type, tmp_path: Path) -> None:
    notes = tmp_path / "t.parquet.parts" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    for _ in range(2):
        assert type_command(*WRITES["t.parquet"])[0] == 0
        assert [(path.name, path.read_text()) for path in notes.parent.iterdir()] == [("notes.txt", "mine")]


def test_a_file_that_cannot_say_who_wrote_it_needs_the_flag(type_command: Type, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("mine")
    export = ("export", SHIPPED, "--to", "azure", "-o", "table.csv")
    code, _, complaint = type_command(*export)
    assert (code, FLAG in complaint) == (2, True)
    assert (tmp_path / "table.csv").read_text() == "mine"
    assert type_command(*export, "--overwrite")[0] == 0
    assert (tmp_path / "table.csv").read_text().startswith("TIMESTAMP,")
