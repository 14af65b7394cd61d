"""KV events over ZeroMQ, from the publisher of vLLM itself: what was missed is asked for again, or said to be lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from kvsim.errors import UsageError
from kvsim.live.cache_words import cache_facts, cache_limits
from kvsim.live.kv_event_feed import KvEventFeed, endpoint
from kvsim.live.kv_event_ranks import KvEventRanks, ports_of

from ..vllm_engine.install import MAIN, NEWEST, missing, python_path
from ..waiting import until

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Publisher:
    """A process with vLLM's publisher, or SGLang's; the test says what it publishes."""

    def __init__(self, release: str, *more: str, ports: tuple[int, int] | None = None, rank: int = 0) -> None:
        self.port, self.replay = ports or (free_port(), free_port())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.vllm_engine.publisher", str(self.port), str(self.replay), str(rank), *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": python_path(release, ROOT)},
        )  # fmt: skip
        self._answer("ready")

    def say(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._answer("done")

    def close(self) -> None:
        self._process.communicate(timeout=30)

    def _answer(self, expected: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == expected


SGLANG = Path(os.environ.get("KVSIM_SGLANG", "absent")) / "sglang/srt/disaggregation/kv_events.py"


@pytest.fixture(scope="module", params=[MAIN, NEWEST, "sglang"])
def publisher(request: pytest.FixtureRequest) -> Iterator[Publisher]:
    release = NEWEST if request.param == "sglang" else request.param
    if missing(release):
        pytest.skip(missing(release))
    if request.param == "sglang" and not SGLANG.exists():
        pytest.skip("KVSIM_SGLANG names no folder with the files of SGLang")
    found = Publisher(release, *([str(SGLANG)] if request.param == "sglang" else []))
    yield found
    found.close()


@pytest.fixture
def follow() -> Iterator[Callable[..., KvEventFeed]]:
    feeds = list[KvEventFeed]()

    def begin(address: int | str, replay: int | None = None) -> KvEventFeed:
        feeds.append(KvEventFeed(str(address), replay=None if replay is None else str(replay)))
        return feeds[-1]

    yield begin
    for feed in feeds:
        feed.close()


def heard(feed: KvEventFeed, publish: Callable[[], None], *, batches: int) -> None:
    """Publish until `feed`, which may not be connected yet, has heard so many batches more."""
    begin = feed.state().num_batches
    publish()
    until(lambda: feed.state().num_batches >= begin + batches)


@pytest.mark.slow
def test_what_vllm_publishes(publisher: Publisher, follow: Callable[..., KvEventFeed]) -> None:
    publisher.say(cleared=True)
    publisher.say(stored=[1, 2, 3])
    publisher.say(stored=[4], parent=3)
    feed = follow(publisher.port, publisher.replay)  # it hears what was before it came
    until(lambda: feed.state().num_batches >= 3)
    heard(feed, lambda: publisher.say(stored=[5], parent=3), batches=1)
    look = feed.state()
    assert (look.num_blocks, look.num_tokens, look.shared, look.from_start) == (5, 10, ((6, 2),), True)
    publisher.say(mute=True)  # the network loses two batches, which the server still has
    publisher.say(stored=[6], parent=5)
    publisher.say(removed=[4])
    publisher.say(mute=False)
    heard(feed, lambda: publisher.say(stored=[7], parent=6), batches=3)
    look = feed.state()
    assert (look.num_blocks, look.num_removed, look.lost) == (6, 1, 0)
    assert look.lifetimes_s == (3.0,)
    publisher.say(skip=3)  # and these it has not
    heard(feed, lambda: publisher.say(stored=[8], parent=7), batches=1)
    assert feed.state().lost == 3
    assert any("3 lost batches" in limit for limit in cache_limits(feed.state()))
    assert feed.ended is None


@pytest.mark.slow
def test_without_replays_older_blocks_are_not_known(publisher: Publisher, follow: Callable[..., KvEventFeed]) -> None:
    feed = follow(publisher.port)

    def come() -> bool:
        publisher.say(stored=[100])
        return feed.state().num_batches > 0

    until(come)
    look = feed.state()
    assert (look.from_start, look.lost, look.num_blocks) == (False, 0, 1)
    assert cache_facts(look, 10)[0].startswith("at least 1 blocks of 10 keep a prefix, 10 % of the pool")
    assert any("before kvsim listened" in limit for limit in cache_limits(look))


def two_ports() -> int:
    """Return the first of two free ports that follow one another."""
    while True:
        first = free_port()
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", first + 1))
            return first


@pytest.mark.slow
@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_the_ranks_of_a_server_are_added_up(server: str) -> None:
    """Each rank has its publisher, at the port that both were given and its rank."""
    if missing(NEWEST) or (server == "sglang" and not SGLANG.exists()):
        pytest.skip("the server's files are not there")
    port, replay = two_ports(), two_ports()
    more = [str(SGLANG)] if server == "sglang" else []
    ranks = [Publisher(NEWEST, *more, ports=(port, replay), rank=rank) for rank in (0, 1)]
    try:
        ranks[0].say(stored=[1, 2, 3])
        feed = KvEventRanks(f"{port}-{port + 1}", replay=f"{replay}-{replay + 1}")
        until(lambda: feed.state().num_batches == 1)
        assert any("data-parallel rank 1" in limit for limit in cache_limits(feed.state()))
        ranks[1].say(stored=[1, 9])  # the same name in another rank is another block
        ranks[1].say(removed=[9])
        until(lambda: feed.state().num_batches == 3)
        look = feed.state()
        assert (look.num_blocks, look.num_tokens, look.blocks_of_ranks) == (4, 8, (3, 1))
        assert (look.num_stored, look.num_removed, look.silent_ranks) == (5, 1, ())
        assert "by data-parallel rank: 3, 1 blocks" in cache_facts(look, 100)
        assert feed.ended is None
        feed.close()
    finally:
        for rank in ranks:
            rank.close()


@pytest.mark.parametrize(
    ("address", "replay", "sentence"),
    [
        ("5560-5557", None, "should name 1 to 1,024 ports, the first one first"),
        ("host:1-9999", None, "should name 1 to 1,024 ports"),
        ("5557-5558", "5560", "has 2 ports and --kv-events-replay 1"),
        ("70000-70001", None, "'70000' is not an address"),
    ],
)
def test_ranges_of_ports_that_cannot_be_are_refused(address: str, replay: str | None, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        KvEventRanks(address, replay=replay)


def test_a_range_is_an_address_for_each_rank() -> None:
    assert ports_of("tcp://[::1]:5557-5559") == [f"tcp://[::1]:{port}" for port in (5557, 5558, 5559)]
    assert ports_of("my-host:5557") == ["my-host:5557"]


@pytest.fixture
def sender() -> Iterator[tuple[zmq.Socket[bytes], int]]:
    context = zmq.Context[zmq.Socket[bytes]]()
    found = context.socket(zmq.XPUB)
    yield found, found.bind_to_random_port("tcp://127.0.0.1")
    context.destroy(linger=0)


BATCH = msgpack.packb([1.0, [{"type": "AllBlocksCleared"}], 0])


@pytest.mark.parametrize(("frames", "reason"), [
    ((b"kv", b"\0" * 8, b"\xc1"), "no batch of KV events"),
    ((b"kv", b"\0" * 7, BATCH), "has no KV events: topic, number in 8 bytes, batch"),
    ((BATCH,), "has no KV events: topic, number in 8 bytes, batch"),
])  # fmt: skip
def test_what_is_no_event_ends_the_feed_in_a_sentence(
    sender: tuple[zmq.Socket[bytes], int], follow: Callable[..., KvEventFeed], frames: tuple[bytes, ...], reason: str
) -> None:
    feed = follow(sender[1])
    sender[0].recv()  # its subscription
    sender[0].send_multipart(frames)
    until(lambda: feed.ended is not None)
    assert reason in str(feed.ended)


def test_a_server_that_begins_anew(sender: tuple[zmq.Socket[bytes], int], follow: Callable[..., KvEventFeed]) -> None:
    feed = follow(sender[1])
    sender[0].recv()
    stored = msgpack.packb([1.0, [["BlockStored", [1, 2], None, [7, 7, 7, 7], 2, None]], 0])
    for number, batch in ((0, stored), (1, BATCH), (2, stored), (0, BATCH)):
        sender[0].send_multipart((b"", number.to_bytes(8, "big"), batch))
    until(lambda: feed.state().num_batches == 4)
    look = feed.state()
    assert (look.restarts, look.num_blocks, look.lost, look.num_cleared) == (1, 0, 0, 2)


def test_a_server_that_begins_anew_while_its_first_batches_are_missed(
    sender: tuple[zmq.Socket[bytes], int], follow: Callable[..., KvEventFeed]
) -> None:
    feed = follow(sender[1])
    sender[0].recv()

    def stored(time_s: float, *hashes: int) -> Any:
        return msgpack.packb([time_s, [["BlockStored", list(hashes), None, [7] * 2 * len(hashes), 2, None]], 0])

    again = (2, stored(2.0, 5))  # what was published already, for the second time: no restart
    for number, batch in ((0, BATCH), (1, stored(2.0, 1, 2)), (2, stored(2.0, 5)), again, (1, stored(9.0, 8))):
        sender[0].send_multipart((b"", number.to_bytes(8, "big"), batch))
    until(lambda: feed.state().num_batches == 4)
    look = feed.state()
    assert (look.restarts, look.num_blocks, look.lost) == (1, 1, 1), "batch 0 of the new start is lost"


@pytest.mark.parametrize("address", ["ipc:///tmp/x", "tcp://*:5557", "tcp://host", "host:port", "5557x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        endpoint(address)


def test_addresses() -> None:
    assert endpoint("5557") == endpoint("tcp://127.0.0.1:5557") == "tcp://127.0.0.1:5557"
    assert endpoint("tcp://[::1]:1") == "tcp://[::1]:1"


def test_a_gap_is_asked_for_or_lost(sender: tuple[zmq.Socket[bytes], int], follow: Callable[..., KvEventFeed]) -> None:
    """A replay endpoint has batch 1 alone; its answers have no topic, as those of vLLM 0.25.1."""
    context = zmq.Context.instance()
    replay = context.socket(zmq.ROUTER)
    stop = threading.Event()

    def answer() -> None:
        while not stop.is_set():
            if replay.poll(20):
                who, _, first = replay.recv_multipart()
                if int.from_bytes(first, "big") == 1:
                    replay.send_multipart((who, b"", (1).to_bytes(8, "big"), BATCH))
                replay.send_multipart((who, b"", b"\xff" * 8, b""))
        replay.close(linger=0)

    port = replay.bind_to_random_port("tcp://127.0.0.1")
    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    feed = follow(sender[1], port)
    sender[0].recv()
    for number in (0, 4):
        sender[0].send_multipart((b"", number.to_bytes(8, "big"), BATCH))
    until(lambda: feed.state().num_batches == 3)
    look = feed.state()
    assert (look.replayed, look.lost, look.num_cleared) == (1, 2, 3)
    stop.set()
    thread.join()
