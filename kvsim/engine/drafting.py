"""Speculative decoding as vLLM schedules it: drafts take part in a step, and those that are wrong are taken back.

No draft model runs here: how many drafts of a step are right is given, by the number of outputs that the request has.
Where steps are scheduled ahead, drafts that are not known yet are counted in the next step as if they were there.
"""

from __future__ import annotations

from kvsim.engine import totals
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import RUNNING, Engine


@part
def left(engine: Engine, budget: int) -> int:
    """Return the tokens that one sequence more may take of what is left of the step, 0 or less for none."""
    slots = engine.settings.draft_slots
    return budget if slots == 0 else min(budget, engine.state.input_tokens - slots)


@part
def take(engine: Engine, num_tokens: int) -> None:
    """Take tokens of the step for one sequence."""
    engine.state.input_tokens -= num_tokens + engine.settings.draft_slots


@part
def give_back(engine: Engine, num_tokens: int) -> None:
    """Give back what a sequence had taken."""
    engine.state.input_tokens += num_tokens + engine.settings.draft_slots


@part
def padded_tokens(engine: Engine, computed: int, budget: int) -> int:
    """Return the tokens of a waiting sequence that has one to compute, wrong drafts included; 0 if it must wait."""
    settings, state = engine.settings, engine.state
    has_running = state.num_listed > state.num_new_seqs
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
    """Return `num_tokens`, or fewer: the rest of the known tokens is none, or as long as what drafting reads ahead."""
    ahead, rest = engine.settings.prompt_ahead_tokens, sequence.num_tokens - computed - num_tokens
    return max(num_tokens - (ahead - rest), 0) if 0 < rest < ahead else num_tokens


@part
def num_cacheable(engine: Engine, sequence: Sequence, num_tokens: int) -> int:
    """Return those of the first `num_tokens` tokens, known and computed, whose blocks have keys already."""
    settings = engine.settings
    if settings.num_drafts == 0:
        return num_tokens
    return min(num_tokens - max(settings.prompt_ahead_tokens - 1, 0), sequence.num_tokens - settings.ahead_tokens)


@part
def commit(engine: Engine, sequence: Sequence, is_new: bool) -> int:
    """Count the drafts of a sequence in the step, which computes all of its known tokens; return them.

    The number is below zero for drafts that are known to be wrong.
    """
    num_verified = sequence.computed - sequence.num_tokens - sequence.placeholders
    sequence.drafts = 0
    if engine.settings.ahead:
        sequence.placeholders += 1 + num_verified
        sequence.drafts = engine.state.num_drafts
    return -num_verified if is_new else num_verified


@part
def end_step(engine: Engine) -> None:
    """Decide how many tokens are drafted behind the step."""
    state = engine.state
    state.num_drafts = engine.settings.num_drafts
    if len(engine.drafts_by_batch) > 0 and state.num_in_batch > 0:
        state.num_drafts = engine.drafts_by_batch[state.num_in_batch]


@part
def verify(engine: Engine, sequence: Sequence, index: int) -> None:
    """Append what a step yields for a sequence, at `index` of those emitted: the right ones of its drafts, and a token.

    The others are taken back.
    """
    settings = engine.settings
    is_stale = settings.late_outputs_block and sequence.status != RUNNING
    wrong = num_wrong(engine, sequence, index)
    right = abs(engine.emitting_drafts[index]) - wrong
    if not is_stale and sequence.computed > 0:
        _take_back(engine, sequence, wrong)
    if not is_stale and sequence.placeholders > 0:
        sequence.placeholders -= wrong
    kept = min(1 + right, sequence.end_tokens - sequence.num_tokens)
    awaited = sequence.placeholders > 0
    sequence.num_tokens += kept
    if settings.caches_processed and not is_stale:
        _take_back(engine, sequence, 1 + right - kept)
    if not is_stale and awaited:
        sequence.placeholders -= 1 + right if settings.caches_processed else kept
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
    """Take tokens of a step back: their slots hold what was computed until the sequence computes again."""
    totals.note_computed(engine, sequence)
    sequence.rejected += num_tokens
    sequence.computed -= num_tokens


@part
def num_wrong(engine: Engine, sequence: Sequence, index: int) -> int:
    """Return the wrong ones of the drafts that a step verifies for a sequence, at `index` of those emitted."""
    if engine.settings.num_drafts == 0:
        return 0
    num_verified = engine.emitting_drafts[index]
    right = min(num_verified, _num_right(engine, sequence, num_verified)) if num_verified > 0 else 0
    return abs(num_verified) - right


@part
def propose(engine: Engine, launched: int) -> None:
    """Give drafts to the sequences of the step in a place of the ring, whose outputs are known; a chunk has none."""
    first = launched * engine.settings.max_num_seqs
    for index in range(first, first + engine.launched[launched].num_computing):
        sequence = engine.sequences[engine.computing[index]]
        if sequence.status == RUNNING:
            sequence.drafts = 0 if sequence.is_chunk else _num_proposed(engine, sequence)


@part
def _num_right(engine: Engine, sequence: Sequence, num_drafts: int) -> int:
    told = engine.told[sequence.number]
    if told.num_right == 0:
        return num_drafts
    return engine.told_drafts[told.first_right + (sequence.num_tokens - sequence.prompt_tokens) % told.num_right]


@part
def _num_proposed(engine: Engine, sequence: Sequence) -> int:
    told, most = engine.told[sequence.number], engine.state.num_drafts
    if told.num_proposed == 0:
        return most
    place = told.first_proposed + (sequence.num_tokens - sequence.prompt_tokens) % told.num_proposed
    return min(engine.told_drafts[place], most)
