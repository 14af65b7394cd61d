"""State of a second tier in host memory, as in vLLM 0.25.1's native offload; see `offload`.

The tier has slots for host blocks. A host block is as large as one or more GPU blocks. An engine without a second tier
has an empty tuple instead, and its compiled code has no code for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.arrays import Numbers, Records, Tables
from kvsim.engine.records import Linked, Small

RECENT, FREQUENT, RECENT_GHOSTS, FREQUENT_GHOSTS = range(4)
"""Lists of host blocks, as indices in `HostTier.lists`. Each list is doubly linked from a head record, which has the
same index in `HostTier.blocks`.

LRU uses only `RECENT`, for blocks that no copy reads or writes. ARC uses all four, for all blocks.
"""
NUM_LISTS = 4
"""Number of lists of host blocks. The records of their heads come first; the record of slot 0 follows."""
NO_HOST_BLOCK = 0
WRITING = -1
"""Value of `HostBlock.readers` while a store writes the block."""
NO_JOB = 0


@dataclass(slots=True, eq=False, repr=False)
class HostSettings:
    """Settings of the second tier. They do not change during a run."""

    num_slots: int = 0
    """Number of host blocks for which host memory has room."""
    blocks_per_slot: int = 0
    """Number of GPU blocks that fill one host block."""
    slot_tokens: int = 0
    adaptive: bool = False
    """True if blocks are evicted by ARC, False for LRU."""
    prompt_only: bool = False
    """True if only blocks of prompts are offloaded, not those of generated tokens."""
    store_block_s: float = 0.0
    """Seconds that copying one GPU block to the host takes."""
    load_block_s: float = 0.0
    """Seconds that copying one GPU block from the host takes."""
    job_s: float = 0.0
    """Seconds that a copy takes in addition to the time of its blocks."""
    submit_s: float = 0.0
    """Host time to submit a copy, without its blocks, in seconds."""
    submit_block_s: float = 0.0
    """Host time that each GPU block adds to submitting a copy, in seconds."""
    step_s: float = 0.0
    """Host time that the offload adds to every step, even without copies and sequences, in seconds."""
    sequence_s: float = 0.0
    """Host time that the offload adds to a step for each of its sequences, in seconds."""
    deferred_block_s: float = 0.0
    """Host time for each block that is freed late, in seconds."""
    is_timed: bool = False
    """True if the engine's clock decides when a copy has ended; False if the caller reports it."""
    most_copy_rows: int = 0
    """Largest number of recorded copies with which a step may begin; with more, the caller reads them first."""


@dataclass(slots=True, eq=False, repr=False)
class HostState:
    """Numbers of the second tier that change from step to step."""

    num_used: int = 0
    """Number of slots that were ever allocated. While some were not, the next slot in order is allocated."""
    last_evicted: int = 0
    """Index of the host block evicted last: head of a stack of blocks without contents, linked by `next`;
    `NO_HOST_BLOCK` if the stack is empty. Once all slots were used, the next block is taken from it.
    """
    num_free: int = 0
    num_ghosts_used: int = 0
    last_free_ghost: int = 0
    recent_target: float = 0.0
    """Number of blocks that ARC aims to keep in the list `RECENT`."""
    num_sparings: int = 0
    """Number of calls of `host_pool.begin_sparing` since the run began."""
    num_jobs: int = 0
    """Number of copies that were decided and have not been reported as ended."""
    next_job: int = 0
    num_job_records: int = 0
    last_free_job: int = 0
    first_reported: int = 0
    last_reported: int = 0
    store_free_s: float = 0.0
    """Time at which all stores that were submitted have ended, in seconds."""
    load_free_s: float = 0.0
    """Time at which all loads that were submitted have ended, in seconds."""
    num_copy_rows: int = 0


@dataclass(slots=True, eq=False, repr=False)
class HostBlock(Linked):
    """Host block with the data of one slot. With ARC, a record can be a ghost: only the key of an evicted one."""

    key: int = 0
    readers: Small = 0
    """Number of loads that read the block; `WRITING` while a store writes it, and for a ghost."""
    in_list: Small = 0
    """Index of the list that contains the block; -1 for none."""
    next_in_bucket: Small = 0
    """Index of the next block in the same bucket of the hash table (`HostTier.buckets`); 0 for none."""
    spared_in: int = 0
    """`HostState.num_sparings` when the block was last protected from eviction. It is protected while equal."""
    next_of_job: Small = 0
    """Index of the next host block that the same store writes; `NO_HOST_BLOCK` after the last one."""


@dataclass(slots=True, eq=False, repr=False)
class HostList:
    """Lengths of one list of host blocks."""

    length: int = 0
    num_idle: int = 0
    """Number of blocks in the list that no copy reads or writes."""


@dataclass(slots=True, eq=False, repr=False)
class Job(Linked):
    """One copy of blocks of one sequence, to the host or from the host."""

    number: int = 0
    """Number of the copy, in the order in which copies are decided."""
    sequence: Small = 0
    is_load: bool = False
    begin: Small = 0
    """Index of the sequence's first host block to consider, up to before `end`. A store copies only missing ones."""
    end: Small = 0
    first_written: Small = 0
    """Index of the first host block that a store writes. The store's other blocks are linked by `next_of_job`."""
    num_blocks: Small = 0
    """Number of GPU blocks that are copied."""
    begun_step: Small = 0
    """Number of recorded steps when the copy was decided: the number, from 0, of the recorded step that decides it."""
    awaited_step: Small = 0
    """Number, among recorded steps from 0, of the first step that had to wait for the copy; -1 if none had to."""
    decided_in: int = 0
    """Number of the scheduler's call that decided the copy, counted from 1."""
    awaited_in: int = 0
    """Number, among the scheduler's calls from 1, of the last call whose step had to wait for the copy; 0 if none had
    to. (`awaited_step` is the first step.)
    """
    reported_in: int = 0
    """Number, from 1, of the scheduler's call with whose output the copy's end is reported; 0 until that is known."""
    next_reported: Small = 0
    is_on_link: bool = False
    done_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class CopyRow:
    """Row of the recording's table of copies, for one GPU block. The fields are the table's columns."""

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
    """Number of the request's leading host blocks not to be stored any more: the host has them, gets or had them."""
    num_stamped: Small = 0
    """Number of leading entries of the request's table whose blocks have a current value in `HostTier.allocated_in`."""
    preempted_in: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HostTier(Tables):
    """Settings, state and lists of the second tier: the part of `Engine` that only it uses."""

    settings: HostSettings
    state: HostState
    blocks: Records[HostBlock]
    """Records of the heads of the lists, then of the slots, then of the keys that ARC remembers after evictions."""
    lists: Records[HostList]
    buckets: Numbers
    """Index of the first record in each bucket of the hash table of keys."""
    sources: Numbers
    """Ids of the GPU blocks from which slots were stored, flat: `HostSettings.blocks_per_slot` entries each."""
    jobs: Records[Job]
    """Copies. Those not reported as ended are linked in order of their numbers, after the head, record 0."""
    sequences: Records[HostSequence]
    allocated_in: Numbers
    """Number of the scheduler's call, counted from 1, that last allocated each GPU block."""
    copy_rows: Records[CopyRow]
    """Rows of the copies reported in this slice of the run, one for each GPU block; empty if they are not recorded."""
