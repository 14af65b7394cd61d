"""Records of the engine: requests, blocks, tables and steps, as numbers.

Small records are many: their numbers are kept in 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

Small = Annotated[int, np.int32]
"""A number of tokens, blocks or rows below 2^31: the records of a million requests must stay small."""
NEVER = (1 << 31) - 1
"""A number of tokens that no sequence reaches."""


@dataclass(slots=True, eq=False, repr=False)
class Linked:
    """A record that can be in a `linked_list`."""

    next: Small = 0
    previous: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Bucketed(Linked):
    """A record that can be in a `bucket`, too."""

    next_alike: Small = 0
    """The next record in its bucket; 0 for none."""
    previous_alike: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Settings:
    """Settings of scheduling, memory and recording; they do not change during a run."""

    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_model_len: int = 0
    max_num_active_seqs: int = 0
    """Sequences that may run, which are no more than a step may hold."""
    long_prefill_token_threshold: int = 0
    threshold_is_adaptive: bool = False
    """The threshold is at least an equal share of a step for each sequence that runs or waits."""
    prefill_interval: int = 1
    """Steps from one that computes prompts to the next that may."""
    max_adapters: int = 0
    """Adapters that may be in use at once; 0 where adapters are not limited."""
    running_keep_adapters: bool = False
    """A running sequence keeps its adapter in use also in a step that does not compute it."""
    encoder_tokens: int = 0
    """Outputs of the encoder that one step computes, at most; 0 where prompts have no images."""
    encoder_cache_tokens: int = 0
    """Outputs that the encoder cache holds."""
    keeps_images_whole: bool = False
    """A step computes all tokens of an image, or none."""
    cuts_before_images: bool = False
    """A chunk ends right before an image without room, whatever drafting reads ahead."""
    counts_repeated_images: bool = False
    """An image that a sequence repeats is in use until its last place is computed."""
    ahead: bool = False
    """Steps are scheduled ahead of the output that is known: a sequence decodes on a token that has no value yet."""
    most_in_flight: int = 1
    """Steps that may be in flight at once."""
    decode_interval: int = 1
    """Steps from one in which a sequence decodes to the next that it may decode in."""
    feedback: int = 0
    """Distance in steps to the step that must be computed before the first pipeline stage begins; 0 for none."""
    by_priority: bool = False
    chunked_prefill: bool = False
    reserve_full_prompt: bool = False
    fills_pipeline: bool = False
    """A step is scheduled ahead also behind one that is empty, and although the oldest is computed already."""
    late_outputs_block: bool = False
    """A sequence that was preempted awaits no output, and waits until those under way have come."""
    drops_late: bool = False
    """Outputs under way of a sequence that is preempted are thrown away; it need not wait for them."""
    skipped_keep_places: bool = False
    """A sequence that is passed over stays in the queue, unless it holds blocks; otherwise it waits before the queue.
    """
    keeps_turns: bool = False
    """No sequence misses its turn when one before it is preempted that had computed nothing in the step."""
    preempted_self_stops: bool = False
    """A sequence that is preempted because it needs memory itself ends the turns of those that run."""
    lone_prompt_is_limited: bool = False
    """`long_prefill_token_threshold` binds a sequence that is alone, too."""
    answers_awaited: bool = False
    """The model runner answers no more than the scheduler awaits."""
    counts_flight: bool = False
    """Whether tokens in flight are counted for each sequence, because its blocks or its turn wait for them."""
    unit_tokens: int = 0
    num_units: int = 0
    """Units that can be handed out."""
    offloads: bool = False
    """Computed blocks are copied to a second tier on the host."""
    frees_late: bool = False
    """Blocks of a step in flight are free only when its output is processed: a copy or a load may use them at once."""
    prefix_caching: bool = False
    watermark_blocks: int = 0
    num_groups: int = 0
    unit_slots: int = 0
    """Slots of one unit: tokens where one group keeps every token, bytes where blocks of several groups differ."""
    token_slots: int = 0
    """Slots of one token in all tables together, where it is in each."""
    first_hit: int = 0
    """Index of the first entry that keeps the blocks found for the head of the queue."""
    cache_tokens: int = 0
    """Tokens that are hit together: the least common multiple of the groups' block sizes."""
    commit_tokens: int = 0
    """Tokens that are put into the cache together."""
    retention_tokens: int = 0
    """Tokens between the boundaries at which windows and states are kept for hits; `NEVER` for all boundaries."""
    expires_from: int = 0
    """Computed tokens of a sequence from which some can have expired."""
    marks_prompt_end: bool = False
    """Whether the last state of a prompt counts as written when the sequence has cached exactly its prompt."""
    bounds_first_chunk: bool = False
    """The step that admits a sequence ends where some groups hold tokens of it and others do not."""
    keeps_junctions: bool = False
    """Whether steps end at the junction of the groups' hits, and blocks before it are kept for hits."""
    cuts_at_boundaries: bool = False
    """Steps of a prompt end at boundaries, not after whole blocks."""
    cuts_wide_blocks: bool = False
    """Whether steps end after whole blocks, except steps that are too small for a block."""
    most_chunk_tokens: int = 0
    """Tokens of one prompt in one step, at most."""
    spares_last_token: bool = False
    """Whether the last boundary of a prompt is before its last token."""
    cuts_every_full_kind: bool = False
    """Whether hits of every kind of full attention are cut to the common hits, not those of the first kind alone."""
    boundary_tokens: int = 0
    """Mamba alignment: tokens of which a prompt's steps end at multiples, to keep recurrent state; 0 for none."""
    first_leader: int = 0
    """The first group of the kind that is looked up first."""
    has_windows: bool = False
    """There are groups that do not read every token."""
    most_unsure: int = 0
    """Tokens of a sequence, at most, of which it shows only in the end whether they are computed."""
    lookahead_tokens: int = 0
    """Slots behind its tokens that every running sequence holds for drafts."""
    num_drafts: int = 0
    """Tokens drafted for every sequence; 0 without."""
    draft_slots: int = 0
    """Tokens of a step that drafting itself takes for each sequence."""
    ahead_tokens: int = 0
    """Tokens behind a block that its key covers, too."""
    prompt_ahead_tokens: int = 0
    """Tokens of a prompt that drafting reads ahead: a chunk ends no closer to the end of the prompt."""
    drops_last_hit: bool = False
    """The last block of every hit is computed again, for the drafter."""
    pads_admission: bool = False
    """A sequence that has one token to compute is admitted with drafts that are never right."""
    pads_alone: bool = False
    """Such drafts are added also where no running sequence is computed; near the longest length there are none."""
    caches_processed: bool = False
    """Blocks of drafted tokens are cached when their step is processed, up to what no step in flight may take back;
    with a connector, those of all tokens."""
    host_blocks: int = 0
    """Blocks of host memory that preempted sequences are swapped to; 0 for none."""
    host_block_s: float = 0.0
    """Seconds that one block takes over the link."""
    fit: int = 0
    reserve: int = 0
    moves: bool = False
    """A reservation that is full may move to a larger hole."""
    compaction: bool = False
    request_level: bool = False
    batch_size: int = 0
    preallocated: bool = False
    timeout_s: float = 0.0
    sort_by_length: bool = False
    memory_guard: bool = False
    stamp_at_entry: bool = False
    """A request's arrival is recorded when the engine has let it in, not when it was sent."""
    answers: bool = False
    """Stop whenever a request has ended: a client waits for its answer."""
    lockstep: bool = False
    """Stop at every step: the steps of several ranks wait for each other."""
    users_ask_again: bool = False
    """A user who has an answer sends the next request of the workload."""
    think_s: float = 0.0
    """Seconds between the two."""
    leaves_alone: bool = False
    """Sequences that only decode may be left alone."""
    notes_every_step: bool = False
    """Steps are written down that compute and preempt nothing: they may begin copies or report them, and in a pipeline
    they count for `decode_interval`."""
    records_memory: bool = False
    """Changes of ownership are written down."""
    records_schedule: bool = False
    """Whether the tokens that each sequence computes are written down."""
    checking: bool = False
    """The account is checked at every step."""
    most_steps: int = 0
    """Capacity for steps and outputs in one slice of the run."""
    most_memory_rows: int = 0
    """Rows of memory that may be there when a step begins."""
    most_schedule_rows: int = 0


@dataclass(slots=True, eq=False, repr=False)
class State:
    """Every number that changes from step to step."""

    host_s: float = 0.0
    """The host's clock."""
    seq: int = 0
    """Number of the last change of the engine's state."""
    num_steps: int = 0
    """Steps recorded so far: those that computed or preempted something."""
    num_outputs: int = 0
    """Recorded steps whose output was processed."""
    first_step: int = 0
    """The first step of this slice of the run."""
    first_output: int = 0
    num_submitted: int = 0
    """Requests that were sent, or whose arrival is known beforehand."""
    num_arrived: int = 0
    num_ended: int = 0
    num_waiting: int = 0
    """Sequences in the queue, and those before it that were skipped."""
    num_queued: int = 0
    num_skipped: int = 0
    num_looked_at: int = 0
    """Skipped sequences that the pass under way has looked at."""
    num_skipped_again: int = 0
    """Sequences that it has skipped."""
    num_running: int = 0
    num_in_flight: int = 0
    next_launched: int = 0
    """Index of the next launched step among those under way."""
    awaiting: bool = False
    """The engine call under way goes on with the output of the oldest step."""
    unflushed: bool = False
    """A sequence has left since the last step was scheduled: the engine schedules once more to report it."""
    num_in_batch: int = 0
    """Sequences in the step being scheduled."""
    num_listed: int = 0
    """Sequences of the step being scheduled that stand in `batch`."""
    num_quiet: int = 0
    """Running sequences that only decode and are left alone."""
    quiet_tokens: int = 0
    """Tokens that the sequences left alone had computed when they were, less the number of the step before, added up.
    """
    num_prefill_tokens: int = 0
    """Tokens of prompts in the step being scheduled."""
    context_tokens: int = 0
    """Tokens that it attends to: of all its sequences, those computed by its end."""
    attention_pairs: int = 0
    """Pairs of a token of a prompt and one that it attends to."""
    num_tokens_in_batch: int = 0
    num_preempted: int = 0
    """Sequences preempted by the step being scheduled."""
    num_new_seqs: int = 0
    """Sequences in the step that were waiting before it."""
    num_scheduled: int = 0
    """Steps scheduled so far, empty ones included."""
    num_drafts: int = 0
    """Tokens that are drafted for each sequence behind the step scheduled last."""
    input_tokens: int = 0
    """Tokens that the step being scheduled may still take, those that drafting takes included."""
    has_chunk: bool = False
    """The step being scheduled computes a running sequence whose last step ended inside its prompt."""
    most_prompt_tokens: int = 0
    """Tokens of one prompt that the step being scheduled may compute; 0 for no limit but its budget."""
    holds_prefills: bool = False
    """The step being scheduled computes no prompt."""
    has_prefill: bool = False
    """The step being scheduled admits a sequence with more than one token to compute."""
    leaves_waiting: bool = False
    """The last step that might compute prompts admitted fewer sequences than could be."""
    num_computing_steps: int = 0
    """Steps that computed anything; counted where prompts are held back."""
    last_prefill_step: int = 0
    """The last of these that computed a prompt."""
    num_passed_over: int = 0
    """Waiting sequences that were passed over at least once."""
    num_adapter_passes: int = 0
    """Passes over the queue in which adapters were counted."""
    num_adapters: int = 0
    """Adapters in use."""
    num_failures: int = 0
    """Answers that no one awaited, each of which ends vLLM; here they are thrown away."""
    num_counts: int = 0
    """Number of times that expired tokens were counted."""
    hit_tokens: int = 0
    """Tokens found in the pool for the sequence that is being admitted."""
    num_uncached: int = 0
    """Tokens that some groups held of the head of the queue when others did not."""
    num_admitted: int = 0
    """Sequences that have been admitted at all."""
    num_free_places: int = 0
    num_free: int = 0
    """Free units of the pool."""
    num_cached: int = 0
    """Free units that hold a prefix."""
    num_keys: int = 0
    """Distinct prefixes that can be hit."""
    num_free_host_blocks: int = 0
    num_swapped_out: int = 0
    """Blocks copied to the host by the step being scheduled."""
    num_swapped_in: int = 0
    num_holes: int = 0
    rover: int = 0
    """End of the last extent that was taken."""
    num_copied_slots: int = 0
    """Written slots moved by the step being scheduled."""
    batch_is_open: bool = True
    """Sequences may still join the batch; looked at where batches are closed at request level."""
    written: int = 0
    """Tokens computed and not lost, over all tables, in slots."""
    useful: int = 0
    """Slots, over all tables, that will be written before their sequence ends."""
    rounding: int = 0
    """Slots beyond those requested."""
    num_unsure: int = 0
    """Sequences that gave back slots of tokens that may never be computed, since the last step."""
    num_memory_rows: int = 0
    num_schedule_rows: int = 0
    subject: int = 0
    """The sequence, block or sum that the outcome of a slice is about."""
    other: int = 0
    """A second figure of it."""


@dataclass(slots=True, eq=False, repr=False)
class Sequence(Bucketed):
    """One request while it is being served."""

    number: Small = 0
    """Index of the record among those of all sequences; 0 for the head of the queue, which is none."""
    prompt_tokens: Small = 0
    end_tokens: Small = 0
    """All tokens that it will have, the last output included."""
    limit_tokens: Small = 0
    """Tokens of the prompt and of the largest allowed output."""
    full_tokens: Small = 0
    """Tokens that are computed for it in the end, at most."""
    num_unsure: Small = 0
    """The last of these, of which it shows only in the end whether they are computed: see `totals`."""
    is_refused: bool = False
    is_skipped: bool = False
    """The sequence waits before the queue: it could not be admitted yet."""
    was_passed_over: bool = False
    """The sequence waits, and was passed over since it began to."""
    is_chunk: bool = False
    """The step in which it was computed last ended before the last token known or under way."""
    adapter: Small = 0
    """Number of its adapter, from 1 on; 0 for none."""
    priority: Small = 0
    reservation: Small = 0
    """Slots requested at admission, if they do not depend on the computed tokens."""
    status: Small = 0
    num_tokens: Small = 0
    """Tokens whose values are known."""
    handed_tokens: Small = 0
    """Tokens whose values were known when it was admitted last: those that the model runner was handed."""
    computed: Small = 0
    """Tokens scheduled so far; ahead of `num_tokens` where steps are scheduled ahead."""
    placeholders: Small = 0
    """Outputs scheduled and not known yet."""
    decodes_from: Small = 0
    """The first step, counted from 1, in which it may decode again."""
    in_flight: Small = 0
    """Tokens scheduled whose step is not processed; counted with `Settings.counts_flight` alone."""
    junction: Small = 0
    """Leading tokens that some groups held of it when others did not, as it was looked up last; 0 for none."""
    drafts: Small = 0
    """Tokens guessed to follow."""
    rejected: Small = 0
    """Drafts whose slots are written and will be written again."""
    parked_tokens: Small = 0
    """Computed tokens whose blocks are on the host."""
    place: Small = 0
    """Index of the sequence's table, or the address at which its extent begins."""
    num_units: Small = 0
    """Blocks, or slots, that it holds."""
    requested: Small = 0
    """Slots of its extent that it asked for; the allocator may have rounded up."""
    moves_to: Small = 0
    """Address at which its extent begins after the compaction under way."""
    room_tokens: Small = 0
    """Tokens up to which the sequence computes without touching its table."""
    cache_at: Small = 0
    """Known tokens from which on another block of it can be cached."""
    preemptions: Small = 0
    cached_tokens: Small = 0
    num_keys: Small = 0
    """Full blocks of its prompt whose keys are known."""
    first_key: int = 0
    """Index of the prompt's first key among all keys."""
    quiet_since: Small = 0
    """The last step before it was left alone, counted from 1."""
    open_row: Small = 0
    """The row of the schedule that its next tokens may extend, or -1."""


@dataclass(slots=True, eq=False, repr=False)
class RequestDrafts:
    """Drafts of one request as they are given: cyclic lists, read by the number of its outputs."""

    first_right: int = 0
    """Index of the first number of right drafts in a step."""
    num_right: Small = 0
    """Such numbers; 0 if all are right."""
    first_proposed: int = 0
    """Index of the first number of drafts that are proposed."""
    num_proposed: Small = 0
    """Such numbers; 0 if as many as may be are proposed."""


@dataclass(slots=True, eq=False, repr=False)
class Times:
    """Times of the events of a request, in seconds; NaN for none."""

    arrival_s: float = 0.0
    arrival_seq: int = 0
    first_scheduled_s: float = 0.0
    first_token_s: float = 0.0
    finished_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Unsure:
    """The slots of one token of a sequence of which it shows only in the end whether it is computed."""

    slots: int = 0
    """Slots for it that the sequence holds."""
    since_s: float = 0.0
    """The sum over these slots of the times since when it has held them."""
    slot_s: float = 0.0
    """Slots times seconds that it held in vain; minus infinity once the token was computed."""


@dataclass(slots=True, eq=False, repr=False)
class Line:
    """Three lists that may hold every request, kept side by side: record `i` holds the i-th of each."""

    arrived: int = 0
    """Requests in the order in which they were sent."""
    ended: int = 0
    """Sequences in the order in which they ended."""
    heap: int = 0
    """The queue where priority orders it; otherwise waiting sequences stand in a linked list."""


@dataclass(slots=True, eq=False, repr=False)
class Lists:
    """Lists that not every step looks at, kept side by side: record `i` holds the i-th of each."""

    order: int = 0
    """Sequences in the order in which they are compacted."""
    preempted: int = 0
    """Preempted by the step being scheduled, in that order."""
    unsure: int = 0
    """Sequences that have given back slots of tokens that may never be computed, since the last step."""
    free_place: int = 0
    """Places whose tables no sequence has."""


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """Layers of one kind, which share a table: a KV-cache group."""

    kind: int = 0
    block_size: int = 0
    """Tokens of one of its blocks."""
    window: int = 0
    """Tokens of the window or of the chunk."""
    mode: int = 0
    """The states that a recurrent group keeps: see `LIVE_STATE` and its neighbours in `state`."""
    cap_blocks: int = 0
    """Blocks that one sequence holds at most, where that is looked at."""
    hashes_per_block: int = 0
    token_slots: int = 0
    """Slots of one token in a block; 0 where blocks hold states."""
    state_slots: int = 0
    """Slots of one recurrent state."""
    num_alike: int = 0
    """Groups of layers that are alike, this one included: their tables are of equal lengths."""
    alike_slots: int = 0
    """Slots of one token, or state, in all groups of layers that are alike."""
    keeps_some: bool = False
    """Whether some full blocks are never put into the prefix cache: no lookup would end behind them."""
    reuses_first: bool = False
    """Whether freed blocks that hold no prefix are taken first, at the head of the free queue."""
    reuses_left_first: bool = False
    """Whether that holds for blocks that windows leave behind."""
    frees_over_gaps: bool = False
    """Whether states are let go behind places that are null already."""
    keeps_all: bool = False
    """Whether every full block is put into the prefix cache."""
    first_entry: int = 0
    """Index of the first entry of the group's table among the entries of a place."""
    next_alike: int = 0
    """The next group of layers that are alike, which are looked up together; -1 for none."""
    next_leader: int = 0
    """The first group of the kind that is looked up next; -1 for none."""
    num_shared: int = 0
    """Entries of tables whose block another table lists as well, but for one of each block."""
    num_hits: int = 0
    """Blocks that were found for the head of the queue, null ones included."""


@dataclass(slots=True, eq=False, repr=False)
class Table:
    """The blocks of one sequence in one group."""

    begin: int = 0
    """Index of its first entry among all entries."""
    num_blocks: Small = 0
    """Entries, null ones included."""
    num_held: Small = 0
    """Entries that are not null."""
    num_cached: Small = 0
    """Leading blocks whose keys are in the prefix cache, or will never be."""
    num_let_go: Small = 0
    """Leading entries that were let go. Of aligned recurrent groups alone."""
    last_state: Small = 0
    """The block of the last state before the newest; -1 for none. Of aligned recurrent groups alone."""
    owns_state: bool = False
    """Whether a state of its own was ever taken."""


@dataclass(slots=True, eq=False, repr=False)
class Launched:
    """A step under way."""

    is_recorded: bool = False
    computes: bool = False
    """Whether the sequence computes tokens; kept where there is a second tier."""
    done_s: float = 0.0
    turnaround_s: float = 0.0
    num_emitting: int = 0
    num_computing: int = 0
    """Sequences that it computes, where tokens in flight are counted."""


@dataclass(slots=True, eq=False, repr=False)
class Stage:
    """A GPU, or several that share every layer: all of a model, or a run of its layers."""

    free_s: float = 0.0
    """Time at which it has computed its tokens, in seconds."""
    throttle: float = 0.0
    """Share by which its clock had given way to sustained arithmetic."""
    throttled_at_s: float = 0.0
    """Time at which `throttle` was last updated, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class Block(Bucketed):
    """One block, in 32 bytes: the records of a large pool take most of a processor's cache.

    Free ones stand in a list in the order in which they will be taken.
    """

    refs: Small = 0
    """Tables that hold it."""
    cached_in: Small = 0
    """The step that was scheduled when it got its key."""
    key: int = 0
    """The prefix that it holds, or `NO_KEY`."""


@dataclass(slots=True, eq=False, repr=False)
class Readers:
    """Per-block scratch state for counting expired tokens."""

    seen_in: Small = 0
    """The count in which a holder that reads a part of the block no more was last met."""
    num_seen: Small = 0
    """Holders of the block that were met in that count."""
    least_expired: Small = 0
    """Tokens, or states, that none of the holders met in that count reads any more."""


@dataclass(slots=True, eq=False, repr=False)
class Bucket:
    """Blocks whose keys have equal hashes, or waiting sequences whose prompts have equal lengths, in the order in which
    they came; 0 for none.
    """

    first: Small = 0
    last: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Hole:
    """Free slots next to each other."""

    address: int = 0
    length: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Rectangle:
    """The static batch under way; its rows are the running sequences."""

    num_rows: int = 0
    """0 while there is no batch."""
    prompt_width: int = 0
    """Columns that the prefill writes: tokens of the longest prompt."""
    most_new_tokens: int = 0
    """The longest answer that any row may give."""
    longest_answer: int = 0
    """The longest answer that any row gives."""
    num_steps: int = 0
    """Steps until the last row ends, or until the memory is full."""
    step: int = 0
    """The next step."""
    stride: int = 0
    """Slots from where one row begins to where the next does."""
    num_live: int = 0
    """Rows that have not ended."""
    live_prompt_tokens: int = 0
    live_new_tokens: int = 0
    """Tokens that these rows will have generated in the end."""
    next_end: int = 0
    """The first step in which one row fewer is live."""


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One scheduled step. Its shape is in `StepShape`, its slots in `totals`."""

    seq: int = 0
    start_s: float = 0.0
    prefill_tokens: Small = 0
    num_tokens: Small = 0
    num_scheduled: Small = 0
    running: Small = 0
    waiting: Small = 0
    preempted: Small = 0
    context_tokens: int = 0
    attention_pairs: int = 0
    new_shape: float = 0.0
    new_kernels: float = 0.0
    shared_tokens: int = 0
    num_new_seqs: Small = 0
    free_units: int = 0
    cached_units: int = 0
    unusable_units: int = 0
    free_windows: Small = 0
    """Free units of SGLang's second pool, those in its tree included."""
    cached_windows: Small = 0
    swapped_out: Small = 0
    swapped_in: Small = 0
    num_admitted: int = 0
    """Sequences that have been admitted at all."""
    written: int = 0
    padding: int = 0
    useful: int = 0
    rounding: int = 0
    shared: int = 0
    expired: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """Time at which the output of a step was processed, in seconds."""

    seq: int = 0
    time_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class MemoryRow:
    """One change of ownership, as in a recording."""

    seq: int = 0
    step: Small = 0
    kind: Small = 0
    group: Small = 0
    request: Small = 0
    position: Small = 0
    address: Small = 0
    length: Small = 0
    requested: Small = 0
    cached: Small = 0
    repeat: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Moment:
    """One ordered event; see `moments`."""

    kind: Small = 0
    sequence: Small = 0
    """The number of the sequence that it is about; 0 for none."""


@dataclass(slots=True, eq=False, repr=False)
class ScheduleRow:
    """Consecutive steps in each of which a request computes equally many tokens, as in a recording."""

    step: Small = 0
    request: Small = 0
    computed_before: Small = 0
    tokens: Small = 0
    repeat: Small = 0
    known: Small = 0
    """Tokens whose values were known; in runs with drafts."""
