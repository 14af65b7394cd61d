"""Lessons for people who read, through the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from kvsim.memory.packing import first_fit_decreasing

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., tuple[int, str, str]]


def test_without_a_number_the_lessons_are_listed(type_command: Run) -> None:
    code, output, complaint = type_command("explain")
    assert (code, complaint) == (0, "")
    assert "1  Room for the longest answer" in output
    assert "7  Why bandwidth" in output


def test_a_lesson_is_printed_with_pictures(type_command: Run) -> None:
    code, output, complaint = type_command("explain", "1", "--ascii")
    assert (code, complaint) == (0, "")
    assert output.isascii()
    assert "x never written 9" in output
    assert "x" * 70 in output


def test_markdown_comes_with_its_figures(type_command: Run, tmp_path: Path) -> None:
    code, output, complaint = type_command("explain", "2", "--markdown", "-o", "out")
    assert (code, complaint) == (0, "")
    assert output == "out/2-the-padding-problem.md\n"
    text = (tmp_path / output.strip()).read_text()
    figures = sorted(file.name for file in (tmp_path / "out").glob("*.svg"))
    assert len(figures) == text.count("](")
    for figure in figures:
        assert f"]({figure})" in text


def test_the_same_lesson_has_the_same_bytes(type_command: Run, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        type_command("explain", "6", "--markdown", "-o", folder)
    contents = [{file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()} for folder in ("one", "two")]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("next",), 2, "there is no lesson 'next'; there are 1, 2, "),
        (("14",), 2, "there is no lesson '14'; there are 1, 2, "),
        (("own.toml",), 1, "own.toml: a lesson's file name should begin with its number"),
        (("8-own.toml",), 1, "8-own.toml cannot be read"),
        (("1", "--markdown"), 2, "--markdown requires -o; give both."),
        (("1", "-o", "out"), 2, "-o requires --markdown; give both."),
        (("--markdown", "-o", "out"), 2, "--markdown writes one lesson; give its number"),
        (("1", "--markdown", "-o", "out", "--ascii"), 2, "--ascii has no effect with --markdown; leave one out."),
    ],
)
def test_misuse_is_a_sentence(
    type_command: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    found, output, complaint = type_command("explain", *arguments)
    assert (found, output) == (code, "")
    assert complaint.startswith("kvsim: ")
    assert sentence in complaint
    assert complaint.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_packing_lesson_says_what_the_packer_does(type_command: Run) -> None:
    lesson = tomllib.loads((files("kvsim_tui.lessons") / "8-packing-for-training.toml").read_text())
    lengths = [item["prompt"] + item["answer"] for item in lesson["request"]]
    width = max(lengths) + 1  # and a token at its end
    packing = first_fit_decreasing(lengths, width)
    code, text, complaint = type_command("explain", "8")
    assert (code, complaint) == (0, "")
    count, padding = len(lengths), len(lengths) * width - sum(lengths) - len(lengths)
    assert f"padded: {count} sequences in {count} rows, {padding} slots of padding" in text
    assert f"packed: {count} sequences in {len(packing.rows)} rows, {packing.num_padding} slots of padding" in text
