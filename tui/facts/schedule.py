"""Schedule of a run for the drawings of lessons: when each request waits, runs, or is idle in its batch."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..playback.run_events import EventKind

if TYPE_CHECKING:
    from ..playback.session import Session


class Doing(IntEnum):
    """Activity of a request."""

    NOTHING = 0
    """The request has not arrived or has left."""
    WAITING = 1
    RUNNING = 2
    IDLE = 3
    """The request's answer is complete, but its row is held until the batch ends."""


def schedule(session: Session, width: int, end_s: float) -> npt.NDArray[np.uint8]:
    """Divide the time from 0 to `end_s` into `width` equal parts, and return the `Doing` of each request in each.

    The shape is (requests, width), with requests in order of arrival.
    """
    requests = session.recording.requests
    middles_s = (np.arange(width) + 0.5) / width * end_s
    idle = session.events.of_kinds((EventKind.IDLE,))
    lines = np.full((len(requests), width), Doing.NOTHING, np.uint8)
    for request, doing in enumerate(lines):  # `doing` is a view of a line: later assignments override earlier ones
        stays = [session.times_s[list(stay)] for stay in session.residencies(request)]
        gone_s = max((end for _, end in stays), default=np.inf)
        doing[(middles_s >= requests.arrival_s[request]) & (middles_s < gone_s)] = Doing.WAITING
        for begin_s, stop_s in stays:
            doing[(middles_s >= begin_s) & (middles_s < stop_s)] = Doing.RUNNING
        since = idle.frame[idle.request == request]
        if len(since):
            doing[(middles_s >= session.times_s[since[0]]) & (doing == Doing.RUNNING)] = Doing.IDLE
    return lines
