"""Who is served when: a line for each request, divided into waiting, running and holding a row for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..playback.events import EventKind

if TYPE_CHECKING:
    from ..playback.session import Session


class Doing(IntEnum):
    """What a request is doing."""

    NOTHING = 0
    """The request has not come yet, or has gone."""
    WAITING = 1
    RUNNING = 2
    IDLE = 3
    """The request's answer is complete, and its row is held until the batch ends."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """One request over time."""

    request: int
    doing: npt.NDArray[np.uint8]
    """A `Doing` for each column."""


def schedule(session: Session, width: int, end_s: float) -> list[Line]:
    """Every request of a run in `width` columns that reach from the beginning to `end_s`, in order of arrival."""
    requests = session.recording.requests
    middles_s = (np.arange(width) + 0.5) / width * end_s
    idle = session.events.of_kinds((EventKind.IDLE,))
    lines = []
    for request in range(len(requests)):
        doing = np.full(width, Doing.NOTHING, np.uint8)
        stays = [session.times_s[list(stay)] for stay in session.residencies(request)]
        gone_s = max((end for _, end in stays), default=np.inf)
        doing[(middles_s >= requests.arrival_s[request]) & (middles_s < gone_s)] = Doing.WAITING
        for begin_s, stop_s in stays:
            doing[(middles_s >= begin_s) & (middles_s < stop_s)] = Doing.RUNNING
        since = idle.frame[idle.request == request]
        if len(since):
            doing[(middles_s >= session.times_s[since[0]]) & (doing == Doing.RUNNING)] = Doing.IDLE
        lines.append(Line(request=request, doing=doing))
    return lines
