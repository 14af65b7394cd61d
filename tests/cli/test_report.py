"""`kvsim report`: one page, a Markdown file, the figures, and commands that can be run again."""

from __future__ import annotations

import html
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageColor

from kvsim.plots.report_page import facts_of
from kvsim.recording import read

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(kvsim: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison, and the report of two of its runs."""
    folder = tmp_path_factory.mktemp("report")
    assert kvsim("compare", "--num-requests", "12", "-o", "a <b> & c", folder=folder).returncode == 0
    done = kvsim("report", "a <b> & c/paged", "a <b> & c/static", "-o", "out", folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out/report.html\n", "")
    return folder


def test_the_page_needs_nothing_else(folder: Path) -> None:
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"@[A-Z]+@", page)
    assert not re.search(r'(src|href)="(?!data:)', page)
    figures = sorted(path.name for path in (folder / "out" / "figures").glob("*.png"))
    assert page.count('src="data:image/png;base64,') == len(figures) == 12
    assert all(re.findall(r'alt="([^"]*)"', page))
    assert "<b>" not in page, "names are text, never markup"


def test_the_words_are_the_same_in_markdown(folder: Path) -> None:
    page = html.unescape((folder / "out" / "report.html").read_text(encoding="utf-8"))
    text = (folder / "out" / "report.md").read_text(encoding="utf-8")
    for sentence in re.findall(r"^- (.*)$", text, re.MULTILINE):
        assert sentence in page
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(images) == 12
    assert all((folder / "out" / image).is_file() for image in images)
    assert "preemptions" in text


def test_the_commands_do_it_again(kvsim: Run, folder: Path, tmp_path: Path) -> None:
    text = (folder / "out" / "report.md").read_text(encoding="utf-8")
    block = re.search(r"```\n(.*?)\n```", text, re.DOTALL)
    assert block
    made, again = block[1].splitlines()
    assert made.startswith("kvsim compare --num-requests 12")
    before = (folder / "out" / "report.html").read_bytes()
    assert kvsim(*shlex.split(again)[1:], folder=folder).returncode == 0
    assert (folder / "out" / "report.html").read_bytes() == before
    command = shlex.split(re.findall(r"^`(kvsim plot waste-bars .*)`$", text, re.MULTILINE)[0])
    assert kvsim(*command[1:-1], tmp_path / "again.png", folder=folder).returncode == 0
    assert (tmp_path / "again.png").read_bytes() == (folder / "out" / "figures" / "waste-bars.png").read_bytes()


def test_a_dark_report_is_dark_with_its_figures_and_so_are_its_commands(kvsim: Run, folder: Path) -> None:
    assert kvsim("report", "a <b> & c/paged", "-o", "dark", "--theme", "dark", folder=folder).returncode == 0
    page = (folder / "dark" / "report.html").read_text(encoding="utf-8")
    ground = re.search(r"color-scheme: dark;.* --ground: (#\w+);", page)
    assert ground
    text = (folder / "dark" / "report.md").read_text(encoding="utf-8")
    commands = re.findall(r"^`(kvsim plot .*)`$", text, re.MULTILINE)
    figures = sorted((folder / "dark" / "figures").glob("*.png"))
    assert len(commands) == len(figures) > 5
    for figure in figures:
        with Image.open(figure) as image:
            assert image.convert("RGB").getpixel((0, 0)) == ImageColor.getrgb(ground[1])
    assert all(command.endswith(" --theme dark") for command in commands)
    assert "kvsim report 'a <b> & c/paged' -o dark --theme dark" in text


def test_a_folder_that_is_no_report_is_left_alone(kvsim: Run, folder: Path) -> None:
    done = kvsim("report", "a <b> & c/paged", "-o", "a <b> & c", folder=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "kvsim: a <b> & c is a folder of recordings; --overwrite replaces it, or choose another name.\n"
    )


def test_times_that_were_never_measured_are_named(folder: Path) -> None:
    run = read(folder / "a <b> & c" / "paged")
    beyond = replace(run, meta=replace(run.meta, extra={"extrapolates": ["context_tokens up to 9, fitted on 1 to 5"]}))
    for recordings, expected in (([run], ()), ([run, beyond], ("no", "context_tokens up to 9, fitted on 1 to 5"))):
        about = dict(facts_of(recordings, "again").about)
        assert about.get("times extrapolate", ()) == expected
