"""`Engine`: all state of a simulated engine, as one record.

Every function of the engine takes it as the first argument, so that machine code needs no global state. A sequence, a
block or another record is identified by its index, so "return the block" means to return its index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kvsim.engine import recorded_rows, records
from kvsim.engine.arrays import Numbers, Records, Tables
from kvsim.engine.connector_records import ConnectorTables
from kvsim.engine.encoder_records import EncoderCache
from kvsim.engine.engine_settings import Settings
from kvsim.engine.external_records import ExternalKV
from kvsim.engine.host_tier import HostTier
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.radix_records import RadixTables
from kvsim.engine.records import Sequence, Table
from kvsim.engine.scheduling import Scheduler

WAITING, RUNNING, PREEMPTED, FINISHED, ABORTED, LOADING = range(6)
"""Values of `Sequence.status`. A sequence that is `LOADING` waits for KV from outside, and has blocks already."""
FULL_ATTENTION, SLIDING_WINDOW, CHUNKED_LOCAL, MAMBA = range(4)
"""Kinds of KV-cache groups, by what their layers keep: all tokens, a window, a chunk, or one recurrent state."""
LIVE_STATE, EVERY_STATE, ALIGNED = range(3)
"""States that a recurrent group keeps, for each value of vLLM's `mamba_cache_mode`.

- `LIVE_STATE` ("none"): only the newest.
- `EVERY_STATE` ("all"): one for each block.
- `ALIGNED` ("align"): one for the end of each step.
"""
FIRST_FIT, BEST_FIT, NEXT_FIT, BUDDY = range(4)
"""Rules that choose the free range in which a contiguous extent is allocated."""
NO_KEY = -(1 << 63)
"""Value of `Block.key` of a block that holds no prefix."""
HAS_TAIL = -1
"""`Block.cached_in` of a keyless block in which the last full hash of a prompt ends; see `Settings.marks_tails`."""


class Rules(Protocol):
    """Decisions that a custom policy may make in the scheduler's place, and events that it observes."""

    def fill_step(self, engine: Engine, /) -> int:
        """Choose how many tokens each sequence computes in the step; return the tokens left of the budget."""

    def choose_victim(self, engine: Engine, needs: Sequence, /) -> int:
        """Return the index in `Engine.running` of the sequence to preempt, so that the sequence `needs` gets memory."""

    def choose_next(self, engine: Engine, /) -> Sequence:
        """Return the waiting sequence to admit next. There is at least one."""

    def choose_evicted(self, engine: Engine, /) -> int:
        """Return the free block to allocate, if the queue's head holds a cached prefix. The head is a valid answer."""

    def note_cached(self, engine: Engine, sequence: Sequence, group: int, index: int, /) -> None:
        """Observe that the block in entry `index` of a sequence's table in `group` was put into the prefix cache."""

    def note_hit(self, engine: Engine, sequence: Sequence, block: int, /) -> None:
        """Observe that a sequence was admitted with a hit on `block`."""

    def note_freed(self, engine: Engine, block: int, /) -> None:
        """Observe that `block` is free now. It may hold a cached prefix."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Engine(Tables):
    """State of a simulated run.

    Request `i` of the workload, counted from 0, is record `i + 1` of `sequences` and `times`. This index is the number
    of the sequence. Record 0 belongs to no request.
    """

    memory: MemoryManager
    """Functions that allocate and free, for one kind of memory."""
    scheduler: Scheduler
    rules: Rules
    """Decisions of a step: vLLM's, or those of a custom policy (see `custom_rules`), which is never compiled."""
    settings: Settings
    step_time_models: Records[Any]
    """Step-time model of every pipeline stage; in a compiled engine, a record of its coefficients."""
    stages: Records[records.Stage]
    """Pipeline stages, in the order in which a step passes through them."""
    state: records.State
    sequences: Records[records.Sequence]
    times: Records[records.Times]
    unsure: Records[records.Unsure]
    """Slots of tokens that may or may not be computed (see `totals`): `Settings.most_unsure` records per sequence."""
    lines: Records[records.Line]
    running: Numbers
    """Numbers of the running sequences, in order of admission."""
    quiet_until: Numbers
    """Last step, counted from 1, up to which the scheduler leaves the record of each sequence of `running` as it is
    (see `fast_forward`); 0 for a sequence whose record is up to date.
    """
    skipped: Numbers
    """Numbers of the skipped sequences, in two halves of equal length, each filled from its beginning. The first half
    has those of earlier steps, the second half those of the step being scheduled.
    """
    adapter_passes: Numbers
    """Value of `State.num_adapter_passes` when each adapter was last in use; empty if adapters are not limited."""
    batch: Numbers
    """Numbers of the sequences of the step being scheduled, in order of scheduling. Quiet sequences are left out."""
    batch_tokens: Numbers
    """Number of tokens that the step computes for each sequence of `batch`."""
    emitting: Numbers
    """Numbers of the sequences for which each step in flight yields an output. The step at index `i` of `launched` has
    the entries from `i * max_num_seqs` on. `Launched.num_emitting` entries are valid.
    """
    emitting_drafts: Numbers
    """Number of drafts to verify for each entry of `emitting`; negative for padding. Empty without drafts."""
    drafts_by_batch: Numbers
    """Number of tokens drafted after a step, by the number of sequences in the step; empty if it is always the same."""
    given_drafts: Records[records.RequestDrafts]
    """Indices in `draft_counts` of the lists of each sequence; empty without drafts."""
    draft_counts: Numbers
    """Numbers of accepted drafts of all requests, end to end, followed by the numbers of proposed drafts."""
    computing: Numbers
    """Numbers of the sequences that each step in flight computes, laid out like `emitting`; `Launched.num_computing`
    entries per step are valid. Empty without `Settings.counts_flight`.
    """
    computing_tokens: Numbers
    """Number of tokens that the step computes for each entry of `computing`."""
    lists: Records[records.Lists]
    launched: Records[records.Launched]
    """Steps in flight: a ring of `Settings.most_in_flight` records; see `in_flight`."""
    groups: Records[records.Group]
    tables: Records[records.Table]
    """Block tables, one for each place (`Sequence.place`) and group; see `table_of`."""
    entries: Numbers
    """Block ids in all tables, and after these the hit blocks of the sequence being admitted."""
    prompt_keys: Numbers
    """Prefix-cache keys of all prompts, end to end; see `Sequence.num_keys`."""
    blocks: Records[records.Block]
    expiry_counts: Records[records.ExpiryCount]
    """Working memory of `groups.expired_slots`, one record for each block. Empty if all groups read every token."""
    buckets: Records[records.Bucket]
    """Buckets of the prefix cache, by hash of the key. For SGLang, those of the radix tree; for static batches, those
    of waiting sequences by prompt length.
    """
    external: ExternalKV
    """Loads and late releases of an engine with a host tier or a connector. Without both, an empty tuple."""
    host: HostTier
    """Second tier in host memory. Without one, an empty tuple, so that compiled code leaves it out."""
    encoder: EncoderCache
    """Images of prompts, and the cache of their encoder."""
    connector: ConnectorTables
    """KV connector. Without one, an empty tuple is in its place."""
    radix: RadixTables
    """SGLang's radix cache and the state of its scheduler. For other servers, an empty tuple is in its place."""
    holes: Records[records.Hole]
    """Free ranges of a contiguous memory, in order of address."""
    rectangle: records.Rectangle
    first_uses: Any
    """Additional time of the steps of a static batch that use kernels for the first time: `2 * n` numbers, where `n` is
    the largest number of output tokens of a request.

    Entry `i` is the time to choose kernels in step `i`, in multiples of `Roofline.new_shape_s`. Entry `n + i` is the
    time to build them, in multiples of `Roofline.new_kernel_s`. Empty for other policies.
    """
    moments: Records[records.Moment]
    """Next events to replay, if the engine runs without a clock; see `moments`."""
    steps: Records[recorded_rows.Step]
    """Recorded steps of this slice of the run."""
    outputs: Records[recorded_rows.Output]
    gaps: Records[recorded_rows.Gap]
    """Recorded gaps of this slice of the run; see `recorded_rows.Gap`."""
    memory_rows: Records[recorded_rows.MemoryRow]
    """Changes of ownership in this slice of the run; empty if they are not recorded."""
    schedule_rows: Records[recorded_rows.ScheduleRow]


@part
def table_of(engine: Engine, sequence: Sequence, group: int) -> Table:
    """Return the block table of a sequence in `group`. The sequence must have tables (`Sequence.place`)."""
    return engine.tables[sequence.place * engine.settings.num_groups + group]
