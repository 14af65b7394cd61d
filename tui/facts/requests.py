"""Facts about one request at the current frame, as labels and values for the inspector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.recording.tables import CopyKind, RequestStatus

from ..look.wording import listed, percent, plural, seconds
from .preemption import preemption_lines
from .units import slots_text

if TYPE_CHECKING:
    from ..playback.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """A request at the current frame."""

    state: str
    """State in words, such as `waiting`."""
    holds: bool
    """True if the request holds memory now."""
    prompt_tokens: int
    generated_tokens: int
    """Number of output tokens up to the current frame. A preemption does not reduce it."""
    output_tokens: int
    """Number of output tokens of the request in the whole recording."""
    computed: int
    """Number of the request's slots that are written."""
    final_slots: int
    """Number of slots that the request will have written at its end."""
    pad: int
    """Number of padding slots before the prompt."""
    num_units: int
    preemptions: int
    """Number of preemptions up to the current frame."""
    slots: tuple[int, ...]
    """Number of slots in each state, in the order of `SlotState`, in the request's units."""


def request_facts(session: Session, request: int) -> RequestFacts:
    """Collect what the inspector shows of `request`, as of the current frame."""
    replay, requests = session.replay, session.recording.requests
    _, addresses = replay.block_table(request)
    holds = len(addresses) > 0
    computed = int(replay.computed(np.array([request]))[0]) if holds else 0
    pad = int(replay.pad[request])
    prompt, output = int(requests.prompt_tokens[request]), int(requests.output_tokens[request])
    slots = replay.slots(addresses - replay.first_unit).sum(axis=0) if holds else np.zeros(len(SlotState), np.int64)
    return RequestFacts(
        state=_state(session, request, holds, computed),
        holds=holds,
        prompt_tokens=prompt,
        generated_tokens=session.num_output_tokens(request),
        output_tokens=output,
        computed=computed,
        final_slots=int(replay.full[request]),
        pad=pad,
        num_units=len(addresses),
        preemptions=_preemptions(session, request),
        slots=tuple(slots.tolist()),
    )


def _computes_again(session: Session, request: int) -> bool:
    replay = session.replay
    progress, step = replay.progress, min(replay.frame, replay.num_frames - 2)
    begin = progress.computed_before(request, step)
    return begin is not None and begin < progress.most_tokens(request, step - 1)


def _preemptions(session: Session, request: int) -> int:
    """Count the preemptions of `request` up to now: the releases of its memory, except for the one at its end."""
    total = int(session.recording.requests.preemptions[request])
    num_releases = sum(end <= session.replay.frame for _, end in session.residencies(request))
    return min(num_releases + _preemptions_before(session, request, total), total)


def _preemptions_before(session: Session, request: int, total: int) -> int:
    if not session.before.num_summary_frames:
        return 0
    replay, held = session.replay, session.replay.ledger.tables.residencies
    is_release = (held.request == request) & (held.death_seq <= replay.frame_seq[-1])
    has_ended = session.recording.requests.status[request] != RequestStatus.UNFINISHED
    return max(total - int(is_release.sum()) + int(has_ended), 0)


def _state(session: Session, request: int, holds: bool, computed: int) -> str:
    replay, requests = session.replay, session.recording.requests
    if holds:
        return _doing(session, request, computed)
    if requests.status[request] == RequestStatus.REFUSED:
        return "refused: it can never fit"
    if requests.arrival_seq[request] > replay.seq:
        return "has not arrived yet"
    if request in replay.waiting_requests():
        return "preempted, waits again" if requests.first_scheduled_s[request] < replay.time_s else "waiting"
    return "finished" if requests.status[request] == RequestStatus.FINISHED else "gone"


def _doing(session: Session, request: int, computed: int) -> str:
    replay = session.replay
    if computed > replay.full[request]:
        return "complete, row is held"
    if comes_from_host(session, request) and not session.loads_in_step:
        return "waiting for the host's blocks"
    begun = session.num_output_tokens(request) > 0
    again = _computes_again(session, request)
    doing = "recomputing" if again else "generating" if begun else "reading prompt"
    is_loaded = comes_from_host(session, request)
    return f"running: {doing}{', its prefix comes from the host' if is_loaded else ''}"


def comes_from_host(session: Session, request: int) -> bool:
    """Tell whether blocks of `request` are being loaded from host memory."""
    copies, frame = session.recording.copies, session.replay.frame
    if copies is None:
        return False
    has_begun = (copies.request == request) & (copies.kind == CopyKind.LOAD) & (copies.begun_step <= frame)
    has_ended = (copies.reported_step >= 0) & (copies.reported_step < frame)
    return bool((has_begun & ~has_ended).any())


def place_in_row(session: Session, request: int) -> str:
    """Describe where a sequence is in its training batch: the row, and the sequences before it in that row."""
    _, addresses = session.replay.block_table(request)
    if not len(addresses) or session.rows is None:
        return "in no row yet"
    row, column = divmod(int(addresses[0]), session.rows.row_tokens)
    owners = session.replay.owner[row * session.rows.row_tokens :][:column]
    before = [session.request_name(owner) for owner in dict.fromkeys(owners.tolist())]
    return f"in row {row + 1}" + (f" behind {' and '.join(before)}" if before else "")


def request_lines(session: Session, request: int, facts: RequestFacts) -> list[tuple[str, str]]:
    """Return the facts about a request as labels and values."""
    requests, resolution_s = session.recording.requests, session.player.duration_s / 10_000
    limit = int(requests.max_tokens[request])
    at_most = f", at most {limit:,}" if limit > facts.output_tokens else ""
    noun = "tokens" if len(session.replay.groups) > 1 else "slots"
    lines = [
        ("state", facts.state),
        ("prompt", plural(facts.prompt_tokens, "token")),
        *_padding(facts),
        ("output", f"{facts.generated_tokens:,} of {facts.output_tokens:,}{at_most}"),
        (
            "written",
            f"{min(facts.computed, facts.final_slots) - facts.pad:,} of {facts.final_slots - facts.pad:,} {noun}",
        ),
        ("holds", plural(facts.num_units, session.unit_name) if facts.holds else "no memory"),
        *([("wasted", _wasted(session, facts)), *share_lines(session, request)] if facts.holds else []),
        ("preempted", _times(facts.preemptions, int(requests.preemptions[request]))),
        *([] if facts.holds else preemption_lines(session, request)),
        *_adapter(session, request),
        *(_drafts(session, request, facts) if facts.holds else []),
    ]
    waited_s = float(requests.first_scheduled_s[request] - requests.arrival_s[request])
    begun = requests.first_scheduled_s[request] <= session.player.clock_s
    for label, times_s in (
        ("arrived", requests.arrival_s),
        ("first token", requests.first_token_s),
        (_end_label(session, request, facts), requests.finished_s),
    ):
        lines.append((label, seconds(float(times_s[request]), resolution_s)))
    if begun:
        lines.append(("queued for", seconds(waited_s, resolution_s)))
    return lines


def _end_label(session: Session, request: int, facts: RequestFacts) -> str:
    """Return the label of a request's end. In a static batch, a request is freed some time after its last token."""
    if session.recording.requests.finished_s[request] <= session.player.clock_s:
        return "finished"
    return "is freed" if facts.holds and facts.computed > facts.final_slots else "will finish"


def _adapter(session: Session, request: int) -> list[tuple[str, str]]:
    adapter = session.recording.requests.adapter
    return [] if adapter is None else [("adapter", f"number {adapter[request]}" if adapter[request] else "none")]


def _drafts(session: Session, request: int, facts: RequestFacts) -> list[tuple[str, str]]:
    """Return the number of slots after a request's known tokens, as label and value: those that the step in flight
    writes, and unwritten ones.

    Empty without speculative decoding.
    """
    if not session.recording.has_drafts:
        return []
    replay = session.replay
    step = np.array([min(replay.frame, replay.num_frames - 2)])
    [known] = replay.progress.known(np.array([request]), step)[0]
    under_way = max(facts.computed - int(known), 0)
    ahead = max(facts.num_units * replay.unit_tokens - facts.computed, 0) if len(replay.groups) == 1 else 0
    return [("drafts", f"{plural(under_way, 'slot')} under way, {ahead:,} behind")]


def _padding(facts: RequestFacts) -> list[tuple[str, str]]:
    after = max(facts.computed - facts.final_slots, 0)
    texts = [f"{number:,} {where}" for number, where in ((facts.pad, "before"), (after, "after")) if number]
    return [("padding", ", ".join(texts))] if texts else []


def _times(so_far: int, total: int) -> str:
    return f"{so_far:,} so far, {total:,} in all" if so_far < total else plural(so_far, "time")


def _wasted(session: Session, facts: RequestFacts) -> str:
    """Return the number and the share of wasted slots in a request's units."""
    wasted = sum(
        facts.slots[state] for state in (SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED, SlotState.EXTERNAL)
    )
    if not wasted:
        return "nothing"
    return f"{slots_text(session, wasted, 'slot')}, {percent(wasted, sum(facts.slots))}"


def share_lines(session: Session, request: int) -> list[tuple[str, str]]:
    """Return the number of shared units of `request`, and their other holders, as labels and values.

    Empty if the request shares no unit.
    """
    replay, tables = session.replay, session.replay.ledger.tables
    _, addresses = replay.block_table(request)
    shared = np.unique(addresses[replay.refs[addresses - replay.first_unit] > 1])
    if not len(shared):
        return []
    runs = replay.held_extents()
    begin = tables.address[runs]
    holds = np.searchsorted(shared, begin + tables.length[runs]) > np.searchsorted(shared, begin)
    others = [row for row in np.unique(tables.request[runs][holds]).tolist() if row != request]
    names = [session.request_name(row) for row in others]
    return [("shares", plural(len(shared), session.unit_name)), ("with", listed(names, "request"))]
