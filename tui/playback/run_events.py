"""Events of a recording, for the event list and for jumps: ends and preemptions of requests, evictions of prefixes.

Arrivals are no events here, because the queue shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus
from kvsim.replay.unfolding import NO_OWNER

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay


class EventKind(IntEnum):
    """Kind of an event, which happened to a request or to cached prefixes."""

    FINISHED = 0
    PREEMPTED = 1
    """A request lost its memory. Its tokens must be computed again."""
    REFUSED = 2
    """A request will never be served."""
    ABORTED = 3
    """The client aborted a request."""
    IDLE = 4
    """A request's answer is complete, but its row of a static batch is held until the batch ends."""
    EVICTED = 5
    """Free units lost their cached prefix because they were allocated. No request lost memory."""


NOTABLE = (EventKind.PREEMPTED, EventKind.REFUSED, EventKind.ABORTED)
"""Kinds of events that pictures highlight: requests that lost their memory, or were not served to the end."""
ENDS = (EventKind.FINISHED, EventKind.ABORTED)
"""Kinds of events that end a request.

They happen at the end of a step, so that the next frame is the first to show them.
"""


EVENT_NAMES: Final = {
    EventKind.FINISHED: "finished",
    EventKind.PREEMPTED: "preempted",
    EventKind.REFUSED: "refused",
    EventKind.ABORTED: "aborted",
    EventKind.IDLE: "is padding now",
    EventKind.EVICTED: "evicted",
}
"""Names of the kinds of events for users."""


class EventFilter(Enum):
    """Selections of events for the list and for jumps. The values are shown to users."""

    ALL = "all events"
    SHORTAGES = "preemptions, refusals"
    EVICTIONS = "evictions"
    FINISHES = "finishes"
    FOLLOWED = "events of the request"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """One row per event, in the order in which the events happened."""

    frame: IntArray
    """First frame that shows the event."""
    kind: npt.NDArray[np.uint8]
    request: IntArray
    """Row of the request in the requests table; `NO_OWNER` for an eviction, or if the row is unknown."""
    count: IntArray
    """Number of units evicted in the event's frame, for an eviction; 1 for other events."""

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def notable(self) -> Events:
        """Events at which jumps stop: those of the kinds in `NOTABLE`. If there are none, all events."""
        notable = self.of_kinds(NOTABLE)
        return notable if len(notable) else self

    def of_kinds(self, kinds: tuple[EventKind, ...]) -> Events:
        """Return the events whose kind is one of `kinds`, in the same order."""
        return self._rows(np.isin(self.kind, kinds))

    def rows_at(self, frame: int, kind: EventKind) -> IntArray:
        """Return the rows of the requests with an event of `kind` at `frame`."""
        begin, end = np.searchsorted(self.frame, (frame, frame + 1))
        requests: IntArray = self.request[begin:end][self.kind[begin:end] == kind]
        return requests

    def of_request(self, request: int) -> Events:
        """Return the events of the request in row `request` of the requests table."""
        return self._rows(self.request == request)

    def between(self, begin: int, end: int) -> Events:
        """Return the events in the frames [begin, end), with `begin` renumbered to 0."""
        events = self._rows((self.frame >= begin) & (self.frame < end))
        return replace(events, frame=events.frame - begin)

    def followed_by(self, later: Events, num_frames: int) -> Events:
        """Return these events, followed by those of a run that continues after `num_frames` frames.

        The requests of `later` have other row numbers, so these events get `NO_OWNER` as request.
        """
        return Events(
            frame=np.concatenate((self.frame, later.frame + num_frames)),
            kind=np.concatenate((self.kind, later.kind)),
            request=np.concatenate((np.full(len(self), NO_OWNER, np.int64), later.request)),
            count=np.concatenate((self.count, later.count)),
        )

    def _rows(self, rows: npt.NDArray[np.bool_]) -> Events:
        return Events(frame=self.frame[rows], kind=self.kind[rows], request=self.request[rows], count=self.count[rows])

    def up_to(self, frame: int) -> int:
        """Return the number of events in `frame` and before."""
        return int(np.searchsorted(self.frame, frame, side="right"))


def events_of(replay: Replay) -> Events:
    """Return all events of the replayed recording, sorted by frame."""
    requests, memory = replay.recording.requests, replay.recording.memory
    rows = memory.end_rows
    request = memory.request[rows].astype(np.int64)
    last_of_request = np.full(len(requests), -1, np.int64)
    np.maximum.at(last_of_request, request, rows)
    ended = requests.status[request]
    # A request releases its memory at each preemption and at its end. The last release of a request that has ended is
    # its end, every other one a preemption.
    kind = np.select(
        [last_of_request[request] != rows, ended == RequestStatus.FINISHED, ended == RequestStatus.ABORTED],
        [EventKind.PREEMPTED, EventKind.FINISHED, EventKind.ABORTED],
        default=EventKind.PREEMPTED,
    )
    refused = np.flatnonzero(requests.status == RequestStatus.REFUSED)
    idle, idle_frame = _idle_rows(replay)
    released_frame = np.searchsorted(replay.frame_seq, memory.seq[rows])
    refused_frame = np.searchsorted(replay.frame_seq, requests.arrival_seq[refused])
    evicted_frame, num_evicted = _evictions(replay)
    frames = np.concatenate((released_frame, refused_frame, idle_frame, evicted_frame))
    frame = np.minimum(frames, replay.num_frames - 1)
    order = np.argsort(frame, kind="stable")
    extra = np.repeat(
        (EventKind.REFUSED, EventKind.IDLE, EventKind.EVICTED), (len(refused), len(idle), len(evicted_frame))
    )
    to_requests = np.concatenate((request, refused, idle))
    return Events(
        frame=frame[order],
        kind=np.concatenate((kind, extra))[order].astype(np.uint8),
        request=np.concatenate((to_requests, np.full(len(evicted_frame), NO_OWNER, np.int64)))[order],
        count=np.concatenate((np.ones(len(to_requests), np.int64), num_evicted))[order],
    )


def _evictions(replay: Replay) -> tuple[IntArray, IntArray]:
    memory = replay.recording.memory
    rows = np.flatnonzero(memory.kind == MemoryKind.EVICT)
    frames = np.searchsorted(replay.frame_seq, memory.seq[rows])
    first = np.flatnonzero(np.diff(frames, prepend=-1))  # the first row of each frame: rows are in order of time
    return frames[first], np.add.reduceat(memory.length[rows], first, dtype=np.int64) if len(first) else frames


def _idle_rows(replay: Replay) -> tuple[IntArray, IntArray]:
    """Return the requests whose answers are complete before their static batch ends, and the first frame in which each
    is padding.

    Both arrays are empty for other policies.
    """
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
