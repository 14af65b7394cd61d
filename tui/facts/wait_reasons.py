"""Reason why the request at the head of the queue waits: a full batch, a full step, no slot for its adapter, or too
little free memory. SGLang also keeps free memory for the answers of running requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics.waiting import Limits
from kvsim.replay.free_memory import free_extent_lengths
from kvsim.replay.unfolding import NO_OWNER

from ..look.wording import plural

if TYPE_CHECKING:
    from kvsim.recording.tables import Steps

    from ..playback.session import Session


def wait_reason(session: Session) -> tuple[str, ...]:
    """Return the reason why the head of the queue waits now: a long text, then shorter ones for narrow panels.

    Empty if no request waits, or if the reason is unknown, as it is after the last step.
    """
    meta, steps, step = session.recording.meta, session.recording.steps, session.replay.frame
    if step >= len(steps) or not steps.waiting[step]:
        return ()
    if meta.policy_name == "static":
        return ("until the batch has ended",)
    limits = Limits.of(meta.policy, meta.engine)
    if limits is None:
        return ()
    if meta.policy_name == "radix":
        return full_step(limits, steps, step) or _no_room_for_answer(session)
    return (
        full_step(limits, steps, step)
        or _short_of_adapters(session)
        or _short_of_memory(session, beside_preemption=bool(steps.preempted[step]))
    )


def full_step(limits: Limits, steps: Steps, step: int) -> tuple[str, ...]:
    """Return a long and a short reason if requests wait because `step` has no place or no token left in its batch.

    The result is empty if they wait for something else.
    """
    now = slice(step, step + 1)
    tokens = steps.prefill_tokens[now] + steps.decode_tokens[now]
    _, by_batch, by_tokens = limits.split(steps.waiting[now], steps.running[now], tokens)
    if by_batch[0]:
        return (f"batch full: {limits.max_num_seqs:,} requests at a time", "batch full")
    if by_tokens[0]:
        return (f"step full: {limits.max_num_batched_tokens:,} tokens at a time", "step full")
    return ()


def _short_of_adapters(session: Session) -> tuple[str, ...]:
    adapter, slots = session.recording.requests.adapter, session.recording.meta.policy.get("max_loras")
    head = next(iter(session.replay.waiting_requests().tolist()), None)
    if adapter is None or head is None or not isinstance(slots, int):
        return ()
    in_use = set(adapter[session.replay.live_requests()].tolist()) - {0}
    if len(in_use) < slots or int(adapter[head]) in in_use | {0}:
        return ()
    name = session.request_name(head)
    return (f"{name} names adapter {adapter[head]}; all {slots:,} slots are in use", "no slot for its adapter")


def _short_of_memory(session: Session, *, beside_preemption: bool) -> tuple[str, ...]:
    """Return why memory is too small for the first waiting request, longest text first."""
    unknown = ("too little memory is free",)
    head = next(iter(session.replay.waiting_requests().tolist()), None)
    need = None if head is None else units_needed(session, head)
    if head is None or need is None:
        return unknown
    name, unit = session.request_name(head), session.unit_name
    if session.replay.unit_tokens > 1:
        ownerless = session.replay.owner == NO_OWNER
        free = int(ownerless.sum())
        which = "free or cached" if (session.replay.cached & ownerless).any() else "free"
        if need > free:
            return needs(name, need, unit, f"{free:,} {which}")
        # A step that preempts admits no request, although blocks are free.
        return ("a step that preempts admits none",) if beside_preemption else unknown
    longest = int(free_extent_lengths(session.replay).max(initial=0))
    if need <= longest:
        return unknown
    return (
        f"{name} needs {need:,} contiguous {unit}s, {longest:,} free",
        f"{name} needs {need:,} contiguous, {longest:,} free",
        f"needs {need:,} contiguous, {longest:,} free",
    )


def _no_room_for_answer(session: Session) -> tuple[str, ...]:
    """Return the reason for which SGLang does not admit the head of the queue; empty if unknown.

    A request is admitted if its tokens, its longest answer and one more page fit into the free slots that are not kept
    for running requests. For each running request, SGLang keeps a share of the slots that the rest of its answer may
    take. The share changes with each step and is not recorded. If the request fits even with a share of 1, it waits for
    something else.
    """
    replay, policy = session.replay, session.recording.meta.policy
    head, clip = next(iter(replay.waiting_requests().tolist()), None), policy.get("clip_max_new_tokens_estimation")
    if head is None or not isinstance(clip, int):
        return ()
    if len(replay.groups) > 1:
        return ("it does not fit with its longest answer",)
    name, unit, page = session.request_name(head), session.unit_name, replay.unit_tokens
    tokens = int(session.recording.requests.prompt_tokens[head]) + session.num_output_tokens(head)
    need = (tokens + _num_tokens_left_to_answer(session, head, clip)) // page + 2
    free = int((replay.owner == NO_OWNER).sum())
    needed = f"{name} needs {plural(need, unit)} with its longest answer"
    if need > free:
        return (f"{needed}, {free:,} free or cached", f"needs {plural(need, unit)}, {free:,} free")
    rest = sum(_num_tokens_left_to_answer(session, request, clip) for request in replay.live_requests().tolist())
    if need * page <= free * page - rest:
        return ()
    return (
        f"{needed}; of {free:,} free or cached, too many are kept for running answers",
        f"{plural(free, unit)} free, but kept for running answers",
        "free memory is kept for answers",
    )


def _num_tokens_left_to_answer(session: Session, request: int, most: int) -> int:
    return min(max(int(session.recording.requests.max_tokens[request]) - session.num_output_tokens(request), 0), most)


def needs(name: str, need: int, unit: str, free: str) -> tuple[str, str, str]:
    """Return three texts on the number of units that a request needs: whole, without `unit`, and without its `name`.

    `free` are words on how many are free.
    """
    units = plural(need, unit)
    return f"{name} needs {units}, {free}", f"{name} needs {need:,}, {free}", f"needs {units}, {free}"


def units_needed(session: Session, request: int) -> int | None:
    """Return the number of units that a waiting request needs to begin; None if unknown.

    In a paged pool, these are the blocks for all tokens that it has now, cached ones included. In a pool of slots, they
    are the slots of its reservation.
    """
    replay, requests = session.replay, session.recording.requests
    tokens = int(requests.prompt_tokens[request]) + session.num_output_tokens(request)
    if len(replay.groups) > 1:
        limits = Limits.of(session.recording.meta.policy, session.recording.meta.engine)
        if limits is None:
            return None
        most = limits.max_num_batched_tokens
        groups = session.recording.meta.pool.groups
        return sum(min(group.blocks_for(tokens, most), -(-tokens // group.block_size)) for group in groups)
    if replay.unit_tokens > 1:
        return -(-tokens // replay.unit_tokens)
    tables, now = replay.ledger.tables, replay.seq
    rows = np.flatnonzero((tables.request == request) & (tables.birth_seq > now))
    return int(tables.length[rows[0]]) if len(rows) else None
