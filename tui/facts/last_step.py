"""Changes of the pool in the step before the current frame, as parts of one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..look.wording import listed, plural
from ..playback.run_events import EventKind
from ..pool.paint import UnitChange
from ..pool.unit_changes import changes_between
from .preemption import preemption_at, preemption_reason

if TYPE_CHECKING:
    from ..playback.session import Session


def last_step(session: Session, room: int, *, short: bool = False) -> list[tuple[UnitChange | None, str]]:
    """Return parts of a line about the step before the current frame: (paint, text). The paint is None for a text
    without a swatch of colour.

    The first part has at most `room` characters if possible. If `short`, preemptions are without reason and tokens.
    """
    replay, frame = session.replay, session.player.frame
    if frame < session.before.num_summary_frames:
        return [(None, f"{plural(int((replay.refs > 0).sum()), session.unit_name)} were held before it")]
    changes = changes_between(replay, frame - 1, frame)
    unit = session.unit_name
    parts: list[tuple[UnitChange | None, str]] = _preemptions(session, frame, room, short=short)
    held, begin_seq = replay.ledger.tables.residencies, replay.frame_seq[frame - 1] if frame else -1
    admitted = held.request[(held.birth_seq > begin_seq) & (held.birth_seq <= replay.frame_seq[frame])].tolist()
    if admitted:
        names = [session.request_name(row) for row in admitted]
        parts.append((None, f"{listed(names, 'request').removesuffix(' requests')} admitted"))
    repeat = replay.recording.memory.repeat
    if repeat is not None and (repeat > 1).any():  # extents grow in place with every step: no unit is allocated anew
        return parts
    for change, units, verb in (
        (UnitChange.TAKEN, changes.taken, "taken"),
        (UnitChange.HIT, changes.hit, "hit in the cache"),
        (UnitChange.EVICTED, changes.evicted, "evicted"),
        (UnitChange.FREED, changes.freed, "freed"),
    ):
        if len(units):
            parts.append((change, f"{plural(len(units), unit)} {verb}"))
    finished = session.events.rows_at(frame, EventKind.FINISHED)
    if len(finished):
        names = [session.request_name(request) for request in finished.tolist()]
        parts.append((None, f"{listed(names, 'request')} finished"))
    return parts or [(None, f"no {unit} taken or freed")]


def _preemptions(session: Session, frame: int, room: int, *, short: bool) -> list[tuple[UnitChange | None, str]]:
    """Return (paint, text) of the preempted requests: why, what they lost, and the requests that took their memory.

    There are two parts if one part would be longer than `room`, and none without a preemption.
    """
    victims = session.events.rows_at(frame, EventKind.PREEMPTED).tolist()
    if not victims or not frame:
        return []
    found = [preemption_at(session, victim, frame) for victim in victims]
    names = [session.request_name(victim) for victim in victims]
    units = plural(sum(each.num_units for each in found), session.unit_name)
    tokens = plural(sum(each.num_tokens for each in found), "token")
    takers = tuple(name for name in dict.fromkeys(name for each in found for name in each.takers) if name not in names)
    gave_way = f"gave way to {listed(takers, 'request', ' and ')}" if takers else ""
    if short:
        taken = f" for {listed(takers, 'request', ' and ')}" if takers else ""
        return [(UnitChange.FREED, f"{listed(names, 'request')} preempted{taken}, lost {units}")]
    begin, lost = f"{preemption_reason(session)}: {listed(names, 'request')} preempted", f"lost {units}, {tokens}"
    whole = f"{begin}, {gave_way}, {lost}"
    if gave_way and len(whole) <= room:
        return [(UnitChange.FREED, whole)]
    return [(UnitChange.FREED, f"{begin}, {lost}"), *([(None, gave_way)] if gave_way else [])]
