"""A server's events over a socket, in one process: what a viewer sees is what the server did, whenever it joins."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvsim.capture import publish
from kvsim.capture.publish import Publisher
from kvsim.conformance import verify_recording
from kvsim.errors import RecordingError, UsageError
from kvsim.recording import Recording, Replay
from kvsim.recording.eventlog import line
from kvsim.recording.live import LiveFeed, parse_address

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


def step(number: int, free: int, running: int = 1) -> bytes:
    columns = {
        "start_s": float(number),
        "prefill_tokens": 0,
        "decode_tokens": 1,
        "num_scheduled": 1,
        "running": running,
    }
    return line("step", columns | {"waiting": 0, "preempted": 0, "free_units": free})


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    server = Publisher("127.0.0.1:0")
    yield server
    server.close()


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen within five seconds")


def joined(publisher: Publisher, snapshot: bytes) -> LiveFeed:
    feed = LiveFeed(publisher.address)
    wait_for(lambda: publisher.wants_snapshot)
    publisher.join(snapshot)
    return feed


def seen(feed: LiveFeed, num_steps: int) -> Recording:
    wait_for(lambda: (recording := feed.recording()) is not None and len(recording.steps) >= num_steps)
    recording = feed.recording()
    assert recording is not None
    return recording


def test_a_viewer_that_joins_late_sees_the_present_in_its_own_numbers(publisher: Publisher) -> None:
    # Requests 5 and 7 of the server are here; 5 holds two blocks. Steps 0 to 40 are history.
    snapshot = b"".join(
        [
            line("meta", META),
            line("arrive", "a", 0.0, 8, 4, 0, []),
            line("arrive", "b", 0.0, 4, 4, 0, []),
            line("seq"),
            line("append", 0, 0, [3, 9]),
            line("tokens", 0.0, [[0, 0, 8]]),
            step(0, 8),
            line("joined", [5, 7], 8, 41),
        ]
    )
    feed = joined(publisher, snapshot)
    publisher.write(line("output", 40, 0.5))  # a step from before: nothing to show
    publisher.write(line("arrive", "c", 0.6, 4, 4, 0, []))  # the server's request 8
    publisher.write(
        line("seq") + line("append", 8, 0, [4]) + line("tokens", 1.0, [[5, 8, 1], [8, 0, 4]]) + step(1, 7, 2)
    )
    publisher.write(line("seq") + line("output", 41, 1.5))
    publisher.write(line("seq") + line("release", 5, 2, 0) + line("end", 5, "finished", 2.0))
    publisher.write(line("seq") + line("tokens", 2.5, [[8, 4, 1]]) + step(2, 9))
    recording = seen(feed, 3)
    assert recording.requests.id.tolist() == ["a", "b", "c"]
    replay = Replay(recording)
    replay.seek(1)
    assert replay.block_table(0)[1].tolist() == [3, 9]
    assert replay.block_table(2)[1].tolist() == [4]
    replay.seek(2)
    assert replay.live_requests().tolist() == [2]
    assert recording.steps.end_s[1] == 1.5
    with pytest.raises(RecordingError, match="begins at step 41 of its server"):
        verify_recording(recording)
    feed.close()


def test_detaching_and_attaching_again(publisher: Publisher) -> None:
    snapshot = line("meta", META) + line("joined", [], 0, 0)
    first = joined(publisher, snapshot)
    first.close()
    wait_for(lambda: publisher.write(line("seq")) is None and not publisher._viewers)
    again = joined(publisher, snapshot)
    publisher.write(line("arrive", "r", 0.0, 4, 4, 0, []) + line("seq") + line("append", 0, 0, [1]))
    publisher.write(line("tokens", 0.0, [[0, 0, 4]]) + step(0, 9))
    assert seen(again, 1).requests.id.tolist() == ["r"]
    again.close()


def test_a_viewer_that_does_not_read_is_dropped_and_nobody_waits_for_it(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_QUEUE_BYTES", 1 << 16)
    host, _, port = publisher.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        wait_for(lambda: publisher.wants_snapshot)
        publisher.join(line("meta", META))
        event = line("append", 0, 0, list(range(1000)))
        wait_for(lambda: publisher.write(event * 10) is None and not publisher._viewers)


def test_the_end_of_the_server_is_told(publisher: Publisher) -> None:
    feed = joined(publisher, line("meta", META) + line("joined", [], 0, 0))
    publisher.close()
    wait_for(lambda: feed.ended)
    assert "hung up" in str(feed.ended)
    feed.close()


def test_something_else_than_a_recording_is_told(publisher: Publisher) -> None:
    feed = joined(publisher, line("meta", META) + line("joined", [], 0, 0))
    publisher.write(line("append", 3, 0, [1]))
    wait_for(lambda: feed.ended)
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
    source = (Path(publish.__file__).parent / "scheduler.py").read_text()
    for word in ("token_ids", "prompt_token", "output_token_ids", "text"):
        assert f"request.{word}" not in source.replace("request.num_prompt_tokens", "")
