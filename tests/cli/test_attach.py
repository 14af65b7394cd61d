"""`kvsim tui --attach -o` on a terminal: what was seen is kept, however the interface ends."""

from __future__ import annotations

import os
import pty
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from types import SimpleNamespace

import pytest

from kvsim.cli.attach import attach
from kvsim.files.scratch import ENDING_SIGNALS
from kvsim.recording import read
from tests.live.vllm_like import serving
from tests.thinned import one_of
from tests.tui.test_live import Server
from tests.waiting import until

PATIENCE_S = 40.0


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process_id, self._terminal = pty.fork()
        if not self.process_id:
            environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
            os.execve(sys.executable, [sys.executable, "-m", "kvsim", *arguments], environment)
        self.shown = b""
        self._status: int | None = None

    def shows(self, words: bytes) -> bool:
        """Whether these words have come to the terminal by now."""
        self.has_ended()
        return words in self.shown

    def has_ended(self) -> bool:
        """Read what there is to read; return whether the command has ended."""
        if self._terminal >= 0 and select([self._terminal], [], [], 0)[0]:
            with suppress(OSError):  # it has gone, with its terminal
                self.shown += os.read(self._terminal, 1 << 16)
        if self._status is None:
            process_id, status = os.waitpid(self.process_id, os.WNOHANG)
            self._status = status if process_id else None
        return self._status is not None

    def close(self) -> None:
        """Take the terminal away, as a window does that is closed, and a connection that breaks."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def send(self, *numbers: signal.Signals) -> None:
        """Send these signals to the command."""
        for number in numbers:
            os.kill(self.process_id, number)

    def end(self) -> None:
        """Let nothing go on after a test."""
        if not self.has_ended():
            self.send(signal.SIGKILL)
            os.waitpid(self.process_id, 0)
        self.close()


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., Terminal]]:
    """Runs a command on a terminal."""
    started = list[Terminal]()

    def start(*arguments: str) -> Terminal:
        started.append(Terminal(*arguments))
        return started[-1]

    yield start
    for terminal in started:
        terminal.end()


ENDINGS: dict[str, Callable[[Terminal], None]] = {
    "the terminal is closed": Terminal.close,
    "SIGTERM": lambda terminal: terminal.send(signal.SIGTERM),
    "SIGHUP and more": lambda terminal: terminal.send(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM),
}


@pytest.mark.parametrize("ending", one_of(2, ENDINGS))
def test_what_was_seen_is_a_recording(on_terminal: Callable[..., Terminal], tmp_path: Path, ending: str) -> None:
    server = Server()
    try:
        server.begin()
        server.step()
        terminal = on_terminal("tui", "--attach", server.publisher.address, "-o", str(tmp_path / "seen"))
        until(lambda: terminal.shows(b"LIVE"), within_s=PATIENCE_S)
        ENDINGS[ending](terminal)
        until(terminal.has_ended, within_s=PATIENCE_S)
    finally:
        server.publisher.close()
    assert len(read(tmp_path / "seen").steps) >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]
    assert b"Traceback" not in terminal.shown
    assert (b"\x1b[?1049l" in terminal.shown) == ("SIG" in ending), "the terminal is as it was"


def test_what_was_seen_of_metrics_is_a_table(on_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    with serving(64) as (address, _):
        terminal = on_terminal("tui", "--attach", address, "-o", str(tmp_path / "seen.csv"))
        until(lambda: terminal.shows(b"METRICS"), within_s=PATIENCE_S)
        terminal.send(signal.SIGHUP)
        until(terminal.has_ended, within_s=PATIENCE_S)
    assert (tmp_path / "seen.csv").read_text().count("\n") > 1


def test_a_server_without_a_step_leaves_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Afterwards signals have their handlers again: a process that is started later could not be ended otherwise."""
    handlers = [signal.getsignal(number) for number in ENDING_SIGNALS]
    server, output = Server(), tmp_path / "seen"
    quits_at_once = SimpleNamespace(attach=lambda *_, **__: None)
    flags = {"kv_events": None, "kv_events_replay": None, "overwrite": False, "ascii_only": False, "calm": False}
    try:
        attach(quits_at_once, server.publisher.address, output, **flags)
    finally:
        server.publisher.close()
    assert [signal.getsignal(number) for number in ENDING_SIGNALS] == handlers
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == f"{output} was not written: the server sent no step."
    assert not output.exists()
