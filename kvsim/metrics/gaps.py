"""Find the gaps between the steps of a recording, in which no step is in flight, and the queues in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording.tables import RequestStatus

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray, IntArray, Steps
    from kvsim.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Times between the output of a step and the beginning of the next one while no step is in flight, in order."""

    step: IntArray
    """Step whose output begins each gap."""
    begin_s: FloatArray
    num_scheduled: IntArray
    """Requests of the step that still run after its output."""
    running: IntArray
    """Requests that still run after the output."""
    waiting: IntArray
    """Requests that still wait after the output."""

    @classmethod
    def of(cls, replay: Replay) -> Gaps:
        """Find the gaps of a recording."""
        steps = replay.recording.steps
        step = steps_before_gaps(steps)
        from_running, from_queue = _ended(replay)
        running = steps.running[step] - from_running[step]
        waiting = steps.waiting[step] + _arrived(replay.recording, step) - from_queue[step]
        return cls(
            step=step,
            begin_s=steps.end_s[step],
            num_scheduled=np.minimum(steps.num_scheduled[step], running),
            running=running,
            waiting=np.maximum(waiting, 0),
        )

    def over_time(self, steps: Steps, name: str) -> tuple[FloatArray, IntArray]:
        """Return `num_scheduled`, `running` or `waiting` over time: the times from which values hold, and the values.

        The last value is 0, from the end of the last of `steps` on.
        """
        time_s, counts = np.append(steps.start_s, steps.end_s[-1]), np.append(steps[name], 0).astype(np.int64)
        return np.insert(time_s, self.step + 1, self.begin_s), np.insert(counts, self.step + 1, getattr(self, name))


def steps_before_gaps(steps: Steps) -> IntArray:
    """Return the steps whose output comes before the next step begins, and after all earlier outputs."""
    is_last = (steps.output_seq[:-1] < steps.schedule_seq[1:]) & (steps.end_s[:-1] < steps.start_s[1:])
    found: IntArray = np.flatnonzero(is_last)
    return found


def _arrived(recording: Recording, step: IntArray) -> IntArray:
    """Count the requests that are queued between the schedule and the output of each `step`."""
    requests, steps = recording.requests, recording.steps
    arrival_seq = np.sort(requests.arrival_seq[requests.status != RequestStatus.REFUSED])
    scheduled, processed = (
        np.searchsorted(arrival_seq, seq[step], side="right") for seq in (steps.schedule_seq, steps.output_seq)
    )
    return processed - scheduled


def _ended(replay: Replay) -> tuple[IntArray, IntArray]:
    """Count the requests that outputs end while each step is the newest: those that ran, and those in the queue.

    A preempted request waits, and may end with an output that was in flight.
    """
    steps, requests, held = replay.recording.steps, replay.recording.requests, replay.ledger.tables.residencies
    last_death = np.full(len(requests), -1, np.int64)
    np.maximum.at(last_death, held.request, held.death_seq)
    ends = np.flatnonzero(np.isin(requests.status, (RequestStatus.FINISHED, RequestStatus.ABORTED)))
    output = np.minimum(np.searchsorted(steps.end_s, requests.finished_s[ends]), len(steps) - 1)
    with_output = steps.end_s[output] == requests.finished_s[ends]
    # An aborted request may also end when a step is scheduled, at the time of the output before it.
    with_output &= ~np.isin(last_death[ends], steps.schedule_seq) | (requests.status[ends] == RequestStatus.FINISHED)
    ends, output = ends[with_output], output[with_output]
    newest = np.searchsorted(steps.schedule_seq, steps.output_seq[output]) - 1
    runs = (last_death[ends] > steps.schedule_seq[newest]) & ~replay.progress.is_loading(ends, newest)
    return tuple(np.bincount(newest[some], minlength=len(steps)) for some in (runs, ~runs))  # type: ignore[return-value]
