"""The engine loop around a scheduler, synchronous or one step ahead, as a generator of its moments.

Whoever drives it decides what time it is: the simulation waits on its clock between two moments, a replay follows the
order that a real engine recorded, a test just goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kvsim.scheduling.continuous import Batch, ContinuousScheduler
from kvsim.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Call:
    """The engine is about to look for work: arrivals become visible now. `idle` if it will find none."""

    idle: bool


@dataclass(frozen=True, slots=True)
class Scheduling:
    """A step is about to be scheduled."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step was scheduled and is being launched. It may be empty."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Awaiting:
    """The engine needs the output of `batch` before it goes on."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Updated:
    """The output of `batch` was processed; `ended` are the sequences that left by it."""

    batch: Batch
    ended: list[Sequence]


Moment: TypeAlias = Call | Scheduling | Scheduled | Awaiting | Updated


def engine_moments(scheduler: ContinuousScheduler) -> Iterator[Moment]:
    """Run the engine for ever; the caller stops when it likes, usually at an idle `Call` with no arrivals left.

    With asynchronous scheduling, step k + 1 is scheduled before the output of step k is looked at.
    """
    depth = 2 if scheduler.settings.async_scheduling else 1
    in_flight: deque[Batch] = deque()
    while True:
        yield Call(idle=not scheduler.has_work and not in_flight)
        if scheduler.has_work:
            yield Scheduling()
            batch = scheduler.schedule()
            in_flight.append(batch)
            yield Scheduled(batch)
            if len(in_flight) < depth and (batch or scheduler.has_work):
                continue
        elif not in_flight:
            continue
        batch = in_flight.popleft()
        yield Awaiting(batch)
        yield Updated(batch, scheduler.update(batch))
