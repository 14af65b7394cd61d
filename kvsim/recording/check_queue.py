"""What must hold between who runs, waits and gives way after each step, and when requests come, hold memory and go."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.recording.check_times import Ends
from kvsim.recording.grouped import tables_of_groups
from kvsim.recording.model import Recording
from kvsim.recording.order import in_parts, is_new, stable_order
from kvsim.recording.rules import agree, require, require_of
from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus


class Stays(NamedTuple):
    """The moments at which requests begin to hold memory, and at which they give all of it back, by request."""

    birth_row: IntArray
    birth_request: IntArray
    birth_seq: IntArray
    end_request: IntArray
    end_seq: IntArray
    end_step: IntArray

    @classmethod
    def of(cls, recording: Recording) -> Stays:
        """Find when requests hold memory. What moves gives its memory back when it takes another, and stays."""
        memory = recording.memory
        if recording.meta.pool.groups:
            births = tables_of_groups(memory, len(recording.requests))[0].residencies.birth_row
        else:
            births = np.flatnonzero((memory.position == 0) & (memory.kind <= MemoryKind.SHARE))
        rows, num_births = np.concatenate((births, memory.ends)), len(births)
        num_seqs = int(memory.seq[-1]) + 1 if len(memory) else 1
        key = memory.request[rows].astype(np.int64) * num_seqs + memory.seq[rows]
        moments, first, number = np.unique(key, return_index=True, return_inverse=True)
        more = np.bincount(number[:num_births], minlength=len(moments))
        more -= np.bincount(number[num_births:], minlength=len(moments))
        begins, leaves = rows[first[more > 0]], rows[first[more < 0]]
        return cls(
            begins, memory.request[begins], memory.seq[begins], memory.request[leaves], memory.seq[leaves],
            memory.step[leaves],
        )  # fmt: skip


def check_queue(recording: Recording, stays: Stays, ends: Ends, folder: Path) -> None:
    """Check `running`, `waiting` and `preempted` of every step, and the preemptions of every request.

    Raises:
        RecordingError: naming the file and row of the first disagreement.
    """
    steps, file = recording.steps, folder / "steps.parquet"
    if not len(steps):
        return
    moments = steps.schedule_seq
    if recording.meta.pool.num_units is None:  # a batch that runs as a whole
        agree(steps.running, steps.num_scheduled, file, "running", "num_scheduled")
    else:
        held = _so_far(moments, stays.birth_seq) - _so_far(
            moments,
            np.where(
                stays.end_step < len(steps),
                np.maximum(stays.end_seq, moments[np.minimum(stays.end_step, len(steps) - 1)]),
                stays.end_seq,
            ),
        )
        if recording.copies is None:
            agree(steps.running, held, file, "running", "memory.parquet")
        else:  # one that waits for its blocks to come from the host holds some, and one whose blocks are still copied
            require_of(lambda rows: steps.running[rows] <= held[rows], steps, file,
                       "running should not be more requests than hold memory")  # fmt: skip
        del held
    status = recording.requests.status
    present = _so_far(moments, recording.requests.arrival_seq[status != RequestStatus.REFUSED])
    present -= _so_far(moments, _left_seq(recording, ends))
    for rows in in_parts(len(steps)):
        waiting = present[rows] - steps.running[rows]
        agree(steps.waiting[rows], waiting, file, "waiting", "requests.parquet", np.arange(rows.start, rows.stop))
    if recording.copies is None:
        _check_preemptions(recording, stays, ends, folder)
    else:
        _check_preemptions_with_copies(recording, stays, ends, folder)


def _check_preemptions(recording: Recording, stays: Stays, ends: Ends, folder: Path) -> None:
    """Who gives all memory back when a step is scheduled was preempted by it; who does so later has ended."""
    requests, steps = recording.requests, recording.steps
    step = np.minimum(stays.end_step, len(steps) - 1)
    gave_way = (stays.end_step == step) & (steps.schedule_seq[step] == stays.end_seq)
    preempted = np.bincount(step[gave_way], minlength=len(steps))
    agree(steps.preempted, preempted, folder / "steps.parquet", "preempted", "memory.parquet")
    lost = np.bincount(stays.end_request[gave_way], minlength=len(requests))
    agree(requests.preemptions, lost, folder / "requests.parquet", "preemptions", "memory.parquet")
    # What came behind the last output may be told in part.
    output = np.minimum(np.searchsorted(steps.output_seq, stays.end_seq), len(steps) - 1)
    with_output = ~gave_way & (steps.output_seq[output] == stays.end_seq)
    rows = stays.end_request[with_output]
    ended = (requests.status[rows] == RequestStatus.FINISHED) | (requests.status[rows] == RequestStatus.ABORTED)
    require(ended, folder / "requests.parquet", "a request whose memory went with an output should have ended", rows)
    output_seq = np.zeros(len(requests), np.int64)
    output_seq[ends.request] = steps.output_seq[ends.step]
    known = output_seq[rows] > 0
    require(
        (output_seq[rows] == stays.end_seq[with_output])[known], folder / "requests.parquet",
        "output_tokens and the request's memory should end with one output", rows[known],
    )  # fmt: skip


def _check_preemptions_with_copies(recording: Recording, stays: Stays, ends: Ends, folder: Path) -> None:
    """Memory that is still copied goes later than its request, which gives way before it begins anew, or at last."""
    requests, steps = recording.requests, recording.steps
    begun = np.bincount(stays.birth_request, minlength=len(requests))
    least = np.maximum(begun - 1, 0)
    # One that gives way at last does so behind its last step, and before the output that ends it.
    last_step = np.zeros(len(requests), np.int64)
    np.maximum.at(last_step, recording.schedule.request, recording.schedule.step + recording.schedule.repeats - 1)
    end = np.full(len(requests), len(steps))
    end[ends.request] = np.searchsorted(steps.schedule_seq, steps.output_seq[ends.step])
    num_before = np.append(0, np.cumsum(steps.preempted > 0))
    at_last = num_before[end] > num_before[np.minimum(last_step + 1, end)]
    holds = (requests.preemptions == least) | ((requests.preemptions == begun) & at_last)
    require(holds, folder / "requests.parquet", "preemptions should be as often as memory.parquet begins anew")
    if (requests.status == RequestStatus.ABORTED).any():
        return
    # Who runs was running, or begins, and has neither given way nor ended; one that gave way at last had ended before.
    moments = steps.schedule_seq
    finished = ends.step[requests.preemptions[ends.request] < begun[ends.request]]
    ended = np.diff(_so_far(moments, steps.output_seq[finished]), prepend=0)
    running = steps.running.astype(np.int64)
    gave_way = np.append(0, running[:-1]) - running + _begins(recording, stays) - ended
    agree(steps.preempted, gave_way, folder / "steps.parquet", "preempted", "running, with schedule.parquet,")
    _check_turns(recording, stays, end, folder / "steps.parquet")


def _check_turns(recording: Recording, stays: Stays, end: IntArray, file: Path) -> None:
    """Check that whoever gave way did so in a step between its last one and the one in which it begins anew or ended.

    Each step is given those whose time runs out first.
    """
    schedule, steps, num_keys = recording.schedule, recording.steps, len(recording.steps) + 1
    order = stable_order(schedule.request, len(recording.requests))
    key = schedule.request[order].astype(np.int64) * num_keys + schedule.step[order]
    birth = stays.birth_request.astype(np.int64) * num_keys + np.searchsorted(steps.schedule_seq, stays.birth_seq)
    is_last = np.append(is_new(stays.birth_request)[1:], True)
    upto = np.where(is_last, end[stays.birth_request], np.append(birth[1:], 0) % num_keys)
    row = order[np.searchsorted(key, stays.birth_request.astype(np.int64) * num_keys + upto) - 1]
    since = schedule.step[row] + schedule.repeats[row].astype(np.int64)
    begun = np.bincount(stays.birth_request, minlength=len(recording.requests))
    gave_way = ~is_last | (recording.requests.preemptions == begun)[stays.birth_request]
    turns = sorted(zip(since[gave_way].tolist(), upto[gave_way].tolist(), strict=True), reverse=True)
    open_turns: list[int] = []
    for step in np.flatnonzero(steps.preempted).tolist():
        while turns and turns[-1][0] <= step:
            heapq.heappush(open_turns, turns.pop()[1])
        for _ in range(int(steps.preempted[step])):
            if not open_turns or heapq.heappop(open_turns) <= step:
                raise RecordingError(f"{file}, row {step}: preempted counts a request that goes on.")


def _begins(recording: Recording, stays: Stays) -> npt.NDArray[np.int64]:
    """How many requests begin to compute in each step, for the first time since they began to hold memory."""
    schedule, num_steps = recording.schedule, len(recording.steps)
    order = stable_order(schedule.request, len(recording.requests))
    key = schedule.request[order].astype(np.int64) * (num_steps + 1) + schedule.step[order]
    step = np.searchsorted(recording.steps.schedule_seq, stays.birth_seq)
    at = np.searchsorted(key, stays.birth_request.astype(np.int64) * (num_steps + 1) + step)
    begins = np.unique(at[np.append(schedule.request[order], -1)[at] == stays.birth_request])
    return np.bincount(schedule.step[order][begins], minlength=num_steps)


def _left_seq(recording: Recording, ends: Ends) -> npt.NDArray[np.int64]:
    """The moments by which requests have left: the output that ended them, or the step that came next."""
    requests, steps = recording.requests, recording.steps
    aborted_s = requests.finished_s[requests.status == RequestStatus.ABORTED]
    following = np.searchsorted(steps.start_s, aborted_s)
    told = following[following < len(steps)]
    return np.concatenate((steps.output_seq[ends.step], steps.schedule_seq[told]))


def _so_far(moments: IntArray, seq: IntArray) -> npt.NDArray[np.int64]:
    """How many of `seq` have come at each of `moments`, which ascend and are many more."""
    found = np.bincount(np.searchsorted(moments, seq), minlength=len(moments) + 1)[:-1]
    return np.cumsum(found, out=found)
