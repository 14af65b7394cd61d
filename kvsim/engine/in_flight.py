"""The ring of steps in flight: scheduled steps whose outputs are not processed yet.

A synchronous engine has at most one step in flight, an engine with asynchronous scheduling two, and a pipeline enough
for all of its stages. The ring is `Engine.launched`. The place of a step is its index in the ring.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def oldest(engine: Engine) -> int:
    """Return the index in `Engine.launched` of the oldest step in flight, which must exist."""
    state = engine.state
    assert state.num_in_flight > 0
    place = state.next_launched - state.num_in_flight
    return place if place >= 0 else place + engine.settings.most_in_flight


@part
def later(engine: Engine, place: int) -> int:
    """Return the index in `Engine.launched` of the step launched after the one at `place`."""
    return place + 1 if place + 1 < engine.settings.most_in_flight else 0


@part
def earlier(engine: Engine, place: int) -> int:
    """Return the index in `Engine.launched` of the step launched before the one at `place`."""
    return place - 1 if place > 0 else engine.settings.most_in_flight - 1


@part
def add_tokens(engine: Engine, place: int, sequence: Sequence, num_tokens: int) -> None:
    """Record that the step at index `place` of `Engine.launched` computes `num_tokens` tokens of a sequence."""
    step = engine.launched[place]
    index = place * engine.settings.max_num_seqs + step.num_computing
    engine.computing[index], engine.computing_tokens[index] = sequence.number, num_tokens
    step.num_computing += 1
    sequence.in_flight += num_tokens


@part
def settle_tokens(engine: Engine, place: int) -> None:
    """Subtract the tokens of the step at `place` from `Sequence.in_flight`, because its output is processed."""
    first = place * engine.settings.max_num_seqs
    for index in range(first, first + engine.launched[place].num_computing):
        engine.sequences[engine.computing[index]].in_flight -= engine.computing_tokens[index]


@part
def tokens_of(engine: Engine, place: int, sequence: Sequence) -> int:
    """Return the number of tokens of a sequence that the step at `place` computes."""
    first = place * engine.settings.max_num_seqs
    for index in range(first, first + engine.launched[place].num_computing):
        if engine.computing[index] == sequence.number:
            return engine.computing_tokens[index]
    return 0


@part
def drop_outputs(engine: Engine, place: int, sequence: Sequence) -> None:
    """Discard the output that the step at `place` will yield for a sequence."""
    step, kept = engine.launched[place], 0
    first = place * engine.settings.max_num_seqs
    for index in range(first, first + step.num_emitting):
        if engine.emitting[index] != sequence.number:
            engine.emitting[first + kept] = engine.emitting[index]
            if engine.settings.num_drafts > 0:
                engine.emitting_drafts[first + kept] = engine.emitting_drafts[index]
            kept += 1
    step.num_emitting = kept


@part
def drop_all_outputs(engine: Engine, sequence: Sequence) -> None:
    """Discard the outputs that all steps in flight will yield for a sequence."""
    place = engine.state.next_launched
    for _ in range(engine.state.num_in_flight):
        place = earlier(engine, place)
        drop_outputs(engine, place, sequence)
