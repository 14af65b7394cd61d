"""Facts about one unit of the pool (a block or a slot), as labels and values for the inspector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_MEANINGS, STATE_NAMES
from kvsim.replay.unfolding import NO_OWNER

from ..look.wording import bytes_text, percent, plural, seconds
from ..pool.free_queue import next_units
from ..pool.layer_kinds import group_words

if TYPE_CHECKING:
    from ..playback.session import Session


def slots_text(session: Session, number: int, noun: str = "") -> str:
    """Return a number of slots, followed by the singular `noun`, or its plural.

    If several kinds of layers share the pool, a slot is a byte, and the text is a size.
    """
    if len(session.replay.groups) > 1:
        return bytes_text(number)
    return plural(number, noun) if noun else f"{number:,}"


def unit_lines(session: Session, unit: int) -> list[tuple[str, str]]:
    """Return the facts about a unit at the current frame, as labels and values."""
    replay = session.replay
    owner, refs = int(replay.owner[unit]), int(replay.refs[unit])
    slots = replay.slots(np.array([unit]))[0]
    if len(replay.groups) > 1:
        states = [f"{percent(int(slots[state]), replay.unit_slots)} {STATE_NAMES[state]}" for state in SlotState
                  if slots[state]]  # fmt: skip
        lines = [("is", ", ".join(states))]
    elif replay.unit_tokens > 1:
        lines = [("is", ", ".join(_counted(state, int(slots[state])) for state in SlotState if slots[state]))]
    else:
        mostly = SlotState(int(slots.argmax()))
        lines = [("is", STATE_NAMES[mostly]), ("meaning", STATE_MEANINGS[mostly])]
    if owner == NO_OWNER:
        return [*lines, ("held by", "no request"), *_when_allocated(session, unit)]
    number = int(replay.group[unit]) if len(replay.groups) > 1 else 0
    group = replay.groups[number]
    holders = session.request_name(owner) + (f" and {refs - 1:,} more" if refs > 1 else "")
    begin = int(replay.position[unit]) * group.block_size - int(replay.pad[owner])
    tokens = _tokens_held(session, owner, begin, group.block_size)
    if len(replay.groups) == 1:
        return [*lines, ("held by", holders), tokens]
    if group.state_slots:
        tokens = ("state after", tokens[1])
    return [*lines, ("held by", holders), ("layers", group_words(group)), ("KV group", f"{number}"), tokens]


def _when_allocated(session: Session, unit: int) -> list[tuple[str, str]]:
    places = np.flatnonzero(next_units(session.replay) == unit).tolist()
    return [("allocated", f"as number {place + 1} from now" if place else "next") for place in places]


def _counted(state: SlotState, number: int) -> str:
    return plural(number, "token") if state is SlotState.TOKEN else f"{number:,} {STATE_NAMES[state]}"


def _tokens_held(session: Session, request: int, begin: int, length: int) -> tuple[str, str]:
    """Return which tokens of the prompt or answer a unit holds, as label and value.

    `begin` is the index, from 0, of the unit's first token, and `length` the number of its tokens. Texts count from 1.
    """
    prompt, end = int(session.recording.requests.prompt_tokens[request]), begin + length
    if end <= 0:
        return "its row", "before the prompt"
    label = "its prompt" if end <= prompt else "its answer" if begin >= prompt else "its tokens"
    return label, f"token {end:,}" if length == 1 else f"tokens {max(begin, 0) + 1:,} to {end:,}"


def unit_heading(session: Session, unit: int) -> str:
    """Return the name of a unit, such as `block 412`."""
    return f"{session.unit_name} {unit + session.replay.first_unit:,}"


def unit_story(session: Session, unit: int, num_stays: int) -> list[tuple[str, str]]:
    """Return the history of a unit as labels and values: holders, prefix hash, the last `num_stays` former holders."""
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
        since = f"{begin} to" if stay.begin_frame >= session.before.num_summary_frames else "until"
        lines.append(("before", f"{session.request_name(stay.request)}, {since} {end}"))
    if past and replay.unit_tokens > 1 and not session.before.num_summary_frames:
        so_far, in_all = past[-1].generation, session.stays(unit)[-1].generation
        lines.append(("allocated", f"{so_far:,} so far, {in_all:,} in all"))
    return lines


def unit_summary(session: Session, unit: int) -> str:
    """Describe a unit in one line: its states, its holder, and when it will be allocated."""
    values = dict(unit_lines(session, unit))
    number = unit + session.replay.first_unit
    queue = f", allocated {values['allocated']}" if "allocated" in values else ""
    return f"{session.unit_name} {number:,}: {values['is']}, held by {values['held by']}{queue}"
