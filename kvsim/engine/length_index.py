"""Index of waiting sequences by prompt length, from which static batches of similar lengths are formed.

Bucket `n` lists the sequences with prompts of `n` tokens, in order of arrival.
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
    """Add a waiting sequence. All sequences added before have arrived earlier."""
    bucket.push_back(engine.sequences, engine.buckets[sequence.prompt_tokens], sequence.number)


@part
def remove(engine: Engine, sequence: Sequence) -> None:
    """Remove a sequence that no longer waits."""
    bucket.remove(engine.sequences, engine.buckets[sequence.prompt_tokens], sequence.number)


@part
def earlier(engine: Engine, first: int, second: int) -> int:
    """Return the one of two sequences that arrived first. If exactly one is `NO_SEQUENCE`, return the other; if both
    are, return `NO_SEQUENCE`.
    """
    if first == NO_SEQUENCE:
        return second
    if second == NO_SEQUENCE:
        return first
    return first if engine.times[first].arrival_seq < engine.times[second].arrival_seq else second


@part
def first_at(engine: Engine, num_tokens: int) -> int:
    """Return the waiting sequence with a prompt of `num_tokens` tokens that arrived first; `NO_SEQUENCE` for none."""
    if 0 < num_tokens < len(engine.buckets):
        return engine.buckets[num_tokens].first
    return NO_SEQUENCE
