"""Data-parallel ranks whose steps wait for each other, because they share the experts of a model.

Every rank takes part in every step: with a batch, or with an idle step of one token while another rank has work. At
intervals, the ranks check together whether any rank has requests left. If none has, all sleep until a request is sent.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import simpy

from kvsim.errors import IntegrityError
from kvsim.steptime import UNTHROTTLED
from kvsim.steptime.ranks import IDLE_STEP, RankStep, RankTimes

if TYPE_CHECKING:
    from kvsim.simulation.server import ServerProcess


class WaitingRanks:
    """The data-parallel ranks of one server. For every step, each rank calls either `meet` or `rest` once."""

    def __init__(self, environment: simpy.Environment, times: RankTimes, check_interval_steps: int) -> None:
        """`times` are the step times. Every `check_interval_steps` steps, the ranks check whether any has requests."""
        self.ranks: Sequence[ServerProcess] = ()
        self.num_steps = 0
        """Number of steps so far. All ranks take part in each step, idle ranks included."""
        self.num_idle_steps: list[int] = [0] * times.num_ranks
        """Number of steps in which each rank took part without a batch."""
        self._environment, self._times, self._check_interval_steps = environment, times, check_interval_steps
        self._awake = False
        self._num_since_waking = 0
        self._free_s = 0.0
        self._throttles = [UNTHROTTLED] * times.num_ranks
        self._met: dict[int, RankStep] = {}
        self._released = environment.event()

    def meet(self, rank: ServerProcess) -> Generator[simpy.Event, None, None]:
        """Take part in a step with the batch that `rank` has scheduled; return when all ranks have taken part.

        If all ranks sleep and `rank` has no requests, return at once, without a step. This happens when the scheduler
        ran only to release blocks that another server has read.
        """
        shape, begin_s = rank.driver.last_step()
        has_batch = shape.num_tokens > 0
        has_requests = has_batch or rank.driver.has_requests()
        if not self._awake:
            if not has_requests:
                return
            self._wake_all()
        step = RankStep(shape if has_batch else IDLE_STEP, begin_s, has_batch=has_batch, has_requests=has_requests)
        yield from self._take_part(rank, step)

    def rest(self, rank: ServerProcess) -> Generator[simpy.Event, None, None]:
        """Take part in a step without a batch. If the ranks sleep, wait until a request is sent to one."""
        if not self._awake and rank.driver.awaits_arrivals():
            self._wake_all()
        if self._awake:
            step = RankStep(IDLE_STEP, rank.driver.host_s, has_batch=False, has_requests=False)
            yield from self._take_part(rank, step)
        else:
            yield from rank.await_request()

    def _wake_all(self) -> None:
        """End the sleep of all ranks. No rank begins its next step before the present time."""
        self._awake, self._num_since_waking = True, 0
        for each in self.ranks:
            each.driver.skip_to(self._environment.now)
            each.wake()

    def _take_part(self, rank: ServerProcess, step: RankStep) -> Generator[simpy.Event, None, None]:
        """Wait until all ranks take part in the step. The last rank to arrive finishes the step for all."""
        number = self.ranks.index(rank)
        if number in self._met:
            raise IntegrityError(f"rank {number} took part in step {self.num_steps} twice.")
        self._met[number] = step._replace(throttle=self._throttles[number])
        if len(self._met) < len(self.ranks):
            yield self._released
            return
        released, self._released = self._released, self._environment.event()
        self._finish_step()
        released.succeed()

    def _finish_step(self) -> None:
        """Set the times of the step of all ranks or, if they check in it and no rank has requests, let all sleep."""
        met, self._met = [self._met[number] for number in range(len(self.ranks))], {}
        if self._num_since_waking % self._check_interval_steps == 0 and not any(step.has_requests for step in met):
            self._awake = False
            return
        self._num_since_waking += 1
        self.num_steps += 1
        timed = self._times.together(met, self._free_s)
        self._free_s = timed[0].done_s
        for number, (rank, step) in enumerate(zip(self.ranks, timed, strict=True)):
            self._throttles[number] = step.throttle
            self.num_idle_steps[number] += not step.has_batch
            rank.driver.settle_step(step.launched_s if step.has_batch else None, step.done_s)
