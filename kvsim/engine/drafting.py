"""Speculative decoding as vLLM schedules it: a step verifies the drafts of a sequence, and rejected drafts are undone.

No draft model runs here. The number of accepted drafts in each step is an input: each request has a list, whose entry
for a step depends on the request's number of output tokens. With asynchronous scheduling, the next step reserves tokens
for drafts that are not generated yet.
"""

from __future__ import annotations

from kvsim.engine import totals
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import RUNNING, Engine


@part
def num_tokens_left(engine: Engine, budget: int) -> int:
    """Return the number of tokens of `budget` that one more sequence may use in the step, after those that drafting
    takes for it. At 0 or below, no further sequence fits.
    """
    slots = engine.settings.draft_budget_tokens
    return budget if slots == 0 else min(budget, engine.state.budget_left - slots)


@part
def use_tokens(engine: Engine, num_tokens: int) -> None:
    """Subtract from the step's budget the tokens of one sequence, and the tokens that drafting takes for it."""
    engine.state.budget_left -= num_tokens + engine.settings.draft_budget_tokens


@part
def return_tokens(engine: Engine, num_tokens: int) -> None:
    """Undo `use_tokens` for a sequence that is taken out of the step."""
    engine.state.budget_left += num_tokens + engine.settings.draft_budget_tokens


@part
def padded_tokens(engine: Engine, computed: int, budget: int) -> int:
    """Return the number of tokens that a waiting sequence with one token left to compute gets in its first step.

    vLLM adds padding drafts, which are always rejected, so that the sequence has as many tokens as each decode in the
    step. The result is 1 if the step needs no padding, and 0 if the padded sequence does not fit, so that no sequence
    is admitted.
    """
    settings, state = engine.settings, engine.state
    has_running = state.num_listed > state.num_new_seqs  # a sequence that ran before is in the step
    if not settings.pads_admission or state.has_chunk or not (has_running or (settings.pads_alone and computed > 0)):
        return 1
    padded = 1 + settings.num_drafts
    if settings.pads_alone and computed + padded + 1 > settings.max_model_len:
        return 1
    if padded > budget or computed + padded > settings.max_model_len:
        return 0
    return padded


@part
def unsplit_tokens(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> int:
    """Return the length of a chunk: `num_tokens`, or fewer. The chunk is shortened so that either no token of the
    prompt follows it, or at least `Settings.prompt_ahead_tokens` do, because drafting reads them.
    """
    ahead, rest = engine.settings.prompt_ahead_tokens, sequence.num_tokens - computed - num_tokens
    return max(num_tokens - (ahead - rest), 0) if 0 < rest < ahead else num_tokens


@part
def num_final_tokens(engine: Engine, num_tokens: int) -> int:
    """Return how many of the first `num_tokens` tokens keep their KV. The draft model will compute the KV of the others
    again, with the tokens that follow.
    """
    return max(num_tokens - max(engine.settings.prompt_ahead_tokens - 1, 0), 0)


@part
def take_drafts(engine: Engine, sequence: Sequence, is_new: bool) -> int:
    """Take the drafts of a sequence into the scheduled step. Return their number; as a negative number if they are
    padding drafts, which are always rejected.

    All drafts of a sequence that the step admits (`is_new`) are padding. Their number includes those that
    `long_prefill_token_threshold` has cut off; newer releases of vLLM then raise an AssertionError. With asynchronous
    scheduling, the sequence also gets a placeholder for each token that the step may yield, and its next drafts.
    """
    num_verified = sequence.computed - sequence.num_tokens - sequence.placeholders
    if is_new and num_verified != sequence.drafts:
        num_verified = sequence.drafts
        if engine.settings.pads_alone:
            engine.state.num_padding_failures += 1
    sequence.drafts = 0
    if engine.settings.ahead:
        sequence.placeholders += 1 + num_verified
        sequence.drafts = engine.state.num_drafts
    return -num_verified if is_new else num_verified


@part
def end_step(engine: Engine) -> None:
    """Set the number of tokens that are drafted for each sequence after this step."""
    state = engine.state
    state.num_drafts = engine.settings.num_drafts
    if len(engine.drafts_by_batch) > 0 and state.num_in_batch > 0:
        state.num_drafts = engine.drafts_by_batch[state.num_in_batch]


@part
def verify(engine: Engine, sequence: Sequence, index: int) -> None:
    """Append the output of a sequence to its known tokens: accepted drafts, and the token generated after them.
    Rejected drafts are undone. `index` is the index of the sequence in `Engine.emitting`.
    """
    settings = engine.settings
    is_stale = settings.late_outputs_block and sequence.status != RUNNING
    rejected = num_rejected(engine, sequence, index)
    accepted = abs(engine.emitting_drafts[index]) - rejected
    if not is_stale and sequence.computed > 0:
        _take_back(engine, sequence, rejected)
    if not is_stale and sequence.placeholders > 0:
        sequence.placeholders -= rejected
    kept = min(1 + accepted, sequence.end_tokens - sequence.num_tokens)  # the request may end inside the drafts
    awaited = sequence.placeholders > 0
    sequence.num_tokens += kept
    if settings.caches_processed and not is_stale:
        _take_back(engine, sequence, 1 + accepted - kept)
    if not is_stale and awaited:
        sequence.placeholders -= 1 + accepted if settings.caches_processed else kept
    if is_stale or sequence.status != RUNNING:
        return
    if settings.caches_processed:
        known = sequence.computed - sequence.in_flight
    elif settings.ahead:
        known = sequence.computed - sequence.placeholders
    else:
        return
    known = min(known, sequence.num_tokens)
    if known >= sequence.cache_at:
        engine.memory.cache(engine, sequence, known)


@part
def _take_back(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    """Count the last `num_tokens` computed tokens as rejected. `State.written` counts their slots until overwritten."""
    totals.note_computed(engine, sequence)
    sequence.rejected += num_tokens
    sequence.computed -= num_tokens


@part
def num_rejected(engine: Engine, sequence: Sequence, index: int) -> int:
    """Return the number of drafts that the step rejects for the sequence at `index` of `Engine.emitting`."""
    if engine.settings.num_drafts == 0:
        return 0
    num_verified = engine.emitting_drafts[index]
    # A negative number is that of padding drafts, see `take_drafts`: all are rejected.
    accepted = min(num_verified, _num_accepted(engine, sequence, num_verified)) if num_verified > 0 else 0
    return abs(num_verified) - accepted


@part
def propose(engine: Engine, launched: int) -> None:
    """Set `Sequence.drafts` of each running sequence that the step at index `launched` of `Engine.launched` has
    computed. The output of this step is being processed. While a prompt is not complete, the value is 0.
    """
    first = launched * engine.settings.max_num_seqs
    for index in range(first, first + engine.launched[launched].num_computing):
        sequence = engine.sequences[engine.computing[index]]
        if sequence.status == RUNNING:
            sequence.drafts = 0 if sequence.is_chunk else _num_proposed(engine, sequence)


@part
def _num_accepted(engine: Engine, sequence: Sequence, num_drafts: int) -> int:
    """Return how many of the next `num_drafts` drafts are accepted, by the request's list; all if it has none."""
    given = engine.given_drafts[sequence.number]
    if given.accepted_length == 0:
        return num_drafts
    return engine.draft_counts[
        given.first_accepted + (sequence.num_tokens - sequence.prompt_tokens) % given.accepted_length
    ]


@part
def _num_proposed(engine: Engine, sequence: Sequence) -> int:
    """Return the number of drafts proposed next, by the request's list; `State.num_drafts` if it has no list."""
    given, most = engine.given_drafts[sequence.number], engine.state.num_drafts
    if given.proposed_length == 0:
        return most
    index = given.first_proposed + (sequence.num_tokens - sequence.prompt_tokens) % given.proposed_length
    return min(engine.draft_counts[index], most)
