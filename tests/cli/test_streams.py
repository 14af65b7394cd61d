"""Standard streams that are closed or full, and an environment that asks for windows, end in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = "run --num-requests 2 --engine interpreted --no-band"


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `line` with its first word kvsim, as a shell does."""
    command = f"'{sys.executable}' -m kvsim {line}"
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False, env=os.environ | environment
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (f"{RUN} -o rec >&-", 2, "standard output is closed, so there is nowhere to print"),
        ("--version >&-", 2, "standard output is closed"),
        (f"{RUN} >&- 2>&-", 2, ""),
        ("tui <&-", 2, "kvsim tui needs a terminal"),
        (f"{RUN} > /dev/full", 1, "No space left on device"),
        (f"{RUN} > /dev/full 2> /dev/full", 1, ""),
    ],
)
def test_a_stream_that_takes_nothing(tmp_path: Path, line: str, code: int, said: str) -> None:
    done = shell(line, tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)
    assert list(tmp_path.iterdir()) == []


def test_results_come_where_only_complaints_cannot(tmp_path: Path) -> None:
    assert shell(f"{RUN} --json 2>&-", tmp_path).stdout.startswith("{")


def test_a_figure_needs_no_window_whatever_the_environment_says(tmp_path: Path) -> None:
    line = "plot queue hf-h200-granite-350m-batch500 -o queue.png"
    done = shell(line, tmp_path, MPLBACKEND="nonsense")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "queue.png").read_bytes().startswith(b"\x89PNG")
