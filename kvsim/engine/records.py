"""The records that the engine works on: settings, sequences, blocks, tables and steps. A record is a struct of numbers.

Records hold only numbers so that machine code can work on arrays of records. Fields of the type `Small` take 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

import numpy as np

Small = Annotated[int, np.int32]
"""Type of an integer that is stored in 32 bits to save memory, since a million requests have a million records."""
_FEATURE = "feature"
Feature = Annotated[int, np.int64, _FEATURE]
"""Integer setting that is compiled as a constant if all features have their defaults; see `constants_of`."""
FeatureFlag = Annotated[bool, np.bool_, _FEATURE]
"""A `Feature` that is True or False."""
NEVER = (1 << 31) - 1
"""A number of tokens that no sequence reaches."""
NO_FAILURE, LOADS_UNRECORDED, RANGES_UNRECORDED, WINDOWS_FREED_TWICE, SLOTS_MISSING, TWO_CHUNKED = range(6)
"""Reasons for which a run ends before its requests do:

- `NO_FAILURE`: none.
- `LOADS_UNRECORDED`: in one step, more requests began to load than a recording has room for.
- `RANGES_UNRECORDED`: one step of SGLang changed more runs of slots than a recording has room for.
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
class Settings:
    """Settings of scheduling, memory and recording. They do not change during a run."""

    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_model_len: int = 0
    max_num_active_seqs: int = 0
    """Largest number of sequences that run at once; at most `max_num_seqs`."""
    long_prefill_token_threshold: int = 0
    threshold_is_adaptive: bool = False
    """True if the threshold is at least an equal share of a step for each running or waiting sequence."""
    prefill_interval: Feature = 1
    """Smallest number of steps from one step that computes prompts to the next; 1 for no restriction."""
    max_adapters: Feature = 0
    """Largest number of adapters in use at once; 0 if adapters are not limited."""
    running_keep_adapters: bool = False
    """True if a running sequence keeps its adapter in use even in a step that does not compute the sequence."""
    encoder_tokens: Feature = 0
    """Largest number of encoder outputs that one step computes; 0 if prompts have no images."""
    encoder_cache_tokens: int = 0
    keeps_images_whole: FeatureFlag = False
    """True if a step computes either all tokens of an image or none."""
    aligns_before_images: FeatureFlag = False
    """True if a chunk is cut to a boundary of recurrent states before its images are planned, not after."""
    images_wait: FeatureFlag = False
    """True if a sequence uses an image until the outputs of all steps with the image's tokens are processed. If False,
    it uses the image until these steps are scheduled.
    """
    cuts_before_images: FeatureFlag = False
    """True if a chunk ends right before an image that has no room in the encoder cache. If False, the chunk ends
    earlier, by the number of tokens that drafting reads after a chunk (`prompt_ahead_tokens`).
    """
    keeps_cached_whole: FeatureFlag = False
    """True if `keeps_images_whole` also applies to an image that is already in the encoder cache."""
    keeps_repeated_images: FeatureFlag = False
    """True if a sequence uses an image until its last occurrence in the prompt is computed."""
    counts_repeated_images: FeatureFlag = False
    """True if a sequence uses an image for each of its occurrences in the chunk that encodes the image. If False, it
    uses the image only for the first of these occurrences.
    """
    any_place_frees: FeatureFlag = False
    """True if a sequence releases an image when any of its occurrences is computed, even if a later one needs it."""
    ahead: bool = False
    """True for asynchronous scheduling: a step is scheduled before the outputs of earlier steps are known."""
    most_in_flight: int = 1
    """Largest number of steps in flight at once."""
    decode_interval: int = 1
    """Smallest number of steps from one decode of a sequence to its next one."""
    feedback: int = 0
    """A step begins on the first pipeline stage only after the step scheduled `feedback` steps earlier has ended,
    because it needs that step's tokens; 0 if it waits for none.
    """
    by_priority: FeatureFlag = False
    chunked_prefill: bool = False
    reserve_full_prompt: bool = False
    """True if a sequence is admitted only if its whole prompt fits into the pool."""
    fills_pipeline: bool = False
    """True if steps are scheduled ahead until `most_in_flight` are in flight or no work is left.

    If False, the output of the oldest step in flight is processed first if this step is computed already, or if the
    step scheduled last is empty.
    """
    late_outputs_block: bool = False
    """True if a preempted sequence is admitted again only after all its outputs in flight have been processed."""
    drops_late: FeatureFlag = False
    """True if a preempted sequence's outputs in flight are discarded at once, so it need not wait for them."""
    skipped_keep_places: bool = False
    """True if a sequence that a step skips returns to the queue after the step, unless it loads or holds blocks. If
    False, it stays in the list of skipped sequences.
    """
    keeps_turns: bool = False
    """True if a step goes on with the next running sequence after it preempts one that it has visited but does not
    compute.

    If False, the step misses that next sequence, because the indices of the running sequences have moved by one.
    """
    preempted_self_stops: bool = False
    """True if a step schedules no further running sequence after one has preempted itself for lack of memory."""
    lone_prompt_is_limited: bool = False
    """True if `long_prefill_token_threshold` applies even if no other sequence runs or waits."""
    answers_awaited: bool = False
    """True if a resumed sequence yields no output that the scheduler does not await. If False, the model runner may
    generate a token once more that was in flight when the sequence was preempted.
    """
    windows_wait: FeatureFlag = False
    """True if blocks of windows, chunks and states are freed only after the steps in flight that read them."""
    counts_flight: FeatureFlag = False
    """True if each sequence's tokens in flight are counted, because releases or admissions depend on it."""
    unit_tokens: int = 0
    num_units: int = 0
    """Number of units (blocks or slots) that can be allocated."""
    offloads: bool = False
    """True if computed blocks are copied to a second tier on the host."""
    frees_late: bool = False
    """True if a sequence's blocks are freed only after its last step's output, since transfers might overwrite them."""
    prefix_caching: bool = False
    watermark_blocks: int = 0
    num_groups: int = 0
    unit_slots: int = 0
    """Number of slots of one unit. A slot is a token; with groups of different block sizes, it is a byte."""
    token_slots: int = 0
    """Number of slots of one token, summed over all tables."""
    first_hit: int = 0
    """Index in `Engine.entries`, behind all tables, of a scratch area for the hit blocks of an admission."""
    cache_tokens: int = 0
    """Least common multiple of the groups' block sizes in tokens. The length of a hit is a multiple of it."""
    commit_tokens: int = 0
    """Granularity of the prefix cache in tokens: of a sequence, the whole multiples of it are cached."""
    retention_tokens: int = 0
    """Number of tokens between the boundaries at which windows and states are kept for hits.

    With `NEVER`, they are kept at every boundary of `cache_tokens`. With 0, they are kept only at ends of prompts and
    at junctions (see `Sequence.junction`).
    """
    expires_from: int = 0
    """Smallest number of computed tokens with which a sequence can hold tokens that no later step reads."""
    marks_prompt_end: FeatureFlag = False
    """True if caching up to a prompt's end marks its last recurrent state as written now: no hit before the next
    step.
    """
    bounds_first_chunk: bool = False
    """True if a first chunk ends where a hit of only some KV-cache groups ends (`Sequence.junction`)."""
    keeps_junctions: bool = False
    """True if a step ends where a hit of only some groups ends (`Sequence.junction`), and keeps the blocks there."""
    cuts_at_boundaries: bool = False
    """True if a chunk of a prompt ends at a block boundary; False if a chunk has a whole number of blocks."""
    cuts_wide_blocks: bool = False
    """True if a chunk ends at a block boundary, or inside a block if the step has too few tokens for all of it."""
    most_chunk_tokens: int = 0
    """Largest number of tokens of one prompt in one step."""
    spares_last_token: bool = False
    """True if the last boundary of a prompt is before its last token, even if that token ends a block."""
    cuts_every_full_kind: bool = False
    """True to cut the hits of all kinds of full attention to the hit of all groups; False: only the first kind's."""
    boundary_tokens: Feature = 0
    """Number of tokens between the boundaries where chunks end to keep recurrent states; 0 for none."""
    first_in_lookup: int = 0
    """Index of the group at which the lookup of a prefix begins: the first group of the first kind of layers."""
    has_windows: FeatureFlag = False
    """True if some groups of layers do not read every token, because they have windows, chunks or states."""
    most_unsure: int = 0
    """Largest number of a sequence's last tokens whose computation is uncertain; see `totals`."""
    lookahead_tokens: Feature = 0
    """Number of slots that every running sequence holds for drafts, after the slots of its tokens."""
    num_drafts: Feature = 0
    """Number of tokens drafted for each sequence and step; 0 without drafts."""
    draft_budget_tokens: Feature = 0
    """Number of tokens of the step's budget that drafting itself takes for each sequence."""
    ahead_tokens: Feature = 0
    """Number of tokens after a block that the block's key covers, too."""
    prompt_ahead_tokens: Feature = 0
    """Number of prompt tokens after a chunk that drafting reads. At least this number follows every chunk but the
    last.
    """
    drops_last_hit: FeatureFlag = False
    """True if groups with `Group.drops_hit` recompute the last hit block, whose hidden states drafts need."""
    drops_after_prompt: FeatureFlag = False
    """True if, with several groups, the block that `drops_last_hit` leaves out may have the last known token."""
    marks_tails: FeatureFlag = False
    """True if a freed block in which a prompt's last hash ends goes to the tail of the free queue, even if it is not
    full.

    This concerns only groups of full attention, where other blocks without a prefix may go to the head of the queue.
    """
    keeps_below_drop: FeatureFlag = False
    """True if windows are also kept one boundary before a prompt's last, where a hit without its last block ends."""
    pads_admission: FeatureFlag = False
    """True if a sequence with one token to compute is admitted with padding drafts, which are rejected."""
    pads_alone: FeatureFlag = False
    """True if `pads_admission` also applies without running sequences, except near `max_model_len`."""
    caches_processed: FeatureFlag = False
    """True if blocks are put into the prefix cache when the output of a step is processed; False: when it is scheduled.

    They are cached up to the tokens that no step in flight may reject. With drafts, a step may reject drafted tokens;
    with a connector, all of its tokens.
    """
    host_blocks: Feature = 0
    """Number of blocks of host memory to which preempted sequences are swapped; 0 without such swapping."""
    host_block_s: float = 0.0
    """Seconds that copying one block over the link takes."""
    fit: int = 0
    reserve: int = 0
    moves: bool = False
    """True if a full reservation may move to a larger free range."""
    compaction: bool = False
    request_level: bool = False
    batch_size: int = 0
    preallocated: bool = False
    timeout_s: float = 0.0
    sort_by_length: FeatureFlag = False
    memory_guard: bool = False
    stamp_at_entry: bool = False
    """True if a request's recorded arrival is when the engine has added it; False: when it was sent."""
    answers: bool = False
    """True if the run stops whenever a request has ended, because a client waits for its answer."""
    lockstep: bool = False
    """True if the run stops at every step, because the steps of several ranks wait for each other."""
    users_ask_again: bool = False
    """True if the engine itself sends a user's next request of the workload after the user's answer."""
    think_s: float = 0.0
    """Seconds from an answer to the user's next request."""
    may_skip_decodes: bool = False
    """True if the scheduler may skip sequences that only decode; see `fast_forward`."""
    records_every_step: bool = False
    """True if steps that neither compute nor preempt anything are recorded, too. Such a step may begin or report
    copies. In a pipeline, it counts for `decode_interval`.
    """
    records_memory: bool = False
    """True if changes of ownership are recorded."""
    records_schedule: bool = False
    """True if the tokens that each sequence computes in each step are recorded."""
    checking: bool = False
    """True if the run stops after each scheduled step, so that the caller can check the bookkeeping."""
    most_steps: int = 0
    """Largest number of steps that one slice of the run records."""
    most_memory_rows: int = 0
    """Largest number of `memory_rows` with which a step may begin. With more, the slice ends."""
    most_schedule_rows: int = 0
    most_rows_before_load: int = 0
    """Largest number of `memory_rows` with which a load from host memory or through a connector may begin."""
    reserved_draft_tokens: int = 0
    """Number of draft tokens for which every sequence with an unfinished prompt reserves room."""


@cache
def _features() -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(Settings, include_extras=True)
    marked = (field for field in fields(Settings) if _FEATURE in getattr(hints[field.name], "__metadata__", ()))
    return tuple((field.name, field.default) for field in marked)


def constants_of(settings: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of `Settings` that are compiled as constants.

    If a run uses no feature, these are the settings of all features; otherwise, there are none. Machine code for a run
    without features is small and quickly compiled. All other runs share one machine code.
    """
    return _features() if all(getattr(settings, name) == default for name, default in _features()) else ()


@dataclass(slots=True, eq=False, repr=False)
class State:
    """Numbers of an engine that change from step to step."""

    host_s: float = 0.0
    """Time on the host's clock, in seconds."""
    seq: int = 0
    """Number of the last event. Recorded rows refer to events by their numbers."""
    num_steps: int = 0
    """Number of recorded steps since the run began. A step is recorded if it computes or preempts something."""
    num_outputs: int = 0
    """Number of recorded steps whose output was processed."""
    first_step: int = 0
    """Number of the first step that the current slice of the run records, counted from 0."""
    first_output: int = 0
    """Number of the first output that the current slice of the run records, counted from 0."""
    num_submitted: int = 0
    """Number of requests that were sent since the run began. `Line.arrived` lists these requests."""
    num_arrived: int = 0
    num_ended: int = 0
    num_waiting: int = 0
    """Number of waiting sequences, both queued and skipped ones."""
    num_queued: int = 0
    num_skipped: int = 0
    num_looked_at: int = 0
    """Number of skipped sequences that the current pass over the queue has visited; see `waiting_queue`."""
    num_skipped_again: int = 0
    """Number of sequences that the current pass over the queue has skipped; see `waiting_queue`."""
    num_running: int = 0
    num_in_flight: int = 0
    next_launched: int = 0
    """Index in the ring `Engine.launched` at which the next step is put."""
    awaiting: bool = False
    """True if the current call of the engine has scheduled a step and processes the oldest step's output next."""
    unflushed: bool = False
    """True if a sequence has ended since the last call of `schedule`. vLLM then schedules once more, even if no
    sequence is left, to report the end to its workers.
    """
    num_in_batch: int = 0
    """Number of sequences in the step being scheduled."""
    num_listed: int = 0
    """Number of sequences of the step being scheduled that `Engine.batch` lists."""
    num_quiet: int = 0
    """Number of quiet sequences: running ones that the scheduler skips because they only decode; see `fast_forward`."""
    quiet_tokens: int = 0
    """Sum over the sequences that the scheduler skips (see `num_quiet`): computed tokens of each when it was first
    skipped, minus the number of its step at that time.

    Each step computes one token of such a sequence. So the number of context tokens of all these sequences is the sum
    plus `num_scheduled` for each.
    """
    num_prefill_tokens: int = 0
    """Number of prompt tokens that the step being scheduled computes."""
    context_tokens: int = 0
    """Number of tokens that the step attends to: the computed tokens of its sequences after the step, summed."""
    attention_pairs: int = 0
    """Number of pairs of a prompt token that the step computes and a token that it attends to."""
    num_tokens_in_batch: int = 0
    num_preempted: int = 0
    """Number of sequences preempted by the step being scheduled."""
    num_new_seqs: int = 0
    """Number of sequences that the step being scheduled admits."""
    num_scheduled: int = 0
    """Number of steps scheduled since the run began. Steps without tokens count."""
    num_drafts: int = 0
    """Number of tokens that are drafted for each sequence after the last scheduled step."""
    input_tokens: int = 0
    """Number of tokens left of the step's budget, after those that drafting takes (`draft_budget_tokens`)."""
    has_chunk: bool = False
    """True if the step being scheduled computes a running sequence whose last step ended inside its prompt."""
    most_prompt_tokens: int = 0
    """Largest number of tokens of one prompt in the step being scheduled; 0 if only the budget limits it."""
    bars_prefills: bool = False
    """True if the step being scheduled must not compute prompts."""
    has_prefill: bool = False
    """True if the step being scheduled admits a sequence with more than one token to compute."""
    leaves_waiting: bool = False
    """True if the last step that might compute prompts left a waiting sequence that it did not skip."""
    num_computing_steps: int = 0
    """Number of steps that computed tokens. Counted only with a prefill interval."""
    last_prefill_step: int = 0
    """Value of `num_computing_steps` after the last step that computed a prompt."""
    num_passed_over: int = 0
    """Number of waiting sequences that were skipped at least once since they began to wait."""
    num_adapter_passes: int = 0
    """Number of calls of `adapters.begin_pass`."""
    num_adapters: int = 0
    num_unawaited_outputs: int = 0
    """Number of discarded outputs that the scheduler did not await. Each raises an AssertionError in vLLM."""
    num_left_skipped: int = 0
    """Number of preempted sequences that a late output ended while they were skipped. vLLM up to 0.30 raises a
    RuntimeError when it admits such a sequence again.
    """
    num_padding_failures: int = 0
    """Number of admissions with fewer tokens than the padding drafts need. vLLM raises an AssertionError for each."""
    num_adapter_failures: int = 0
    """Number of steps with more adapters than adapter slots. vLLM raises an AssertionError for each."""
    num_padding_drafts: int = 0
    """Number of padding drafts of the next waiting sequence, if it is admitted now."""
    num_expiry_counts: int = 0
    """Number of times that `groups.expired_slots` has counted since the run began; see `ExpiryCount.seen_in`."""
    hit_tokens: int = 0
    """Number of leading tokens of the sequence being admitted that are in the prefix cache."""
    num_partly_cached: int = 0
    """Number of tokens, after the hit of the sequence being admitted, that only some groups have cached."""
    num_admitted: int = 0
    """Number of requests admitted for the first time. Those of a static batch are added when it ends."""
    num_free_places: int = 0
    num_free: int = 0
    num_cached: int = 0
    """Number of free units that hold a cached prefix."""
    num_keys: int = 0
    """Number of distinct keys in the prefix cache, of blocks that can be hit."""
    num_free_host_blocks: int = 0
    num_swapped_out: int = 0
    """Number of blocks copied to the host by the step being scheduled."""
    num_swapped_in: int = 0
    num_holes: int = 0
    rover: int = 0
    """Address after the extent that was allocated last. Next fit searches from there."""
    num_copied_slots: int = 0
    """Number of written slots that the step being scheduled copies to another address."""
    batch_is_open: bool = True
    """True if sequences may still join the batch. Used only with request-level batching."""
    written: int = 0
    """Number of slots, over all tables, with computed tokens."""
    useful: int = 0
    """Number of slots, over all tables, that will be written before their sequence ends."""
    rounding: int = 0
    """Number of slots that rounding added to the requested ones, over all tables."""
    num_unsure: int = 0
    """Number of entries in `Lists.unsure`, for `totals.settle_unsure_slots`."""
    unusable_units: int = 0
    """Number of free units, if together they suffice for the head of the queue but no single free range does; otherwise
    0. Updated when a step is scheduled.
    """
    num_gaps: int = 0
    num_memory_rows: int = 0
    num_schedule_rows: int = 0
    failure: int = NO_FAILURE
    """Reason for which the run ends before its requests do; see `NO_FAILURE`."""
    stalled_sequence: int = 0
    """Number of the sequence for which the engine has no room when a slice ends with `clock.STALLED`."""


@dataclass(slots=True, eq=False, repr=False)
class Sequence(Bucketed):
    """State of one request on the server."""

    number: Small = 0
    """Index of the record in `Engine.sequences`. Record 0 is no sequence, but the head of the linked queue."""
    prompt_tokens: Small = 0
    end_tokens: Small = 0
    """Number of tokens of the prompt and of the whole output."""
    limit_tokens: Small = 0
    """Number of tokens of the prompt and of the largest output that the request allows."""
    full_tokens: Small = 0
    """Largest number of tokens that can be computed when the request ends."""
    num_unsure: Small = 0
    """Number of `full_tokens` whose computation is uncertain; see `totals`."""
    is_refused: bool = False
    is_skipped: bool = False
    """True if the sequence is in the list of skipped sequences, not in the queue."""
    was_passed_over: bool = False
    """True if the sequence was skipped at least once since it began to wait."""
    is_chunk: bool = False
    """True if the last step of the sequence left known tokens, or tokens in flight, to compute."""
    adapter: Small = 0
    """Number of the adapter, counted from 1; 0 for none."""
    priority: Small = 0
    reservation: Small = 0
    """Number of slots that the sequence requests at admission to a contiguous memory; 0 for other memories."""
    status: Small = 0
    num_tokens: Small = 0
    """Number of known tokens: the prompt and the output that was processed."""
    handed_tokens: Small = 0
    """Number of known tokens at the last admission, which the scheduler sent to the model runner."""
    computed: Small = 0
    """Number of tokens scheduled to be computed. With async scheduling, it may exceed `num_tokens`. It is below 0 after
    more padding drafts were rejected than tokens were computed, see `drafting.commit`.
    """
    placeholders: Small = 0
    """Number of output tokens that steps in flight will yield."""
    decodes_from: Small = 0
    """Number of the first step that may decode the sequence again, counted from 1."""
    in_flight: Small = 0
    """Number of tokens that steps in flight compute. Counted only with `Settings.counts_flight`."""
    junction: Small = 0
    """Tokens of the longest hit of any KV-cache group, if it exceeds the hit of all groups together; else 0."""
    drafts: Small = 0
    """Number of drafts that the next step verifies."""
    rejected: Small = 0
    """Number of rejected drafts whose slots are written and will be written again."""
    parked_tokens: Small = 0
    """Number of computed tokens whose blocks were swapped to the host."""
    place: Small = 0
    """Index of the sequence's tables if memory has blocks; otherwise the address at which its extent begins."""
    num_units: Small = 0
    """Number of blocks that the sequence holds; of slots if memory has no blocks."""
    requested: Small = 0
    """Number of slots that the sequence requested for its extent, before the allocator rounded up."""
    moves_to: Small = 0
    """Address of the sequence's extent after the compaction in progress."""
    room_tokens: Small = 0
    """Number of computed tokens up to which the tables of the sequence need no change."""
    cache_at: Small = 0
    """Smallest number of known tokens with which another block of the sequence is put into the prefix cache."""
    preemptions: Small = 0
    cached_tokens: Small = 0
    num_keys: Small = 0
    """Number of full blocks of the prompt whose keys are known."""
    first_key: int = 0
    """Index in `Engine.prompt_keys` of the key of the sequence's first block."""
    quiet_since: Small = 0
    """Number, from 1, of the last step before the scheduler began to skip the sequence; see `fast_forward`."""
    open_row: Small = 0
    """Index of the row in `Engine.schedule_rows` that the next step may extend; -1 for none."""


@dataclass(slots=True, eq=False, repr=False)
class RequestDrafts:
    """Two lists of a request in `Engine.draft_counts`: numbers of accepted and of proposed drafts. A step uses the
    entry whose index is the request's number of output tokens, modulo the length of the list.
    """

    first_accepted: int = 0
    """Index at which the list of numbers of accepted drafts begins."""
    num_accepted: Small = 0
    """Length of the list of numbers of accepted drafts; 0 if all drafts are accepted."""
    first_proposed: int = 0
    """Index at which the list of numbers of proposed drafts begins."""
    num_proposed: Small = 0
    """Length of the list of numbers of proposed drafts; 0 if the largest number is always proposed."""


@dataclass(slots=True, eq=False, repr=False)
class Times:
    """Times of the events of a request, in seconds; NaN if an event has not happened."""

    arrival_s: float = 0.0
    arrival_seq: int = 0
    first_scheduled_s: float = 0.0
    first_token_s: float = 0.0
    finished_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Unsure:
    """Slots of one token whose computation is uncertain; see `totals`."""

    slots: int = 0
    """Number of slots that the sequence holds for the token."""
    allocated_s_sum: float = 0.0
    """Sum over the `slots` of the times at which they were allocated, in seconds."""
    slot_s: float = 0.0
    """Slot-seconds for which the slots were held in vain; minus infinity if the token was computed."""


@dataclass(slots=True, eq=False, repr=False)
class Line:
    """Entry `i` of three independent lists. Each list has room for all requests."""

    arrived: int = 0
    """Number of the request that was sent as number `i`."""
    ended: int = 0
    """Number of the sequence that ended as number `i`."""
    heap: int = 0
    """Number of the sequence in entry `i` of the heap of waiting sequences. The heap is used only with priorities."""


@dataclass(slots=True, eq=False, repr=False)
class Lists:
    """Entry `i` of four independent lists, which few steps use."""

    order: int = 0
    """Number of the sequence that compaction places as number `i`."""
    preempted: int = 0
    """Number of the sequence that is preempted as number `i` in the step being scheduled."""
    unsure: int = 0
    """Number of the sequence that, as number `i` since the last step, freed slots of tokens not surely computed."""
    free_place: int = 0
    """Free place number `i`: an index of tables that belong to no sequence."""


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
    """Largest number of blocks that one sequence holds at once. Used for windows and chunks."""
    hashes_per_block: int = 0
    """Number of prompt hashes that one block covers."""
    token_slots: int = 0
    """Number of slots that one token takes in a block; 0 if blocks hold states."""
    state_slots: int = 0
    """Number of slots that one recurrent state takes in a block; 0 if blocks hold tokens."""
    num_of_kind: int = 0
    """Number of groups of the same kind, including this one. Their tables have equal lengths."""
    kind_slots: int = 0
    """Number of slots that one token, or one state, takes in all groups of the kind."""
    keeps_some: bool = False
    """True if some full blocks are never put into the prefix cache, because no hit can need them."""
    reuses_first: bool = False
    """True if freed blocks without a prefix go to the head of the free queue, so that they are allocated first."""
    reuses_left_first: bool = False
    """True if blocks without a prefix go to the head of the free queue when they leave the window."""
    frees_over_gaps: bool = False
    """True if freeing of old states goes on past null entries of the table; False if it stops at the first one."""
    keeps_all: bool = False
    """True if every full block is put into the prefix cache."""
    drops_hit: bool = False
    """True if the last block of a hit is computed again, because a group of this kind has layers of the draft model."""
    has_dropped_hit: bool = False
    """True if the lookup has left out the group's last hit block (see `drops_hit`) since the common hit last
    changed.
    """
    extra_tokens: int = 0
    """Number of tokens before the window that are kept, because drafting modules may compute them again."""
    first_entry: int = 0
    """Offset of the group's table in the entries of one sequence; see `Engine.tables`."""
    next_of_kind: int = 0
    """Index of the next group of the same kind, which is looked up together with this one; -1 if there is none."""
    next_in_lookup: int = 0
    """Index of the first group of the kind that is looked up after this one; -1 if this kind is the last."""
    num_duplicate_entries: int = 0
    """Number of entries in the group's tables minus the number of distinct blocks there, without null blocks."""
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
    """Number of leading entries that need not be put into the prefix cache any more: they are in it, or never will
    be.
    """
    num_removed: Small = 0
    """Number of leading entries whose blocks were freed. Used only in aligned recurrent groups."""
    previous_state: Small = 0
    """Index of the entry with the second newest state; -1 for none. Used only in aligned recurrent groups."""
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
    """Share by which the power limit lowered the GPUs' clock at the time `throttled_at_s`."""
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
    """Number of the step in which the block got its key; `HAS_TAIL` for a block without a key in which the last hash of
    a prompt ends.
    """
    key: int = 0
    """Key of the prefix that the block holds; `NO_KEY` if it holds none."""


@dataclass(slots=True, eq=False, repr=False)
class ExpiryCount:
    """Working memory of one block while expired tokens are counted."""

    seen_in: Small = 0
    """Number of the last count that visited the block; see `State.num_expiry_counts`."""
    num_seen: Small = 0
    """Number of tables with the block that this count has visited."""
    least_expired: Small = 0
    """Smallest number of expired tokens or states of the block, over the tables that this count has visited."""


@dataclass(slots=True, eq=False, repr=False)
class Bucket:
    """First and last record of a list in order of insertion, by their indices; both are 0 if the list is empty. The
    list has blocks whose keys have equal hashes, or waiting sequences whose prompts have equal lengths.
    """

    first: Small = 0
    last: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Hole:
    """Free range of a contiguous memory."""

    address: int = 0
    length: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Rectangle:
    """The current static batch: its rows are the running sequences, in order."""

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
    """Number of output tokens that all live rows together have at their ends."""
    next_end: int = 0
    """Number of the batch's next step, counted from 0, before which rows end."""


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One recorded step. `StepShape` describes the fields of its shape, `totals` those of its slots."""

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
    """Number of requests admitted for the first time. Those of a static batch are added when it ends."""
    written: int = 0
    padding: int = 0
    useful: int = 0
    rounding: int = 0
    shared: int = 0
    expired: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """Number of the event in which the output of a step was processed, and its time in seconds."""

    seq: int = 0
    time_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Gap:
    """Lengths of the queues, and totals of the slots (see `totals`), from an output to the next step. A gap is recorded
    only if no other step is in flight in that time.
    """

    before: int = 0
    """Number of the step that follows the gap, counted from 0."""
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
    """One event to replay; see `moments`."""

    kind: Small = 0
    sequence: Small = 0
    """Number of the sequence that the event concerns; 0 if it concerns none."""


@dataclass(slots=True, eq=False, repr=False)
class ScheduleRow:
    """Consecutive steps that each compute the same number of tokens of a request: a row of the recording's schedule."""

    step: Small = 0
    request: Small = 0
    computed_before: Small = 0
    tokens: Small = 0
    repeat: Small = 0
    known: Small = 0
    """Number of tokens of the request that were final at the row's step: prompt and processed outputs. With drafts
    only.
    """
    outputs: Small = 0
    """Number of tokens that the output of the row's step gave the request. With drafts only."""
