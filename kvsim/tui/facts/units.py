"""What there is to say about a unit of the pool: lines of label and value, without any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.replay.ledger import NO_OWNER

from ..look.states import LOOKS
from ..look.words import percent, seconds
from ..pool.kinds import group_words

if TYPE_CHECKING:
    from ..playback.session import Session


def unit_lines(session: Session, unit: int) -> list[tuple[str, str]]:
    """A unit of the pool, as labels and values."""
    replay = session.replay
    owner, refs = int(replay.owner[unit]), int(replay.refs[unit])
    slots = replay.slots(np.array([unit]))[0]
    if len(replay.groups) > 1:
        states = [f"{percent(int(slots[state]), replay.unit_slots)} {LOOKS[state].name}" for state in SlotState
                  if slots[state]]  # fmt: skip
        lines = [("is", ", ".join(states))]
    elif replay.unit_tokens > 1:
        states = [f"{slots[state]:,} {LOOKS[state].name}" for state in SlotState if slots[state]]
        lines = [("is", ", ".join(states))]
    else:
        look = LOOKS[SlotState(int(slots.argmax()))]
        lines = [("is", look.name), ("meaning", look.meaning)]
    if owner == NO_OWNER:
        return [*lines, ("held by", "no request")]
    number = int(replay.group[unit]) if len(replay.groups) > 1 else 0
    group = replay.groups[number]
    begin = int(replay.position[unit]) * group.block_size
    place = f"{begin:,}" if group.block_size == 1 else f"{begin:,} to {begin + group.block_size - 1:,}"
    holders = session.request_name(owner) + (f" and {refs - 1:,} more" if refs > 1 else "")
    if len(replay.groups) == 1:
        return [*lines, ("held by", holders), ("its slots", place)]
    what = ("state after", place) if group.state_slots else ("its tokens", place)
    return [*lines, ("held by", holders), ("layers", group_words(group)), ("KV group", f"{number}"), what]


def unit_heading(session: Session, unit: int) -> str:
    """A unit's number and, where units are filled again and again, its generation: `block 412#3`."""
    number = f"{session.unit_name} {unit + session.replay.first_unit:,}"
    if session.replay.unit_tokens == 1:
        return number
    past = [stay.generation for stay in session.stays(unit) if stay.begin_frame <= session.player.frame]
    return f"{number}#{past[-1]}" if past else number


def unit_story(session: Session, unit: int, num_stays: int) -> list[tuple[str, str]]:
    """What there is to know about a unit beyond the moment: who shares it, what it is known by, who had it before.

    The last `num_stays` of those are named.
    """
    replay, frame = session.replay, session.player.frame
    past = [stay for stay in session.stays(unit) if stay.begin_frame <= frame]
    lines = []
    holders = [session.request_name(stay.request) for stay in past if stay.end_frame > frame]
    if len(holders) > 1:
        lines.append(("shared by", ", ".join(holders)))
    owner, position = int(replay.owner[unit]), int(replay.position[unit])
    hashes = session.recording.requests.prompt_hashes[owner] if owner != NO_OWNER else ()
    if replay.unit_tokens > 1 and len(replay.groups) == 1 and position < len(hashes):
        lines.append(("prefix hash", f"{int(hashes[position]) & (1 << 64) - 1:016x}"))
    resolution_s = session.player.duration_s / 1000
    for stay in [stay for stay in past if stay.end_frame <= frame][: -num_stays - 1 : -1]:
        begin, end = (seconds(float(session.times_s[at]), resolution_s) for at in (stay.begin_frame, stay.end_frame))
        lines.append((f"before, #{stay.generation}", f"{session.request_name(stay.request)}, {begin} to {end}"))
    if past and replay.unit_tokens > 1:
        lines.append(("filled", f"{past[-1].generation} of {session.stays(unit)[-1].generation} times in all"))
    return lines


def unit_summary(session: Session, unit: int) -> str:
    """A unit in one line."""
    values = dict(unit_lines(session, unit))
    number = unit + session.replay.first_unit
    return f"{session.unit_name} {number:,}: {values['is']}, held by {values['held by']}"
