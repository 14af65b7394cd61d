"""Slots of one request with speculative decoding: those of known tokens, those that steps in flight write, those with
rejected drafts, and lookahead slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..pool.strip_cells import DraftSlots
from .requests import request_facts

if TYPE_CHECKING:
    from ..playback.session import Session


def draft_slots(session: Session) -> DraftSlots | None:
    """Return the draft slots of the followed request or, if none is followed, of the first in the batch.

    None if the followed request holds no memory, or if no request does.
    """
    live, request = session.replay.live_requests().tolist(), session.followed
    if not live or (request is not None and request not in live):
        return None
    request = live[0] if request is None else request
    replay, facts = session.replay, request_facts(session, request)
    step = min(replay.frame, replay.num_frames - 2)
    [known] = replay.progress.known(np.array([request]), np.array([step]))[0]
    known, computed = min(int(known), facts.computed), facts.computed
    held = max(facts.num_units * replay.unit_tokens, computed)
    return DraftSlots(request, known, computed - known, held - computed, *_taken_back(session, request, step))


def _taken_back(session: Session, request: int, step: int) -> tuple[int, int]:
    """Return the index of the first slot whose rejected draft `step` overwrites, and their number; (0, 0) for none."""
    schedule = session.recording.schedule
    rows = np.flatnonzero((schedule.request == request) & (schedule.step <= step))
    if len(rows) < 2 or schedule.step[rows[-1]] != step:
        return 0, 0
    before, now = rows[-2:].tolist()
    stays = session.residencies(request)
    if not any(begin <= schedule.step[before] and step < end for begin, end in stays):
        return 0, 0  # the request was preempted between the two steps
    begin = int(schedule.computed_before[now])
    return begin, max(int(schedule.computed_before[before]) + int(schedule.tokens[before]) - begin, 0)
