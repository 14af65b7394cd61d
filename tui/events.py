"""What happened to requests during a recording, as a list that a person can read and jump along.

Arrivals are left out: the queue shows them, and every request has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus

if TYPE_CHECKING:
    from kvsim.recording.replay import Replay


class EventKind(IntEnum):
    """What happened."""

    FINISHED = 0
    PREEMPTED = 1
    """Its memory was taken away, to be computed again."""
    REFUSED = 2
    """It will never be served."""
    ABORTED = 3
    """It was given up."""
    IDLE = 4
    """Its answer is complete, but its row is held until the batch ends."""


NOTABLE = (EventKind.PREEMPTED, EventKind.REFUSED, EventKind.ABORTED)
"""The kinds that tell of a shortage; everything is supposed to finish."""


class EventFilter(Enum):
    """Which events are listed and jumped to; the value is what people read."""

    ALL = "all events"
    SHORTAGES = "preemptions, refusals"
    FINISHES = "finishes"
    FOLLOWED = "events of the request"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """One row per event, in the order in which they happened."""

    frame: IntArray
    """The first frame that shows it."""
    kind: npt.NDArray[np.uint8]
    request: IntArray

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def notable(self) -> Events:
        """The events worth stopping at: shortages, or everything where there never is one."""
        shortages = self.of_kinds(NOTABLE)
        return shortages if len(shortages) else self

    def of_kinds(self, kinds: tuple[EventKind, ...]) -> Events:
        """The events of some kinds."""
        return self._rows(np.isin(self.kind, kinds))

    def of_request(self, request: int) -> Events:
        """The events of one request."""
        return self._rows(self.request == request)

    def _rows(self, rows: npt.NDArray[np.bool_]) -> Events:
        return Events(frame=self.frame[rows], kind=self.kind[rows], request=self.request[rows])

    def up_to(self, frame: int) -> int:
        """How many events have happened at `frame`."""
        return int(np.searchsorted(self.frame, frame, side="right"))


def events_of(replay: Replay) -> Events:
    """All events of the replayed recording."""
    requests, memory = replay.recording.requests, replay.recording.memory
    rows = np.flatnonzero(memory.kind == MemoryKind.RELEASE)
    request = memory.request[rows].astype(np.int64)
    last_of_request = np.full(len(requests), -1, np.int64)
    np.maximum.at(last_of_request, request, rows)
    ended = requests.status[request]
    kind = np.select(
        [last_of_request[request] != rows, ended == RequestStatus.FINISHED, ended == RequestStatus.ABORTED],
        [EventKind.PREEMPTED, EventKind.FINISHED, EventKind.ABORTED],
        default=EventKind.PREEMPTED,
    )
    refused = np.flatnonzero(requests.status == RequestStatus.REFUSED)
    idle, idle_frame = _idle_rows(replay)
    released_frame = np.searchsorted(replay.frame_seq, memory.seq[rows])
    refused_frame = np.searchsorted(replay.frame_seq, requests.arrival_seq[refused])
    frame = np.minimum(np.concatenate((released_frame, refused_frame, idle_frame)), replay.num_frames - 1)
    order = np.argsort(frame, kind="stable")
    extra = np.repeat((EventKind.REFUSED, EventKind.IDLE), (len(refused), len(idle)))
    return Events(
        frame=frame[order],
        kind=np.concatenate((kind, extra))[order].astype(np.uint8),
        request=np.concatenate((request, refused, idle))[order],
    )


def _idle_rows(replay: Replay) -> tuple[IntArray, IntArray]:
    """The rows of static batches that end before their batch does, and the frame from which each is padding."""
    recording = replay.recording
    if recording.meta.policy_name != "static":
        return np.empty(0, np.int64), np.empty(0, np.int64)
    schedule, requests = recording.schedule, recording.requests
    first, last = np.full(len(requests), replay.num_frames), np.full(len(requests), -1)
    np.minimum.at(first, schedule.request, schedule.step)
    np.maximum.at(last, schedule.request, schedule.step + schedule.repeats - 1)
    idle_frame = first + requests.output_tokens
    idle = np.flatnonzero(idle_frame <= last)
    return idle, idle_frame[idle]
