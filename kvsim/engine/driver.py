"""An engine and the way in which it runs: as it stands, or compiled. It is run on its clock, or stepped by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from kvsim import steptime
from kvsim.engine import clock, packing, quiet, scheduler, static_batch, totals, waiting_queue
from kvsim.engine.compiled import machine_code, part
from kvsim.engine.linked_list import HEAD
from kvsim.engine.records import MemoryRow, Sequence, Table
from kvsim.engine.state import RECTANGULAR, Engine

_ADVANCE, _MOMENT, _ADD, _SCHEDULE, _UPDATE, _ABORT = range(6)


class Driver:
    """One engine. Where it is stepped by hand, the caller decides when what happens, and the clock stands still."""

    def __init__(
        self, engine: Engine, *, compiled: bool = False, compile_later: Callable[[], Engine | None] = lambda: None
    ) -> None:
        """Run `engine` as it stands, or as machine code where it is `compiled`.

        A run that needs more than one slice goes on in the compiled engine that `compile_later` makes for it, if any.
        """
        self.engine = engine
        """As it is now; what a slice brought stands in its records until the next begins."""
        chosen = act_on_batch if engine.settings[0].memory == RECTANGULAR else act
        self._act: Any = _compiled(chosen) if compiled else chosen
        self._compile_later = compile_later
        self._is_long, self._has_asked = False, compiled

    @property
    def host_s(self) -> float:
        """The host's clock."""
        return float(self.engine.state[0].host_s)

    def send(self, node: int, at_s: float) -> None:
        """Send a request, which arrives at `at_s`, no earlier than any that was sent before."""
        state = self.engine.state[0]
        self.engine.times[node].arrival_s = at_s
        self.engine.lines[state.num_submitted].arrived = node
        state.num_submitted += 1

    def advance(self, until_s: float = math.inf) -> int:
        """Run a slice; see `clock` for what the outcome says."""
        if self._is_long and not self._has_asked:
            self._has_asked = True
            if (target := self._compile_later()) is not None:
                self.engine, self._act = packing.moved(self.engine, target), _compiled(self._act)
        self._begin_slice()
        outcome = int(self._act(self.engine, _ADVANCE, until_s))
        self._is_long |= outcome == clock.FULL
        return outcome

    def next_moment(self) -> int:
        """Go on to the next moment of the engine's loop, whatever the clock says; see `clock.next_moment`."""
        self._begin_slice()
        return int(self._act(self.engine, _MOMENT, 0.0))

    def has_work(self) -> bool:
        """Whether a step would be scheduled next; otherwise an output is processed, if one is awaited."""
        return bool(scheduler.has_work(self.engine))

    def add(self, node: int) -> None:
        """Queue a sequence."""
        self._act(self.engine, _ADD, float(node))

    def schedule(self) -> None:
        """Schedule a step, which is in flight then."""
        self._begin_slice()
        self._act(self.engine, _SCHEDULE, 0.0)

    def update(self) -> None:
        """Process the output of the oldest step in flight."""
        self._begin_slice()
        self._act(self.engine, _UPDATE, 0.0)

    def abort(self, node: int) -> None:
        """Drop a sequence at once; outputs still under way are ignored."""
        self._begin_slice()
        self._act(self.engine, _ABORT, float(node))

    def forget_last(self) -> None:
        """Take the step that was scheduled last, and is empty, out of those in flight."""
        state = self.engine.state[0]
        state.num_in_flight -= 1
        state.next_launched = 1 - state.next_launched

    def running(self) -> list[int]:
        """The running sequences, in order of admission."""
        return self._listed("running", self.engine.state[0].num_running)

    def waiting(self) -> list[int]:
        """The waiting sequences, the head first."""
        engine, num_waiting = self.engine, self.engine.state[0].num_waiting
        if engine.settings[0].by_priority:
            waiting = [int(engine.lines[index].heap) for index in range(num_waiting)]
            return sorted(waiting, key=lambda node: (self.sequence(node).priority, engine.times[node].arrival_s, node))
        waiting, node = [], int(engine.sequences[HEAD].next)
        while node != HEAD:
            waiting.append(node)
            node = int(engine.sequences[node].next)
        return waiting

    def batch(self) -> dict[int, int]:
        """The tokens that each sequence computes in the step scheduled last, in order of scheduling."""
        size = self.engine.state[0].num_in_batch
        return dict(zip(self._listed("batch", size), self._listed("batch_tokens", size), strict=True))

    def emitting(self) -> list[int]:
        """The sequences that the step scheduled last yields an output for."""
        state = self.engine.state[0]
        launched = 1 - state.next_launched
        first = launched * self.engine.settings[0].max_num_seqs
        return self._listed("emitting", first + self.engine.launched[launched].num_emitting)[first:]

    def preempted(self) -> list[int]:
        """The sequences that the step scheduled last preempted, in order."""
        lists = self.engine.lists
        return [int(lists[index].preempted) for index in range(self.engine.state[0].num_preempted)]

    def sequence(self, node: int) -> Sequence:
        """The record of a sequence."""
        return self.engine.sequences[node]

    def blocks(self, node: int, group: int = 0) -> list[int]:
        """The block ids in a table of a sequence; empty while it does not run."""
        engine, sequence = self.engine, self.engine.sequences[node]
        if sequence.num_units == 0:
            return []
        settings = engine.settings[0]
        table: Table = engine.tables[sequence.place * settings.num_groups + group]
        first = sequence.place * settings.entries_per_place + engine.groups[group].first_entry
        return [int(engine.entries[index]) for index in range(first, first + table.num_blocks)]

    def free_queue(self) -> list[int]:
        """The free blocks in the order in which they will be taken."""
        queue, block = [], int(self.engine.blocks[HEAD].next)
        while block != HEAD:
            queue.append(block)
            block = int(self.engine.blocks[block].next)
        return queue

    def changes(self) -> list[MemoryRow]:
        """The changes of ownership that the last slice or action brought, in order."""
        return [self.engine.memory_rows[index] for index in range(self.engine.state[0].num_memory_rows)]

    def _begin_slice(self) -> None:
        state = self.engine.state[0]
        state.first_step, state.first_output, state.num_memory_rows = state.num_steps, state.num_outputs, 0
        self.engine = packing.with_room_for_schedule(self.engine, state.num_schedule_rows)

    def _listed(self, name: str, end: int) -> list[int]:
        return [int(number) for number in getattr(self.engine, name)[:end]]


@part
def act_on_batch(engine: Engine, action: int, argument: float) -> int:  # noqa: ARG001  static batches only advance
    """The way in to an engine of static batches."""
    return static_batch.advance(engine, argument)


@part
def act(engine: Engine, action: int, argument: float) -> int:
    """The way in to an engine that decides at every step: advance to a time, or do one thing with a sequence."""
    outcome = 0
    if action == _ADVANCE:
        outcome = clock.advance(engine, argument)
    elif action == _ADD:
        waiting_queue.push(engine, int(argument))
    elif action == _MOMENT:
        outcome = clock.next_moment(engine)
        if outcome == clock.SCHEDULED:
            quiet.spell_out(engine)
    elif action == _SCHEDULE:
        scheduler.schedule(engine)
        quiet.spell_out(engine)
        totals.settle_late_slots(engine, engine.state[0].host_s)
    elif action == _UPDATE:
        scheduler.update(engine)
    elif action == _ABORT:
        engine.state[0].seq += 1
        scheduler.abort(engine, int(argument))
    return outcome


@cache
def _compiled(function: Any) -> Any:
    return machine_code(function, [Path(__file__).parent, Path(steptime.__file__).parent])
