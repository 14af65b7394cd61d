"""LoRA adapters: the server has a limited number of adapter slots. A sequence whose adapter gets none is skipped.

Every pass over the queue counts the adapters in use again: in some releases of vLLM those of all running sequences, in
others only those of the running sequences in the step.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def begin_pass(engine: Engine) -> None:
    """Count the adapters in use, before waiting sequences are admitted.

    With `running_keep_adapters`, these are the adapters of all running sequences, otherwise those of the sequences in
    this step. If there are more than `max_adapters`, vLLM raises an AssertionError; `State.num_adapter_failures` counts
    this.
    """
    settings, state = engine.settings, engine.state
    state.num_adapter_passes += 1
    state.num_adapters = 0
    for index in range(state.num_running):
        if settings.running_keep_adapters or engine.quiet_until[index] > 0:
            use(engine, engine.sequences[engine.running[index]])
    for index in range(state.num_listed):
        use(engine, engine.sequences[engine.batch[index]])
    if state.num_adapters > settings.max_adapters:
        state.num_adapter_failures += 1


@part
def has_slot(engine: Engine, sequence: Sequence) -> bool:
    """Tell whether a waiting sequence has no adapter, or its adapter is in use already, or an adapter slot is free."""
    if sequence.adapter == 0 or engine.state.num_adapters < engine.settings.max_adapters:
        return True
    return engine.adapter_passes[sequence.adapter] == engine.state.num_adapter_passes


@part
def use(engine: Engine, sequence: Sequence) -> None:
    """Count the adapter of a sequence as in use, at most once between two calls of `begin_pass`."""
    if sequence.adapter > 0 and engine.adapter_passes[sequence.adapter] != engine.state.num_adapter_passes:
        engine.adapter_passes[sequence.adapter] = engine.state.num_adapter_passes
        engine.state.num_adapters += 1
