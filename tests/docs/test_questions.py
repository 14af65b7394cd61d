"""Pages of questions: what they quote below a command is what it prints."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.cli import cli

from ..conftest import REPOSITORY

PAGES = sorted(page for page in (REPOSITORY / "docs/questions").glob("*.md") if page.name != "README.md")
_QUOTE = re.compile(
    r"```sh\n(?P<commands>(?:[^`])*?)```\n\n(?:`(?P<quoted>[^`]+)`|[^\n]*\n[^`]*?```text\n(?P<shown>.*?)```)", re.S
)


def printed(command: str) -> str:
    """What a command prints on both streams, in one line; one that only reads its flags."""
    words = shlex.split(command.partition("  #")[0])
    result = CliRunner().invoke(cli, words[1:])
    said = f"kvsim: {result.exception}" if result.exit_code and not result.output else ""
    return " ".join(f"{result.output} {said}".split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_quotation_below_a_command_is_what_it_prints(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for match in _QUOTE.finditer(page.read_text(encoding="utf-8")):
        lines = match["commands"].splitlines()
        for line in lines:
            if line.startswith("printf "):
                subprocess.run(["bash", "-c", line], check=True)
        commands = [line for line in lines if line.startswith(("kvsim size", "kvsim doctor"))]
        if not commands:
            continue
        output = " ".join(map(printed, commands))
        quoted = match["quoted"] or match["shown"]
        for piece in re.split(r"…|\n…\n", quoted):
            assert " ".join(piece.split()) in output, piece


def test_the_pages_quote_something() -> None:
    assert sum(len(_QUOTE.findall(page.read_text(encoding="utf-8"))) for page in PAGES) >= 6


_ROW = re.compile(r"\| (?P<question>[^|]+\?) \| `(?P<command>kvsim [^|]+)` \| (?P<answer>[^|]+) \|")
ASKED = list(_ROW.finditer((REPOSITORY / "docs/questions/README.md").read_text(encoding="utf-8")))
_QUICK = ("kvsim size",)


def check_answer(asked: re.Match[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    assert " ".join(asked["answer"].split()) in printed(asked["command"])


def test_twenty_five_questions_are_asked() -> None:
    assert len(ASKED) == 25


@pytest.mark.parametrize(
    "asked", [each for each in ASKED if each["command"].startswith(_QUICK)], ids=lambda each: each["question"]
)
def test_an_account_of_memory_begins_as_the_page_says(
    asked: re.Match[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answer(asked, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [each for each in ASKED if not each["command"].startswith(_QUICK)], ids=lambda each: each["question"]
)
def test_an_answer_of_a_run_begins_as_the_page_says(
    asked: re.Match[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answer(asked, tmp_path, monkeypatch)
