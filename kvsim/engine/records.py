"""The records that the engine works on: its state, sequences, blocks, tables and steps in flight.

Records hold only numbers so that machine code can work on arrays of records. Fields of the type `Small` take 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

Small = Annotated[int, np.int32]
"""Type of an integer that is stored in 32 bits to save memory, since a million requests have a million records."""
NEVER = (1 << 31) - 1
"""A number of tokens that no sequence reaches."""
NO_FAILURE, LOADS_UNRECORDED, RANGES_UNRECORDED, WINDOWS_FREED_TWICE, SLOTS_MISSING, TWO_CHUNKED = range(6)
"""Reasons for which a simulation stops although requests are left:

- `NO_FAILURE`: none.
- `LOADS_UNRECORDED`: in one step, more requests began to load than a recording has room for.
- `RANGES_UNRECORDED`: one step of SGLang changed more ranges of slots than a recording has room for.
- `WINDOWS_FREED_TWICE`: SGLang freed the window slots of a page twice, and goes on with damaged memory.
- `SLOTS_MISSING`: SGLang admitted a batch that the pool lacks slots for, and ends.
- `TWO_CHUNKED`: SGLang cut two prompts into chunks at once, and ends.
"""


@dataclass(slots=True, eq=False, repr=False)
class Linked:
    """Record that can be in a `linked_list`."""

    next: Small = 0
    previous: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Bucketed(Linked):
    """Record that can also be in a `bucket`."""

    next_in_bucket: Small = 0
    """Index of the next record in its bucket; 0 for none."""
    previous_in_bucket: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class State:
    """Numbers of an engine that change from step to step."""

    # Time, events, and the end of a run.
    host_s: float = 0.0
    """Time on the host's clock, in seconds."""
    seq: int = 0
    """Number of the last event. Recorded rows refer to events by their numbers."""
    failure: int = NO_FAILURE
    """Reason for which the run ends before its requests do; see `NO_FAILURE`."""
    stalled_sequence: int = 0
    """Number of the sequence for which the engine has no room. Valid after a slice that ended with `clock.STALLED`."""

    # Recorded rows.
    num_steps: int = 0
    """Number of recorded steps since the run began. A step is recorded if it computes or preempts something; with
    `Settings.records_every_step`, always.
    """
    num_outputs: int = 0
    """Number of recorded steps whose output was processed."""
    first_step: int = 0
    """Number of the first step that the current slice of the run records, counted from 0."""
    first_output: int = 0
    """Number of the first output that the current slice of the run records, counted from 0."""
    num_gaps: int = 0
    num_memory_rows: int = 0
    num_schedule_rows: int = 0

    # Requests.
    num_submitted: int = 0
    """Number of requests that were sent since the run began. `Line.arrived` lists these requests."""
    num_arrived: int = 0
    num_admitted: int = 0
    """Number of requests admitted for the first time since the run began. Those of a static batch count at its end."""
    num_ended: int = 0

    # The queue.
    num_waiting: int = 0
    """Number of waiting sequences, both queued and skipped ones."""
    num_queued: int = 0
    num_skipped: int = 0
    num_looked_at: int = 0
    """Number of skipped sequences that the current pass over the queue has visited; see `waiting_queue`."""
    num_skipped_again: int = 0
    """Number of sequences that the current pass over the queue has skipped; see `waiting_queue`."""
    num_passed_over: int = 0
    """Number of waiting sequences that were skipped at least once since they began to wait."""
    num_left_skipped: int = 0
    """Number of preempted sequences that were in the list of skipped sequences when an output of an earlier step ended
    them. vLLM up to 0.30 raises a RuntimeError when it admits such a sequence again.
    """

    # Running sequences, and steps in flight.
    num_running: int = 0
    num_quiet: int = 0
    """Number of quiet sequences, whose records the scheduler does not touch while they decode; see `fast_forward`."""
    quiet_tokens: int = 0
    """Sum over the quiet sequences of `c - s`, where the sequence had `c` computed tokens after step number `s` and is
    quiet since then.

    Each step computes one token of each quiet sequence. So after step `n` they have `quiet_tokens + n * num_quiet`
    computed tokens in all.
    """
    num_in_flight: int = 0
    next_launched: int = 0
    """Index in the ring `Engine.launched` at which the next step is put."""
    num_scheduled: int = 0
    """Number of steps scheduled since the run began. Steps without tokens count."""
    awaiting: bool = False
    """True if, after a scheduled step, `clock.next_moment` processes the oldest output instead of scheduling."""
    unflushed: bool = False
    """True if a sequence has ended since the last call of `schedule`. vLLM then schedules once more, even if no
    sequence is left, to report the end to its workers.
    """
    num_unawaited_outputs: int = 0
    """Number of outputs that were discarded for lack of a placeholder. Each raises an AssertionError in vLLM."""

    # The step being scheduled.
    num_in_batch: int = 0
    """Number of sequences in the step being scheduled, quiet ones included."""
    num_listed: int = 0
    """Number of sequences in `Engine.batch`: those of the step being scheduled, without quiet ones."""
    num_new_seqs: int = 0
    """Number of sequences that the step being scheduled admits."""
    num_preempted: int = 0
    """Number of sequences preempted by the step being scheduled."""
    num_tokens_in_batch: int = 0
    num_prefill_tokens: int = 0
    """Number of tokens that the step being scheduled computes of prompts and of preempted sequences."""
    context_tokens: int = 0
    """Number of tokens that the step attends to: the computed tokens of its sequences after the step, summed."""
    attention_pairs: int = 0
    """Number of (query, key) pairs of tokens in attention whose query is a prefill token of the step."""
    budget_left: int = 0
    """Number of tokens left of the step's budget, without those for drafting (`Settings.draft_budget_tokens`)."""
    prompt_token_limit: int = 0
    """Most tokens of one prompt in the step being scheduled (`long_prefill_token_threshold`); 0 for the budget."""
    has_chunk: bool = False
    """True if the step being scheduled computes a running sequence with `Sequence.is_chunk`."""
    has_prefill: bool = False
    """True if the step being scheduled admits a sequence with more than one token to compute."""
    num_swapped_out: int = 0
    """Number of blocks copied to the host by the step being scheduled."""
    num_swapped_in: int = 0
    num_copied_slots: int = 0
    """Number of written slots that the step being scheduled copies to another address."""

    # The prefill interval.
    bars_prefills: bool = False
    """True if the step being scheduled must not compute prompts, because of `Settings.prefill_interval`."""
    leaves_waiting: bool = False
    """True if the last step without `bars_prefills` left a waiting sequence that no step has skipped."""
    num_computing_steps: int = 0
    """Number of steps that computed tokens. Counted only with a prefill interval."""
    last_prefill_step: int = 0
    """Value of `num_computing_steps` after the last step that computed a prompt."""

    # LoRA adapters.
    num_adapter_passes: int = 0
    """Number of calls of `adapters.begin_pass`. An adapter with this number in `Engine.adapter_passes` is in use."""
    num_adapters: int = 0
    num_adapter_failures: int = 0
    """Number of steps with more adapters than adapter slots. vLLM raises an AssertionError for each."""

    # Speculative decoding.
    num_drafts: int = 0
    """Number of tokens that are drafted for each sequence after the last scheduled step."""
    num_padding_drafts: int = 0
    """Number of padding drafts, always rejected, that the next waiting sequence gets if it is admitted now."""
    num_padding_failures: int = 0
    """Number of admissions with fewer tokens than the padding drafts need. vLLM raises an AssertionError for each."""

    # The sequence being admitted.
    hit_tokens: int = 0
    """Number of leading tokens of the sequence being admitted that are in the prefix cache."""
    num_partly_cached: int = 0
    """Number of tokens after the hit of the sequence being admitted that some groups, but not all, have cached. 0
    unless `Settings.bounds_first_chunk`.
    """

    # The pool.
    num_free: int = 0
    num_cached: int = 0
    """Number of free units that hold a cached prefix."""
    num_keys: int = 0
    """Number of distinct keys in the prefix cache, of blocks that can be hit."""
    num_free_places: int = 0
    num_free_host_blocks: int = 0
    unusable_units: int = 0
    """Number of free units if they suffice for the head of the queue, but no single free range does; otherwise 0. Set
    when a step is recorded.
    """
    num_expiry_counts: int = 0
    """Number of calls of `groups.expired_slots` since the run began. See `ExpiryCount.seen_in`."""

    # Contiguous memory.
    num_holes: int = 0
    rover: int = 0
    """Address after the extent that was allocated last. Next fit searches from there."""
    batch_is_open: bool = True
    """True if sequences may still join the running batch. Used only with `Settings.request_level`."""

    # Totals of slots.
    written: int = 0
    """Number of slots with computed tokens, summed over all tables. A slot of a shared block counts in each table."""
    useful: int = 0
    """Number of slots, summed over all tables, that have a computed token or will have one before the sequence ends."""
    rounding: int = 0
    """Number of slots that rounding added to the requested ones, over all tables."""
    num_unsettled: int = 0
    """Number of sequences in `Lists.unsettled`, for `totals.settle_unsure_slots`."""


@dataclass(slots=True, eq=False, repr=False)
class Sequence(Bucketed):
    """State of one request on the server."""

    # The request.
    number: Small = 0
    """Index of the record in `Engine.sequences`. Record 0 is no sequence, but the head of the linked queue."""
    prompt_tokens: Small = 0
    end_tokens: Small = 0
    """Number of tokens of the prompt and of the whole output."""
    limit_tokens: Small = 0
    """Number of tokens of the prompt and of the largest output that the request allows."""
    full_tokens: Small = 0
    """Largest number of tokens that can be computed before the request ends. The last output token is not computed,
    unless the end is noticed late or drafts reach beyond it.
    """
    num_unsure: Small = 0
    """Number of last tokens, among the `full_tokens`, that may or may not be computed; see `totals`."""
    priority: Small = 0
    adapter: Small = 0
    """Number of the adapter, counted from 1; 0 for none."""
    reservation: Small = 0
    """Number of slots that the sequence requests at admission to a contiguous memory; 0 for other memories."""
    num_keys: Small = 0
    """Number of keys that are known for the prompt: one for each full block or, with groups of several block sizes, for
    each hash (`Group.hashes_per_block`).
    """
    first_key: int = 0
    """Index in `Engine.prompt_keys` of the first key of the sequence."""

    # Flags, side by side so that the record stays small.
    is_refused: bool = False
    is_skipped: bool = False
    """True if the sequence is in the list of skipped sequences, not in the queue."""
    was_passed_over: bool = False
    """True if the sequence was skipped at least once since it began to wait."""
    is_chunk: bool = False
    """True if the last scheduled step did not compute the sequence up to its last token, known or in flight."""

    # Progress.
    status: Small = 0
    num_tokens: Small = 0
    """Number of known tokens: the prompt and the output that was processed."""
    handed_tokens: Small = 0
    """Number of known tokens at the last admission: those that vLLM's scheduler sent to the model runner. `NEVER` with
    `Settings.answers_awaited`.
    """
    computed: Small = 0
    """Number of tokens that are computed or scheduled to be computed. With async scheduling, it may exceed
    `num_tokens`. It is below 0 after more padding drafts were rejected than tokens were computed, see
    `drafting.take_drafts`.
    """
    placeholders: Small = 0
    """Number of output tokens that the scheduler expects from steps in flight; vLLM's `num_output_placeholders`."""
    in_flight: Small = 0
    """Number of tokens of the sequence that steps in flight compute. Counted only with `Settings.counts_flight`."""
    decodes_from: Small = 0
    """Smallest value of `State.num_scheduled` at which a step may compute the running sequence again."""
    preemptions: Small = 0
    cached_tokens: Small = 0

    # Speculative decoding.
    drafts: Small = 0
    """Number of drafts that the sequence's next step verifies."""
    rejected: Small = 0
    """Number of slots of rejected drafts that `State.written` still counts. Later tokens will overwrite them."""

    # Memory.
    place: Small = 0
    """If memory has blocks, the index of the sequence's group of records in `Engine.tables`. If memory is contiguous,
    the address of the first slot of its extent. For SGLang, its row of the request table.
    """
    num_units: Small = 0
    """Number of entries that the sequence got in its current tables, summed over groups, null blocks included; 0 if it
    has no tables. With contiguous memory, number of slots of its extent.
    """
    requested: Small = 0
    """Number of slots that the sequence requested for its extent, before the allocator rounded up."""
    moves_to: Small = 0
    """Address of the sequence's extent after the compaction in progress."""
    room_tokens: Small = 0
    """Number of computed tokens up to which the sequence needs no new block and frees none."""
    cache_at: Small = 0
    """Fewest known tokens at which `MemoryManager.cache` may have a block to cache; `NEVER` without prefix caching."""
    junction: Small = 0
    """Number of tokens in the longest hit that any kind of layers has, if it is longer than the common hit of all
    groups; otherwise 0. Set only with `Settings.keeps_junctions`.
    """
    parked_tokens: Small = 0
    """Number of computed tokens whose blocks were swapped to the host."""

    # Steps that the scheduler skips, and recorded rows.
    quiet_since: Small = 0
    """Last step, counted from 1, before the sequence became quiet; see `fast_forward`. Valid while it is quiet."""
    open_row: Small = 0
    """Index of the row in `Engine.schedule_rows` that the next step may extend; -1 if there is none."""


@dataclass(slots=True, eq=False, repr=False)
class RequestDrafts:
    """Location in `Engine.draft_counts` of two lists of a request: numbers of accepted and of proposed drafts.

    A step uses the entry at index `n % length` of each list, where `n` is the number of the request's known outputs.
    """

    first_accepted: int = 0
    """Index at which the list of numbers of accepted drafts begins."""
    accepted_length: Small = 0
    """Length of the list of numbers of accepted drafts; 0 if all drafts are accepted."""
    first_proposed: int = 0
    """Index at which the list of numbers of proposed drafts begins."""
    proposed_length: Small = 0
    """Length of the list of numbers of proposed drafts; 0 if the configured number of drafts is always proposed."""


@dataclass(slots=True, eq=False, repr=False)
class Times:
    """Times of a request in seconds, on the engine's clock; NaN before the event. `arrival_seq` is the event number
    (`State.seq`) of the arrival.
    """

    arrival_s: float = 0.0
    arrival_seq: int = 0
    first_scheduled_s: float = 0.0
    first_token_s: float = 0.0
    finished_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Unsure:
    """Slots that a sequence holds for one unsure token, which may or may not be computed; see `totals`."""

    slots: int = 0
    """Number of slots that the sequence holds for the token, over all tables, or has freed since the last step."""
    allocated_s_sum: float = 0.0
    """Sum of the allocation times of the `slots` in seconds: at `t`, held for `slots * t - allocated_s_sum` slot-s."""
    slot_s: float = 0.0
    """Slot-seconds of slots held and freed although the token was not computed; minus infinity once it was."""


@dataclass(slots=True, eq=False, repr=False)
class Line:
    """One entry of each of three independent lists, at the same index. The lists have room for all requests."""

    arrived: int = 0
    """Number of the sequence at this index in the order of sending."""
    ended: int = 0
    """Number of the sequence at this index in the order of ending."""
    heap: int = 0
    """Number of the sequence at this index of the binary heap of waiting sequences. Used only with priorities."""


@dataclass(slots=True, eq=False, repr=False)
class Lists:
    """One entry of each of four independent lists, at the same index. These lists have room for the sequences that can
    run, or have block tables, at the same time; those of `Line`, for all requests.
    """

    order: int = 0
    """Number of the sequence at this index of the order in which compaction lays sequences out."""
    preempted: int = 0
    """Number of the sequence at this index among those that the step being scheduled has preempted, in order."""
    unsettled: int = 0
    """Number of the sequence at this index among those that, since the last step, freed slots of tokens that may not
    have been computed; see `totals`.
    """
    free_place: int = 0
    """Entry of a stack of free places: indices of groups of records in `Engine.tables` that no sequence uses."""


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """KV-cache group: layers of one kind that share a block table for each sequence."""

    kind: int = 0
    block_size: int = 0
    window: int = 0
    """Number of tokens in the window or chunk; 0 if there is none."""
    mode: int = 0
    """States that a recurrent group keeps: `LIVE_STATE`, `EVERY_STATE` or `ALIGNED`."""
    most_blocks: int = 0
    """Largest number of blocks that one sequence holds at once. Used only for windows and chunks."""
    hashes_per_block: int = 0
    """Number of prompt hashes that one block covers. All groups use the same hashes of equal lengths."""
    token_slots: int = 0
    """Number of slots that one token takes in a block; 0 if blocks hold states."""
    state_slots: int = 0
    """Number of slots that one recurrent state takes in a block; 0 if blocks hold tokens."""
    num_of_kind: int = 0
    """Number of groups of the same kind, including this one. Their tables have equal lengths."""
    kind_slots: int = 0
    """Number of slots that one token takes in all groups of the kind. For recurrent groups, those of one state."""
    keeps_only_some: bool = False
    """True if some full blocks are never put into the prefix cache, because no hit can need them."""
    reuses_first: bool = False
    """True if freed blocks without a prefix go to the head of the free queue, so that they are allocated first."""
    reuses_left_first: bool = False
    """True if a block without a prefix goes to the head of the free queue when it is freed because its tokens left the
    window. `reuses_first` is for blocks of sequences that end.
    """
    frees_over_gaps: bool = False
    """True if unread blocks are freed from the first entry not freed yet. False: backwards to the first null block."""
    keeps_all: bool = False
    """True if every full block is put into the prefix cache."""
    drops_hit: bool = False
    """True if the last hit block of this group is computed again, because the draft model has layers of its kind."""
    has_dropped_hit: bool = False
    """True if this lookup has left out the group's last hit block (`drops_hit`). Reset when the hit gets shorter."""
    extra_tokens: int = 0
    """Number of tokens before the window that are kept, because the draft model may compute the last tokens again."""
    first_entry: int = 0
    """Offset of the group's table in the entries of one sequence; see `Engine.tables`."""
    next_of_kind: int = 0
    """Index of the next group of the same kind, which is looked up together with this one; -1 if there is none."""
    next_in_lookup: int = 0
    """Index of the first group of the kind that is looked up after this one; -1 if this kind is the last."""
    num_duplicate_entries: int = 0
    """Number of entries, without null blocks, in all tables of the group, minus the distinct blocks in them."""
    num_hits: int = 0
    """Number of hit blocks, null blocks included, of the sequence being admitted."""


@dataclass(slots=True, eq=False, repr=False)
class Table:
    """Block table of one sequence in one group."""

    begin: int = 0
    """Index in `Engine.entries` of the table's first entry."""
    num_blocks: Small = 0
    """Number of entries. Null blocks count."""
    num_held: Small = 0
    """Number of entries that are not null blocks."""
    num_cached: Small = 0
    """Number of leading entries that prefix caching has put into the cache or left out (vLLM's `num_cached_block`)."""
    num_removed: Small = 0
    """Number of leading entries visited to free blocks no longer read. Used only with `Group.frees_over_gaps`."""
    previous_state: Small = 0
    """Index of the entry with the state before the newest one; -1 without one. Only in aligned recurrent groups."""
    owns_state: bool = False
    """True if the sequence has allocated a state, in addition to the states that it hit."""


@dataclass(slots=True, eq=False, repr=False)
class Launched:
    """A step in flight."""

    is_recorded: bool = False
    computes: bool = False
    """True if the step computes tokens. Set only with host memory or a connector; otherwise False."""
    done_s: float = 0.0
    turnaround_s: float = 0.0
    """Host time from the output of the step to the next call of the scheduler, in seconds."""
    num_emitting: int = 0
    num_computing: int = 0
    """Number of sequences that the step computes. Set only with `Settings.counts_flight`."""


@dataclass(slots=True, eq=False, repr=False)
class Stage:
    """Pipeline stage: the GPUs that compute a contiguous range of the model's layers."""

    free_s: float = 0.0
    """Time at which the stage has computed all launched steps, in seconds."""
    throttle: float = 0.0
    """Degree of throttling by the power limit at `throttled_at_s`: 0 after a long rest, 1 after long prefills."""
    throttled_at_s: float = 0.0
    """Time at which `throttle` was last updated, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class Block(Bucketed):
    """One block of the pool. Free blocks are linked in the order in which they will be allocated. The record has 32
    bytes, because the records of a large pool must fit into a processor's cache.
    """

    refs: Small = 0
    """Number of tables that contain the block."""
    cached_in: Small = 0
    """Value of `State.num_scheduled` when the block got its key. `HAS_TAIL` if it has no key, but the last full hash of
    a prompt ends in it; see `Settings.marks_tails`.
    """
    key: int = 0
    """Key of the prefix that the block holds; `NO_KEY` if it holds none."""


@dataclass(slots=True, eq=False, repr=False)
class ExpiryCount:
    """Working memory of `groups.expired_slots` for one block."""

    seen_in: Small = 0
    """Number (`State.num_expiry_counts`) of the last call of `expired_slots` that visited the block."""
    num_seen: Small = 0
    """Number of tables with the block that this call has visited."""
    least_expired: Small = 0
    """Smallest number of expired tokens or states of the block, over the tables that this call has visited."""


@dataclass(slots=True, eq=False, repr=False)
class Bucket:
    """First and last record of a list in order of insertion, by their indices; both are 0 if the list is empty.

    The list has blocks or nodes of the radix tree whose keys have equal hashes, or waiting sequences whose prompts have
    equal lengths.
    """

    first: Small = 0
    last: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Hole:
    """Free range of a contiguous memory: `length` slots from `address` on."""

    address: int = 0
    length: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Rectangle:
    """The current static batch. Row `i` is the sequence in entry `i` of `Engine.running`, even after its end."""

    num_rows: int = 0
    """Number of rows; 0 while there is no batch."""
    prompt_width: int = 0
    """Number of columns that the prefill writes, which is the number of tokens of the longest prompt."""
    most_new_tokens: int = 0
    """Largest number of output tokens that any row may have, by its limit."""
    longest_answer: int = 0
    """Number of output tokens of the row with the most output tokens."""
    num_steps: int = 0
    """Number of steps of the batch: until the last row ends, or until the memory is full."""
    step: int = 0
    """Number of the next step of the batch, counted from 0."""
    stride: int = 0
    """Number of slots from the beginning of a row to the beginning of the next row."""
    num_live: int = 0
    live_prompt_tokens: int = 0
    live_new_tokens: int = 0
    """Number of output tokens, summed over the rows that have not ended, that each will have when it ends."""
    next_end: int = 0
    """Number of the next step, counted from 0 in the batch, before which at least one row ends."""


@dataclass(slots=True, eq=False, repr=False)
class Moment:
    """One event of a replay; see `moments` for the values of `kind`."""

    kind: Small = 0
    sequence: Small = 0
    """Number of the sequence that the event concerns; 0 if it concerns none."""
