"""The command line in this process."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from kvsim.cli import main

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def type_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The entry point in an empty folder: exit code, output and complaint."""

    def run_once(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["kvsim", *arguments])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return code, *capsys.readouterr()

    return run_once


@pytest.fixture
def publisher() -> Iterator[Callable[[bytes], str]]:
    """Makes a server that says something to whoever connects, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answering(said: bytes) -> str:
            def answer() -> None:
                with suppress(OSError):
                    while True:
                        connection, _ = server.accept()
                        with connection, suppress(OSError):
                            connection.sendall(said)
                            connection.shutdown(socket.SHUT_WR)
                            connection.recv(1 << 16)

            threading.Thread(target=answer, daemon=True).start()
            return f"127.0.0.1:{server.getsockname()[1]}"

        yield answering
        server.shutdown(socket.SHUT_RDWR)
