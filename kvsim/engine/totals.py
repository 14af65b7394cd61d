"""Where the slots of the pool go: totals over all tables, kept up to date with every change of ownership.

Every step that is recorded carries these totals, and the split of the pool into states follows from them alone:

    requested   slots asked for             useful     of these, slots that will be written before their sequence ends
    written     slots with computed tokens  rounding   slots given beyond what was asked for

**Late stops.** Where steps are scheduled ahead, a stop that only the output reveals is noticed one token late. The slot
of that last token is computed in most runs and never in some: a sequence that is preempted between its last two steps
does not get there. Which it was is known when the sequence ends, long after the slot was allocated. So the slot counts
as useful from its allocation on, and `Times.late_slot_s` keeps for how long it was held in vain, to be taken back when
the run is over.
"""

from __future__ import annotations

import math

from kvsim.engine.compiled import part
from kvsim.engine.state import Engine


@part
def add_slots(engine: Engine, node: int, before: int, more: int) -> None:
    """A sequence with `before` slots asks for `more` and gets them."""
    state, sequence = engine.state[0], engine.sequences[node]
    full = sequence.full_tokens
    state.requested += more
    state.useful += min(before + more, full) - min(before, full)
    if sequence.stops_late and before < full <= before + more:
        times = engine.times[node]
        if times.late_since_s != times.late_since_s:  # a sequence that is moved keeps its slots
            times.late_since_s = state.host_s


@part
def remove_slots(engine: Engine, node: int, slots: int) -> None:
    """A sequence gives back all of the `slots` that it asked for; what it has computed stays counted."""
    state = engine.state[0]
    state.requested -= slots
    state.useful -= min(slots, engine.sequences[node].full_tokens)


@part
def lose_tokens(engine: Engine, node: int) -> None:
    """What a sequence has computed is gone."""
    state, sequence = engine.state[0], engine.sequences[node]
    state.written -= sequence.computed + sequence.rejected
    sequence.rejected = 0
    if not sequence.stops_late:
        return
    times = engine.times[node]
    if sequence.computed == sequence.full_tokens:
        times.late_slot_s = -math.inf
    if times.late_since_s == times.late_since_s:
        engine.lists[state.num_late].late = node  # until the next step begins
        state.num_late += 1


@part
def settle_late_slots(engine: Engine, time_s: float) -> None:
    """The step begins that follows those in which sequences gave back the slot of a late stop."""
    state = engine.state[0]
    for index in range(state.num_late):
        times = engine.times[engine.lists[index].late]
        times.late_slot_s += time_s - times.late_since_s
        times.late_since_s = math.nan
    state.num_late = 0
