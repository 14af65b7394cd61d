"""A server's events over a socket: what a viewer sees is what the server did, whenever it joins; and what a viewer
does costs the engine's process nothing. That is counted here and timed in `benchmarks/bench_publish.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvsim.capture import publish, scheduler_watch
from kvsim.capture.publish import Publisher
from kvsim.capture.viewers import MAX_VIEWERS
from kvsim.conformance import verify_recording
from kvsim.errors import RecordingError, UsageError
from kvsim.live.address import parse_address
from kvsim.live.event_feed import LiveFeed
from kvsim.recording import Recording
from kvsim.recording.eventlog import line
from kvsim.replay import Replay
from tests.waiting import until

META = {
    "format": "kvsim-recording",
    "version": 1,
    "source": "vllm",
    "gpu": "CPU",
    "engine": {"name": "vllm"},
    "model": {"name": "tiny"},
    "policy": {"name": "paged", "block_size": 4},
    "pool": {"unit_tokens": 4, "num_units": 10, "first_unit": 1, "bytes_per_unit": 64},
    "initial_free": list(range(1, 11)),
}


def step(number: int, free: int, running: int = 1, tokens: int = 1, prefill: int = 0) -> bytes:
    columns = {
        "start_s": float(number),
        "prefill_tokens": prefill,
        "decode_tokens": tokens - prefill,
        "num_scheduled": running,
        "running": running,
    }
    return line("step", columns | {"waiting": 0, "preempted": 0, "free_units": free})


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    server = Publisher("127.0.0.1:0")
    yield server
    server.close()


def seen(feed: LiveFeed, num_steps: int) -> Recording:
    until(lambda: (excerpt := feed.whole()) is not None and len(excerpt.recording.steps) >= num_steps)
    assert feed.ended is None, feed.ended
    excerpt = feed.whole()
    assert excerpt is not None
    return excerpt.recording


def begin(publisher: Publisher) -> None:
    """Two requests arrive, and take a step."""
    publisher.write(line("meta", META))
    publisher.write(
        line("arrive", "a", 0.0, 8, 4, 0, [])
        + line("arrive", "b", 0.0, 2, 4, 0, [])
        + line("seq")
        + line("append", 0, 0, [3, 9])
        + line("append", 1, 0, [4])
        + line("tokens", 0.0, [[0, 0, 8], [1, 0, 2]])
        + step(0, 7, 2, 10, prefill=10)
    )
    publisher.write(line("seq") + line("emit", 0, 0.5, 1) + line("emit", 1, 0.5, 1) + line("output", 0, 0.5))


def test_a_viewer_that_joins_late_sees_the_present_in_its_own_numbers(publisher: Publisher) -> None:
    begin(publisher)
    publisher.write(line("seq") + line("release", 0, 2, 0) + line("end", 0, "finished", 1.0))
    publisher.write(line("seq") + line("tokens", 1.0, [[1, 2, 1]]) + step(1, 9))
    time.sleep(0.5)  # by now the viewers' process has heard of it
    feed = LiveFeed(publisher.address)
    seen(feed, 1)
    publisher.write(line("seq") + line("emit", 1, 1.5, 1) + line("output", 1, 1.5))  # of a step from before
    publisher.write(line("arrive", "c", 1.6, 3, 4, 0, []))  # the server's row 2
    publisher.write(
        line("seq")
        + line("append", 2, 0, [5])
        + line("tokens", 2.0, [[1, 3, 1], [2, 0, 3]])
        + step(2, 8, 2, 4, prefill=3)
    )
    publisher.write(line("seq") + line("output", 2, 2.5))
    publisher.write(line("seq") + line("release", 1, 1, 0) + line("end", 1, "finished", 3.0))
    publisher.write(line("seq") + line("tokens", 3.5, [[2, 3, 1]]) + step(3, 9))
    recording = seen(feed, 3)
    assert recording.requests.id.tolist() == ["b", "c"]
    replay = Replay(recording)
    replay.seek(1)
    assert replay.block_table(0)[1].tolist() == [4]
    assert replay.block_table(1)[1].tolist() == [5]
    replay.seek(2)
    assert replay.live_requests().tolist() == [1]
    assert recording.steps.end_s[1] == 2.5
    with pytest.raises(RecordingError, match="begins at step 2 of its server"):
        verify_recording(recording)
    feed.close()


def test_detaching_and_attaching_again(publisher: Publisher) -> None:
    begin(publisher)
    for _ in range(3):
        feed = LiveFeed(publisher.address)
        assert seen(feed, 1).requests.id.tolist() == ["a", "b"]
        feed.close()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def calls_of_a_write(publisher: Publisher, lines: bytes) -> int:
    """Calls of functions, of Python and of C, that this thread makes to have `lines` published."""
    number = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        publisher.write(lines)
    finally:
        sys.setprofile(None)
    return number


def test_whatever_clients_do_the_engine_does_no_more_than_without_them(publisher: Publisher) -> None:
    begin(publisher)
    host, _, port = publisher.address.rpartition(":")
    address = (host, int(port))
    before = (threading.active_count(), descriptors())
    lines = line("seq")
    calls = []
    with ExitStack() as clients:
        for _ in range(10):  # these never read
            clients.enter_context(socket.create_connection(address))
        for number in range(60):
            with socket.create_connection(address) as client:  # in a loop, and garbage
                if number % 3 == 0:
                    client.sendall(b"\xff" * 4096)
                calls.append(calls_of_a_write(publisher, lines))
        assert (threading.active_count(), descriptors()) == (before[0], before[1] + 10)
        until(lambda: publisher.queued_bytes == 0)
    assert min(calls) <= 8, "an append, and a look at two counts and a flag"
    assert max(calls) <= 24, "... and waking the thread that sends, ten times a second at most"
    feed = LiveFeed(publisher.address)
    assert seen(feed, 1).requests.id.tolist() == ["a", "b"], "and the publisher serves as before"
    feed.close()


def test_the_engine_has_no_snapshot_to_make() -> None:
    assert not hasattr(scheduler_watch.SchedulerRecorder, "snapshot")
    assert not hasattr(Publisher, "join")


def test_closing_leaves_no_thread_no_descriptor_and_no_process() -> None:
    before = (threading.active_count(), descriptors())
    publisher = Publisher("127.0.0.1:0")
    begin(publisher)
    feed = LiveFeed(publisher.address)
    seen(feed, 1)
    publisher.close()
    until(lambda: feed.ended)
    assert "hung up" in str(feed.ended)
    feed.close()
    assert (threading.active_count(), descriptors()) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(publisher._process.pid, 0)


def test_a_process_for_viewers_that_dies_ends_publishing_and_nothing_else(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    begin(publisher)
    publisher._process.send_signal(signal.SIGKILL)
    publisher._process.wait()
    until(lambda: publisher.write(line("seq")) is None and caplog.text)
    assert f"publishing at {publisher.address} ends here: Broken pipe" in caplog.text
    publisher.write(line("seq"))
    assert publisher.queued_bytes == 0


def test_a_process_for_viewers_that_stands_still_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publish, "_MAX_WAITING_BYTES", 1 << 20)
    publisher = Publisher("127.0.0.1:0")
    begin(publisher)
    publisher._process.send_signal(signal.SIGSTOP)
    for _ in range(40):
        publisher.write(line("evict", list(range(10_000))))
        assert publisher.queued_bytes <= (1 << 20) + 60_000
    assert "it takes nothing" in caplog.text
    publisher.close()


def test_the_process_for_viewers_ends_with_an_engine_that_is_killed() -> None:
    code = (
        "import os, time; from kvsim.capture.publish import Publisher; p = Publisher('127.0.0.1:0'); "
        "print(p._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        viewers = int(engine.stdout.readline())
        assert Path(f"/proc/{viewers}").exists()
        engine.kill()
    until(lambda: not Path(f"/proc/{viewers}").exists() or "Z" in Path(f"/proc/{viewers}/stat").read_text())


def test_something_else_than_a_recording_is_told(publisher: Publisher) -> None:
    publisher.write(line("meta", META) + line("arrive", "a", 0.0, 8, 4, 0, []))
    feed = LiveFeed(publisher.address)
    time.sleep(0.3)
    publisher.write(line("output", 3, 1.0))
    until(lambda: feed.ended)
    feed.close()


def test_one_viewer_too_many_is_told(publisher: Publisher) -> None:
    begin(publisher)
    feeds = [LiveFeed(publisher.address) for _ in range(MAX_VIEWERS + 1)]
    until(lambda: any(feed.ended for feed in feeds))
    (ended,) = [feed.ended for feed in feeds if feed.ended]
    assert f"{MAX_VIEWERS} viewers are connected" in ended
    for feed in feeds:
        feed.close()


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RecordingError, match=f"nothing is published at {port}"):
        LiveFeed(str(port))


@pytest.mark.parametrize(
    ("text", "address"), [("5577", ("127.0.0.1", 5577)), ("::1:5577", ("::1", 5577)), ("h:1", ("h", 1))]
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "here", "host:", "host:99999", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        parse_address(text)


def test_only_bookkeeping_is_in_the_vocabulary() -> None:
    source = (Path(publish.__file__).parent / "scheduler_watch.py").read_text()
    for word in ("token_ids", "prompt_token", "output_token_ids", "text"):
        assert f"request.{word}" not in source.replace("request.num_prompt_tokens", "")
