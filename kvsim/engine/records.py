"""The data that the engine works on: settings, sequences, blocks, tables and steps, as records of plain numbers.

Records hold only numbers so that machine code can work on record arrays. Fields of the type `Small` take 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

import numpy as np

Small = Annotated[int, np.int32]
"""Type of numbers of tokens, blocks or rows, stored in 32 bits: a million requests have a million records."""
_FEATURE = "feature"
Feature = Annotated[int, np.int64, _FEATURE]
"""Type of an integer setting of a feature that most runs do not use; see `constants_of`."""
FeatureFlag = Annotated[bool, np.bool_, _FEATURE]
"""Type of a true-or-false setting of a feature that most runs do not use; see `constants_of`."""
NEVER = (1 << 31) - 1
"""A number of tokens that is larger than that of any sequence."""


@dataclass(slots=True, eq=False, repr=False)
class Linked:
    """A record that can be in a `linked_list`."""

    next: Small = 0
    previous: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Bucketed(Linked):
    """A record that can also be in a `bucket`."""

    next_in_bucket: Small = 0
    """Index of the next record in its bucket; 0 for none."""
    previous_in_bucket: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Settings:
    """Settings of scheduling, memory and recording; they do not change during a run."""

    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_model_len: int = 0
    max_num_active_seqs: int = 0
    """Number of sequences that may run at once; at most `max_num_seqs`."""
    long_prefill_token_threshold: int = 0
    threshold_is_adaptive: bool = False
    """`long_prefill_token_threshold` is raised to an equal share of the step's budget for each running or waiting
    sequence.
    """
    prefill_interval: Feature = 1
    """Smallest distance in steps between two steps that compute prompts."""
    max_adapters: Feature = 0
    """Largest number of adapters in use at once; 0 if adapters are not limited."""
    running_keep_adapters: bool = False
    """A running sequence keeps its adapter in use even in a step that does not compute the sequence."""
    encoder_tokens: Feature = 0
    """Largest number of encoder outputs that one step computes; 0 if prompts have no images."""
    encoder_cache_tokens: int = 0
    """Largest number of encoder outputs that the encoder cache holds."""
    keeps_images_whole: FeatureFlag = False
    """A step computes all tokens of an image, or none."""
    aligns_before_images: FeatureFlag = False
    """A chunk is cut to a boundary of recurrent states before its images are planned; if False, after that."""
    images_wait: FeatureFlag = False
    """A sequence uses an image until the outputs of all steps that compute the image's tokens have been processed.

    If False, it uses the image until these steps are scheduled.
    """
    cuts_before_images: FeatureFlag = False
    """A chunk is cut right before an image that has no room in the encoder cache.

    If False, it ends earlier, by the tokens that drafting reads after a chunk (`prompt_ahead_tokens`).
    """
    keeps_cached_whole: FeatureFlag = False
    """An image that is in the encoder cache is not cut by a chunk either, if `keeps_images_whole` is True."""
    keeps_repeated_images: FeatureFlag = False
    """A sequence uses an image that occurs several times in its prompt until the last occurrence is computed."""
    counts_repeated_images: FeatureFlag = False
    """A sequence uses an image for each of its occurrences in the chunk that encodes the image.

    If False, it uses the image only for the first of these occurrences.
    """
    any_place_frees: FeatureFlag = False
    """A sequence releases an image when any of its occurrences is computed, even if a later one needs it."""
    ahead: bool = False
    """Asynchronous scheduling: a step is scheduled before the outputs of earlier steps are known."""
    most_in_flight: int = 1
    """Largest number of steps in flight at once."""
    decode_interval: int = 1
    """Smallest number of steps between two steps that decode one sequence."""
    feedback: int = 0
    """Distance in steps from a step to the earlier step whose outputs its first pipeline stage awaits; 0 if it awaits
    none.
    """
    by_priority: FeatureFlag = False
    chunked_prefill: bool = False
    reserve_full_prompt: bool = False
    fills_pipeline: bool = False
    """A step is scheduled ahead even after an empty step, and even if the oldest step in flight is already computed."""
    late_outputs_block: bool = False
    """A preempted sequence is admitted again only after all its outputs in flight have been processed."""
    drops_late: FeatureFlag = False
    """Outputs in flight of a preempted sequence are discarded at once, so the sequence does not wait for them."""
    skipped_keep_places: bool = False
    """A skipped sequence without blocks stays in the queue. If False, it joins the list of skipped sequences."""
    keeps_turns: bool = False
    """A step that preempts a sequence which it has visited, but does not compute, still visits the next running
    sequence.

    If False, it misses that sequence.
    """
    preempted_self_stops: bool = False
    """If a sequence preempts itself for lack of memory, the step schedules no further running sequence."""
    lone_prompt_is_limited: bool = False
    """`long_prefill_token_threshold` also applies if no other sequence runs or waits."""
    answers_awaited: bool = False
    """The model runner yields only outputs that the scheduler awaits."""
    windows_wait: FeatureFlag = False
    """Blocks of windows, chunks and states are freed only when all steps in flight that read them have been
    processed.
    """
    counts_flight: FeatureFlag = False
    """Tokens in flight are counted for each sequence, because releases or admissions depend on them."""
    unit_tokens: int = 0
    num_units: int = 0
    """Number of units (blocks or slots) that can be allocated."""
    offloads: bool = False
    """Computed blocks are copied to a second tier on the host."""
    frees_late: bool = False
    """Blocks of a step in flight are freed when its output is processed, since a transfer might overwrite them."""
    prefix_caching: bool = False
    watermark_blocks: int = 0
    num_groups: int = 0
    unit_slots: int = 0
    """Number of slots of one unit. A slot is a token, or a byte if groups have blocks of different sizes."""
    token_slots: int = 0
    """Number of slots of one token, summed over all tables."""
    first_hit: int = 0
    """Index in `Engine.entries` of the first hit block of the sequence being admitted."""
    cache_tokens: int = 0
    """Least common multiple of the groups' block sizes in tokens; lengths of hits are multiples of it."""
    commit_tokens: int = 0
    """Blocks are cached up to a multiple of this number of tokens."""
    retention_tokens: int = 0
    """Tokens between the boundaries at which windows and states are kept for hits.

    With `NEVER`, there is no such interval: they are kept at every boundary of `cache_tokens`. With 0, they are kept
    only at ends of prompts and at junctions (see `Sequence.junction`).
    """
    expires_from: int = 0
    """Number of computed tokens from which on a sequence can have expired tokens."""
    marks_prompt_end: FeatureFlag = False
    """If the tokens that a step caches end with the prompt, the step counts as writing the prompt's last recurrent
    state.
    """
    bounds_first_chunk: bool = False
    """The first chunk of a sequence ends at its junction (see `Sequence.junction`)."""
    keeps_junctions: bool = False
    """A step ends at the junction (see `Sequence.junction`), and the blocks before it are kept for hits."""
    cuts_at_boundaries: bool = False
    """Chunks of a prompt end at block boundaries. If False, a chunk is a whole number of blocks."""
    cuts_wide_blocks: bool = False
    """Chunks end at block boundaries, or inside a block if the step has too few tokens for the whole block."""
    most_chunk_tokens: int = 0
    """Largest number of tokens of one prompt in one step."""
    spares_last_token: bool = False
    """The last boundary of a prompt lies before its last token, even if the prompt has a whole number of blocks."""
    cuts_every_full_kind: bool = False
    """Hits of all kinds of full attention are cut to the common hit. If False, only hits of the first kind are cut."""
    boundary_tokens: Feature = 0
    """Tokens between the boundaries at which chunks end because recurrent states are kept there; 0 for none."""
    first_leader: int = 0
    """The first group of the kind of layers whose hits are looked up first."""
    has_windows: FeatureFlag = False
    """Some groups of layers do not read every token: they have windows, chunks or states."""
    most_unsure: int = 0
    """Largest number of unsure tokens of a sequence (see `totals`): tokens that may turn out not to be computed."""
    lookahead_tokens: Feature = 0
    """Number of slots that every running sequence holds for drafts, after the slots of its tokens."""
    num_drafts: Feature = 0
    """Number of tokens drafted for every sequence; 0 without drafts."""
    draft_slots: Feature = 0
    """Number of tokens of a step's budget that drafting takes for each sequence."""
    ahead_tokens: Feature = 0
    """Number of tokens after a block that the key of the block also covers."""
    prompt_ahead_tokens: Feature = 0
    """Number of prompt tokens after a chunk that drafting reads; every chunk but a prompt's last leaves at
    least these.
    """
    drops_last_hit: FeatureFlag = False
    """The last block of a hit is recomputed in some groups (`Group.drops_hit`): drafting needs its hidden states."""
    drops_after_prompt: FeatureFlag = False
    """The block that is found only to be left out of the hit (`drops_last_hit`) may contain the last known token.

    Used only with several groups.
    """
    marks_tails: FeatureFlag = False
    """A freed block in which a prompt's last hash ends goes to the tail of the free queue, even if it is not full.

    Only in groups of full attention. Other blocks without a prefix go to the head of the queue in some groups.
    """
    keeps_below_drop: FeatureFlag = False
    """Windows are also kept at the boundary before a prompt's last one, because hits that leave out a block
    end there.
    """
    pads_admission: FeatureFlag = False
    """A sequence that has one token to compute is admitted with padding drafts, which are always rejected."""
    pads_alone: FeatureFlag = False
    """Padding drafts are added even if the step has no running sequence, but not near the longest sequence length."""
    caches_processed: FeatureFlag = False
    """Blocks are cached when a step is processed, not when it is scheduled.

    They are cached up to the tokens that no step in flight may reject. With drafts, steps in flight may reject drafted
    tokens; with a connector, all of their tokens.
    """
    host_blocks: Feature = 0
    """Number of blocks of host memory that preempted sequences are swapped to; 0 for none."""
    host_block_s: float = 0.0
    """Seconds to copy one block over the link."""
    fit: int = 0
    reserve: int = 0
    moves: bool = False
    """A reservation that is full may move to a larger hole."""
    compaction: bool = False
    request_level: bool = False
    batch_size: int = 0
    preallocated: bool = False
    timeout_s: float = 0.0
    sort_by_length: FeatureFlag = False
    memory_guard: bool = False
    stamp_at_entry: bool = False
    """The recorded arrival of a request is the time at which the engine added it, not the time at which it was sent."""
    answers: bool = False
    """The run stops whenever a request has ended, because a client waits for its answer."""
    lockstep: bool = False
    """The run stops at every step, because the steps of several ranks wait for each other."""
    users_ask_again: bool = False
    """The engine itself sends a user's next request of the workload when the user has an answer."""
    think_s: float = 0.0
    """Seconds between an answer and the user's next request."""
    may_skip_decodes: bool = False
    """Fast-forward is on: the scheduler may skip sequences that only decode (see `fast_forward`)."""
    notes_every_step: bool = False
    """Steps that compute and preempt nothing are recorded too.

    Such a step may begin or report copies. In a pipeline, it counts for `decode_interval`.
    """
    records_memory: bool = False
    """Changes of ownership are recorded."""
    records_schedule: bool = False
    """The tokens that each sequence computes in each step are recorded."""
    checking: bool = False
    """The run stops after every step is scheduled, so that the caller can check the bookkeeping."""
    most_steps: int = 0
    """Largest number of steps, and of outputs, that one slice of the run records."""
    most_memory_rows: int = 0
    """Largest number of `memory_rows` with which another step may begin."""
    most_schedule_rows: int = 0
    most_rows_before_load: int = 0
    """Largest number of `memory_rows` with which another load from host memory or a connector may begin."""
    reserved_draft_tokens: int = 0
    """Number of draft tokens for which every sequence with an unfinished prompt reserves room."""


@cache
def _features() -> tuple[tuple[str, Any], ...]:
    """Return the settings of features and their default values."""
    hints = get_type_hints(Settings, include_extras=True)
    marked = (field for field in fields(Settings) if _FEATURE in getattr(hints[field.name], "__metadata__", ()))
    return tuple((field.name, field.default) for field in marked)


def constants_of(settings: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `Settings` that are compiled as constants: those of all features if none is used, else none.

    Machine code for a run without features is small and quickly compiled. All other runs share one machine code.
    """
    return _features() if all(getattr(settings, name) == default for name, default in _features()) else ()


@dataclass(slots=True, eq=False, repr=False)
class State:
    """The numbers of an engine that change from step to step."""

    host_s: float = 0.0
    """Time on the host's clock, in seconds."""
    seq: int = 0
    """Sequence number of the last event; recorded rows refer to it."""
    num_steps: int = 0
    """Number of steps recorded so far: those that computed or preempted something."""
    num_outputs: int = 0
    """Number of recorded steps whose output was processed."""
    first_step: int = 0
    """Number of the first step that the present slice of the run records, counted from 0."""
    first_output: int = 0
    """Number of the first output that the present slice of the run records, counted from 0."""
    num_submitted: int = 0
    """Number of requests that were sent so far; `Line.arrived` lists these requests."""
    num_arrived: int = 0
    num_ended: int = 0
    num_waiting: int = 0
    """Number of waiting sequences: queued and skipped ones."""
    num_queued: int = 0
    num_skipped: int = 0
    num_looked_at: int = 0
    """Number of skipped sequences that the current pass has visited; see `waiting_queue`."""
    num_skipped_again: int = 0
    """Number of sequences that the current pass has skipped."""
    num_running: int = 0
    num_in_flight: int = 0
    next_launched: int = 0
    """Index in the ring `Engine.launched` at which the next step is put."""
    awaiting: bool = False
    """The call of the engine in progress processes the output of the oldest step next."""
    unflushed: bool = False
    """A sequence has left since the last step was scheduled. The engine schedules once more to report this."""
    num_in_batch: int = 0
    """Number of sequences in the step being scheduled."""
    num_listed: int = 0
    """Number of sequences of the step being scheduled that are listed in `batch`."""
    num_quiet: int = 0
    """Number of quiet sequences (see `fast_forward`)."""
    quiet_tokens: int = 0
    """Sum, over the quiet sequences, of the computed tokens of each minus the number of the last step, when it became
    quiet.

    A quiet sequence computes one token in each step. With `num_scheduled` added once for each quiet sequence, the sum
    is therefore the number of context tokens of all quiet sequences.
    """
    num_prefill_tokens: int = 0
    """Number of tokens of prompts in the step being scheduled."""
    context_tokens: int = 0
    """Number of tokens that the step attends to: the sum over its sequences of computed tokens at its end."""
    attention_pairs: int = 0
    """Number of pairs of a prompt token in the step and a token that it attends to."""
    num_tokens_in_batch: int = 0
    num_preempted: int = 0
    """Number of sequences preempted by the step being scheduled."""
    num_new_seqs: int = 0
    """Number of sequences in the step that were waiting before it."""
    num_scheduled: int = 0
    """Number of steps scheduled so far, empty ones included."""
    num_drafts: int = 0
    """Number of tokens that are drafted for each sequence after the step scheduled last."""
    input_tokens: int = 0
    """Number of tokens that the step being scheduled may still take, including tokens for drafting."""
    has_chunk: bool = False
    """The step being scheduled computes a running sequence whose last step ended inside its prompt."""
    most_prompt_tokens: int = 0
    """Largest number of tokens of one prompt in the step being scheduled; 0 if only the budget limits it."""
    holds_prefills: bool = False
    """The step being scheduled must not compute prompts."""
    has_prefill: bool = False
    """The step being scheduled admits a sequence with more than one token to compute."""
    leaves_waiting: bool = False
    """The last step that could compute prompts left sequences waiting without skipping them."""
    num_computing_steps: int = 0
    """Number of steps that computed anything; counted only with a prefill interval."""
    last_prefill_step: int = 0
    """Number of the last computing step that computed a prompt."""
    num_passed_over: int = 0
    """Number of waiting sequences that were skipped at least once."""
    num_adapter_passes: int = 0
    """Number of passes over the queue in which adapters were counted."""
    num_adapters: int = 0
    """Number of adapters in use."""
    num_failures: int = 0
    """Number of discarded outputs that the scheduler did not await. In vLLM, each raises an AssertionError."""
    num_padding_failures: int = 0
    """Number of admissions with fewer tokens than padding drafts need. In vLLM, each raises an AssertionError."""
    num_adapter_failures: int = 0
    """Number of steps with more adapters than slots. In vLLM, each raises an AssertionError."""
    num_padding_drafts: int = 0
    """Number of padding drafts of the waiting sequence that may be admitted next."""
    num_counts: int = 0
    """Number of times that expired tokens were counted; identifies a count in `Readers.seen_in`."""
    hit_tokens: int = 0
    """Number of tokens of the sequence being admitted that were found in the prefix cache."""
    num_partly_cached: int = 0
    """Number of tokens after the hit of the sequence being admitted that some groups have cached, but not all."""
    num_admitted: int = 0
    """Number of sequences that were ever admitted."""
    num_free_places: int = 0
    num_free: int = 0
    """Number of free units of the pool."""
    num_cached: int = 0
    """Number of free units that hold a prefix."""
    num_keys: int = 0
    """Number of distinct prefixes that can be hit."""
    num_free_host_blocks: int = 0
    num_swapped_out: int = 0
    """Number of blocks copied to the host by the step being scheduled."""
    num_swapped_in: int = 0
    num_holes: int = 0
    rover: int = 0
    """End of the last allocated extent, where next fit continues."""
    num_copied_slots: int = 0
    """Number of written slots that the step being scheduled copies to another address."""
    batch_is_open: bool = True
    """Sequences may still join the batch; used with request-level batching only."""
    written: int = 0
    """Number of slots, over all tables, with computed tokens."""
    useful: int = 0
    """Number of slots, over all tables, that will be written before their sequence ends."""
    rounding: int = 0
    """Number of slots that were allocated beyond those requested."""
    num_unsure: int = 0
    """Number of sequences that have freed slots of unsure tokens (see `totals`) since the last step."""
    unusable_units: int = 0
    """Number of free units if they would suffice for the head of the queue, but no single range of free units does;
    else 0.

    Updated when a step is scheduled.
    """
    num_gaps: int = 0
    """Number of rows in `Engine.gaps`."""
    num_memory_rows: int = 0
    num_schedule_rows: int = 0
    is_crowded: bool = False
    """A step made more changes than there is room to record."""
    subject: int = 0
    """Number of the sequence that the outcome of a slice is about."""
    other: int = 0
    """A second number to which the outcome refers."""


@dataclass(slots=True, eq=False, repr=False)
class Sequence(Bucketed):
    """One request while it is being served."""

    number: Small = 0
    """Index of the record in `Engine.sequences`. Record 0 is the head of the linked queue, not a sequence."""
    prompt_tokens: Small = 0
    end_tokens: Small = 0
    """Number of tokens at the end of the request, the last output included."""
    limit_tokens: Small = 0
    """Number of tokens of the prompt plus the largest allowed number of outputs."""
    full_tokens: Small = 0
    """Largest possible number of computed tokens at the end of the request."""
    num_unsure: Small = 0
    """Number of unsure tokens (see `totals`) among the `full_tokens`."""
    is_refused: bool = False
    is_skipped: bool = False
    """The sequence is in the list of skipped sequences, not in the queue."""
    was_passed_over: bool = False
    """The sequence was skipped at least once since it began to wait."""
    is_chunk: bool = False
    """The last step of the sequence computed only a chunk: tokens that are known or in flight are left to compute."""
    adapter: Small = 0
    """Number of the adapter, counted from 1; 0 for none."""
    priority: Small = 0
    reservation: Small = 0
    """Number of slots that the sequence requests at admission to a contiguous memory, if this is known
    before the run.
    """
    status: Small = 0
    num_tokens: Small = 0
    """Number of tokens whose values are known."""
    handed_tokens: Small = 0
    """Number of known tokens at the last admission, when the scheduler sent them to the model runner."""
    computed: Small = 0
    """Number of tokens scheduled so far. With asynchronous scheduling, it may exceed `num_tokens`."""
    placeholders: Small = 0
    """Number of outputs that are scheduled and not known yet."""
    decodes_from: Small = 0
    """The first step, counted from 1, that may decode the sequence again."""
    in_flight: Small = 0
    """Number of tokens in steps in flight; counted only with `Settings.counts_flight`."""
    junction: Small = 0
    """Length in tokens of the longest hit of any group, if it exceeds the common hit of all groups; otherwise 0."""
    drafts: Small = 0
    """Number of drafts that the next step verifies."""
    rejected: Small = 0
    """Number of rejected drafts in slots that are written and will be written again."""
    parked_tokens: Small = 0
    """Number of computed tokens whose blocks are on the host."""
    place: Small = 0
    """Index of the sequence's table, or the address at which its extent begins."""
    num_units: Small = 0
    """Number of blocks or slots that the sequence holds."""
    requested: Small = 0
    """Number of slots that the sequence requested for its extent; the allocator may have rounded up."""
    moves_to: Small = 0
    """Address of the sequence's extent after the present compaction."""
    room_tokens: Small = 0
    """Number of tokens up to which the table of the sequence needs no change."""
    cache_at: Small = 0
    """Smallest number of known tokens with which another block of the sequence can be cached."""
    preemptions: Small = 0
    cached_tokens: Small = 0
    num_keys: Small = 0
    """Number of full prompt blocks with known keys."""
    first_key: int = 0
    """Index in `Engine.prompt_keys` of the sequence's first key."""
    quiet_since: Small = 0
    """Number of the step, counted from 1, before the sequence became quiet; see `fast_forward`."""
    open_row: Small = 0
    """Index of the schedule row that the next step may extend; -1 for none."""


@dataclass(slots=True, eq=False, repr=False)
class RequestDrafts:
    """Positions in `Engine.draft_counts` of two lists of a request: its accepted and its proposed drafts in each step.

    An item is read at the index that is the request's number of outputs, modulo the length of the list.
    """

    first_accepted: int = 0
    """Index at which the list of accepted drafts per step begins."""
    num_accepted: Small = 0
    """Length of the list of accepted drafts; 0 if all drafts are accepted."""
    first_proposed: int = 0
    """Index at which the list of proposed drafts per step begins."""
    num_proposed: Small = 0
    """Length of the list of proposed drafts; 0 if the largest number is always proposed."""


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
    """The slots of one unsure token (see `totals`)."""

    slots: int = 0
    """Number of slots that the sequence holds for the token."""
    since_s: float = 0.0
    """Sum, over the `slots`, of the times at which they were allocated, in seconds."""
    slot_s: float = 0.0
    """Slot-seconds for which the slots were held for nothing so far; minus infinity if the token was computed."""


@dataclass(slots=True, eq=False, repr=False)
class Line:
    """Item i of three independent lists: `engine.lines[i]`. Each list has room for every request."""

    arrived: int = 0
    """Number of the i-th request in the order of sending."""
    ended: int = 0
    """Number of the sequence that ended as the i-th."""
    heap: int = 0
    """Item i of the queue as a heap by priority. In order of arrival the queue is a linked list instead."""


@dataclass(slots=True, eq=False, repr=False)
class Lists:
    """Item i of four independent lists: `engine.lists[i]`. Few steps use them."""

    order: int = 0
    """The i-th running sequence in the order in which compaction places them."""
    preempted: int = 0
    """The i-th sequence that the step being scheduled preempted."""
    unsure: int = 0
    """The i-th of the sequences that have freed slots of unsure tokens since the last step."""
    free_place: int = 0
    """The i-th free place: index of tables that belong to no sequence."""


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """Layers of one kind, which share a table: a KV-cache group."""

    kind: int = 0
    block_size: int = 0
    """Number of tokens of one block."""
    window: int = 0
    """Number of tokens of the window or of the chunk."""
    mode: int = 0
    """The states that a recurrent group keeps: `LIVE_STATE`, `EVERY_STATE` or `ALIGNED`."""
    cap_blocks: int = 0
    """Largest number of blocks that one sequence ever holds; used for windows and chunks."""
    hashes_per_block: int = 0
    token_slots: int = 0
    """Number of slots of one token in a block; 0 if blocks hold states."""
    state_slots: int = 0
    """Number of slots of one recurrent state."""
    num_of_kind: int = 0
    """Number of groups of the same kind, including this one. Their tables have equal lengths."""
    kind_slots: int = 0
    """Number of slots of one token, or state, in all groups of the same kind."""
    keeps_some: bool = False
    """Some full blocks are never put into the prefix cache, because no hit could end at them."""
    reuses_first: bool = False
    """Freed blocks without a prefix go to the head of the free queue, so that they are allocated first."""
    reuses_left_first: bool = False
    """Blocks without a prefix that are freed because they left the window go to the head of the free queue."""
    frees_over_gaps: bool = False
    """A search for old states to free continues before entries that are null already; if False, it stops at the first
    one.
    """
    keeps_all: bool = False
    """Every full block is put into the prefix cache."""
    drops_hit: bool = False
    """The last block of a hit is recomputed, because draft layers are in this group, or in another of its kind."""
    is_dropped: bool = False
    """The lookup in progress has already left out one block of the group's hit, at the present length of the common
    hit.
    """
    extra_tokens: int = 0
    """Number of tokens before the window that are kept, because several drafting modules may compute them again."""
    first_entry: int = 0
    """Index, among the entries of a place, of the first entry of the group's table."""
    next_of_kind: int = 0
    """The next group of the same kind, which is looked up together with this one; -1 for none."""
    next_leader: int = 0
    """The first group of the kind that is looked up next; -1 for none."""
    num_shared: int = 0
    """Number of table entries whose block is in another table, too; for each such block, one entry is not counted."""
    num_hits: int = 0
    """Number of hit blocks of the sequence being admitted, null blocks included."""


@dataclass(slots=True, eq=False, repr=False)
class Table:
    """The blocks of one sequence in one group."""

    begin: int = 0
    """Index in `Engine.entries` of the first entry."""
    num_blocks: Small = 0
    """Number of entries, null ones included."""
    num_held: Small = 0
    """Number of entries that are not null."""
    num_cached: Small = 0
    """Number of leading blocks that are in the prefix cache or will never be put there."""
    num_removed: Small = 0
    """Number of leading entries whose blocks were freed; only for aligned recurrent groups."""
    last_state: Small = 0
    """Index of the entry with the state before the newest; -1 for none; only for aligned recurrent groups."""
    owns_state: bool = False
    """The sequence has allocated a state, in addition to the states that it hit."""


@dataclass(slots=True, eq=False, repr=False)
class Launched:
    """A step in flight."""

    is_recorded: bool = False
    computes: bool = False
    """The step computes tokens; set only with host memory or a connector."""
    done_s: float = 0.0
    turnaround_s: float = 0.0
    num_emitting: int = 0
    num_computing: int = 0
    """Number of sequences that the step computes; set only with `Settings.counts_flight`."""


@dataclass(slots=True, eq=False, repr=False)
class Stage:
    """A pipeline stage: the GPUs that compute a contiguous range of the model's layers."""

    free_s: float = 0.0
    """Time in seconds at which the stage has computed all launched steps."""
    throttle: float = 0.0
    """Share by which the power limit had lowered the clock of the GPUs at `throttled_at_s`."""
    throttled_at_s: float = 0.0
    """Time at which `throttle` was last updated, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class Block(Bucketed):
    """One block. Free blocks are linked in the order in which they will be allocated.

    The record has 32 bytes, because the records of a large pool must fit into a processor's cache.
    """

    refs: Small = 0
    """Number of tables that list the block."""
    cached_in: Small = 0
    """Number of the step that was being scheduled when the block got its key, or `HAS_TAIL`."""
    key: int = 0
    """Key of the prefix that the block holds, or `NO_KEY`."""


@dataclass(slots=True, eq=False, repr=False)
class Readers:
    """Per-block scratch state for counting expired tokens."""

    seen_in: Small = 0
    """Number of the last count that visited the block; see `State.num_counts`."""
    num_seen: Small = 0
    """Number of holders of the block that this count has visited."""
    least_expired: Small = 0
    """Smallest number of expired tokens or states over the holders that this count has visited."""


@dataclass(slots=True, eq=False, repr=False)
class Bucket:
    """The first and the last record of a list in order of insertion; both are 0 for an empty list.

    The list has blocks whose keys have equal hashes, or waiting sequences whose prompts have equal lengths.
    """

    first: Small = 0
    last: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Hole:
    """A free range of a contiguous memory."""

    address: int = 0
    length: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Rectangle:
    """The present static batch. Its rows are the running sequences, in order."""

    num_rows: int = 0
    """Number of rows; 0 while there is no batch."""
    prompt_width: int = 0
    """Number of columns that the prefill writes: tokens of the longest prompt."""
    most_new_tokens: int = 0
    """Largest number of tokens that any row may generate."""
    longest_answer: int = 0
    """Largest number of tokens that any row generates."""
    num_steps: int = 0
    """Number of steps until the last row ends, or until the memory is full."""
    step: int = 0
    """Number of the next step, from 0."""
    stride: int = 0
    """Number of slots from the beginning of a row to the beginning of the next."""
    num_live: int = 0
    """Number of rows that have not ended."""
    live_prompt_tokens: int = 0
    live_new_tokens: int = 0
    """Number of tokens that the live rows generate in all."""
    next_end: int = 0
    """Number of the first step in which the row that ends next is no longer live."""


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One scheduled step. `StepShape` describes the fields of its shape, `totals` those of its slots."""

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
    """Number of units of SGLang's window pool that no request holds, those in the radix tree included."""
    cached_windows: Small = 0
    """Number of units of SGLang's window pool that only the radix tree holds."""
    swapped_out: Small = 0
    swapped_in: Small = 0
    num_admitted: int = 0
    """Number of sequences that were ever admitted."""
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
class Gap:
    """Lengths of the queues, and totals of the slots (see `totals`), between the processing of an output and the next
    step.

    A gap is recorded only if no other step is in flight then.
    """

    before: int = 0
    """Number of the next step, counted from 0."""
    begin_s: float = 0.0
    """Time at which the output was processed, in seconds."""
    running: Small = 0
    waiting: Small = 0
    free_units: int = 0
    cached_units: int = 0
    free_windows: Small = 0
    cached_windows: Small = 0
    unusable_units: int = 0
    written: int = 0
    padding: int = 0
    useful: int = 0
    rounding: int = 0
    shared: int = 0
    expired: int = 0


@dataclass(slots=True, eq=False, repr=False)
class MemoryRow:
    """One change of ownership: a row of the recording's memory table."""

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
    """The number of the sequence that the event concerns; 0 for none."""


@dataclass(slots=True, eq=False, repr=False)
class ScheduleRow:
    """Consecutive steps that each compute the same number of tokens of a request: a row of the recording's schedule."""

    step: Small = 0
    request: Small = 0
    computed_before: Small = 0
    tokens: Small = 0
    repeat: Small = 0
    known: Small = 0
    """Number of known tokens when the step was scheduled; in runs with drafts."""
    outputs: Small = 0
    """Number of tokens that the output of the step gave the request; in runs with drafts."""
