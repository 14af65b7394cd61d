"""Gaps between the steps of a recording, in which no step is in flight, and the numbers of requests in each gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.policies import Radix
from kvsim.recording.tables import RequestStatus

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording import Outline, Recording
    from kvsim.recording.tables import FloatArray, IntArray, Steps
    from kvsim.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Times from the output of a step to the beginning of the next step, if no step is in flight in between.

    Each array has one entry for each gap, in order of time.
    """

    step: IntArray
    """Index of the step whose output begins each gap."""
    begin_s: FloatArray
    num_scheduled: IntArray
    """Number of requests that the step before the gap computed and that still run."""
    running: IntArray
    """Number of all requests that run after the output."""
    waiting: IntArray
    """Number of requests that wait after the output."""

    @classmethod
    def of(cls, replay: Replay) -> Gaps:
        """Find the gaps of a recording."""
        steps = replay.recording.steps
        step = steps_before_gaps(steps)
        from_running, from_queue = _ended(replay)
        chosen = _chosen_before_output(replay)
        # The counts when the step is scheduled, changed by what happens until its output.
        running = steps.running[step] - from_running[step] + chosen[step]
        waiting = steps.waiting[step] + _arrived(replay.recording, step) - from_queue[step] - chosen[step]
        return cls(
            step=step,
            begin_s=steps.end_s[step],
            num_scheduled=np.minimum(steps.num_scheduled[step], running),
            running=running,
            waiting=np.maximum(waiting, 0),
        )

    @classmethod
    def stated(cls, steps: Steps) -> Gaps | None:
        """Return the gaps with the numbers that the recording states in its steps; None if it states none."""
        if steps.running_after is None or steps.waiting_after is None:
            return None
        step = steps_before_gaps(steps)
        running = steps.running_after[step]
        return cls(
            step=step,
            begin_s=steps.end_s[step],
            num_scheduled=np.minimum(steps.num_scheduled[step], running),
            running=running,
            waiting=steps.waiting_after[step],
        )

    def over_time(self, recording: Recording | Outline, name: str) -> tuple[FloatArray, IntArray]:
        """Return the times in seconds at which `num_scheduled`, `running` or `waiting` may change, and the values.

        See `joined`.
        """
        steps = recording.steps
        time_s, counts = self.joined(steps, steps[name].astype(np.int64), getattr(self, name))
        if name == "waiting" and recording.meta.policy_name == "static":
            return _with_arrivals_in_gaps(recording, self, time_s, counts)
        return time_s, counts

    def joined(
        self, steps: Steps, of_steps: npt.NDArray[Any], of_gaps: npt.NDArray[Any]
    ) -> tuple[FloatArray, npt.NDArray[Any]]:
        """Return a figure over time, as two arrays: times in seconds, and values.

        A value holds from its time to the next time. `of_steps` has the figure while each of `steps` is the newest, and
        `of_gaps` the figure in each gap. After the last output, the figure is 0.
        """
        time_s, values = np.append(steps.start_s, steps.end_s[-1]), np.append(of_steps, 0)
        return np.insert(time_s, self.step + 1, self.begin_s), np.insert(values, self.step + 1, of_gaps)


def steps_before_gaps(steps: Steps) -> IntArray:
    """Return the indices of steps at whose output no other step is in flight, and after which the next begins later."""
    is_last = (steps.output_seq[:-1] < steps.schedule_seq[1:]) & (steps.end_s[:-1] < steps.start_s[1:])
    found: IntArray = np.flatnonzero(is_last)
    return found


def _with_arrivals_in_gaps(
    recording: Recording | Outline, gaps: Gaps, time_s: FloatArray, waiting: IntArray
) -> tuple[FloatArray, IntArray]:
    """Return the number of requests that wait for a static batch over time, with the changes inside the gaps.

    Requests that arrive in a gap wait for a batch to begin, and may leave before. `time_s` and `waiting` are the
    numbers without these changes. The result has the same two parts, times in seconds and numbers.
    """
    requests = recording.requests
    waited = requests.status != RequestStatus.REFUSED
    left_s = np.where(np.isnan(requests.first_scheduled_s), requests.finished_s, requests.first_scheduled_s)[waited]
    arrival_s, left_s = np.sort(requests.arrival_s[waited]), np.sort(left_s)  # NaN, for never, is sorted last
    edges_s = np.column_stack((gaps.begin_s, recording.steps.start_s[gaps.step + 1])).ravel()
    changes_s = np.concatenate((arrival_s, left_s))
    # Beginnings and ends of gaps alternate, so inside a gap the number of earlier edges is odd.
    is_inside = np.searchsorted(edges_s, changes_s, side="right") % 2 == 1
    changes_s = np.unique(np.concatenate((gaps.begin_s, changes_s[is_inside])))
    present = np.searchsorted(arrival_s, changes_s, side="right") - np.searchsorted(left_s, changes_s, side="right")
    is_gap = np.zeros(len(time_s), np.bool_)
    is_gap[gaps.step + 1 + np.arange(len(gaps.step))] = True  # places of the entries that `Gaps.joined` inserted
    time_s, waiting = time_s[~is_gap], waiting[~is_gap]
    place = np.searchsorted(time_s, changes_s, side="right")
    return np.insert(time_s, place, changes_s), np.insert(waiting, place, present)


def _arrived(recording: Recording, step: IntArray) -> IntArray:
    """Count, for each of `step`, the requests that join the queue between its schedule and its output."""
    requests, steps = recording.requests, recording.steps
    arrival_seq = np.sort(requests.arrival_seq[requests.status != RequestStatus.REFUSED])
    scheduled, processed = (
        np.searchsorted(arrival_seq, seq[step], side="right") for seq in (steps.schedule_seq, steps.output_seq)
    )
    return processed - scheduled


def _chosen_before_output(replay: Replay) -> IntArray:
    """Count, for each step of the recording, the requests that SGLang admits between its schedule and its output.

    Other engines admit none. With `disable_consecutive_prefill_overlap`, SGLang chooses a prefill before the output of
    the prefill before it, and launches it after that output. The chosen requests hold memory in between.
    """
    steps, held = replay.recording.steps, replay.ledger.tables.residencies
    if replay.recording.meta.policy_name != Radix.name:
        return np.zeros(len(steps), np.int64)
    newest = np.searchsorted(steps.schedule_seq, held.birth_seq, side="right") - 1
    chosen = (newest >= 0) & (held.birth_seq > steps.schedule_seq[newest]) & (held.birth_seq < steps.output_seq[newest])
    return np.bincount(newest[chosen], minlength=len(steps))


def _ended(replay: Replay) -> tuple[IntArray, IntArray]:
    """Count, for each step, the running and the waiting requests that end with an output before the next step.

    A preempted request waits, and may end with an output that was in flight. The counts are two arrays.
    """
    steps, requests, held = replay.recording.steps, replay.recording.requests, replay.ledger.tables.residencies
    last_release = np.full(len(requests), -1, np.int64)  # -1 if a request never held memory
    np.maximum.at(last_release, held.request, held.death_seq)
    ends = np.flatnonzero(np.isin(requests.status, (RequestStatus.FINISHED, RequestStatus.ABORTED)))
    output = np.minimum(np.searchsorted(steps.end_s, requests.finished_s[ends]), len(steps) - 1)
    ended_at_output_time = steps.end_s[output] == requests.finished_s[ends]
    # An aborted request may also end when a step is scheduled, at the time of the output before it.
    is_aborted = requests.status[ends] == RequestStatus.ABORTED
    ended_at_schedule = is_aborted & np.isin(last_release[ends], steps.schedule_seq)
    with_output = ended_at_output_time & ~ended_at_schedule
    ends, output = ends[with_output], output[with_output]
    newest = np.searchsorted(steps.schedule_seq, steps.output_seq[output]) - 1
    # A request runs if it still holds memory after the newest step is scheduled, unless it waits for a load of KV.
    runs = (last_release[ends] > steps.schedule_seq[newest]) & ~replay.progress.is_loading(ends, newest)
    return np.bincount(newest[runs], minlength=len(steps)), np.bincount(newest[~runs], minlength=len(steps))
