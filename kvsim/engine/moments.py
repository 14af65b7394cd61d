"""Drive the engine with an explicit event list, without a clock.

This repeats a run whose order of events is known, and steps an engine by hand. Each moment is recorded as in a run on
the clock, except the schedule, which has a row for every sequence in every step.
"""

from __future__ import annotations

from kvsim.engine import clock, fast_forward, in_flight, journal
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import LOADING, PREEMPTED, RUNNING, WAITING, Engine

NOTHING, ADD, SCHEDULE, LOOK, UPDATE, ABORT, LEAVE = range(7)
"""Events of the list: no engine event; queue a sequence; schedule a step; call the scheduler without a result; process
the output of the oldest step in flight; abort a sequence, with outputs possibly in flight; drop a sequence that arrived
earlier and holds no memory whose release would be recorded.
"""


@part
def play(engine: Engine, num_moments: int) -> int:
    """Play the first `num_moments` events, each with a `seq` of its own; return how many were played.

    It ends early where there may be no room to write down what comes next, and after a `LOOK` that found something.
    """
    state = engine.state
    for index in range(num_moments):
        if not clock.has_room(engine):
            return index
        kind, sequence = engine.moments[index].kind, engine.sequences[engine.moments[index].sequence]
        state.seq += 1
        if kind in (SCHEDULE, LOOK):
            engine.scheduler.schedule(engine)
            fast_forward.spell_out(engine)
            if kind == SCHEDULE or state.num_in_batch > 0 or state.num_preempted > 0:
                if engine.settings.records_schedule:
                    journal.list_batch(engine)
                clock.write_down(engine)
                if kind == LOOK:
                    return index + 1
            else:
                _forget_last(engine)
        elif kind == UPDATE:
            engine.scheduler.update(engine)
        elif kind == ADD:
            engine.scheduler.add(engine, sequence)
        elif kind == ABORT or (kind == LEAVE and _leaves_untold(engine, sequence)):
            engine.scheduler.abort(engine, sequence)
    return num_moments


@part
def _forget_last(engine: Engine) -> None:
    """Take the newest step in flight, which is empty, back."""
    state = engine.state
    state.num_in_flight -= 1
    state.next_launched = in_flight.earlier(engine, state.next_launched)


@part
def _leaves_untold(engine: Engine, sequence: Sequence) -> bool:
    """Tell whether no release shows when a sequence leaves: it holds no memory, or frees it after copies or steps."""
    status = sequence.status
    if status in (WAITING, PREEMPTED, LOADING):
        return True
    return engine.settings.frees_late and status == RUNNING
