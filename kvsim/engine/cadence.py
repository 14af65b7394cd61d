"""The prefill interval of the scheduler (vLLM's `prefill_schedule_interval`): after a step that computes a prompt, the
next steps only decode.

The restriction is lifted if no running sequence decodes. It is also lifted if the last step that was allowed to compute
prompts left a waiting sequence that no step has skipped since it began to wait. A step skips a waiting sequence that it
visits but cannot admit yet, for example because its KV is loading.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def begin_step(engine: Engine) -> None:
    """Set `State.bars_prefills`: whether the step being scheduled must not compute prompts."""
    settings, state = engine.settings, engine.state
    state.has_prefill = state.bars_prefills = False
    if state.num_computing_steps == 0:
        state.last_prefill_step = -settings.prefill_interval  # the first step may compute prompts
    num_since = state.num_computing_steps + 1 - state.last_prefill_step
    if state.leaves_waiting or num_since >= settings.prefill_interval:
        return
    for index in range(state.num_running):
        if not engine.sequences[engine.running[index]].is_chunk:
            state.bars_prefills = True
            return


@part
def is_prefill(sequence: Sequence, computed: int) -> bool:
    """Tell whether a waiting sequence with `computed` tokens still has more than its last token to compute."""
    return computed < sequence.num_tokens - 1


@part
def end_pass(engine: Engine) -> None:
    """Record whether the step leaves a waiting sequence that no step has skipped, if it may compute prompts."""
    state = engine.state
    if not state.bars_prefills:
        state.leaves_waiting = state.num_waiting > state.num_passed_over


@part
def end_step(engine: Engine) -> None:
    """Add the step to `State.num_computing_steps` if it computes anything. With a prompt, the interval begins anew."""
    state = engine.state
    if state.num_tokens_in_batch > 0:
        state.num_computing_steps += 1
    if state.has_prefill or state.has_chunk:
        state.last_prefill_step = state.num_computing_steps
