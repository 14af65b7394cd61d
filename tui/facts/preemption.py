"""Facts about a preemption: its cause, what the request lost, and which requests took the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording.tables import MemoryKind

from ..look.wording import listed, plural, seconds
from ..playback.run_events import EventKind

if TYPE_CHECKING:
    from ..playback.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The preemption of a request in the step before `frame`."""

    frame: int
    num_units: int
    """Number of units that the preempted request held."""
    num_tokens: int
    """Number of tokens that must be recomputed for the request."""
    takers: tuple[str, ...]
    """Ids of the requests that allocated memory in the same step."""


def last_preemption(session: Session, request: int) -> Preemption | None:
    """Return the last preemption of `request` up to the current frame; None without one."""
    events = session.events.of_kinds((EventKind.PREEMPTED,)).of_request(request)
    happened = events.frame[events.frame <= session.player.frame]
    return preemption_at(session, request, int(happened[-1])) if len(happened) else None


def preemption_at(session: Session, request: int, frame: int) -> Preemption:
    """Return the preemption of `request` in the step before `frame`."""
    replay, tables, memory = session.replay, session.replay.ledger.tables, session.recording.memory
    since, until = int(replay.frame_seq[max(frame - 1, 0)]), int(replay.frame_seq[frame])
    begin, end = np.searchsorted(memory.seq, (since, until), side="right")
    taken = memory.request[begin:end][memory.kind[begin:end] == MemoryKind.APPEND]
    takers = [row for row in dict.fromkeys(taken.tolist()) if row != request]
    step = min(max(frame - 1, 0), replay.num_frames - 2)
    return Preemption(
        frame=frame,
        num_units=int(tables.length[tables.held(request, since)].sum()),
        num_tokens=int(replay.progress.computed(np.array([request]), step)[0]),
        takers=tuple(session.request_name(row) for row in takers),
    )


def preemption_reason(session: Session) -> str:
    """Return the reason for preemptions: too few free blocks or, in a pool without blocks, no free slots to grow."""
    return "short of blocks" if session.replay.unit_tokens > 1 else "no room to grow"


def preemption_lines(session: Session, request: int) -> list[tuple[str, str]]:
    """Return the cause and the cost of a request's last preemption, as labels and values; empty without one."""
    found = last_preemption(session, request)
    if found is None:
        return []
    when = seconds(float(session.times_s[found.frame]), session.player.duration_s / 1000)
    lost = f"{plural(found.num_units, session.unit_name)}, {plural(found.num_tokens, 'token')}"
    gave_way = [("gave way to", listed(found.takers, "request", " and "))] if found.takers else []
    return [("at", when), ("because", preemption_reason(session)), *gave_way, ("lost", lost)]
