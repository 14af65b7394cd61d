"""The help of all commands by task, the completion of a shell, and the manual page."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from kvsim.cli import cli

ALL = cli.list_commands(None)  # type: ignore[arg-type]


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str) -> list[str]:
    """What a shell offers for the last of `words`."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    monkeypatch.setenv("_KVSIM_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        cli(prog_name="kvsim")
    return [name for line in capsys.readouterr().out.splitlines() if (name := line.partition(",")[2])]


def test_every_command_stands_once_below_a_task() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    tasks = re.split(r"(?m)^\S.*:$", text)[2:]
    assert len(tasks) == 6
    listed = [name for task in tasks for name in re.findall(r"(?m)^  (\w+) ", task)]
    assert listed == ALL
    assert text.index("See where memory goes:") < text.index("Ask about a server:") < text.index("Simulate:")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    result = CliRunner().invoke(cli, ["--completion", shell])
    assert (result.exit_code, "_KVSIM_COMPLETE" in result.output) == (0, True)


def test_an_unknown_shell_is_refused() -> None:
    result = CliRunner().invoke(cli, ["--completion", "cmd"])
    assert result.exit_code == 2
    assert "'cmd' is not one of 'bash', 'zsh', 'fish'" in result.output


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kvsim doc", ["doctor"]),
        ("kvsim size --model qwen3-8", ["Qwen3-8B"]),
        ("kvsim size --model Qwen/Qwen3-8", ["Qwen/Qwen3-8B"]),
        ("kvsim run --gpu h20", ["H200", "H20"]),
        ("kvsim run --gpu nothing", []),
    ],
)
def test_names_are_completed(
    words: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(monkeypatch, capsys, words) == offered


def test_a_completed_gpu_is_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in completed(monkeypatch, capsys, "kvsim size --gpu "):
        assert " " not in name
        assert CliRunner().invoke(cli, ["size", "--model", "opt-125m", "--gpu", name]).exit_code == 0, name


@pytest.fixture(scope="module")
def page() -> str:
    return CliRunner().invoke(cli, ["--man"]).output


def test_the_manual_page_has_every_command_and_flag(page: str) -> None:
    assert re.findall(r'(?m)^\.SS "kvsim (\w+)', page) == ALL
    part = page.partition('.SS "kvsim size')[2].partition(".SS")[0]
    assert r"\fB\-\-tensor\-parallel\-size N\fR" in part
    assert page.count(".SH") == 4 + 6


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_takes_the_manual_page_without_a_warning(page: str) -> None:
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "kvsim - Show where the memory of an LLM server goes" in done.stdout


@pytest.mark.parametrize("command", ["tui", "info", "run"])
def test_every_line_of_the_flags_is_of_a_flag(command: str) -> None:
    _, _, flags = CliRunner().invoke(cli, [command, "--help"]).output.partition("Options:\n")
    named = [line.split()[0] for line in flags.splitlines() if line.startswith("  ") and line[2:3].strip()]
    assert named
    assert [name for name in named if not name.startswith("-")] == []
