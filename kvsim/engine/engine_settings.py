"""`Settings`: the record of an engine's settings. Some are compiled as constants."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

import numpy as np

_FEATURE = "feature"
Feature = Annotated[int, np.int64, _FEATURE]
"""Integer setting that is compiled as a constant if all features have their defaults; see `constants_of`."""
FeatureFlag = Annotated[bool, np.bool_, _FEATURE]
"""A `Feature` that is True or False."""


@dataclass(slots=True, eq=False, repr=False)
class Settings:
    """Settings of scheduling, memory and recording. They do not change during a run."""

    # Budgets and limits of a step.
    max_num_seqs: int = 0
    """Largest number of running sequences for which the arrays have room."""
    max_num_active_seqs: int = 0
    """Limit for the running sequences: vLLM's `max_num_active_seqs` or else `max_num_seqs`. Drafting may lower it."""
    max_num_batched_tokens: int = 0
    max_model_len: int = 0
    by_priority: FeatureFlag = False
    chunked_prefill: bool = False
    long_prefill_token_threshold: int = 0
    threshold_is_adaptive: bool = False
    """True if the limit is at least the step's budget divided by the number of running and waiting sequences."""
    lone_prompt_is_limited: bool = False
    """True if `long_prefill_token_threshold` applies even if no other sequence runs or waits."""
    most_chunk_tokens: int = 0
    """Limit for a prompt's tokens in one step: the budget, or a smaller `long_prefill_token_threshold`."""
    prefill_interval: Feature = 1
    """Smallest number of computing steps between steps with prompt tokens; 1 for no restriction. See `cadence`."""
    max_adapters: Feature = 0
    """Limit for the number of adapters in use at once; 0 if adapters are not limited."""
    running_keep_adapters: bool = False
    """True if a running sequence keeps its adapter in use even in a step that does not compute the sequence."""

    # Steps in flight.
    ahead: bool = False
    """True for asynchronous scheduling: a step is scheduled before the outputs of earlier steps are known."""
    most_in_flight: int = 1
    """Limit for the number of scheduled steps whose outputs are not processed yet."""
    decode_interval: int = 1
    """Smallest number of steps from one decode of a sequence to its next one."""
    feedback: int = 0
    """Distance, in steps, from a step to the later step that needs its tokens; 0 if none does. The first pipeline stage
    begins the later step only after the earlier one has ended.
    """
    fills_pipeline: bool = False
    """True if steps are scheduled until `most_in_flight` are in flight or no work is left, and only then an output is
    processed.

    If False, the oldest output is also processed, before another step is scheduled, if its step is done or if the
    newest step is empty.
    """
    counts_flight: FeatureFlag = False
    """True if the engine lists the tokens of each step in flight (`Engine.computing_tokens`, `Sequence.in_flight`)."""
    may_skip_decodes: bool = False
    """True if the scheduler may skip sequences that only decode; see `fast_forward`."""

    # Admission and preemption.
    reserve_full_prompt: bool = False
    """True if a sequence is admitted only if its whole prompt fits into the pool."""
    watermark_blocks: int = 0
    skipped_keep_places: bool = False
    """True if a sequence that a step skips returns to the front of the queue after the step. A sequence that loads or
    holds blocks stays in the list of skipped sequences. If False, all skipped sequences stay there.
    """
    keeps_turns: bool = False
    """True if preempting a sequence never makes the step miss another running sequence.

    If False, the step misses one when it preempts a sequence that it has visited but that computes nothing: the later
    ones move up by one index, and the step's index does not.
    """
    preempted_self_stops: bool = False
    """True if the step visits no further running sequence after one that was itself preempted for lack of memory."""
    late_outputs_block: bool = False
    """True if a preempted sequence is admitted again only after the outputs of its steps in flight are processed."""
    drops_late: FeatureFlag = False
    """True if preemption discards the outputs of steps in flight, so that readmission need not wait for them."""
    answers_awaited: bool = False
    """True if all outputs of a resumed sequence are expected by the scheduler.

    If False, the model runner may compute again a token that was in flight when the sequence was preempted. The
    scheduler has no placeholder for this second output.
    """

    # Images.
    encoder_tokens: Feature = 0
    """Limit for the number of encoder outputs that one step computes; 0 if prompts have no images."""
    encoder_cache_tokens: int = 0
    keeps_images_whole: FeatureFlag = False
    """True if a step computes either all tokens of an image or none."""
    keeps_cached_whole: FeatureFlag = False
    """True if `keeps_images_whole` also applies to an image whose encoder outputs are cached."""
    aligns_before_images: FeatureFlag = False
    """True if a chunk is cut to a block boundary, for recurrent states, before its images are planned, not after."""
    cuts_before_images: FeatureFlag = False
    """True if a chunk ends right before an image for which there is no room in the encoder cache. False if it ends
    `prompt_ahead_tokens` tokens earlier, because drafting reads these tokens after the chunk.
    """
    images_wait: FeatureFlag = False
    """True if output placeholders (`Sequence.placeholders`) do not count as computed tokens when images are released.
    An image is released once all its tokens are computed.
    """
    keeps_repeated_images: FeatureFlag = False
    """True if a sequence keeps using an image until all occurrences for which it uses the image are computed."""
    counts_repeated_images: FeatureFlag = False
    """True if a sequence uses an image for each of its occurrences in the chunk that encodes the image. If False, it
    uses the image only for the first of these occurrences.
    """
    any_place_frees: FeatureFlag = False
    """True if a sequence releases an image when any of its occurrences in the prompt is computed. False if only an
    occurrence for which the sequence uses the image counts.
    """

    # Units, slots and block tables.
    unit_tokens: int = 0
    num_units: int = 0
    """Number of units (blocks or slots) that can be allocated."""
    unit_slots: int = 0
    """Number of slots of one unit. A slot is a token if all KV-cache groups have the same layout, and a byte if not."""
    token_slots: int = 0
    """Number of slots that one token takes, summed over the tables of all KV-cache groups."""
    num_groups: int = 0
    first_hit: int = 0
    """Index in `Engine.entries`, behind all tables, of a scratch area for the hit blocks of an admission."""
    has_windows: FeatureFlag = False
    """True if some groups of layers do not read every token, because they have windows, chunks or states."""
    windows_wait: FeatureFlag = False
    """True if blocks that left a window or chunk, and old recurrent states, are freed only after the steps in flight
    that read them.
    """
    expires_from: int = 0
    """Number of computed tokens below which no sequence holds an expired token: one that no later step reads."""
    most_unsure: int = 0
    """Largest number of last tokens of a sequence that may or may not be computed before it ends; see `totals`."""

    # Prefix cache.
    prefix_caching: bool = False
    cache_tokens: int = 0
    """Least common multiple of the groups' block sizes in tokens. The length of a hit is a multiple of it."""
    commit_tokens: int = 0
    """Granularity of the prefix cache in tokens. Without drafts, the cached length of sequences is a multiple of it."""
    caches_processed: FeatureFlag = False
    """True if blocks enter the prefix cache when the output of a step is processed; False if they enter it when the
    step is scheduled.

    If True, tokens that a step in flight may reject are not cached yet. With drafts, a step may reject drafts; with a
    connector, all of its tokens.
    """
    retention_tokens: int = 0
    """Number of tokens from one boundary to the next. Blocks of windows and recurrent states stay in the prefix cache
    if a hit that ends at a boundary needs them.

    If `NEVER`, vLLM has no retention interval, and every multiple of `cache_tokens` is a boundary. If 0, there is no
    boundary: blocks are kept only for hits at the ends of prompts and at junctions (`Sequence.junction`).
    """
    first_in_lookup: int = 0
    """Index of the group at which the lookup of a prefix begins: the first group of the first kind of layers."""
    cuts_every_full_kind: bool = False
    """True if hits in all kinds of full attention are cut to the common length. False if only the first kind's are."""

    # Chunks that end at boundaries, for recurrent states.
    boundary_tokens: Feature = 0
    """Number of tokens between the boundaries where chunks end to keep recurrent states; 0 for none."""
    cuts_at_boundaries: bool = False
    """True if each chunk before the prompt's last boundary ends at a multiple of `boundary_tokens`. False if its length
    is such a multiple, wherever it begins.
    """
    cuts_wide_blocks: bool = False
    """True if every chunk that does not reach the end of the prompt ends at a multiple of `boundary_tokens`, unless it
    lies within a block that is longer than `most_chunk_tokens`. Used only with `cuts_at_boundaries`.
    """
    spares_last_token: bool = False
    """True if a prompt whose last token ends a block has its last chunk boundary one block earlier."""
    bounds_first_chunk: bool = False
    """True if a first chunk ends where a hit of only some KV-cache groups ends (`State.num_partly_cached`)."""
    keeps_junctions: bool = False
    """True if a step ends where a hit of only some groups ends (`Sequence.junction`), and keeps the blocks there."""
    marks_prompt_end: FeatureFlag = False
    """True if caching up to a prompt's end marks the last recurrent state as written in this step, even if it is older.
    No sequence is admitted with a hit on this state before the next step.
    """

    # Speculative decoding.
    num_drafts: Feature = 0
    """Number of tokens drafted for each sequence and step; 0 without drafts."""
    lookahead_tokens: Feature = 0
    """Number of slots that every running sequence holds for drafts, after the slots of its tokens."""
    draft_budget_tokens: Feature = 0
    """Number of tokens that drafting takes from the step's budget for each sequence in the step."""
    reserved_draft_tokens: int = 0
    """Number of draft tokens for which admission leaves room, for each sequence with an unfinished prompt."""
    ahead_tokens: Feature = 0
    """Number of tokens after a block that go into its prefix-cache key as well, because drafting reads them."""
    prompt_ahead_tokens: Feature = 0
    """Number of prompt tokens after a chunk that drafting reads. At least these follow every chunk but the last."""
    pads_admission: FeatureFlag = False
    """True if a sequence with one token to compute is admitted with padding drafts, which are rejected."""
    pads_alone: FeatureFlag = False
    """True if `pads_admission` also applies without running sequences, except near `max_model_len`."""
    drops_last_hit: FeatureFlag = False
    """True if groups with `Group.drops_hit` compute the last hit block again, whose hidden states drafts need."""
    drops_after_prompt: FeatureFlag = False
    """True if the lookup for `drops_last_hit` may include the block that ends with the last known token. This block is
    then the one to compute again. Used only with several groups.
    """
    keeps_below_drop: FeatureFlag = False
    """True if blocks of windows are kept for hits that end one boundary of `cache_tokens` before the end of a prompt,
    instead of at its end. Hits end there if their last block is computed again (`drops_last_hit`).
    """
    marks_tails: FeatureFlag = False
    """True if a freed block of full attention goes to the tail of the free queue although it is only partly full,
    provided that the last full hash of a prompt ends in it. Hashes cover equal numbers of tokens; see
    `Group.hashes_per_block`.

    Without this rule, such a block may go to the head of the queue, because it has no key.
    """

    # Host memory and connectors.
    offloads: bool = False
    """True with vLLM's native offload of computed blocks to host memory. `host_blocks` is for swapping instead."""
    frees_late: bool = False
    """True if a sequence's blocks are freed only after its last step's output, since transfers might overwrite them."""
    host_blocks: Feature = 0
    """Number of blocks of host memory to which preempted sequences are swapped; 0 without such swapping."""
    host_block_s: float = 0.0
    """Seconds that copying one block over the link takes."""

    # Contiguous memory.
    fit: int = 0
    reserve: int = 0
    moves: bool = False
    """True if a sequence whose reservation is full may move to a larger free range."""
    compaction: bool = False
    request_level: bool = False

    # Static batches.
    batch_size: int = 0
    preallocated: bool = False
    timeout_s: float = 0.0
    sort_by_length: FeatureFlag = False
    memory_guard: bool = False

    # Clients and callers.
    stamp_at_entry: bool = False
    """True if the recorded arrival is the time when the engine queued the request. False: when the client sent it."""
    users_ask_again: bool = False
    """True if the engine itself sends a user's next request of the workload after the user's answer."""
    think_s: float = 0.0
    """Seconds from an answer to the user's next request."""
    answers: bool = False
    """True if the engine returns to its caller when a request has ended, so that the client can act on the answer."""
    lockstep: bool = False
    """True if the engine returns after every scheduled step, because data-parallel ranks wait for each other."""
    checking: bool = False
    """True if the engine returns to its caller after every scheduled step, so that the caller can check it."""

    # Recorded rows.
    records_memory: bool = False
    """True if changes of ownership are recorded."""
    records_schedule: bool = False
    """True if the tokens that each sequence computes in each step are recorded."""
    records_every_step: bool = False
    """True if steps that neither compute nor preempt anything are recorded, too. Such a step may start copies between
    GPU and host, or report that they have ended. In a pipeline, it counts for `decode_interval`.
    """
    most_steps: int = 0
    """Largest number of recorded steps in one slice of the run. At its end, the caller reads the rows."""
    most_memory_rows: int = 0
    """Largest number of rows in `Engine.memory_rows` with which a step may begin; then the caller reads the rows."""
    most_schedule_rows: int = 0
    most_rows_before_load: int = 0
    """Largest number of `memory_rows` with which a load from host memory or through a connector may begin."""


@cache
def _features() -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(Settings, include_extras=True)
    marked = (field for field in fields(Settings) if _FEATURE in getattr(hints[field.name], "__metadata__", ()))
    return tuple((field.name, field.default) for field in marked)


def constants_of(settings: Any) -> tuple[tuple[str, Any], ...]:
    """Return the settings that are compiled as constants, as (name, value) pairs.

    If a run uses no feature, these are all settings of type `Feature` or `FeatureFlag`; otherwise, there are none.
    Machine code for a run without features is small and quickly compiled. All other runs share one machine code.
    """
    return _features() if all(getattr(settings, name) == default for name, default in _features()) else ()
