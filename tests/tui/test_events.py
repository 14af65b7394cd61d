"""What is told about requests, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording import Recording, Replay, RequestStatus
from tui.events import EventKind, events_of

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_without_a_shortage_everything_is_notable(shipped: Callable[[str], Recording]) -> None:
    events = events_of(Replay(shipped("large")))
    assert len(events.notable) == len(events) == 500


def test_a_row_is_idle_from_the_step_after_its_last_token(batch: Recording) -> None:
    events = events_of(Replay(batch))
    idle = events.kind == EventKind.IDLE
    assert events.request[idle].tolist() == [0]
    assert events.frame[idle].tolist() == [1]
