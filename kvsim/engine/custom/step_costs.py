"""Estimate the duration of a step that a custom policy considers, before the step allocates anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvsim.engine.clock import step_time
from kvsim.engine.custom import custom_memory
from kvsim.engine.custom.custom_memory import CUSTOM
from kvsim.engine.paged import prefix_hits
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.paged.groups import first_hit
from kvsim.engine.paged.kv_cache import PAGED
from kvsim.engine.records import Sequence
from kvsim.engine.state import RUNNING, Engine
from kvsim.steptime import StepShape

PrefixOf = Callable[[Sequence], tuple[int, int]]


def cost_s(engine: Engine, tokens: Mapping[int, int], prefix_of: PrefixOf) -> float:
    """Return the duration in seconds of a step that computes the tokens already assigned in this step and, for each
    sequence number in `tokens`, `tokens[number]` more tokens; 0 if there is nothing to compute.

    `prefix_of` returns what `cached_prefix` returns for a waiting sequence.
    """
    state = engine.state
    planned = {engine.batch[index]: engine.batch_tokens[index] for index in range(state.num_listed)}
    for number, num_tokens in tokens.items():
        planned[number] = planned.get(number, 0) + num_tokens
    prefill_tokens = context_tokens = attention_pairs = num_new_seqs = more_units = 0
    for number, num_tokens in planned.items():
        sequence = engine.sequences[number]
        computed, units = _computed(engine, sequence, num_tokens, prefix_of)
        context_tokens += computed + num_tokens
        more_units += units
        num_new_seqs += number in tokens and sequence.status != RUNNING
        if num_tokens - sequence.drafts > 1 or computed < sequence.prompt_tokens:
            prefill_tokens += num_tokens
            attention_pairs += num_tokens * computed + num_tokens * (num_tokens + 1) // 2
    if not planned:
        return 0.0
    shape = StepShape(
        len(planned), sum(planned.values()), prefill_tokens, context_tokens, attention_pairs, 0.0, 0.0,
        _shared_tokens(engine, context_tokens, more_units), state.num_new_seqs + num_new_seqs,
    )  # fmt: skip
    time = step_time(engine.step_time_models[0], shape)
    return max(time.prepare_s + time.gpu_s, time.launch_s) + time.turnaround_s


def _computed(engine: Engine, sequence: Sequence, num_tokens: int, prefix_of: PrefixOf) -> tuple[int, int]:
    """Return two numbers for a sequence: its computed tokens, and the units to take from the free ones for `num_tokens`
    more tokens. If the sequence does not run, the tokens that would be hits at its admission count as computed.
    """
    unit_tokens = engine.settings.unit_tokens
    if sequence.status == RUNNING:
        return sequence.computed, max(-(-(sequence.computed + num_tokens) // unit_tokens) - sequence.num_units, 0)
    computed, num_held = prefix_of(sequence)
    return computed, -(-(computed + num_tokens) // unit_tokens) - num_held


def cached_prefix(engine: Engine, sequence: Sequence) -> tuple[int, int]:
    """Return how many leading tokens of a waiting sequence are cached, and how many of their units are in a table."""
    if engine.memory is CUSTOM:
        return custom_memory.cached_prefix(engine, sequence)
    if not engine.settings.prefix_caching:
        return 0, 0
    computed = prefix_hits.find(engine, sequence)
    first = first_hit(engine, 0)
    blocks = [engine.entries[index] for index in range(first, first + engine.groups[0].num_hits)]
    return computed, sum(block != NULL_BLOCK and engine.blocks[block].refs > 0 for block in blocks)


def _shared_tokens(engine: Engine, context_tokens: int, more_units: int) -> int:
    settings, state = engine.settings, engine.state
    if engine.memory in (PAGED, CUSTOM) and settings.num_groups == 1:
        held_tokens = (settings.num_units - state.num_free + more_units) * settings.unit_tokens
        return max(context_tokens - held_tokens, 0)
    return engine.memory.shared_tokens(engine, context_tokens)
