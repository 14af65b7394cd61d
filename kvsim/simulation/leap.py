"""Continuous batching in leaps: the same decisions at the same times as step by step, many steps at once.

Sequences that decode are a `Cohort`: nobody touches them from the step after their prompt until they end. Between two
moments at which anything can change (an arrival, an end, a pool that cannot give what the next step needs) whole runs
of steps are taken at once: their times from one call of the step-time model, their blocks from one walk along those
that become full. Everything else, admission, preemption, prompts in chunks, is left to the scheduler itself; where a
member of the cohort might be affected, all of them become ordinary sequences again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence as Row
from typing import NamedTuple

import numpy as np
import simpy

from kvsim.policies import Contiguous, Paged
from kvsim.recording import RecordingBuilder
from kvsim.scheduling.continuous import Batch, ContinuousScheduler
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Sequence, Status
from kvsim.scheduling.settings import Order, Reserve
from kvsim.simulation.arrivals import Arrivals
from kvsim.simulation.cohort import Cohort, Left
from kvsim.simulation.continuous import check_progress, record_step
from kvsim.steptime import NO_TIME, StepShape, StepTimeModel

LONGEST_LEAP = 1024
"""Steps: an arrival may cut a leap short, and what was computed beyond it is thrown away."""


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
        recorder: RecordingBuilder,
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
                for sequence in arrivals.until(self._host_s):
                    scheduler.add(sequence)
                    self._host_s += self._step_time.entry_s(sequence.prompt_tokens)
            num_steps = self._steps_until_something_changes()
            if num_steps:
                self._leap(num_steps)
                yield from self._wait()
                continue
            if scheduler.has_work:
                batch, num_tokens = self._schedule()
                if len(in_flight) < depth and (num_tokens or scheduler.has_work):
                    continue
            elif not in_flight:
                continue
            launched = in_flight.popleft()
            if launched.number is not None:
                self._host_s = max(self._host_s, launched.done_s)
                yield from self._wait()
            self._update(launched)

    def _wait(self) -> Generator[simpy.Event, None, None]:
        # Adding differences to SimPy's clock may have rounded it to just beyond the host's.
        yield self._environment.timeout(max(self._host_s - self._environment.now, 0.0))

    def _schedule(self) -> tuple[Batch, int]:
        """Schedule one step and launch it; return its batch without the cohort, and the tokens of both."""
        scheduler, cohort, recorder = self._scheduler, self._cohort, self._recorder
        recorder.next_seq()
        if len(cohort) and not self._has_room():
            self._settle()
        members, active, step = len(cohort), cohort.num_active, self._step
        if active and self._paged:
            self._grow(self._paged, step)
        batch = scheduler.schedule_rest(members, self._budget - active)
        if not active:
            check_progress(scheduler, batch)
        self._step = step + 1
        num_tokens = active + len(batch)
        cohort.advance(step)
        number, done_s, turnaround_s = None, 0.0, 0.0
        if num_tokens or batch.preempted:
            for sequence in self._newcomers:
                recorder.scheduled(sequence.row, sequence.computed, 1, self._host_s)
            number, shape = record_step(recorder, scheduler, batch, self._host_s, active, context)
            cost = self._step_time.step_time(shape) if num_tokens else NO_TIME
            host_s = self._host_s
            self._gpu_free_s = done_s = max(
                max(host_s + cost.prepare_s, self._gpu_free_s) + cost.gpu_s, host_s + cost.launch_s
            )
            self._host_s, turnaround_s = host_s + cost.launch_s, cost.turnaround_s
        self._newcomers.clear()
        self._in_flight.append(_Launched(batch, step, number, done_s, turnaround_s))
        return batch, num_tokens
