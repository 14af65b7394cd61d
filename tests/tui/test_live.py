"""A recording that grows while somebody watches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvsim_tui as tui
from kvsim.capture.publish import Publisher
from kvsim.errors import DefectError, RecordingError
from kvsim.live.event_feed import LiveFeed
from kvsim.recording import eventlog
from kvsim_tui.app import KvsimApp
from kvsim_tui.live import screen as live
from kvsim_tui.live.feed import first_excerpt
from kvsim_tui.live.past import Past
from kvsim_tui.live.screen import Live
from kvsim_tui.screens.defects import play
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        of_prompt = tokens if number == 0 else 0
        columns = {
            "start_s": number + 0.1, "prefill_tokens": of_prompt, "decode_tokens": tokens - of_prompt,
            "num_scheduled": 1, "running": 1, "waiting": 0, "preempted": 0, "free_units": 4,
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
    until(lambda: found.joined)  # it has joined
    yield found
    found.close()


def steps_of(feed: LiveFeed) -> int:
    excerpt = feed.recent()
    return 0 if excerpt is None else excerpt.end_step


def screen_text(app: KvsimApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def test_the_screen_follows_the_server(server: Server, feed: LiveFeed) -> None:
    server.begin()
    app = KvsimApp(Past().open(first_excerpt(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        playback = app.playback
        assert isinstance(playback, Live)
        assert f"LIVE {feed.name}" in screen_text(app)
        server.step()
        server.step()
        until(lambda: steps_of(feed) == 3)
        await playback.poll()
        await pilot.pause()
        assert playback.session.replay.frame == 2
        assert playback.player.clock_s == pytest.approx(2.1)
        assert "no block taken or freed" in screen_text(app), "in the step that is shown, not in the first"


async def test_whoever_looks_back_is_left_alone(server: Server, feed: LiveFeed) -> None:
    server.begin()
    for _ in range(4):
        server.step()
    until(lambda: steps_of(feed) == 5)
    app = KvsimApp(Past().open(first_excerpt(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        playback = app.playback
        assert isinstance(playback, Live)
        await pilot.press("left", "left", "slash", *"first", "enter")
        server.step()
        until(lambda: steps_of(feed) == 6)
        await playback.poll()
        assert playback.session.replay.frame == 2
        assert playback.session.player.last_frame == 6
        assert playback.session.followed == 0
        await pilot.press("end")
        server.step()
        until(lambda: steps_of(feed) == 7)
        await playback.poll()
        assert playback.session.replay.frame == 6


async def test_a_server_that_hangs_up_leaves_what_was_seen(server: Server, feed: LiveFeed) -> None:
    server.begin()
    app = KvsimApp(Past().open(first_excerpt(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        playback = app.playback
        assert isinstance(playback, Live)
        server.publisher.close()
        until(lambda: feed.ended is not None)
        await playback.poll()
        await pilot.pause()
        assert "ENDED 127.0.0.1" in screen_text(app)
        assert "memory pool, 8 blocks" in screen_text(app)
        await pilot.press("home", "right")


async def test_there_is_nothing_to_compare_in_a_live_server(server: Server, feed: LiveFeed) -> None:
    server.begin()
    app = KvsimApp(Past().open(first_excerpt(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        assert isinstance(app.playback, Live)


def test_a_server_that_hangs_up_before_its_first_step(server: Server, feed: LiveFeed) -> None:
    server.publisher.close()
    with pytest.raises(RecordingError, match="has hung up"):
        first_excerpt(feed)


async def test_a_server_that_contradicts_itself_ends_visibly(server: Server, feed: LiveFeed) -> None:
    server.begin()
    app = KvsimApp(Past().open(first_excerpt(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        playback = app.playback
        assert isinstance(playback, Live)
        server._send(("arrive", "evil", 5.0, 4, 20, 0, []), ("seq",), ("append", 1, 0, [700]))
        server.step()
        until(lambda: steps_of(feed) == 1 and feed.ended is not None)
        await playback.poll()
        await pilot.pause()
        assert "ENDED 127.0.0.1" in screen_text(app)
        assert "outside the pool" in str(feed.ended)
        await pilot.press("home", "right")


async def test_a_server_that_is_silent_is_said_to_be(
    server: Server, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.begin()
    app = KvsimApp(Past().open(first_excerpt(feed)), clock=lambda: 0.0, feed=feed)
    async with app.run_test(size=SIZE) as pilot:
        playback = app.playback
        assert isinstance(playback, Live)
        monkeypatch.setattr(live, "QUIET_S", 0.0)
        await playback.poll()
        await pilot.pause()
        assert "quiet for " in screen_text(app)


class Failing(KvsimApp):
    """An interface with a defect."""

    CSS_PATH = str(Path(tui.__file__).with_name("kvsim.tcss"))

    def on_mount(self) -> None:
        raise ZeroDivisionError("a defect")


def test_an_interface_that_fails_says_so_in_a_sentence(
    server: Server, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.begin()
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.headless_driver:HeadlessDriver")
    app = Failing(Past().open(first_excerpt(feed)), feed=feed)
    with pytest.raises(
        DefectError, match=r"failed with ZeroDivisionError in test_live.py, line \d+: a defect\. This is"
    ):
        play(app)
    assert "Traceback" not in capsys.readouterr().err
