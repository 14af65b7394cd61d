"""Drive the engine with a list of events, without a clock.

This is used to replay a run whose order of events is known, and to call single steps of an engine. Events are recorded
as in a run on the clock, except that the schedule has a row for every sequence in every step.
"""

from __future__ import annotations

from kvsim.engine import clock, fast_forward, in_flight, journal
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import LOADING, PREEMPTED, RUNNING, WAITING, Engine

NOTHING, ADD, SCHEDULE, LOOK, UPDATE, ABORT, LEAVE = range(7)
"""Kinds of events:

- `NOTHING`: do nothing. The event only takes an event number, because the recording has changes of memory with that
  number.
- `ADD`: queue a sequence.
- `SCHEDULE`: schedule a step, and record it.
- `LOOK`: call the scheduler where the replayed run scheduled nothing. If kvsim schedules something there, the replay
  stops.
- `UPDATE`: process the output of the oldest step in flight.
- `ABORT`: abort a sequence, which may have outputs in flight.
- `LEAVE`: abort a sequence, unless the recording has an earlier event that releases its memory.
"""


@part
def play(engine: Engine, num_moments: int) -> int:
    """Replay the first `num_moments` events of `Engine.moments`; return the number of replayed events.

    Each event increments the event number (`State.seq`). The replay ends early if there may be no room for the rows of
    the next event, or after a `LOOK` that scheduled a step.
    """
    state = engine.state
    for index in range(num_moments):
        if not clock.has_room(engine):
            return index
        kind, sequence = engine.moments[index].kind, engine.sequences[engine.moments[index].sequence]
        state.seq += 1
        if kind in (SCHEDULE, LOOK):
            engine.scheduler.schedule(engine)
            fast_forward.list_quiet(engine)
            if kind == SCHEDULE or state.num_in_batch > 0 or state.num_preempted > 0:
                if engine.settings.records_schedule:
                    journal.list_batch(engine)
                clock.record_step(engine)
                if kind == LOOK:
                    return index + 1
            else:
                _drop_newest(engine)
        elif kind == UPDATE:
            engine.scheduler.update(engine)
        elif kind == ADD:
            engine.scheduler.add(engine, sequence)
        elif kind == ABORT or (kind == LEAVE and _leaves_unrecorded(engine, sequence)):
            engine.scheduler.abort(engine, sequence)
    return num_moments


@part
def _drop_newest(engine: Engine) -> None:
    """Remove the newest step in flight, which is empty."""
    state = engine.state
    state.num_in_flight -= 1
    state.next_launched = in_flight.earlier(engine, state.next_launched)


@part
def _leaves_unrecorded(engine: Engine, sequence: Sequence) -> bool:
    """Tell whether the recording has no release of memory for a sequence that leaves. This is so if it waits or loads.
    It is also so if it runs and blocks are freed late (`Settings.frees_late`).
    """
    status = sequence.status
    if status in (WAITING, PREEMPTED, LOADING):
        return True
    return engine.settings.frees_late and status == RUNNING
