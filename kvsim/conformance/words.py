"""Steps and changes of ownership in words, for people who look at a difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.conformance.changes import WHOLE_TABLE
from kvsim.recording import MemoryKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.conformance.changes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Everything that is compared of one scheduled step; requests are rows of their table."""

    requests: list[int]
    """Requests of the step, in order of scheduling."""
    tokens: list[int]
    """Tokens that each request computes."""
    computed_before: list[int]
    evicted: list[int]
    """Blocks that lost a prefix, in order."""
    running: int
    waiting: int
    free: int
    """Blocks."""
    preempted: int


def step_in_words(facts: StepFacts, changes: Sequence[Change], names: Sequence[str]) -> dict[str, Any]:
    """One step, with what it changed in memory."""
    scheduled = zip(facts.requests, facts.tokens, facts.computed_before, strict=True)
    return {
        "preempted": facts.preempted,
        "scheduled": [f"{names[request]}: {tokens} after {before}" for request, tokens, before in scheduled],
        "memory": changes_in_words(changes, names),
        "evicted": facts.evicted,
        "running": facts.running,
        "waiting": facts.waiting,
        "free": facts.free,
    }


def changes_in_words(changes: Sequence[Change], names: Sequence[str]) -> list[str]:
    """Who got, shared or gave back which blocks: `r5[12] gets 345` is block 345 at the 13th place of its table.

    Where a model has several tables, those behind the first say which they are: `r5/2[12]`.
    """
    verbs = {MemoryKind.APPEND: "gets", MemoryKind.SHARE: "shares", MemoryKind.RELEASE: "gives back"}
    words = []
    for kind, request, position, block, group in changes:
        table = f"{names[request]}/{group}" if group else names[request]
        if kind == MemoryKind.RELEASE and position == WHOLE_TABLE:
            words.append(f"{table} gives back its table ({block or '?'} blocks)")
        else:
            words.append(f"{table}[{position}] {verbs[MemoryKind(kind)]} {block}")
    return words
