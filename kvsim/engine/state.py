"""All that the engine works on, in one tuple: `Engine`. Every function of the engine takes it as its first argument."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvsim.engine.host_tier import HostTier
from kvsim.engine.records import (
    Block,
    Bucket,
    Group,
    Hole,
    Launched,
    Line,
    Lists,
    MemoryRow,
    Moment,
    Numbers,
    Output,
    Readers,
    Records,
    Rectangle,
    ScheduleRow,
    Sequence,
    Settings,
    Stage,
    State,
    Step,
    Table,
    Times,
    Unsure,
)  # fmt: skip

PAGED, RESERVED, TIERED, OWN, RECTANGULAR = range(5)
"""Kinds of memory: blocks, contiguous reservations, blocks with a second tier of them on the host, units that a
user's own allocator hands out, or the rectangle of a static batch."""
WAITING, RUNNING, PREEMPTED, FINISHED, ABORTED, LOADING = range(6)
"""States of a sequence; one that loads waits, and has blocks."""
FULL, SLIDING_WINDOW, CHUNKED_LOCAL, MAMBA = range(4)
"""Kinds of groups, by what their layers keep: every token, the last ones, those of a chunk, or one state."""
LIVE_STATE, EVERY_STATE, ALIGNED = range(3)
"""States that a recurrent group keeps: the live one, that of every block, or that of every step's end."""
FIRST_FIT, BEST_FIT, NEXT_FIT, BUDDY = range(4)
"""Rules for the hole that an extent is cut from."""
NO_KEY = -(1 << 63)
"""The key of a block that holds no prefix; no block of any request has it."""


class Engine(NamedTuple):
    """A run under way. Request `row` of the workload is record `row + 1` of `sequences` and `times`.

    Lists of numbers hold such record numbers where they hold sequences.
    """

    memory: tuple[int, ...]
    """`Settings.memory` zeros: a tuple, so that its type tells compiled code what the memory is."""
    rules: tuple[Any, ...]
    """A policy in Python at work (see `own`), which is never compiled; empty for the built-in ones."""
    settings: Records[Settings]
    """One record, as is `state`."""
    step_times: Records[Any]
    """The step-time model of every stage; compiled, its coefficients under the names that compiled code has."""
    stages: Records[Stage]
    """Stages that a step passes through, one behind the other."""
    state: Records[State]
    sequences: Records[Sequence]
    times: Records[Times]
    unsure: Records[Unsure]
    """As many for each sequence as it has such tokens at most, one sequence behind the other."""
    lines: Records[Line]
    running: Numbers
    """The running sequences, in order of admission."""
    quiet_until: Numbers
    """The last step in which each running sequence is left alone, counted from 1; 0 if it is not: see `quiet`.
    """
    batch: Numbers
    """The step being scheduled: sequences in order of scheduling, but for those that are left alone."""
    batch_tokens: Numbers
    """Tokens that each sequence of the step computes."""
    emitting: Numbers
    """Sequences that each of the steps that may be in flight yields an output for."""
    lists: Records[Lists]
    launched: Records[Launched]
    """Steps under way: a ring of as many as may be."""
    groups: Records[Group]
    tables: Records[Table]
    """One for each place and group."""
    entries: Numbers
    """The block ids in these tables, and those found for the head of the queue."""
    prompt_keys: Numbers
    """Keys of the full blocks of all prompts, end to end."""
    blocks: Records[Block]
    readers: Records[Readers]
    """One for each block, where layers have windows."""
    buckets: Records[Bucket]
    """The prefix cache: a block is in the bucket of its key."""
    host: HostTier
    """The second tier; an empty tuple, whose type tells compiled code so, where there is none."""
    holes: Records[Hole]
    """Free slots of a contiguous memory, in order of address."""
    rectangle: Records[Rectangle]
    """One record."""
    first_uses: Any
    """Seconds that choosing kernels takes in every step of a static batch and, behind all of these, how many
    have to be built."""
    right_drafts: Numbers
    """Number of drafts that are right in a row from each draw of speculative decoding on."""
    moments: Records[Moment]
    """Events that the caller orders next, where the engine does not run on its clock."""
    steps: Records[Step]
    """The steps of this slice of the run."""
    outputs: Records[Output]
    memory_rows: Records[MemoryRow]
    """Changes of ownership so far, if they are written down."""
    schedule_rows: Records[ScheduleRow]
