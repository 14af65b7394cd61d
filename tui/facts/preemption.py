"""What a preemption was for, what its victim lost, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording.tables import MemoryKind

from ..look.words import plural, seconds
from ..playback.events import EventKind

if TYPE_CHECKING:
    from ..playback.session import Session

_NAMED = 2
"""Requests that are named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A request lost its memory in the step before `frame`."""

    frame: int
    num_units: int
    """Units that the victim held."""
    num_tokens: int
    """Tokens that had been computed for the victim, and must be computed again."""
    takers: tuple[str, ...]
    """The requests that were given memory in that step."""


def last_preemption(session: Session, request: int) -> Preemption | None:
    """The last one of `request` up to the current frame; None where it was never preempted."""
    events = session.events.of_kinds((EventKind.PREEMPTED,)).of_request(request)
    happened = events.frame[events.frame <= session.player.frame]
    return preemption_at(session, request, int(happened[-1])) if len(happened) else None


def preemption_at(session: Session, request: int, frame: int) -> Preemption:
    """What `request` lost in the step before `frame`, and who was given memory in it."""
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


def lack(session: Session) -> str:
    """Why memory is taken away: blocks run out; extents may not fit between others, though slots are free."""
    return "short of blocks" if session.replay.unit_tokens > 1 else "no room to grow"


def named(takers: tuple[str, ...]) -> str:
    """The requests that were given memory: one or two by name, of more the number."""
    return plural(len(takers), "request") if len(takers) > _NAMED else " and ".join(takers)


def preemption_lines(session: Session, request: int) -> list[tuple[str, str]]:
    """What the last preemption of a request took from it and why, as labels and values."""
    found = last_preemption(session, request)
    if found is None:
        return []
    when = seconds(float(session.times_s[found.frame]), session.player.duration_s / 1000)
    lost = f"{plural(found.num_units, session.unit_name)}, {plural(found.num_tokens, 'token')}"
    gave_way = [("gave way to", named(found.takers))] if found.takers else []
    return [("at", when), ("because", lack(session)), *gave_way, ("lost", lost)]
