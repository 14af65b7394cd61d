"""Continuous batching in leaps: the same decisions at the same times as step by step, many steps at once.

Sequences that decode are a `Cohort`: nobody touches them from the step after their prompt until they end. Between two
moments at which anything can change (an arrival, an end, a pool that cannot give what the next step needs) whole runs
of steps are taken at once: their times from one call of the step-time model, their blocks from one walk along those
that become full. Everything else, admission, preemption, prompts in chunks, is left to the scheduler itself; where a
member of the cohort might be affected, all of them become ordinary sequences again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simpy

from kvsim.policies import Contiguous, Paged
from kvsim.scheduling.continuous import Batch, ContinuousScheduler
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Sequence, Status
from kvsim.scheduling.settings import Order, Reserve
from kvsim.simulation.arrivals import Arrivals
from kvsim.simulation.cohort import Cohort, Left
from kvsim.simulation.recorder import Recorder
from kvsim.simulation.steps import check_progress, record_step, shared_slots
from kvsim.steptime import NO_TIME, RESTED, StepShape, StepTimeModel, strained_gpu_s

LONGEST_LEAP = 1024
"""Steps whose times are computed at once."""


_SHORTEST_S = 1e-6


def can_leap(policy: Paged | Contiguous) -> bool:
    """Whether what happens between two events can be known beforehand under `policy`."""
    if isinstance(policy, Paged):
        return not policy.cache.swap_gib and not policy.cache.num_speculative_tokens
    cache = policy.cache
    return cache.reserve is not Reserve.DOUBLING and not cache.compaction and not cache.request_level


class _Launched(NamedTuple):
    """A step that was scheduled; `number` is None if there was nothing to compute."""

    batch: Batch
    step: int
    number: int | None
    done_s: float
    turnaround_s: float


class LeapingEngine:
    """The engine of `continuous_engine`, in leaps."""

    def __init__(
        self,
        environment: simpy.Environment,
        scheduler: ContinuousScheduler,
        step_time: StepTimeModel,
        arrivals: Arrivals,
        recorder: Recorder,
    ) -> None:
        """Drive `scheduler` on the clock of `environment`."""
        self._environment = environment
        self._scheduler = scheduler
        self._memory = scheduler.memory
        self._paged = scheduler.memory if isinstance(scheduler.memory, PagedManager) else None
        self._step_time = step_time
        self._arrivals = arrivals
        self._recorder = recorder
        self._ahead = scheduler.settings.async_scheduling
        self._budget = scheduler.settings.max_num_batched_tokens
        self._cohort = Cohort(
            block_size=self._paged.block_size if self._paged else 0,
            ahead=self._ahead,
            max_model_len=scheduler.settings.max_model_len,
        )
        self._newcomers: list[Sequence] = []  # members whose first step is the next
        self._stuck: Sequence | None = None  # a head of the queue that does not fit, and will not before somebody ends
        self._in_flight: deque[_Launched] = deque()
        self._step = 0  # the number of the next step that is scheduled, those with nothing to compute included
        self._host_s = self._gpu_free_s = 0.0
        self._strain = RESTED
        self._last_step_s = (
            _SHORTEST_S  # how long steps took in the last leap; a guess at how many fit before an arrival
        )

    def run(self) -> Generator[simpy.Event, None, None]:
        """The engine as a SimPy process; it ends when every request has."""
        scheduler, arrivals, in_flight = self._scheduler, self._arrivals, self._in_flight
        depth = 2 if self._ahead else 1
        while True:
            if not in_flight and not scheduler.has_work:
                if arrivals.next_s is None:
                    return
                self._host_s = max(self._host_s, arrivals.next_s)
                yield from self._wait()
            if arrivals.visible_s <= self._host_s:
                for sequence, entered_s in arrivals.until(self._host_s, self._step_time.entry_s):
                    scheduler.add(sequence)
                    self._host_s = entered_s
            num_steps = self._steps_until_something_changes()
            if num_steps and self._leap(num_steps):
                yield from self._wait()
                continue
            if scheduler.has_work:
                num_tokens = self._schedule()
                if len(in_flight) < depth and (num_tokens or scheduler.has_work):
                    continue
            elif not in_flight:
                continue
            launched = in_flight.popleft()
            if launched.number is not None:
                self._host_s = max(self._host_s, launched.done_s)
            self._update(launched)

    def _wait(self) -> Generator[simpy.Event, None, None]:
        # Adding differences to SimPy's clock may have rounded it to just beyond the host's.
        yield self._environment.timeout(max(self._host_s - self._environment.now, 0.0))

    def _schedule(self) -> int:
        """Schedule one step and launch it; return its tokens."""
        scheduler, cohort, recorder, step = self._scheduler, self._cohort, self._recorder, self._step
        recorder.next_seq()
        preempted = self._serve_members() if len(cohort) else []
        num_advanced = cohort.num_active
        batch = scheduler.schedule_rest(len(cohort), self._budget - num_advanced, preempted)
        if not num_advanced:
            check_progress(scheduler, batch)
        context_tokens = cohort.context_tokens + num_advanced
        cohort.advance(step)
        num_tokens = num_advanced + len(batch)
        number, done_s, turnaround_s = None, 0.0, 0.0
        if num_tokens or batch.preempted:
            host_s = self._host_s
            for sequence in self._newcomers:
                recorder.joined(sequence.row, sequence.computed, host_s)
            number, shape, _ = record_step(recorder, scheduler, batch, host_s, num_advanced, context_tokens)
            cost = self._step_time.step_time(shape) if num_tokens else NO_TIME
            begin_s = max(host_s + cost.prepare_s, self._gpu_free_s)
            gpu_s, self._strain = strained_gpu_s(cost, begin_s, self._strain)
            self._gpu_free_s = done_s = max(begin_s + gpu_s, host_s + cost.launch_s)
            self._host_s, turnaround_s = host_s + cost.launch_s, cost.turnaround_s
        self._newcomers.clear()
        self._step = step + 1
        self._in_flight.append(_Launched(batch, step, number, done_s, turnaround_s))
        self._take_in(batch)
        waits = scheduler.waiting and not batch.tokens and not batch.preempted
        self._stuck = scheduler.waiting.peek() if waits else None
        return num_tokens

    def _take_in(self, batch: Batch) -> None:
        """Let those that decode from the next step on join the cohort, in order of admission."""
        cohort, running = self._cohort, self._scheduler.running
        for index in range(len(cohort), len(running)):
            sequence = running[index]
            if sequence not in batch.tokens or not cohort.join(sequence, self._step):
                return
            self._newcomers.append(sequence)

    def _update(self, launched: _Launched) -> None:
        """Process the outputs of a step."""
        recorder, batch, host_s = self._recorder, launched.batch, self._host_s
        recorder.next_seq()
        left = self._cohort.end(launched.step)
        if left:
            self._report(left)
            batch.emitting[:0] = [sequence for sequence, _, _ in left]
        if batch.emitting:
            self._report_outputs(batch, host_s)
            ended = self._scheduler.update(batch)
            for sequence in ended:
                self._arrivals.ended(sequence, host_s)
            if ended:
                self._stuck = None
        if launched.number is not None:
            recorder.output(launched.number, host_s)
            self._host_s = host_s + launched.turnaround_s

    def _report_outputs(self, batch: Batch, time_s: float) -> None:
        for sequence in batch.emitting:
            # A step scheduled ahead may hold a sequence that has ended since; its token is thrown away.
            if sequence.status is not Status.FINISHED:
                self._recorder.emitted(sequence.row, time_s)

    def _serve_members(self) -> list[Sequence]:
        """Allocate what the members need for the next step, or make all of them ordinary; return who was preempted."""
        cohort, memory, step = self._cohort, self._paged, self._step
        if cohort.num_active > self._budget or self._may_take_from_anybody():
            self._settle()
        if memory is None or not cohort.num_active:
            return []
        growing = cohort.growing(step)
        if len(growing) <= memory.num_free_units:
            self._grow(memory, step)
            return []
        preempted: list[Sequence] = []
        for sequence in growing[:]:
            while not memory.num_free_units and sequence.status is Status.RUNNING:
                preempted.append(self._preempt_last())
            if sequence.status is not Status.RUNNING:
                break  # and so is everybody who was admitted after it
            memory.grow_each([sequence], known=not self._ahead)
        self._fill(memory, step)
        return preempted

    def _may_take_from_anybody(self) -> bool:
        """Whether the next step may have to preempt, and not just those admitted last."""
        scheduler, memory = self._scheduler, self._paged
        if memory is None or scheduler.settings.order is Order.FCFS:
            return False
        needed = len(self._cohort.growing(self._step))
        for sequence in scheduler.running[len(self._cohort) :]:
            slots = sequence.num_tokens + sequence.placeholders
            needed += -(-slots // memory.block_size) - len(sequence.blocks)
        return needed > memory.num_free_units

    def _preempt_last(self) -> Sequence:
        """Preempt whoever was admitted last, a member or not."""
        cohort, scheduler = self._cohort, self._scheduler
        if len(cohort) == len(scheduler.running):
            left, is_awaiting = cohort.drop_last(self._step, self._step - 1 - len(self._in_flight))
            self._report([left])
            if is_awaiting:
                self._in_flight[-1].batch.emitting.append(left.sequence)
            if left.sequence in self._newcomers:
                self._newcomers.remove(left.sequence)
        return scheduler.preempt_last()

    def _settle(self) -> None:
        """Make ordinary sequences of all members."""
        left, awaiting = self._cohort.settle(self._step, self._step - 1 - len(self._in_flight))
        self._newcomers.clear()
        self._report(left)
        if awaiting:
            self._in_flight[-1].batch.emitting[:0] = awaiting

    def _report(self, left: list[Left]) -> None:
        """Write down what those that left did as members; their first step has its row already."""
        recorder, host_s = self._recorder, self._host_s
        for sequence, num_scheduled, num_emitted in left:
            if num_scheduled:
                recorder.scheduled_on(sequence.row, num_scheduled)
            if num_emitted:
                recorder.emitted(sequence.row, host_s, num_emitted)

    def _grow(self, memory: PagedManager, step: int) -> None:
        """Give blocks to the members whose token of `step` begins one, and register those that their tokens fill."""
        growing = self._cohort.growing(step)
        if growing:
            memory.grow_each(growing, known=not self._ahead)
        self._fill(memory, step)

    def _fill(self, memory: PagedManager, step: int) -> None:
        """Register the blocks that the members' tokens of `step` fill. Ahead, their values are known one step later."""
        if not self._ahead and memory.block_size > 1:
            memory.fill_each(self._cohort.growing(step + 1))

    def _steps_until_something_changes(self) -> int:
        """Steps in which the cohort advances and nothing else happens but, perhaps, an arrival."""
        cohort, scheduler = self._cohort, self._scheduler
        num_members = len(cohort)
        if not num_members or num_members != len(scheduler.running) or num_members != cohort.num_active:
            return 0
        num_steps = cohort.next_end - self._step + self._ahead
        if num_steps < 1 or len(self._in_flight) != self._ahead or num_members > self._budget:
            return 0
        if self._ahead and any(each.status is Status.PREEMPTED for each in self._in_flight[0].batch.emitting):
            return 0
        has_space = num_members < min(scheduler.settings.max_num_seqs, self._budget)
        if scheduler.waiting and has_space and scheduler.waiting.peek() is not self._stuck:
            return 0
        # An arrival cuts a leap short; what would be computed beyond it is thrown away.
        until_arrival = (self._arrivals.visible_s - self._host_s) / self._last_step_s
        return int(min(num_steps, LONGEST_LEAP, until_arrival + 2))

    def _leap(self, num_steps: int) -> int:
        """Schedule up to `num_steps` steps of the cohort, launch them, process as many outputs; return how many."""
        cohort, memory = self._cohort, self._paged
        step, num_seqs = self._step, cohort.num_active
        num_free = self._free_after(num_steps)
        if not num_free:
            return 0
        start_s, end_s = self._times(num_free)
        num_steps = len(start_s)
        self._last_step_s = max((self._host_s - start_s[0]) / num_steps, _SHORTEST_S)
        recorder, scheduler = self._recorder, self._scheduler
        for sequence in self._newcomers:
            recorder.joined(sequence.row, sequence.computed, start_s[0])
        self._newcomers.clear()
        num_cached = [memory.num_cached_units if memory else 0] * num_steps
        for index in range(num_steps):
            recorder.next_seq()
            if memory is not None:
                self._grow(memory, step + index)
                if num_cached[index]:
                    num_cached[index] = memory.num_cached_units
            recorder.pass_step()
        cohort.advance(step, num_steps)
        waiting = scheduler.waiting
        recorder.passed_steps(
            start_s, end_s, ahead=self._ahead, num_seqs=num_seqs, waiting=len(waiting), free_units=num_free[:num_steps],
            cached_units=num_cached,
            unusable_units=self._memory.unusable_units(waiting.peek() if waiting else None),
        )  # fmt: skip
        self._step = step + num_steps
        if self._ahead:
            batch, _, _, done_s, turnaround_s = self._in_flight[0]
            if batch.emitting:
                # The outputs of the step that was under way; all those who get them are members, and nobody ends.
                self._report_outputs(batch, end_s[0])
                scheduler.update(batch)
                batch = Batch({}, [], [], 0)
            self._in_flight[0] = _Launched(batch, self._step - 1, recorder.num_steps - 1, done_s, turnaround_s)
        return num_steps

    def _free_after(self, num_steps: int) -> list[int]:
        """Free units after each of the next steps of the cohort, as far as there are enough for them."""
        num_free = self._memory.num_free_units
        if self._paged is None:
            return [num_free] * num_steps
        after = []
        for step in range(self._step, self._step + num_steps):
            num_free -= len(self._cohort.growing(step))
            if num_free < 0:
                break
            after.append(num_free)
        return after

    def _times(self, num_free: list[int]) -> tuple[list[float], list[float]]:
        """When the next steps of the cohort are scheduled, and as many outputs processed, until somebody arrives.

        `num_free` are the free units after each.
        """
        num_seqs, visible_s, num_steps = self._cohort.num_active, self._arrivals.visible_s, len(num_free)
        context_tokens = self._cohort.context_tokens + num_seqs * np.arange(1, num_steps + 1)
        shared_tokens = shared_slots(self._memory, context_tokens, np.array(num_free))
        columns: Any = (num_seqs, num_seqs, 0, context_tokens, 0, 0, 0, shared_tokens)
        costs = zip(*map(_each, self._step_time.step_time(StepShape(*columns))), range(num_steps), strict=False)
        host_s, gpu_free_s = self._host_s, self._gpu_free_s
        start_s: list[float] = []
        end_s: list[float] = []
        ahead, awaited_s, awaited_turnaround_s = self._ahead, 0.0, 0.0
        if ahead:
            awaited_s, awaited_turnaround_s = self._in_flight[0].done_s, self._in_flight[0].turnaround_s
        for prepare_s, launch_s, gpu_s, turnaround_s, _, _ in costs:
            start_s.append(host_s)
            begin_s = host_s + prepare_s
            gpu_free_s = (begin_s if begin_s > gpu_free_s else gpu_free_s) + gpu_s
            host_s += launch_s
            gpu_free_s = max(gpu_free_s, host_s)
            if not ahead:  # the output that is awaited is this step's own
                awaited_s, awaited_turnaround_s = gpu_free_s, turnaround_s
            host_s = max(host_s, awaited_s)
            end_s.append(host_s)
            host_s += awaited_turnaround_s
            awaited_s, awaited_turnaround_s = gpu_free_s, turnaround_s
            if visible_s <= host_s:
                break
        if ahead:
            self._in_flight[0] = self._in_flight[0]._replace(done_s=awaited_s, turnaround_s=awaited_turnaround_s)
        self._host_s, self._gpu_free_s = host_s, gpu_free_s
        return start_s, end_s


def _each(times: float | npt.NDArray[np.float64]) -> Iterable[float]:
    """One time for every step: a step-time model says it once where it does not depend on the context."""
    return times.tolist() if isinstance(times, np.ndarray) else repeat(times)
