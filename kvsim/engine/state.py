"""`Engine`: the tuple of all records that a simulated engine works on.

Every function of the engine takes it as the first argument, so that machine code needs no global state.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kvsim.engine import records
from kvsim.engine.arrays import Numbers, Records
from kvsim.engine.connector_records import ConnectorTables
from kvsim.engine.encoder_records import EncoderCache
from kvsim.engine.external_records import ExternalKV
from kvsim.engine.host_tier import HostTier
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.radix_records import RadixTables
from kvsim.engine.records import Sequence, Table
from kvsim.engine.scheduling import Scheduler

WAITING, RUNNING, PREEMPTED, FINISHED, ABORTED, LOADING = range(6)
"""States of a sequence. A sequence that is `LOADING` waits for KV from outside, and already has blocks."""
FULL, SLIDING_WINDOW, CHUNKED_LOCAL, MAMBA = range(4)
"""Kinds of groups, by the tokens that their layers keep: all, a window, a chunk, or one state."""
LIVE_STATE, EVERY_STATE, ALIGNED = range(3)
"""States that a recurrent group keeps, for each value of vLLM's `mamba_cache_mode`.

`LIVE_STATE` (none): only the newest. `EVERY_STATE` (all): one for each block. `ALIGNED` (align): one for the end of
each step.
"""
FIRST_FIT, BEST_FIT, NEXT_FIT, BUDDY = range(4)
"""Rules that choose the free range in which a contiguous extent is allocated."""
NO_KEY = -(1 << 63)
"""Value of `Block.key` of a block that holds no prefix."""
HAS_TAIL = -1
"""Value of `Block.cached_in` of a block without a key in which the last hash of a prompt ends. No lookup finds it."""


class Rules(Protocol):
    """Decisions that a custom policy can make in place of the scheduler, and events that it observes.

    See `custom_rules`.
    """

    def fill_step(self, engine: Engine, /) -> int:
        """Select the tokens of a step; return the budget that is left."""

    def choose_victim(self, engine: Engine, needs: Sequence, /) -> int:
        """Return the index in `running` of the sequence to preempt so that the sequence `needs` gets memory."""

    def choose_next(self, engine: Engine, /) -> Sequence:
        """Return the waiting sequence to admit next; at least one waits."""

    def choose_evicted(self, engine: Engine, /) -> int:
        """Return the free block to allocate; called when the head of the free queue holds a prefix."""

    def note_cached(self, engine: Engine, sequence: Sequence, group: int, index: int, /) -> None:
        """Record that the block in entry `index` of a table was put into the prefix cache."""

    def note_hit(self, engine: Engine, sequence: Sequence, block: int, /) -> None:
        """Record that a sequence was admitted with a hit on a block."""

    def note_freed(self, engine: Engine, block: int, /) -> None:
        """Record that a block is free now; it may hold a prefix."""


class Engine(NamedTuple):
    """A simulated run. Row `i` of the workload is record `i + 1` of `sequences` and `times`.

    This number identifies a sequence in all lists of numbers.
    """

    memory: MemoryManager
    """The functions that allocate and free, for one kind of memory."""
    scheduler: Scheduler
    rules: Rules
    """The decisions of a step: vLLM's, or those of a custom policy (see `custom_rules`), which is never compiled."""
    settings: records.Settings
    step_times: Records[Any]
    """The step-time model of every pipeline stage; in a compiled engine, its coefficients."""
    stages: Records[records.Stage]
    """Pipeline stages, in the order in which a step passes through them."""
    state: records.State
    sequences: Records[records.Sequence]
    times: Records[records.Times]
    unsure: Records[records.Unsure]
    """Unsure tokens (see `totals`): `Settings.most_unsure` records for each sequence, end to end."""
    lines: Records[records.Line]
    running: Numbers
    """The running sequences, in order of admission."""
    quiet_until: Numbers
    """The last step, counted from 1, in which each running sequence is quiet (see `fast_forward`); 0 for none."""
    skipped: Numbers
    """The skipped sequences, in order. The second half of the list has those that the pass in progress has skipped."""
    adapter_passes: Numbers
    """Last pass over the queue in which each adapter was in use; empty if adapters are not limited."""
    batch: Numbers
    """The sequences of the step being scheduled, in order of scheduling, without quiet ones."""
    batch_tokens: Numbers
    """Number of tokens that the step computes for each sequence of `batch`."""
    emitting: Numbers
    """Sequences for which a step yields an output: `max_num_seqs` entries for each place of the ring `launched`."""
    emitting_drafts: Numbers
    """Number of drafts that the step verifies for each sequence in `emitting`; negative for padding."""
    drafts_by_batch: Numbers
    """Number of tokens drafted after a step, by the number of sequences in the step; empty if it is always the same."""
    given_drafts: Records[records.RequestDrafts]
    """Positions in `draft_counts` of the numbers of drafts of each sequence; empty without drafts."""
    draft_counts: Numbers
    """Numbers of accepted drafts of all requests, end to end, and then numbers of proposed drafts."""
    computing: Numbers
    """Sequences that a step computes, laid out like `emitting`; empty unless `Settings.counts_flight`."""
    computing_tokens: Numbers
    """Number of tokens that the step computes for each sequence in `computing`."""
    lists: Records[records.Lists]
    launched: Records[records.Launched]
    """The steps in flight: a ring of `Settings.most_in_flight` records; see `in_flight`."""
    groups: Records[records.Group]
    tables: Records[records.Table]
    """The block tables: one for each place and group; see `table_of`."""
    entries: Numbers
    """The block ids in all tables, and after them the hit blocks of the sequence being admitted."""
    prompt_keys: Numbers
    """Keys of the full blocks of all prompts, end to end."""
    blocks: Records[records.Block]
    readers: Records[records.Readers]
    """One record for each block; empty unless layers have windows."""
    buckets: Records[records.Bucket]
    """The prefix cache: a block is in the bucket of its key."""
    external: ExternalKV
    """Loads and late releases of an engine with a host tier or a connector; otherwise an empty tuple."""
    host: HostTier
    """The second tier on the host, or an empty tuple, whose type lets the compiler leave out the code for it."""
    encoder: EncoderCache
    """Images of prompts, and the cache of their encoder."""
    connector: ConnectorTables
    """The KV connector, or an empty tuple."""
    radix: RadixTables
    """SGLang's radix cache and the state of its scheduler, or an empty tuple."""
    holes: Records[records.Hole]
    """Free ranges of a contiguous memory, in order of address."""
    rectangle: records.Rectangle
    first_uses: Any
    """Costs of step shapes that a static batch uses for the first time, one entry for each step.

    First come the seconds to choose kernels in each step, then the number of kernels to build in each step.
    """
    moments: Records[records.Moment]
    """The next events to replay, if the engine runs without a clock; see `moments`."""
    steps: Records[records.Step]
    """The steps of this slice of the run."""
    outputs: Records[records.Output]
    gaps: Records[records.Gap]
    """Gaps of this slice of the run: times from an output to the next step, with no step in flight."""
    memory_rows: Records[records.MemoryRow]
    """Changes of ownership in this slice of the run, if they are recorded."""
    schedule_rows: Records[records.ScheduleRow]


@part
def table_of(engine: Engine, sequence: Sequence, group: int) -> Table:
    """Return the block table of a sequence in a group. The sequence has a place."""
    return engine.tables[sequence.place * engine.settings.num_groups + group]
