"""What is told about requests, and when."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import MemoryKind, Recording, RequestStatus
from kvsim.replay import Replay
from kvsim.replay.unfolding import NO_OWNER
from kvsim.simulation import simulate
from kvsim.workload import Workload
from kvsim_tui.app import KvsimApp
from kvsim_tui.playback.run_events import EventFilter, EventKind, events_of
from kvsim_tui.playback.session import Session
from kvsim_tui.widgets.event_list import EventList

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.simulation import Machine


@pytest.fixture(scope="module")
def evicting(make_machine: Callable[[int], Machine]) -> Recording:
    """Twelve prompts one after another, in room for a few: what the first ones left in the cache has to go."""
    workload = Workload(
        arrival_s=np.arange(12) * 2.0,
        prompt_tokens=[150, 140, 160, 130] * 3,
        output_tokens=[20, 30, 10, 25] * 3,
        ids=[f"q{number}" for number in range(12)],
    )
    return simulate(workload, Paged(scheduler=ContinuousSettings(max_model_len=256)), make_machine(640))


def test_every_event_of_a_small_run(tiny: Recording) -> None:
    events = events_of(Replay(tiny))
    told = [
        (int(frame), EventKind(int(kind)).name, int(request))
        for frame, kind, request in zip(events.frame, events.kind, events.request, strict=True)
    ]
    assert told == [(1, "REFUSED", 2), (2, "PREEMPTED", 1), (3, "FINISHED", 0), (6, "FINISHED", 1)]
    assert events.notable.frame.tolist() == [1, 2]
    assert [events.up_to(frame) for frame in (0, 1, 6)] == [0, 1, 4]


def test_a_real_run_tells_of_every_preemption_and_finish(shipped: Callable[[str], Recording]) -> None:
    recording = shipped("paged")
    events = events_of(Replay(recording))
    kinds = np.bincount(events.kind, minlength=len(EventKind))
    assert kinds[EventKind.PREEMPTED] == recording.num_preemptions
    assert kinds[EventKind.FINISHED] == np.count_nonzero(recording.requests.status == RequestStatus.FINISHED)
    preempted_per_frame = np.bincount(events.frame[events.kind == EventKind.PREEMPTED], minlength=len(recording.steps))
    assert np.array_equal(preempted_per_frame, recording.steps.preempted)


def test_evictions_are_told_once_a_frame_with_their_number(evicting: Recording) -> None:
    replay = Replay(evicting)
    evictions = events_of(replay).of_kinds((EventKind.EVICTED,))
    memory = evicting.memory
    rows = memory.kind == MemoryKind.EVICT
    assert evictions.count.sum() == memory.length[rows].sum() > 0
    assert len(evictions) == len(np.unique(memory.seq[rows])) == len(np.unique(evictions.frame))
    assert set(evictions.request.tolist()) == {NO_OWNER}
    replay.seek(int(evictions.frame[0]) - 1)
    before = int(replay.cached.sum())
    replay.seek(int(evictions.frame[0]))
    assert before - int(replay.cached.sum()) <= evictions.count[0]


async def test_the_list_tells_of_evictions_and_jumps_to_them(evicting: Recording) -> None:
    app = KvsimApp(Session(evicting), clock=lambda: 0.0)
    async with app.run_test(size=(200, 60)) as pilot:
        session = next(iter(app.playback.sessions()))
        while session.event_filter is not EventFilter.EVICTIONS:
            await pilot.press("f")
        await pilot.press("home", "]")
        assert session.player.frame == session.listed_events.frame[0]
        await pilot.pause()
        lines = [app.query_one(EventList).render_line(y).text for y in range(3)]
        assert any(re.search(r"[1-9]\d* blocks? evicted", line) for line in lines)
        session.followed = None
        app.query_one(EventList).focus()
        await pilot.press("enter")
        assert session.followed is None, "an eviction is of no request"
        app.playback.player.go_to_frame(0)
        app.playback.jump_to_kind(EventKind.EVICTED)
        assert session.player.frame == session.listed_events.frame[0]


async def test_kinds_of_which_there_are_none_are_no_filter(tiny: Recording) -> None:
    app = KvsimApp(Session(tiny), clock=lambda: 0.0)
    async with app.run_test(size=(200, 60)) as pilot:
        session, seen = next(iter(app.playback.sessions())), []
        for _ in range(3):
            await pilot.press("f")
            seen.append(session.event_filter)
        assert seen == [EventFilter.SHORTAGES, EventFilter.FINISHES, EventFilter.ALL]


def test_without_a_shortage_everything_is_notable(shipped: Callable[[str], Recording]) -> None:
    events = events_of(Replay(shipped("large")))
    assert len(events.notable) == len(events) == 500


def test_a_row_is_idle_from_the_step_after_its_last_token(batch: Recording) -> None:
    events = events_of(Replay(batch))
    idle = events.kind == EventKind.IDLE
    assert events.request[idle].tolist() == [0]
    assert events.frame[idle].tolist() == [1]
