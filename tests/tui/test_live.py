"""A recording that grows while somebody watches."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

import tui
from kvsim.capture.publish import Publisher
from kvsim.errors import RecordingError
from kvsim.recording import eventlog, read, write
from kvsim.recording.live import LiveFeed
from kvsim.recording.prometheus import MetricsFeed
from tui.app import KvsimApp
from tui.feed import first_recording
from tui.live import Live
from tui.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvsim.recording import Recording

SIZE = (120, 40)
META = {
    "format": "kvsim-recording",
    "version": 1,
    "source": "vllm",
    "engine": {"name": "vllm", "version": "test"},
    "gpu": "none",
    "model": {"name": "tiny"},
    "policy": {"name": "paged"},
    "pool": {"unit_tokens": 4, "num_units": 8, "first_unit": 1, "bytes_per_unit": 64},
}


class Server:
    """Publishes a request that writes a token a step."""

    def __init__(self) -> None:
        self.publisher = Publisher("127.0.0.1:0")
        self.num_steps = 0
        self._send(("meta", META))

    def begin(self) -> None:
        self._send(("arrive", "first", 0.0, 4, 20, 0, []), ("seq",), ("append", 0, 0, [1, 2, 3, 4]))
        self.step(4)

    def step(self, tokens: int = 1) -> None:
        number = self.num_steps
        before = 0 if number == 0 else 3 + number
        columns = {
            "start_s": number + 0.1, "prefill_tokens": 0, "decode_tokens": 1, "num_scheduled": 1, "running": 1,
            "waiting": 0, "preempted": 0, "free_units": 7,
        }  # fmt: skip
        self._send(
            ("seq",),
            ("tokens", number + 0.1, [[0, before, tokens]]),
            ("step", columns),
            ("seq",),
            ("output", number, number + 0.9),
        )
        self.num_steps += 1

    def _send(self, *events: tuple[Any, ...]) -> None:
        self.publisher.write(b"".join(eventlog.line(*event) for event in events))


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.publisher.close()


@pytest.fixture
def feed(server: Server) -> Iterator[LiveFeed]:
    found = LiveFeed(server.publisher.address)
    wait_for(lambda: found._meta is not None)  # it has joined
    yield found
    found.close()


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came")


def steps_of(feed: LiveFeed) -> int:
    recording = feed.recording()
    return 0 if recording is None else len(recording.steps)


def screen_text(app: KvsimApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def test_the_screen_follows_the_server(server: Server, feed: LiveFeed) -> None:
    server.begin()
    app = KvsimApp(Session(first_recording(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        stage = app.stage
        assert isinstance(stage, Live)
        assert f"LIVE {feed.name}" in screen_text(app)
        server.step()
        server.step()
        wait_for(lambda: steps_of(feed) == 3)
        await stage.poll()
        await pilot.pause()
        assert stage.session.replay.frame == 2
        assert stage.player.clock_s == pytest.approx(2.1)


async def test_whoever_looks_back_is_left_alone(server: Server, feed: LiveFeed) -> None:
    server.begin()
    for _ in range(4):
        server.step()
    wait_for(lambda: steps_of(feed) == 5)
    app = KvsimApp(Session(first_recording(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        stage = app.stage
        assert isinstance(stage, Live)
        await pilot.press("left", "left", "slash", *"first", "enter")
        server.step()
        wait_for(lambda: steps_of(feed) == 6)
        await stage.poll()
        assert stage.session.replay.frame == 2
        assert stage.session.player.last_frame == 6
        assert stage.session.followed == 0
        await pilot.press("end")
        server.step()
        wait_for(lambda: steps_of(feed) == 7)
        await stage.poll()
        assert stage.session.replay.frame == 6


async def test_a_server_that_hangs_up_leaves_what_was_seen(server: Server, feed: LiveFeed) -> None:
    server.begin()
    app = KvsimApp(Session(first_recording(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        stage = app.stage
        assert isinstance(stage, Live)
        server.publisher.close()
        wait_for(lambda: feed.ended is not None)
        await stage.poll()
        await pilot.pause()
        assert "ENDED 127.0.0.1" in screen_text(app)
        assert "memory pool, 8 blocks" in screen_text(app)
        await pilot.press("home", "right")


async def test_there_is_nothing_to_compare_in_a_live_server(server: Server, feed: LiveFeed) -> None:
    server.begin()
    app = KvsimApp(Session(first_recording(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        assert isinstance(app.stage, Live)


def test_a_server_that_hangs_up_before_its_first_step(server: Server, feed: LiveFeed) -> None:
    server.publisher.close()
    with pytest.raises(RecordingError, match="has hung up"):
        first_recording(feed)


def test_what_was_seen_can_be_kept(
    server: Server, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.begin()
    server.step()
    wait_for(lambda: steps_of(feed) == 2)
    monkeypatch.setattr(KvsimApp, "run", lambda _: None)
    seen: Recording = tui.attach(feed)
    write(seen, tmp_path / "seen")
    assert len(read(tmp_path / "seen").steps) == 2


METRICS = """
vllm:cache_config_info{block_size="16",num_gpu_blocks="101"} 1.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
"""


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, *_: object) -> None:
        pass


async def test_metrics_are_shown_as_coarse() -> None:
    server = HTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    feed = MetricsFeed(f"http://127.0.0.1:{server.server_address[1]}/metrics", period_s=0.01)
    try:
        app = KvsimApp(Session(first_recording(feed)), clock=lambda: 0.0, feed=feed)
        async with app.run_test(size=SIZE) as pilot:
            stage = app.stage
            assert isinstance(stage, Live)
            wait_for(lambda: steps_of(feed) > 3)  # type: ignore[arg-type]
            await stage.poll()
            await pilot.pause()
            assert "COARSE http://" in screen_text(app)
            assert "MiB" not in screen_text(app), "metrics do not tell how large a block is"
            assert "following · step" in screen_text(app)
            await pilot.press("left")
            assert "paused · " in screen_text(app)
            assert int((stage.session.replay.refs > 0).sum()) == 25
    finally:
        feed.close()
        server.shutdown()
        thread.join()
        server.server_close()
