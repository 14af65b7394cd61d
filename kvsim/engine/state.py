"""All that the engine works on, in one tuple: `Engine`. Every function of the engine takes it as its first argument."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kvsim.engine.arrays import Numbers, Records
from kvsim.engine.connector_records import ConnectorTables
from kvsim.engine.encoder_records import EncoderCache
from kvsim.engine.host_tier import HostTier
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.radix_records import RadixTables
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
    Output,
    Readers,
    Rectangle,
    RequestDrafts,
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
from kvsim.engine.scheduling import Scheduler

WAITING, RUNNING, PREEMPTED, FINISHED, ABORTED, LOADING = range(6)
"""States of a sequence; one that loads waits, and has blocks."""
FULL, SLIDING_WINDOW, CHUNKED_LOCAL, MAMBA = range(4)
"""Kinds of groups, by the tokens that their layers keep: all, a window, a chunk, or one state."""
LIVE_STATE, EVERY_STATE, ALIGNED = range(3)
"""States that a recurrent group keeps: the live one, that of every block, or that of every step's end."""
FIRST_FIT, BEST_FIT, NEXT_FIT, BUDDY = range(4)
"""Rules for the hole that an extent is cut from."""
NO_KEY = -(1 << 63)
"""The key of a block that holds no prefix; no block of any request has it."""


class Rules(Protocol):
    """Decisions that a custom policy may take instead of vLLM's rule, and its inputs; see `custom_rules`."""

    def fill_step(self, engine: Engine, /) -> int:
        """Select the tokens of a step; return the rest of its budget."""

    def choose_victim(self, engine: Engine, needs: Sequence, /) -> int:
        """Return the index, among the running sequences, of the one to preempt for a sequence that needs room."""

    def choose_next(self, engine: Engine, /) -> Sequence:
        """Return the waiting sequence to admit next; there is one."""

    def choose_evicted(self, engine: Engine, /) -> int:
        """Return the free block to take, since the head of the free queue keeps a prefix."""

    def note_cached(self, engine: Engine, sequence: Sequence, group: int, index: int, /) -> None:
        """Note that entry `index` of a table was put into the prefix cache."""

    def note_hit(self, engine: Engine, sequence: Sequence, block: int, /) -> None:
        """Note that a sequence was admitted with a block of the prefix cache."""

    def note_freed(self, engine: Engine, block: int, /) -> None:
        """Note that no table holds a block any more, which may keep a prefix."""


class Engine(NamedTuple):
    """A run under way. Request `row` of the workload is record `row + 1` of `sequences` and `times`.

    Lists of numbers hold such record numbers where they hold sequences.
    """

    memory: MemoryManager
    """The functions of the kind of memory."""
    scheduler: Scheduler
    rules: Rules
    """The decisions of a step: vLLM's, or those of a custom policy (see `custom_rules`), which is never compiled."""
    settings: Settings
    step_times: Records[Any]
    """The step-time model of every stage; compiled, its coefficients under the names that compiled code has."""
    stages: Records[Stage]
    """Stages that a step passes through, one behind the other."""
    state: State
    sequences: Records[Sequence]
    times: Records[Times]
    unsure: Records[Unsure]
    """Tokens of which it shows only in the end whether they are computed: equally many for each sequence, one sequence
    behind the other."""
    lines: Records[Line]
    running: Numbers
    """The running sequences, in order of admission."""
    quiet_until: Numbers
    """The last step in which each running sequence is left alone, counted from 1; 0 if it is not: see `quiet`.
    """
    skipped: Numbers
    """The sequences that were skipped, in order; in the second half those that the pass under way has skipped."""
    adapter_passes: Numbers
    """The last pass over the queue in which each adapter was in use; empty where adapters are not limited."""
    batch: Numbers
    """The step being scheduled: sequences in order of scheduling, but for those that are left alone."""
    batch_tokens: Numbers
    """Tokens that each sequence of the step computes."""
    emitting: Numbers
    """Sequences that each of the steps that may be in flight yields an output for."""
    emitting_drafts: Numbers
    """Drafts that each of these verifies, which are known to be wrong where the number is below zero."""
    drafts_by_batch: Numbers
    """Tokens that are drafted behind a step of each number of sequences; empty where the number does not matter."""
    told: Records[RequestDrafts]
    """The given drafts of each sequence; empty without drafts."""
    told_drafts: Numbers
    """The numbers of right and of proposed drafts, end to end."""
    computing: Numbers
    """Sequences that each of the steps that may be in flight computes, where tokens in flight are counted."""
    computing_tokens: Numbers
    """Tokens that it computes of each of these."""
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
    encoder: EncoderCache
    """Images of prompts, and the cache of their encoder."""
    connector: ConnectorTables
    """The KV connector; an empty tuple where there is none."""
    radix: RadixTables
    """SGLang's cache and the state of its scheduler; an empty tuple where there is none."""
    holes: Records[Hole]
    """Free slots of a contiguous memory, in order of address."""
    rectangle: Rectangle
    first_uses: Any
    """Seconds that choosing kernels takes in every step of a static batch and, behind all of these, how many
    have to be built."""
    moments: Records[Moment]
    """Events that the caller orders next, where the engine does not run on its clock."""
    steps: Records[Step]
    """The steps of this slice of the run."""
    outputs: Records[Output]
    memory_rows: Records[MemoryRow]
    """Changes of ownership so far, if they are written down."""
    schedule_rows: Records[ScheduleRow]


@part
def table_of(engine: Engine, sequence: Sequence, group: int) -> Table:
    """Return the table of a sequence that has a place, in a group."""
    return engine.tables[sequence.place * engine.settings.num_groups + group]
