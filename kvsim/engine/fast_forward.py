"""Fast-forward: the scheduler does not visit sequences that only decode, which makes long runs much faster.

In most steps, a running sequence computes one token, in a slot that it already has, and does not end. The effect of
such a step is known in advance, and so is the first step that needs a decision: the table grows, a block becomes full,
or the last token is computed. Until that step, the sequence is "quiet": the scheduler counts it, but does not touch its
record. So the cost of a step depends on the number of decisions in it, not on the number of running sequences.
`catch_up` applies all skipped steps to a sequence at once.

At the end of a slice of the run, all sequences are caught up. Callers never see a quiet sequence.
"""

from __future__ import annotations

from kvsim.engine import in_flight, journal
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import Engine


@part
def pass_over(engine: Engine, first: int, budget: int) -> int:
    """Skip running sequences from index `first` of `Engine.running` on, up to the first one that needs a decision;
    return the number of skipped ones. Each skipped sequence decodes one token, which takes one token of `budget`.
    """
    state, may_skip_decodes = engine.state, engine.settings.may_skip_decodes
    last_step, index, end = state.num_scheduled - 1, first, min(state.num_running, first + budget)
    quiet_until = engine.quiet_until
    while index < end:
        until = quiet_until[index]
        if until <= last_step:
            if until > 0:
                catch_up(engine, index, last_step)
            if not (may_skip_decodes and _try_to_skip(engine, index)):
                break
        index += 1
    return index - first


@part
def _try_to_skip(engine: Engine, index: int) -> bool:
    """Let the scheduler skip the sequence at `index` of `Engine.running` if it only decodes; tell whether it does."""
    settings, state, sequence = engine.settings, engine.state, engine.sequences[engine.running[index]]
    computed, num_awaited = sequence.computed, 1 if settings.ahead else 0
    is_decode = computed >= sequence.prompt_tokens and sequence.num_tokens + num_awaited - computed == 1
    if not is_decode or sequence.placeholders != num_awaited:
        return False
    num_steps = min(sequence.room_tokens, sequence.cache_at - 1, sequence.end_tokens - 2) - computed
    if num_steps <= 0 or (settings.records_schedule and not journal.extends_row(engine, sequence, computed, 1)):
        return False
    since = state.num_scheduled - 1
    sequence.quiet_since = since
    engine.quiet_until[index] = since + num_steps
    state.num_quiet += 1
    state.quiet_tokens += computed - since
    return True


@part
def catch_up(engine: Engine, index: int, last_step: int) -> None:
    """Update the sequence at `index` of `Engine.running`, if quiet, as if visited in every step up to `last_step`."""
    if engine.quiet_until[index] == 0:
        return
    settings, state, sequence = engine.settings, engine.state, engine.sequences[engine.running[index]]
    since = sequence.quiet_since
    engine.quiet_until[index] = 0
    state.num_quiet -= 1
    state.quiet_tokens -= sequence.computed - since
    processed = max(last_step - state.num_in_flight, since)
    sequence.computed += last_step - since
    sequence.num_tokens += processed - since
    if settings.ahead:
        sequence.placeholders += last_step - processed
    if settings.records_schedule:
        journal.extend_row(engine, sequence, last_step - since)
    place = state.next_launched
    for _ in range(last_step - processed):  # from the newest step on
        place = in_flight.earlier(engine, place)
        step = engine.launched[place]
        engine.emitting[place * settings.max_num_seqs + step.num_emitting] = sequence.number
        step.num_emitting += 1
        if settings.counts_flight:
            in_flight.add_tokens(engine, place, sequence, 1)


@part
def catch_up_from(engine: Engine, first: int, last_step: int) -> None:
    """Apply the steps up to number `last_step` that were skipped to all sequences in `Engine.running[first:]`."""
    state = engine.state
    if state.num_quiet > 0:
        for index in range(first, state.num_running):
            catch_up(engine, index, last_step)


@part
def list_quiet(engine: Engine) -> None:
    """Add the sequences that the scheduler skipped in the last step, because they only decode, to `Engine.batch`, in
    the order of `Engine.running`, and apply the skipped steps to them.
    """
    state = engine.state
    if state.num_quiet == 0:
        return
    listed, place = state.num_listed, state.num_in_batch
    state.num_listed = place
    # From the end, so that listed sequences move to their final places without overwriting each other.
    for index in range(state.num_running - 1, -1, -1):
        number = engine.running[index]
        is_quiet = engine.quiet_until[index] > 0
        if is_quiet or (listed > 0 and engine.batch[listed - 1] == number):
            place -= 1
            engine.batch[place] = number
            if is_quiet:
                engine.batch_tokens[place] = 1
                catch_up(engine, index, state.num_scheduled)
            else:
                listed -= 1
                engine.batch_tokens[place] = engine.batch_tokens[listed]
