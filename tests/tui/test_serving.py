"""`kvsim tui --serve`, before there is any browser."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.cli.tui import _without_serving

ROOT = Path(__file__).parents[2]


def complaint(*arguments: str) -> str:
    """What `kvsim tui` says when it is misused."""
    done = subprocess.run(
        [sys.executable, "-m", "kvsim", "tui", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_a_port_that_is_taken() -> None:
    pytest.importorskip("textual_serve")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = complaint("--serve", "--port", str(port))
    assert said == f"kvsim: cannot serve on port {port}: Address already in use; name another one with --port.\n"


def test_a_port_without_a_server() -> None:
    assert complaint("--port", "8001") == "kvsim: --port requires --serve; give both.\n"


@pytest.mark.parametrize("port", [["--port", "9000"], ["--port=9000"], []])
def test_what_is_served_is_the_same_command_without_serving(port: list[str]) -> None:
    assert _without_serving(["tui", "rec", "--serve", *port, "--at", "3"]) == ["tui", "rec", "--at", "3"]
