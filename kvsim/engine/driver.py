"""The Python side of an engine: send requests, run it on its clock or call single steps, and read its state."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim import steptime
from kvsim.engine import clock, continuation, fast_forward, in_flight, moments, waiting_queue
from kvsim.engine.arrays import column, fill, listed, listed_column, overwrite
from kvsim.engine.connector import connected, transfers
from kvsim.engine.custom import custom_memory
from kvsim.engine.host import host_jobs, host_pool, offload
from kvsim.engine.host_tier import NO_HOST_BLOCK, NO_JOB, Job
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import MachineCode, is_on_disk, part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.paged import prefix_hits
from kvsim.engine.radix.hierarchical import HIERARCHICAL
from kvsim.engine.recorded_rows import MemoryRow
from kvsim.engine.records import Sequence
from kvsim.engine.reserved import static_batch
from kvsim.engine.state import Engine, table_of
from kvsim.steptime import StepShape

if TYPE_CHECKING:
    import numpy.typing as npt

_ADVANCE, _MOMENT, _PLAY = range(3)


class Driver:
    """Control of one engine: send requests, run it, read its state. `advance` runs the engine on the simulated clock. A
    caller may instead schedule and update single steps; the clock then does not move.
    """

    def __init__(
        self, engine: Engine, *, compiled: bool = False, compile_later: Callable[[], Engine | None] = lambda: None
    ) -> None:
        """Run `engine`, which is `compiled` or interpreted.

        If the run lasts longer than one slice (see `clock`), it continues in the compiled engine that `compile_later`
        returns. If that returns None, the run stays in `engine`.
        """
        self.engine = engine
        """The engine in its current state. Its arrays keep the rows of a slice until the next slice begins."""
        chosen = act_on_batch if engine.memory is static_batch.RECTANGLE else act
        self._act: Any = _compiled(chosen) if compiled else chosen
        self._look_up: Any = _compiled(look_up) if compiled else look_up
        self._compile_later = compile_later
        self._is_long, self._is_interrupted, self._has_asked = False, False, compiled

    @property
    def host_s(self) -> float:
        """Time on the host's clock, in seconds."""
        return float(self.engine.state.host_s)

    def send(self, number: int, at_s: float) -> None:
        """Send request `number`, which arrives at `at_s` seconds. No request sent earlier may arrive later."""
        state = self.engine.state
        self.engine.times[number].arrival_s = at_s
        self.engine.lines[state.num_submitted].arrived = number
        state.num_submitted += 1

    def send_all(self) -> None:
        """Send every request at its arrival time."""
        size = len(self.engine.lines)
        fill(self.engine.lines, 0, arrived=np.arange(1, size + 1))
        self.engine.state.num_submitted = size

    def send_first(self, num_users: int, think_s: float) -> None:
        """Send the first request of each of `num_users` users at time 0. The engine sends a user's next request
        `think_s` seconds after each answer.

        Which user sends a request does not matter: requests are sent in the order of the workload. The workload must
        not contain a refused request (`EnginePlan.refused`).
        """
        self.send_all()
        settings, state = self.engine.settings, self.engine.state
        settings.users_ask_again, settings.think_s = True, think_s
        fill(self.engine.times, 0, arrival_s=0.0)  # the arrival of a request is set when it is sent
        state.num_submitted = min(num_users, state.num_submitted)

    def advance(self, until_s: float = math.inf) -> int:
        """Run until the caller has to act; return the reason (see `clock.IDLE`).

        The recorded rows of several calls are collected until a call returns `FULL`: they form a slice. The next call
        overwrites them.
        """
        if self._is_long and not self._has_asked:
            self._has_asked = True
            if (target := self._compile_later()) is not None:
                self.engine, self._act = continuation.moved(self.engine, target), _compiled(self._act)
                self._look_up = _compiled(look_up)
        if not self._is_interrupted:
            self._begin_slice()
        outcome = int(self._act(self.engine, _ADVANCE, until_s))
        self._is_long |= outcome == clock.FULL
        self._is_interrupted = outcome != clock.FULL
        return outcome

    def hit_tokens(self, number: int) -> int:
        """Return the number of leading tokens of a request's prompt in the prefix cache; 0 without prefix caching."""
        if not self.engine.settings.prefix_caching:
            return 0
        if self.engine.memory is custom_memory.CUSTOM:
            return custom_memory.cached_prefix(self.engine, self.engine.sequences[number])[0]
        with np.errstate(over="ignore"):  # keys are hashed modulo 2**64
            return int(self._look_up(self.engine, 0, float(number)))

    def next_moment(self) -> int:
        """Schedule a step or process an output, without regard to the clock; see `clock.next_moment`."""
        self._begin_slice()
        return int(self._act(self.engine, _MOMENT, 0.0))

    def has_work(self) -> bool:
        """Tell whether the scheduler has work (`Scheduler.has_work`). If so, `next_moment` schedules a step, unless it
        must process an output first.
        """
        return bool(self.engine.scheduler.has_work(self.engine))

    def play(self, kinds: npt.NDArray[Any] | list[int], numbers: npt.NDArray[Any] | list[int]) -> int:
        """Replay ordered events (see `moments`), whatever the clock says; return the number of replayed events, which
        is smaller if rows must be read first.

        `kinds` has the kinds of the events, such as `moments.ADD`, and `numbers` the sequences that they concern, 0 for
        none. Both have the same length, at most that of `Engine.moments`.
        """
        self.engine.state.num_schedule_rows = 0
        self._begin_slice()
        overwrite(self.engine.moments, kind=kinds, sequence=numbers)
        return int(self._act(self.engine, _PLAY, float(len(kinds))))

    def add(self, number: int) -> None:
        """Queue sequence `number`."""
        self.play([moments.ADD], [number])

    def schedule(self) -> None:
        """Schedule a step and put it in flight."""
        self.play([moments.SCHEDULE], [0])

    def update(self) -> None:
        """Process the output of the oldest step in flight."""
        self.play([moments.UPDATE], [0])

    def abort(self, number: int) -> None:
        """Abort sequence `number`; see `Scheduler.abort`."""
        self.play([moments.ABORT], [number])

    def running(self) -> list[int]:
        """Return the numbers of the running sequences, in order of admission."""
        return self._listed("running", self.engine.state.num_running)

    def holders(self) -> list[int]:
        """Return the numbers of the sequences that hold memory: running ones, waiting ones that load or have loaded
        blocks, and ended or preempted ones whose blocks are not freed yet.
        """
        if self.engine.memory.name in ("connected", "disaggregated"):
            return self._holders_of_connector()
        if not self.engine.settings.offloads:
            return self.running()
        loading = [job.sequence for job in self.jobs().values() if job.is_load]
        loaded = [number for number in self.skipped() if self.sequence(number).num_units]
        return [*self.running(), *dict.fromkeys([*loaded, *loading]), *self.deferred()]

    def _holders_of_connector(self) -> list[int]:
        connector = self.engine.connector
        waiting = [number for number in (*self.waiting(), *self.skipped()) if self.sequence(number).num_units]
        held = [index for index, is_held in enumerate(column(connector.transfers, "is_held")) if is_held]
        held = [number for number in held if self.sequence(number).num_units]
        return [*self.running(), *waiting, *held, *self.deferred()]

    def waiting(self) -> list[int]:
        """Return the numbers of the queued sequences from the head on, without skipped ones; see `skipped`."""
        return waiting_queue.in_order(self.engine)

    def batch(self) -> dict[int, int]:
        """Return the tokens of each sequence in the step scheduled last, by its number, in order of scheduling."""
        size = self.engine.state.num_in_batch
        return dict(zip(self._listed("batch", size), self._listed("batch_tokens", size), strict=True))

    def emitting(self) -> list[int]:
        """Return the numbers of the sequences for which the step scheduled last yields an output."""
        state = self.engine.state
        launched = in_flight.earlier(self.engine, state.next_launched)
        first = launched * self.engine.settings.max_num_seqs
        return self._listed("emitting", first + self.engine.launched[launched].num_emitting)[first:]

    def preempted(self) -> list[int]:
        """Return the numbers of the sequences that the step scheduled last preempted, in order."""
        lists = self.engine.lists
        return [int(lists[index].preempted) for index in range(self.engine.state.num_preempted)]

    def sequence(self, number: int) -> Sequence:
        """Return the record in `Engine.sequences` of sequence `number`."""
        return self.engine.sequences[number]

    def blocks(self, number: int, group: int = 0) -> list[int]:
        """Return the block ids in the table of sequence `number` in `group`; empty while it holds no block."""
        return self.table(number, group) if self.engine.sequences[number].num_units else []

    def table(self, number: int, group: int = 0) -> list[int]:
        """Return the block ids in the table of sequence `number` in `group`. Unlike `blocks`, this also works after the
        sequence has given up its table, while its blocks wait for steps in flight.
        """
        table = table_of(self.engine, self.sequence(number), group)
        return listed(self.engine.entries, table.begin, table.begin + table.num_blocks)

    def free_queue(self) -> list[int]:
        """Return the free blocks' ids in queue order, at most `len(Engine.blocks)`: damaged links may form a cycle."""
        queue: list[int] = []
        following = listed_column(self.engine.blocks, "next")
        block = following[HEAD]
        while block != HEAD and len(queue) < len(following):
            queue.append(block)
            block = following[block]
        return queue

    def skipped(self) -> list[int]:
        """Return the numbers of the skipped sequences. They wait for a load, or for their next try at admission."""
        return self._listed("skipped", self.engine.state.num_skipped)

    def deferred(self) -> list[int]:
        """Return the numbers of the sequences whose blocks are freed after steps in flight, in this order."""
        return listed(self.engine.external.deferred, 0, self.engine.external.state.num_deferred)

    def jobs(self) -> dict[int, Job]:
        """Return the copies whose end was not reported, by index in `HostTier.jobs`, in order of decision."""
        jobs, record = {}, int(self.engine.host.jobs[NO_JOB].next)
        while record != NO_JOB:
            jobs[record] = self.engine.host.jobs[record]
            record = int(jobs[record].next)
        return jobs

    def host_slots(self, job: Job) -> list[int]:
        """Return the slots of host memory, counted from 0, that a copy reads or writes, in order."""
        engine = self.engine
        if job.is_load:
            sequence = self.sequence(job.sequence)
            keys = [int(offload.key_of(engine, sequence, index)) for index in range(job.begin, job.end)]
            return [int(host_pool.slot_of(host_pool.find(engine, key))) for key in keys]
        slots, block = [], int(job.first_written)
        while block != NO_HOST_BLOCK:
            slots.append(int(host_pool.slot_of(block)))
            block = int(engine.host.blocks[block].next_of_job)
        return slots

    def blocks_of_job(self, job: Job) -> list[int]:
        """Return the ids of a copy's GPU blocks, in order; none for a load whose sequence no longer holds them."""
        if job.is_load:
            return self.blocks(job.sequence)[-job.num_blocks :]
        size, sources = self.engine.host.settings.blocks_per_slot, self.engine.host.sources
        return [int(sources[slot * size + index]) for slot in self.host_slots(job) for index in range(size)]

    def report(self, job: int, step: int) -> None:
        """Schedule the report that the copy at index `job` of `HostTier.jobs` has ended, with the output of step
        `step`. Every call of the scheduler counts as a step, from 1 on.
        """
        host_jobs.schedule_report(self.engine, job, step)

    def report_transfer(self, number: int, step: int, *, is_load: bool) -> None:
        """Schedule the report that a transfer of sequence `number` has ended, with the output of step `step`.

        With `is_load`, a load of the sequence has ended; otherwise another server has read its blocks. Every call of
        the scheduler counts as a step, from 1 on.
        """
        connected.report(self.engine, self.sequence(number), is_load, step)

    def news(self) -> tuple[list[tuple[int, float]], list[int]]:
        """Return what concerns other servers and has happened since the last call, as two lists.

        The first list has the loads that have begun, as (number of the sequence, time of the end in seconds). The
        second list has the numbers of the sequences whose prompts other servers need not keep any longer.
        """
        connector = self.engine.connector
        state = connector.state
        loads = [(n, float(connector.transfers[n].done_s)) for n in listed(connector.loads, 0, state.num_loads)]
        freed = listed(connector.notices, 0, state.num_notices)
        state.num_loads = state.num_notices = state.num_fetched = 0
        return loads, freed

    def wake_s(self) -> float:
        """Return the time in seconds at which an engine without work acts next by itself; infinity if never."""
        engine = self.engine
        if engine.memory is static_batch.RECTANGLE:
            return float(static_batch.next_due_s(engine))
        if engine.memory.name == "disaggregated" and engine.connector.state.is_asleep:
            return float(engine.connector.state.wake_s)
        return float(clock.next_arrival_s(engine))

    def last_step(self) -> tuple[StepShape, float]:
        """Return the shape of the step scheduled last, all 0 without tokens, and the host's time then in seconds."""
        state = self.engine.state
        if state.num_in_batch == 0:
            return StepShape(0, 0, 0, 0, 0), float(state.host_s)
        step, encoder = self.engine.steps[state.num_steps - state.first_step - 1], self.engine.encoder.state
        shape = StepShape(
            int(step.num_scheduled), int(step.num_tokens), int(step.prefill_tokens), int(step.context_tokens),
            int(step.attention_pairs), shared_tokens=int(step.shared_tokens), num_new_seqs=int(step.num_new_seqs),
            num_images=int(encoder.step_images), image_tokens=int(encoder.step_tokens),
            image_pairs=int(encoder.step_pairs),
        )  # fmt: skip
        return shape, float(step.start_s)

    def settle_step(self, launched_s: float | None, done_s: float) -> None:
        """Set when the step that was scheduled last is launched, and when its kernels are done, in seconds.

        `launched_s` is None for a step without tokens, whose output is processed at `done_s`. Otherwise, the output of
        the step reports the transfers that have ended by `launched_s`. If no step is in flight, the clock only advances
        to `done_s`.
        """
        engine = self.engine
        engine.stages[0].free_s = done_s
        if engine.state.num_in_flight == 0:
            self.skip_to(done_s)
            return
        engine.launched[in_flight.earlier(engine, engine.state.next_launched)].done_s = done_s
        if launched_s is not None:
            engine.state.host_s = launched_s
            engine.memory.poll_transfers(engine)

    def skip_to(self, at_s: float) -> None:
        """Advance the clock of an engine without work to `at_s` seconds. Do nothing if the clock is later already."""
        state = self.engine.state
        state.host_s = max(float(state.host_s), at_s)

    def awaits_arrivals(self) -> bool:
        """Tell whether a request that was sent has not arrived yet."""
        return bool(self.engine.state.num_arrived < self.engine.state.num_submitted)

    def has_requests(self) -> bool:
        """Tell whether a request that has arrived has not ended yet."""
        return bool(self.engine.state.num_arrived > self.engine.state.num_ended)

    def report_read(self, number: int, at_s: float) -> None:
        """Set the time `at_s` at which another server has read the blocks that ended sequence `number` keeps."""
        if self.engine.settings.lockstep and not self.has_requests():
            self.skip_to(at_s)  # no step of the other ranks may advance its clock
        self.engine.connector.transfers[number].done_s = at_s
        transfers.expect_end(self.engine, self.sequence(number))

    def use_slots(self, slots: list[int]) -> None:
        """Mark idle host slots, counted from 0, as used in this order: the last one is the most recently used."""
        for slot in slots:
            host_pool.use(self.engine, host_pool.block_of(slot))

    def changes(self) -> list[MemoryRow]:
        """Return the changes of ownership since the rows were last discarded, in order. Empty without records."""
        return [self.engine.memory_rows[index] for index in range(self.engine.state.num_memory_rows)]

    def _begin_slice(self) -> None:
        state = self.engine.state
        state.first_step, state.first_output = state.num_steps, state.num_outputs
        state.num_gaps = state.num_memory_rows = 0
        self.engine.encoder.state.num_rows = 0
        if self.engine.settings.offloads:
            self.engine.host.state.num_copy_rows = 0
        if self.engine.memory is HIERARCHICAL:
            self.engine.radix.state.num_copy_rows = 0
        self.engine = continuation.with_room_for_schedule(self.engine, state.num_schedule_rows)

    def _listed(self, name: str, end: int) -> list[int]:
        return listed(getattr(self.engine, name), 0, end)


@part
def act_on_batch(engine: Engine, action: int, argument: float) -> int:  # noqa: ARG001  static batches only advance
    """Advance an engine of static batches to the time `argument` in seconds. Such an engine has no other action."""
    return static_batch.advance(engine, argument)


@part
def act(engine: Engine, action: int, argument: float) -> int:
    """Run one action, which is `_ADVANCE`, `_MOMENT` or `_PLAY`. `argument` is the time in seconds for `_ADVANCE`, and
    the number of events for `_PLAY`.

    Return the outcome (see `clock.IDLE`); for `_PLAY`, the number of replayed events.
    """
    outcome = 0
    if action == _ADVANCE:
        outcome = clock.advance(engine, argument)
    elif action == _MOMENT:
        outcome = clock.next_moment(engine)
        if outcome == clock.SCHEDULED:
            fast_forward.list_quiet(engine)
    elif action == _PLAY:
        outcome = moments.play(engine, int(argument))
    return outcome


@part
def look_up(engine: Engine, action: int, argument: float) -> int:  # noqa: ARG001
    """Return the number of leading tokens of a prompt that the prefix cache holds. `argument` is the number of the
    sequence: all compiled actions have the same signature.
    """
    return prefix_hits.find(engine, engine.sequences[int(argument)])


_SOURCES = (Path(__file__).parent, Path(steptime.__file__).parent)
"""Folders with the sources of all compiled functions."""


def has_machine_code(memory: MemoryManager) -> bool:
    """Tell whether machine code for this kind of memory is on disk."""
    return is_on_disk(memory, _SOURCES)


def _compiled(function: Any) -> MachineCode:
    return MachineCode(function, _SOURCES)
