"""Phrases with which a lesson file names the moment of a caption, and the frame that each phrase means.

    start                     the first step
    end                       after the last step
    step 12                   that step
    1.5 s                     that time
    first wait                a request has to wait
    first refusal             a request is refused
    first preemption          memory is taken away
    first finish              an answer is complete
    first eviction            a kept prefix is dropped
    request A arrives         it arrives
    request A starts          it gets memory for the first time
    request A returns         it gets memory again after a preemption
    request A is preempted    its memory is taken away
    request A is padding      its answer is complete; its row is kept until the batch ends
    request A is refused      it never gets memory
    request A finishes        its memory is given back

Each may be followed by "+ 3 steps" or "- 3 steps".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ..playback.run_events import EventKind

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

    from ..playback.session import Session

_FIRST = {
    "refusal": EventKind.REFUSED,
    "preemption": EventKind.PREEMPTED,
    "eviction": EventKind.EVICTED,
    "finish": EventKind.FINISHED,
}
_OF_REQUEST = {
    "is preempted": EventKind.PREEMPTED,
    "is padding": EventKind.IDLE,
    "is refused": EventKind.REFUSED,
    "finishes": EventKind.FINISHED,
}


class UnknownMomentError(ValueError):
    """A phrase is unknown, or its moment never comes in the run. The message says which."""


def frame_of(session: Session, phrase: str) -> int:
    """Return the first frame at which `phrase` is true.

    Raises:
        UnknownMomentError: the phrase is unknown, or its moment never comes.
    """
    base, sign, distance = [*re.split(r" ([+-]) ", phrase, maxsplit=1), "+", "0 steps"][:3]
    steps = re.fullmatch(r"(\d+) steps?", distance)
    if steps is None:
        raise UnknownMomentError(f"{distance!r} should be a number of steps, such as '3 steps'")
    frame = _frame_of(session, base.strip())
    if frame is None:
        raise UnknownMomentError(f"{base!r} does not happen in this run")
    shift = int(steps[1]) if sign == "+" else -int(steps[1])
    return min(max(frame + shift, 0), session.player.last_frame)


def _frame_of(session: Session, phrase: str) -> int | None:
    """Return the frame that `phrase` names; None if the run has no such moment."""
    events = session.events
    frame: int | None
    match phrase.split():
        case ["start"]:
            frame = 0
        case ["end"]:
            frame = session.player.last_frame
        case ["step", number] if number.isdecimal():
            frame = int(number) if int(number) <= session.player.last_frame else None
        case [time_s, "s"] if re.fullmatch(r"\d+(\.\d+)?", time_s):
            frame = session.replay.frame_at(float(time_s))
        case ["first", "wait"]:
            frame = _first(np.flatnonzero(session.step_column("waiting") > 0))
        case ["first", kind] if kind in _FIRST:
            frame = _first(events.frame[events.kind == _FIRST[kind]])
        case ["request", name, *verb] if " ".join(verb) in (*_OF_REQUEST, "arrives", "starts", "returns"):
            frame = _of_request(session, name, " ".join(verb))
        case _:
            raise UnknownMomentError(
                f"{phrase!r} is no moment; try 'start', 'step 12', 'first wait' or 'request A finishes'"
            )
    return frame


def _of_request(session: Session, name: str, verb: str) -> int | None:
    rows = np.flatnonzero(session.recording.requests.id == name)
    if not len(rows):
        raise UnknownMomentError(f"there is no request {name!r}")
    request = int(rows[0])
    if verb == "arrives":
        arrival_seq = session.recording.requests.arrival_seq[request]
        return min(int(np.searchsorted(session.replay.frame_seq, arrival_seq)), session.player.last_frame)
    if verb in ("starts", "returns"):
        begins = [begin for begin, _ in session.residencies(request)]
        nth = int(verb == "returns")
        return begins[nth] if nth < len(begins) else None
    events = session.events
    return _first(events.frame[(events.kind == _OF_REQUEST[verb]) & (events.request == request)])


def _first(frames: IntArray) -> int | None:
    return int(frames[0]) if len(frames) else None
