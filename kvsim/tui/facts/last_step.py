"""What the last step did to the pool, in words: for those who saw the lights, and those who cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..look.words import plural
from ..playback.events import EventKind
from ..pool.changes import changes_between
from ..pool.paint import Change

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

    from ..playback.session import Session

_NAMED = 2
"""Requests that are named one by one; of more, the number."""


def last_step(session: Session) -> list[tuple[Change | None, str]]:
    """Parts of a line about the step before the current frame, each with the paint that it has in the picture."""
    replay, frame = session.replay, session.player.frame
    changes = changes_between(replay, frame - 1, frame)
    unit = session.unit_name
    parts: list[tuple[Change | None, str]] = list(_preemptions(session, frame))
    repeat = replay.recording.memory.repeat
    if repeat is not None and (repeat > 1).any():  # extents that grow with every step: nothing is handed out
        return parts
    for change, units, verb in (
        (Change.TAKEN, changes.taken, "taken"),
        (Change.HIT, changes.hit, "hit in the cache"),
        (Change.EVICTED, changes.evicted, "evicted"),
        (Change.FREED, changes.freed, "freed"),
    ):
        if len(units):
            parts.append((change, f"{plural(len(units), unit)} {verb}"))
    finished = session.events.rows_at(frame, EventKind.FINISHED)
    if len(finished):
        names = ", ".join(session.request_name(int(request)) for request in finished[:_NAMED])
        parts.append((None, f"{names if len(finished) <= _NAMED else plural(len(finished), 'request')} finished"))
    return parts


def _preemptions(session: Session, frame: int) -> list[tuple[Change | None, str]]:
    """Who was preempted in the step, what it lost, and what that costs."""
    victims = session.events.rows_at(frame, EventKind.PREEMPTED).tolist()
    if not victims or not frame:
        return []
    held, computed = losses(session, np.array(victims, np.int64), frame)
    names = [session.request_name(victim) for victim in victims]
    who = ", ".join(names) if len(names) <= _NAMED else plural(len(names), "request")
    lost = f"{plural(sum(held), session.unit_name)}, {plural(sum(computed), 'token')} to compute again"
    return [(Change.FREED, f"{who} preempted: {'loses' if len(names) == 1 else 'lose'} {lost}")]


def losses(session: Session, victims: IntArray, frame: int) -> tuple[list[int], list[int]]:
    """Units that each of `victims` held, and tokens that were computed for it, before the step of `frame`."""
    replay, tables = session.replay, session.replay.ledger.tables
    seq = int(replay.frame_seq[frame - 1])
    held = [int(tables.length[tables.held(victim, seq)].sum()) for victim in victims.tolist()]
    return held, replay.progress.computed(victims, min(frame - 1, replay.num_frames - 2)).tolist()
