"""The process that serves viewers, driven by hand: what it does and keeps is counted, whatever a viewer does."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsim.capture import viewers
from kvsim.capture.viewers import MAX_VIEWERS, ViewerServer
from kvsim.files.eventline import line

META = line("meta", {"format": "kvsim-recording"})


class Engine:
    """A viewer server, its log, and a clock that stands still."""

    def __init__(self, listener: socket.socket) -> None:
        self.time_s = 0.0
        reading, self.log = os.pipe()
        self.reading = reading
        self.listener = listener
        self.address = listener.getsockname()
        self.server = ViewerServer(listener, reading, clock=lambda: self.time_s)

    def write(self, lines: bytes) -> None:
        os.write(self.log, lines + b"\n")
        self.turns(2)

    def turns(self, number: int = 3) -> None:
        for _ in range(number):
            self.server.turn(0)

    def pass_s(self, seconds: float = 1.0) -> None:
        self.time_s += seconds
        self.turns()

    def connect(self) -> socket.socket:
        """A client whose connection has been taken."""
        client = socket.create_connection(self.address, timeout=5)
        self.pass_s(0.02)
        return client

    def close(self) -> None:
        os.close(self.log)
        self.server.close()
        os.close(self.reading)


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine(socket.create_server(("127.0.0.1", 0)))
    yield found
    found.close()


def received(client: socket.socket) -> bytes:
    """What has been sent so far."""
    client.setblocking(False)
    try:
        return client.recv(1 << 20)
    except BlockingIOError:
        return b""


def test_a_viewer_gets_a_snapshot_and_then_everything(engine: Engine) -> None:
    engine.write(META)
    with engine.connect() as client:
        assert received(client) == META + line("joined", [], 0, 0) + b"\n"
        engine.write(line("seq"))
        assert received(client) == line("seq") + b"\n", "an empty line where the state is complete"


def test_nobody_joins_in_the_middle_of_a_change(engine: Engine) -> None:
    os.write(engine.log, META + b"\n" + line("seq"))
    engine.turns()
    with engine.connect() as client:
        engine.pass_s()
        assert (received(client), engine.server.num_snapshots) == (b"", 0)
        os.write(engine.log, line("arrive", "a", 0.0, 4, 4, 0, [])[:7])
        engine.pass_s()
        assert engine.server.num_snapshots == 0
        os.write(engine.log, line("arrive", "a", 0.0, 4, 4, 0, [])[7:] + b"\n")
        engine.pass_s()
        assert b'"joined",[0],1,0' in received(client)


def test_a_client_that_reconnects_in_a_loop_costs_one_snapshot_a_second(engine: Engine) -> None:
    engine.write(META)
    for _ in range(200):
        engine.connect().close()
        engine.write(line("seq"))
    assert engine.time_s == pytest.approx(4.0)
    assert engine.server.num_snapshots <= 5
    assert (engine.server.num_viewers, engine.server.queued_bytes) == (0, 0)


def test_more_viewers_than_are_served_are_told_so(engine: Engine) -> None:
    engine.write(META)
    clients = [engine.connect() for _ in range(50)]
    engine.pass_s()
    assert engine.server.num_viewers == MAX_VIEWERS
    assert engine.server.num_snapshots == 2, "one for the first, and one for all who came within the second"
    heard = [received(client) for client in clients]
    assert all(text.startswith(b'["meta"') for text in heard[:MAX_VIEWERS])
    assert all(text.startswith(b'["refused"') for text in heard[MAX_VIEWERS:])
    clients[0].close()
    engine.turns()
    with engine.connect() as late:
        engine.pass_s()
        assert received(late).startswith(b'["meta"'), "who leaves makes room"
    for client in clients:
        client.close()


def test_a_viewer_that_speaks_is_disconnected(engine: Engine) -> None:
    engine.write(META)
    with engine.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        engine.turns()
        assert engine.server.num_viewers == 0


def test_a_viewer_that_does_not_read_is_disconnected(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MAX_QUEUED_BYTES", 1 << 18)
    engine.write(META)
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with engine.connect():
        event = line("evict", list(range(10_000)))
        most_bytes = 0
        for _ in range(400):
            engine.write(event)
            most_bytes = max(most_bytes, engine.server.queued_bytes)
            if not engine.server.num_viewers:
                break
        assert (engine.server.num_viewers, engine.server.queued_bytes) == (0, 0)
        assert 0 < most_bytes <= (1 << 18) + len(event)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == descriptors


def test_a_viewer_that_leaves_is_noticed_while_the_engine_is_idle(engine: Engine) -> None:
    engine.write(META)
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(MAX_VIEWERS):
        engine.connect().close()
        engine.turns()
    assert engine.server.num_viewers == 0
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == descriptors


class Exhausted:
    """A listener of a process that has no descriptor left, for the first two connections."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self.failures = listener, 2

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_a_process_without_descriptors_serves_again_when_it_has_some() -> None:
    listener = Exhausted(socket.create_server(("127.0.0.1", 0)))
    engine = Engine(listener)  # type: ignore[arg-type]
    engine.write(META)
    with socket.create_connection(engine.address) as client:
        engine.turns()
        assert listener.failures == 1, "it rests after a failure"
        engine.pass_s(0.5)
        assert listener.failures == 1
        for _ in range(3):
            engine.pass_s(1.0)
        assert received(client).startswith(b'["meta"')
    engine.close()


def test_the_last_events_reach_the_viewers(engine: Engine) -> None:
    engine.write(META)
    with engine.connect() as client:
        event = line("evict", list(range(100_000)))
        os.set_blocking(engine.log, False)
        sent = os.write(engine.log, line("seq") + event)
        while engine.server.turn(0) and sent <= len(event):
            sent += os.write(engine.log, (line("seq") + event + b"\n")[sent : sent + 4096])
        engine.turns()
        client.settimeout(5)
        text = client.recv(1 << 20)
        engine.server.close()
        while more := client.recv(1 << 20):
            text += more
        assert text.endswith((event, event + b"\n"))
