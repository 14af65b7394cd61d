"""What there is to say about a unit, a request, and a recording: lines of label and value, without any layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.kv_groups import CacheKind
from kvsim.memory.waste import SlotState
from kvsim.recording.ledger import NOBODY
from kvsim.recording.tables import RequestStatus

from .states import LOOKS
from .words import gib, percent, plural, seconds

if TYPE_CHECKING:
    from kvsim.recording.group_slots import TableGroup

    from .comparison import Comparison
    from .session import Session


_STAYS_SHOWN = 3
"""Earlier holders of a unit that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """A request at the current frame."""

    state: str
    """`waiting`, `running`, ... in words that fit a line."""
    holds: bool
    """Whether it has memory now."""
    prompt_tokens: int
    generated_tokens: int
    """Outputs so far, with those whose KV a preemption took."""
    output_tokens: int
    """Outputs over the whole recording."""
    computed: int
    """Slots of its table that are written."""
    full: int
    """Slots that it will have written at most."""
    pad: int
    num_units: int
    preemptions: int
    """Times that it has been preempted so far."""
    slots: tuple[int, ...]
    """Slots of its units by state, in the order of `SlotState`."""


def request_facts(session: Session, request: int) -> RequestFacts:
    """Everything about `request` that changes with time."""
    replay, requests = session.replay, session.recording.requests
    _, addresses = replay.block_table(request)
    holds = len(addresses) > 0
    computed = int(replay.computed(np.array([request]))[0]) if holds else 0
    pad = int(replay.pad[request])
    reached = replay.progress.most(request, _last_step(session))
    prompt, output = int(requests.prompt_tokens[request]), int(requests.output_tokens[request])
    slots = replay.slots(addresses - replay.first_unit).sum(axis=0) if holds else np.zeros(len(SlotState), np.int64)
    return RequestFacts(
        state=_state(session, request, holds, computed),
        holds=holds,
        prompt_tokens=prompt,
        # The step that computes the last prompt token puts out the first new one.
        generated_tokens=min(max(reached - pad - prompt + 1, 0), output),
        output_tokens=output,
        computed=computed,
        full=int(replay.full[request]),
        pad=pad,
        num_units=len(addresses),
        preemptions=_preemptions(session, request),
        slots=tuple(slots.tolist()),
    )


def _last_step(session: Session) -> int:
    """The last step that has been scheduled at the current frame."""
    return min(session.replay.frame, session.replay.num_frames - 2)


def _computes_again(session: Session, request: int) -> bool:
    """Whether the step under way computes tokens that `request` has had computed before."""
    progress, step = session.replay.progress, _last_step(session)
    begin = progress.begins_at(request, step)
    return begin is not None and begin < progress.most(request, step - 1)


def _preemptions(session: Session, request: int) -> int:
    """Times that `request` has been preempted so far: it lost its memory, and that was not its end."""
    lost = sum(end <= session.replay.frame for _, end in session.residencies(request))
    return min(lost, int(session.recording.requests.preemptions[request]))


def _state(session: Session, request: int, holds: bool, computed: int) -> str:
    replay, requests = session.replay, session.recording.requests
    seq = replay.frame_seq[replay.frame]
    if holds:
        if computed > replay.full[request]:
            return "complete, but its row is held"
        begun = computed - replay.pad[request] >= requests.prompt_tokens[request]
        again = _computes_again(session, request)
        doing = "computing again what it lost" if again else "generating" if begun else "reading its prompt"
        return f"running: {doing}"
    if requests.status[request] == RequestStatus.REFUSED:
        return "refused: it can never fit"
    if requests.arrival_seq[request] > seq:
        return "has not arrived yet"
    if request in replay.waiting_requests():
        return "preempted, waiting again" if requests.first_scheduled_s[request] < replay.time_s else "waiting"
    return "finished" if requests.status[request] == RequestStatus.FINISHED else "gone"


def place_in_row(session: Session, request: int) -> str:
    """Where a sequence stands in the rows of a training batch."""
    _, addresses = session.replay.block_table(request)
    if not len(addresses) or session.rows is None:
        return "in no row yet"
    row, column = divmod(int(addresses[0]), session.rows.row_tokens)
    owners = session.replay.owner[row * session.rows.row_tokens :][:column]
    before = [session.request_name(owner) for owner in dict.fromkeys(owners.tolist())]
    return f"in row {row + 1}" + (f" behind {' and '.join(before)}" if before else "")


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
    if owner == NOBODY:
        return [*lines, ("held by", "nobody")]
    number = int(replay.group[unit]) if len(replay.groups) > 1 else 0
    group = replay.groups[number]
    begin = int(replay.position[unit]) * group.block_size
    place = f"{begin:,}" if group.block_size == 1 else f"{begin:,} to {begin + group.block_size - 1:,}"
    holders = session.request_name(owner) + (f" and {refs - 1:,} more" if refs > 1 else "")
    if len(replay.groups) == 1:
        return [*lines, ("held by", holders), ("its slots", place)]
    what = ("state after", place) if group.state_slots else ("its tokens", place)
    return [*lines, ("held by", holders), ("table", f"{number}: {group_words(group)}"), what]


def group_words(group: TableGroup) -> str:
    """What the tables of a KV-cache group hold: `sliding window of 1,024`."""
    kinds = {CacheKind.FULL: "full attention", CacheKind.MLA: "latents", CacheKind.MAMBA: "recurrent state"}
    if group.kind in kinds:
        return kinds[group.kind]
    return f"{'chunk' if group.kind is CacheKind.CHUNKED_LOCAL else 'sliding window'} of {group.window or 0:,}"


def unit_heading(session: Session, unit: int) -> str:
    """A unit's number and, where units are filled again and again, its generation: `block 412#3`."""
    number = f"{session.unit_name} {unit + session.replay.first_unit:,}"
    if session.replay.unit_tokens == 1:
        return number
    past = [stay.generation for stay in session.stays(unit) if stay.begin_frame <= session.player.frame]
    return f"{number}#{past[-1]}" if past else number


def unit_story(session: Session, unit: int) -> list[tuple[str, str]]:
    """What there is to know about a unit beyond the moment: who shares it, what it is known by, who had it before."""
    replay, frame = session.replay, session.player.frame
    past = [stay for stay in session.stays(unit) if stay.begin_frame <= frame]
    lines = []
    holders = [session.request_name(stay.request) for stay in past if stay.end_frame > frame]
    if len(holders) > 1:
        lines.append(("shared by", ", ".join(holders)))
    owner, position = int(replay.owner[unit]), int(replay.position[unit])
    hashes = session.recording.requests.prompt_hashes[owner] if owner != NOBODY else ()
    if replay.unit_tokens > 1 and len(replay.groups) == 1 and position < len(hashes):
        lines.append(("prefix hash", f"{int(hashes[position]) & (1 << 64) - 1:016x}"))
    resolution_s = session.player.duration_s / 1000
    for stay in [stay for stay in past if stay.end_frame <= frame][: -_STAYS_SHOWN - 1 : -1]:
        begin, end = (seconds(float(session.times_s[at]), resolution_s) for at in (stay.begin_frame, stay.end_frame))
        lines.append((f"before, #{stay.generation}", f"{session.request_name(stay.request)}, {begin} to {end}"))
    if past and replay.unit_tokens > 1:
        lines.append(("filled", f"{past[-1].generation} of {session.stays(unit)[-1].generation} times in all"))
    return lines


def request_lines(session: Session, request: int, facts: RequestFacts) -> list[tuple[str, str]]:
    """A request, as labels and values."""
    requests, resolution_s = session.recording.requests, session.player.duration_s / 10_000
    limit = int(requests.max_tokens[request])
    lines = [
        ("state", facts.state),
        ("prompt", plural(facts.prompt_tokens, "token")),
        *([("padding", f"{facts.pad:,} in front of it")] if facts.pad else []),
        (
            "output",
            f"{facts.generated_tokens:,} of {facts.output_tokens:,}"
            + (f", at most {limit:,}" if limit > facts.output_tokens else ""),
        ),
        ("written", f"{facts.computed:,} of {facts.full:,} {'tokens' if len(session.replay.groups) > 1 else 'slots'}"),
        ("holds", plural(facts.num_units, session.unit_name) if facts.holds else "no memory"),
        *([("wasted", _wasted(session, facts))] if facts.holds else []),
        ("preempted", _times(facts.preemptions, int(requests.preemptions[request]))),
    ]
    waited_s = float(requests.first_scheduled_s[request] - requests.arrival_s[request])
    begun = requests.first_scheduled_s[request] <= session.player.clock_s
    for label, times_s in (
        ("arrived", requests.arrival_s),
        ("first token", requests.first_token_s),
        ("finished" if requests.finished_s[request] <= session.player.clock_s else "will finish", requests.finished_s),
    ):
        lines.append((label, seconds(float(times_s[request]), resolution_s)))
    if begun:
        lines.append(("waited", seconds(waited_s, resolution_s)))
    return lines


def _times(so_far: int, in_all: int) -> str:
    return plural(so_far, "time") + (f" so far, {in_all:,} in all" if so_far < in_all else "")


def _wasted(session: Session, facts: RequestFacts) -> str:
    """Slots of a request's units that nobody will ever read, and their share; bytes where a slot is one."""
    wasted = sum(
        facts.slots[state] for state in (SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED, SlotState.EXTERNAL)
    )
    amount = gib(wasted) if len(session.replay.groups) > 1 else plural(wasted, "slot")
    return f"{amount}, {percent(wasted, sum(facts.slots))}"


def unit_summary(session: Session, unit: int) -> str:
    """A unit in one line."""
    values = dict(unit_lines(session, unit))
    number = unit + session.replay.first_unit
    return f"{session.unit_name} {number:,}: {values['is']}, held by {values['held by']}"


def selection(session: Session) -> str:
    """The selected unit and the followed request in one line, for screens without an inspector; empty for neither."""
    parts = []
    if session.selected is not None:
        parts.append(unit_summary(session, session.selected))
    if session.followed is not None:
        facts = request_facts(session, session.followed)
        held = plural(facts.num_units, session.unit_name) if facts.holds else "no memory"
        state = facts.state if session.rows is None else place_in_row(session, session.followed)
        parts.append(f"{session.request_name(session.followed)}: {held}, {state}")
    return "; ".join(parts)


def headline(session: Session, *, short: bool) -> list[str]:
    """What a person is looking at, in parts from the most to the least important."""
    meta, replay = session.recording.meta, session.replay
    engine = " ".join(str(meta.engine[key]) for key in ("name", "version") if key in meta.engine) or meta.source
    policy = {"static": "static batches"}.get(meta.policy_name, f"{meta.policy_name} memory")
    if meta.rules_name != meta.policy_name:
        policy = meta.rules_name
    model, gpu = str(meta.model.get("name", "unknown model")), meta.gpu
    size = gib(replay.num_units * meta.pool.bytes_per_unit)
    units = plural(replay.num_units, session.unit_name)
    if len(replay.groups) > 1:
        units += f" for {len(replay.groups)} tables a sequence"
    elif replay.unit_tokens > 1 and not short:
        units += f" of {replay.unit_tokens} slots"
    memory = f"{size} = {units}" if short else f"{size} for KV = {units}"
    return [_origin(session, engine), policy, f"{model} on {gpu.removeprefix('NVIDIA ') if short else gpu}", memory]


def comparison_headline(comparison: Comparison, *, short: bool) -> list[str]:
    """What is the same for all runs of a comparison."""
    session = comparison.lanes[0].session
    meta, rows = session.recording.meta, session.rows
    if rows is not None:
        sequences, width = plural(rows.num_sequences, "sequence"), plural(rows.row_tokens, "slot")
        return [f"the same {sequences} for training", f"rows of {width}"]
    model, gpu = str(meta.model.get("name", "unknown model")), meta.gpu
    size = gib(session.replay.num_units * meta.pool.bytes_per_unit)
    requests = plural(len(session.recording.requests), "request")
    origins = [_origin(lane.session, "") for lane in comparison.lanes]
    notes = ["uncalibrated"] if any("uncalibrated" in origin for origin in origins) else []
    if short:
        return [f"the same {requests}, one clock", *notes, f"{model} on {gpu.removeprefix('NVIDIA ')}", f"{size} each"]
    return [f"the same {requests} on one clock", *notes, f"{model} on {gpu}", f"{size} for KV in each"]


def _origin(session: Session, engine: str) -> str:
    meta = session.recording.meta
    if meta.source != "simulation":
        return f"real run of {engine}"
    # Whoever simulates says so in a note where the step times are not fitted to a recording.
    return "simulation, uncalibrated" if "uncalibrated" in f"{meta.notes} {meta.engine} {meta.extra}" else "simulation"
