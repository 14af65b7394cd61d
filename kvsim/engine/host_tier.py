"""State of a second tier in host memory, as in vLLM 0.25.1's native offload; see `offload`.

An engine without one has an empty tuple in its place, and nothing of this module in its compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvsim.engine.arrays import Numbers, Records
from kvsim.engine.records import Linked, Small

RECENT, FREQUENT, RECENT_GHOSTS, FREQUENT_GHOSTS = range(4)
"""Lists of host blocks; each is also the record that stands for both of its ends. Least recently used there is only
`RECENT`, which holds the idle ones. ARC has all four, and busy blocks stand in them too."""
NUM_LISTS = 4
"""Records before that of slot 0."""
NO_HOST_BLOCK = 0
WRITING = -1
"""Readers of a block whose copy to the host has not ended."""
NO_JOB = 0


@dataclass(slots=True, eq=False, repr=False)
class HostSettings:
    """Settings of the second tier; they do not change during a run."""

    num_slots: int = 0
    """Capacity in host blocks."""
    blocks_per_slot: int = 0
    """GPU blocks in a host block."""
    slot_tokens: int = 0
    """Tokens of a host block."""
    adaptive: bool = False
    """Blocks are evicted as ARC does, instead of the least recently used first."""
    prompt_only: bool = False
    """Whether blocks of generated tokens are not offloaded."""
    store_block_s: float = 0.0
    """Seconds in which one GPU block crosses the link to the host."""
    load_block_s: float = 0.0
    """Seconds in which one GPU block crosses the link from the host."""
    job_s: float = 0.0
    """Seconds that a copy takes however small it is."""
    submit_s: float = 0.0
    """Host time to hand a copy to the GPU, however small it is."""
    submit_block_s: float = 0.0
    """Host time that one more GPU block adds to submitting a copy, in seconds."""
    step_s: float = 0.0
    """Host time of a step, beside its copies."""
    sequence_s: float = 0.0
    """Host time that one more sequence adds to a step."""
    deferred_block_s: float = 0.0
    """Host time for each block whose release is deferred, in seconds."""
    is_timed: bool = False
    """The clock says when a copy has ended; otherwise the caller does."""
    most_copy_rows: int = 0
    """Rows of copies that may be there when a step begins."""
    most_rows: int = 0
    """Rows of memory with which another load may begin."""


@dataclass(slots=True, eq=False, repr=False)
class HostState:
    """The numbers of the second tier that change from step to step."""

    num_used: int = 0
    """Slots that were ever handed out: they are taken in order first."""
    last_given_back: int = 0
    """The slot that is taken next once all were: the one evicted last."""
    num_free: int = 0
    num_ghosts_used: int = 0
    last_free_ghost: int = 0
    recent_target: float = 0.0
    """Blocks that ARC wants in `RECENT`."""
    num_sparings: int = 0
    """Lookups of blocks that must not be evicted, counted."""
    num_jobs: int = 0
    """Copies that were begun and not reported."""
    next_job: int = 0
    """The number of the next copy."""
    num_job_records: int = 0
    last_free_job: int = 0
    first_reported: int = 0
    last_reported: int = 0
    num_updates: int = 0
    """Steps whose output was processed, empty ones included."""
    num_steps_begun: int = 0
    """Number of scheduled steps with computed tokens."""
    num_steps_processed: int = 0
    """Number of processed steps with computed tokens."""
    num_deferred: int = 0
    """Sequences whose tables are gone and whose blocks are not free yet."""
    num_settled_calls: int = 0
    """Number of consecutive calls of the scheduler without effect."""
    store_free_s: float = 0.0
    """Time at which the link to the host has done all copies that were given to it, in seconds."""
    load_free_s: float = 0.0
    """Time at which the link from the host has done all copies that were given to it, in seconds."""
    num_copy_rows: int = 0
    is_crowded: bool = False
    """Whether more loads began in one step than can be recorded."""


@dataclass(slots=True, eq=False, repr=False)
class HostBlock(Linked):
    """One host block, or the ghost of one: a key that was evicted not long ago."""

    key: int = 0
    readers: Small = 0
    """Loads that read it; `WRITING` while it is being written."""
    stands_in: Small = 0
    """The list that it is in, if any."""
    next_alike: Small = 0
    """The next record in its bucket."""
    spared: int = 0
    """The last sparing that it was named in."""
    next_of_job: Small = 0
    """The next block that the same copy writes."""


@dataclass(slots=True, eq=False, repr=False)
class HostList:
    """Lengths of a list of host blocks."""

    length: int = 0
    num_idle: int = 0
    """Blocks that no copy reads or writes."""


@dataclass(slots=True, eq=False, repr=False)
class Job(Linked):
    """One copy over the link: of blocks of one sequence, in one direction."""

    number: int = 0
    """Copies are numbered in the order in which they are decided."""
    sequence: Small = 0
    is_load: bool = False
    begin: Small = 0
    """The first host block of the sequence that it covers."""
    end: Small = 0
    first_written: Small = 0
    """The first block that a store writes; the others are linked by `next_of_job`."""
    num_blocks: Small = 0
    """GPU blocks that are copied."""
    begun_step: Small = 0
    """The recorded step that decided it."""
    awaited_step: Small = 0
    """The first recorded step that had to wait for it, or -1."""
    decided_in: int = 0
    """The call of the scheduler that decided it, counted from 1."""
    awaited_in: int = 0
    """The last call of the scheduler whose step had to wait for it."""
    reported_in: int = 0
    """The step with whose output it is reported, counted like calls."""
    next_reported: Small = 0
    is_on_link: bool = False
    done_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class CopyRow:
    """One block that was copied, as in a recording."""

    copy: Small = 0
    kind: Small = 0
    request: Small = 0
    begun_step: Small = 0
    awaited_step: Small = 0
    reported_step: Small = 0
    address: Small = 0
    slot: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class HostSequence:
    """State of one request in the second tier."""

    num_jobs: Small = 0
    stored: Small = 0
    """Leading host blocks that need not be stored any more."""
    num_recorded: Small = 0
    """Number of entries of its table whose allocation is recorded in `allocated_in`."""
    is_prefilling: bool = False
    """Whether a sequence loads or was admitted with a part of its prompt: blocks for the rest are reserved."""
    last_step: int = 0
    """Last step with computed tokens of it."""
    free_after: int = 0
    """The step whose output must be processed before its blocks are free."""
    dead_tokens: Small = 0
    """Tokens that the sequence had computed in these blocks."""
    preempted_in: int = 0


class HostTier(NamedTuple):
    """The second tier of an engine that has one."""

    settings: HostSettings
    state: HostState
    blocks: Records[HostBlock]
    """Heads of lists, then slots, then ghosts."""
    lists: Records[HostList]
    buckets: Numbers
    """The first record of every bucket of keys."""
    sources: Numbers
    """GPU blocks that a slot is written from, slot after slot."""
    jobs: Records[Job]
    """Pending ones stand in a list in order of their numbers, behind record 0."""
    asked: Records[HostSequence]
    """One for each sequence."""
    deferred: Numbers
    """Sequences whose blocks are not free yet, in order."""
    allocated_in: Numbers
    """The last call of the scheduler that allocated each GPU block."""
    copy_rows: Records[CopyRow]
    """Copies that were reported in this slice of the run, if they are written down."""
