"""A server that sends a byte now and then is not waited for: each of its pauses is short, and there is no last one."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import NamedTuple

import pytest

from kvsim.errors import RecordingError
from kvsim.live import address, metrics_feed
from kvsim.live.address import page_of
from kvsim.live.metrics_feed import MetricsFeed

PAGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX: " % len(PAGE)
PAUSE_S, NUM_PAUSES = 0.05, 60


class Slow(NamedTuple):
    address: str
    has_ended: Event
    """It has dripped to its end."""


@pytest.fixture(params=["in a header", "in the length of a part"])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """A server that answers after three seconds of dripping."""
    monkeypatch.setattr(address, "_ANSWER_S", 1.5)
    monkeypatch.setattr(metrics_feed, "_TIMEOUT_S", 0.4)
    begin, end = ANSWER, b"\r\n\r\n" + PAGE
    if request.param == "in the length of a part":
        begin, end = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nx 1 \n\r\n0\r\n\r\n"
    server, has_ended = socket.create_server(("127.0.0.1", 0)), Event()

    def serve() -> None:
        while server.fileno() >= 0:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(begin)
                    for _ in range(NUM_PAUSES):
                        time.sleep(PAUSE_S)
                        connection.sendall(b"0")
                    has_ended.set()
                    connection.sendall(end)

    serving = Thread(target=serve, daemon=True)
    serving.start()
    yield Slow(f"127.0.0.1:{server.getsockname()[1]}", has_ended)
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    serving.join()


def test_a_page_that_drips_is_no_page(slow: Slow) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        MetricsFeed(f"http://{slow.address}/metrics")
    assert not slow.has_ended.is_set()


def test_a_server_is_known_by_the_first_line_of_its_answer(slow: Slow) -> None:
    assert page_of(slow.address) == f"http://{slow.address}/metrics"
    assert not slow.has_ended.is_set()
