"""Charts that grow at their end are those of everything, however often somebody looks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from textual.pilot import Pilot

from kvsim.files.eventline import line
from kvsim.live.event_follower import EventFollower
from kvsim.live.mirror import Mirror
from kvsim_tui.app import KvsimApp
from kvsim_tui.live.past import Past
from kvsim_tui.live.screen import Live
from kvsim_tui.playback.session import Session
from kvsim_tui.widgets.event_list import EventList
from kvsim_tui.widgets.timeline_chart import TimelineChart

LOGS = sorted((Path(__file__).parents[1] / "live" / "logs").glob("0*.jsonl"))
SIZE = (160, 48)


class Fed:
    """A feed whose server is told when to go on."""

    name = "127.0.0.1:1"
    ended: str | None = None
    quiet_s = 0.0

    def __init__(self, file: Path, tail_steps: int) -> None:
        self._follower = EventFollower(self.name, tail_steps=tail_steps)
        first, *self._rest = file.read_bytes().splitlines(keepends=True)
        mirror = Mirror()
        mirror.apply(json.loads(first))
        for event in mirror.snapshot():
            self._follower.hear(line(*event))
        self.recent, self.whole = self._follower.recent, self._follower.whole

    def go_on(self, num_lines: int) -> bool:
        """Publish so many lines; return whether there were any."""
        some, self._rest = self._rest[:num_lines], self._rest[num_lines:]
        for text in some:
            self._follower.hear(text)
        return bool(some)

    def everything(self) -> Session:
        """A session over all that is kept."""
        whole = self.whole()
        assert whole is not None
        return Past().open(whole)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("every", [pytest.param(7, marks=pytest.mark.slow), 19, 60])
@pytest.mark.parametrize("file", LOGS, ids=lambda file: file.stem)
def test_charts_that_grow_are_those_of_everything(file: Path, every: int) -> None:
    feed, past, looks = Fed(file, 24), Past(), 0
    while feed.go_on(every):
        recent = feed.recent()
        if recent is None:
            continue
        session, everything = past.open(recent), feed.everything()
        charts, expected = session.charts, everything.charts
        looks += session.before.charts is not None
        np.testing.assert_array_equal(charts.times_s, expected.times_s)
        np.testing.assert_array_equal(charts.running, expected.running)
        np.testing.assert_array_equal(charts.waiting, expected.waiting)
        np.testing.assert_array_equal(charts.slots, expected.slots)
        for name in ("frame", "kind", "count"):
            np.testing.assert_array_equal(getattr(charts.events, name), getattr(expected.events, name))
        for frame in (session.before.num_summary_frames, session.player.last_frame):
            for each in (session, everything):
                each.player.go_to_frame(frame + each.player.last_frame - session.player.last_frame)
                each.show()
            assert session.step_number(session.player.frame) == everything.player.frame
            counts = [
                (each.num_preemptions, each.num_finished, each.num_refused, int(each.served[each.player.frame]))
                for each in (session, everything)
            ]
            assert counts[0] == counts[1]
    assert looks > 1


def test_where_steps_are_missing_charts_begin_anew() -> None:
    feed, past = Fed(LOGS[0], 4), Past()
    feed.go_on(300)
    first = feed.recent()
    feed.go_on(300)
    feed.recent()  # somebody else looks
    feed.go_on(300)
    later = feed.recent()
    assert first is not None
    assert later is not None
    assert past.open(first).before.charts is None
    session = past.open(later)
    assert later.first_step > first.end_step
    assert session.before.charts is None
    assert session.step_number(session.before.num_summary_frames) == later.first_step


@asynccontextmanager
async def following(feed: Fed) -> AsyncIterator[tuple[Live, Pilot[None]]]:
    """A screen that has looked at what `feed` published a few times, and looks again only when a test says so.

    On a loaded machine, its own timer would go off and look at the same time as the test. In a program, looks follow
    one another.
    """
    feed.go_on(500)
    recent = feed.recent()
    assert recent is not None
    app = KvsimApp(Past().open(recent), clock=lambda: 0.0, feed=feed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvsim_tui.live.screen.POLL_S", 1e6)
        async with app.run_test(size=SIZE) as pilot:
            live = app.playback
            assert isinstance(live, Live)
            for _ in range(3):
                feed.go_on(200)
                await live.poll()
            assert live.session.before.charts is not None, "the last steps, and charts of those before"
            yield live, pilot


async def holds_soon(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    """Wait until a key has had its effect, however long a loaded machine takes."""
    for _ in range(3000):
        if holds():
            return
        await pilot.pause(0.01)
    pytest.fail("it did not come to be")


async def test_who_goes_back_further_than_the_last_steps_is_shown_all_that_is_kept() -> None:
    feed = Fed(LOGS[2], 8)
    async with following(feed) as (live, pilot):
        num_steps = feed.everything().player.last_frame
        assert live.session.player.last_frame < num_steps / 2
        assert live.query_one(TimelineChart).begin_s == feed.everything().times_s[0]
        assert f"step {num_steps - 1:,} of {num_steps:,}" in str(live.query_one(TimelineChart).border_title)
        assert str(live.query_one(EventList).border_title).startswith("recent events")

        await pilot.press("home")
        await holds_soon(pilot, lambda: live.session.before.charts is None)
        assert (live.player.frame, live.player.last_frame) == (0, num_steps)
        feed.go_on(10)
        await live.poll()
        assert live.player.frame == 0, "whoever looks back is left alone"

        await pilot.press("end")
        await holds_soon(pilot, lambda: live.player.frame > 0)
        await live.poll()
        assert live.session.before.charts is not None
        assert live.session.end_step == feed.everything().player.last_frame
        assert live.player.frame == live.player.last_frame - 1


@pytest.mark.parametrize("key", ["[", "left"])
async def test_a_step_back_from_the_first_of_the_last_steps_shows_the_one_before(key: str) -> None:
    async with following(Fed(LOGS[2], 8)) as (live, pilot):
        live.player.go_to_frame(0)
        live.show_frame(everything=True)
        step = live.session.step_number(0)
        await pilot.press(key)
        await holds_soon(pilot, lambda: live.session.before.charts is None)
        assert live.player.frame < step if key == "[" else live.player.frame == step - 1
