"""Waiting sequences by the length of their prompts, for batches of prompts that are alike.

The sequences of one length stand in a list, the first to arrive first. The list of prompts of `n` tokens is bucket `n`.
"""

from __future__ import annotations

from kvsim.engine import bucket
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine

NO_SEQUENCE = HEAD


@part
def add(engine: Engine, sequence: Sequence) -> None:
    """Add a sequence that has arrived after all others."""
    bucket.push_back(engine.sequences, engine.buckets[sequence.prompt_tokens], sequence.number)


@part
def remove(engine: Engine, sequence: Sequence) -> None:
    """Take out a sequence."""
    bucket.remove(engine.sequences, engine.buckets[sequence.prompt_tokens], sequence.number)


@part
def earlier(engine: Engine, one: int, other: int) -> int:
    """Return the one of two sequences that arrived first; either may be `NO_SEQUENCE`."""
    if one == NO_SEQUENCE:
        return other
    if other == NO_SEQUENCE:
        return one
    return one if engine.times[one].arrival_seq < engine.times[other].arrival_seq else other


@part
def first_at(engine: Engine, num_tokens: int) -> int:
    """Return the first sequence with a prompt of `num_tokens` tokens, or `NO_SEQUENCE`."""
    if 0 < num_tokens < len(engine.buckets):
        return engine.buckets[num_tokens].first
    return NO_SEQUENCE
