"""The sequences that run, and the step that is being made of them."""

from __future__ import annotations

from kvsim.engine.compiled import part
from kvsim.engine.state import RUNNING, WAITING, Engine


@part
def num_tokens_to_begin_with(engine: Engine, node: int, computed: int, budget: int) -> int:
    """Tokens that a waiting sequence computes in its first step, behind those computed; 0 if `budget` is too small."""
    settings, num_tokens = engine.settings[0], engine.sequences[node].num_tokens - computed
    if 0 < settings.long_prefill_token_threshold < num_tokens:
        num_tokens = settings.long_prefill_token_threshold
    if not settings.chunked_prefill and num_tokens > budget:
        return 0
    return min(num_tokens, budget)


@part
def join(engine: Engine, node: int, computed: int, num_tokens: int) -> None:
    """A sequence that has left the queue runs; it computes `num_tokens` behind those computed."""
    state, sequence = engine.state[0], engine.sequences[node]
    engine.running[state.num_running] = node
    engine.quiet_until[state.num_running] = 0
    state.num_running += 1
    if sequence.status == WAITING:
        engine.times[node].first_scheduled_s = state.host_s
        sequence.cached_tokens = computed
        state.num_admitted += 1
    state.num_new_seqs += 1
    sequence.status = RUNNING
    sequence.computed = computed
    sequence.handed_tokens = sequence.num_tokens
    put_into_batch(engine, node, num_tokens)


@part
def put_into_batch(engine: Engine, node: int, num_tokens: int) -> None:
    """The step under way computes tokens of a sequence."""
    state = engine.state[0]
    engine.batch[state.num_listed] = node
    engine.batch_tokens[state.num_listed] = num_tokens
    state.num_listed += 1
