"""Check preemptions: steps, requests and memory rows agree on their number, and each was necessary."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.kv_groups.group import CacheKind
from kvsim.policies import Radix
from kvsim.recording.by_request import RowsByRequest, last_steps
from kvsim.recording.check_queue import ResidencyRows, count_up_to
from kvsim.recording.check_times import Ends
from kvsim.recording.model import Recording
from kvsim.recording.order import expanded, is_new, sort_key
from kvsim.recording.rules import NO_LIMIT, agree, require
from kvsim.recording.tables import IntArray, Memory, MemoryKind, RequestStatus

_SHORTAGE = "a step should preempt only where the free units are too few for one of its requests"


def check_preemptions(recording: Recording, residencies: ResidencyRows, ends: Ends, folder: Path) -> None:
    """Check that steps, requests and memory rows agree on preemptions.

    For the policy `paged` without rules of a user, and for SGLang without priorities, also check that free units were
    too few at each preemption. For a server that exchanges KV, only numbers of preemptions are compared.
    """
    if recording.meta.exchanges_kv:
        _check_numbers(recording, residencies, folder / "requests.parquet")
        return
    if recording.copies is None or recording.meta.policy_name == Radix.name:  # SGLang's copies keep no request's memory
        _check_without_copies(recording, residencies, ends, folder)
    else:
        _check_with_copies(recording, residencies, ends, folder)
    if recording.meta.policy_name == "paged" and "rules" not in recording.meta.policy:
        _check_shortage(recording, folder / "steps.parquet")
    if recording.meta.policy_name == Radix.name and not recording.meta.policy.get("enable_priority_scheduling"):
        check_retractions(recording, folder / "steps.parquet")


def _check_numbers(recording: Recording, residencies: ResidencyRows, file: Path) -> None:
    """Check only the number of preemptions, for a server that exchanges KV.

    Its memory rows do not show each preemption: a failed load also frees blocks during scheduling, and blocks that
    another server reads are freed later than their request is preempted.
    """
    requests = recording.requests
    begun = np.bincount(residencies.birth_request, minlength=len(requests))
    require(requests.preemptions <= begun, file, "preemptions should be no more than memory.parquet begins anew")
    if requests.preemptions.sum() != recording.num_preemptions:
        raise RecordingError(f"{file}: preemptions add up to other than those of steps.parquet.")


def _check_without_copies(recording: Recording, residencies: ResidencyRows, ends: Ends, folder: Path) -> None:
    """Check preemptions of an engine that releases the table of a preempted request at once.

    A whole table that is released while a step is scheduled is a preemption. One that is released with an output must
    be of a request that has ended. If the request finished, it must have ended with this output. One that is released
    between these events must be of an aborted request.
    """
    requests, steps = recording.requests, recording.steps
    step = np.minimum(residencies.end_step, len(steps) - 1)
    is_victim = (residencies.end_step == step) & (steps.schedule_seq[step] == residencies.end_seq)
    per_step = np.bincount(step[is_victim], minlength=len(steps))
    agree(steps.preempted, per_step, folder / "steps.parquet", "preempted", "memory.parquet")
    per_request = np.bincount(residencies.end_request[is_victim], minlength=len(requests))
    agree(requests.preemptions, per_request, folder / "requests.parquet", "preemptions", "memory.parquet")
    # Events after the last output may be incomplete.
    output = np.minimum(np.searchsorted(steps.output_seq, residencies.end_seq), len(steps) - 1)
    with_output = ~is_victim & (steps.output_seq[output] == residencies.end_seq)
    rows = residencies.end_request[with_output]
    ended = (requests.status[rows] == RequestStatus.FINISHED) | (requests.status[rows] == RequestStatus.ABORTED)
    require(ended, folder / "requests.parquet", "a request whose memory went with an output should have ended", rows)
    between = ~is_victim & ~with_output & (residencies.end_seq < steps.output_seq[-1])
    aborted = requests.status[residencies.end_request[between]] == RequestStatus.ABORTED
    require(
        aborted, folder / "requests.parquet", "a request whose memory went between two events should have been aborted",
        residencies.end_request[between],
    )  # fmt: skip
    output_seq = np.zeros(len(requests), np.int64)
    output_seq[ends.request] = steps.output_seq[ends.step]
    known = output_seq[rows] > 0
    require(
        (output_seq[rows] == residencies.end_seq[with_output])[known], folder / "requests.parquet",
        "output_tokens and the request's memory should end with one output", rows[known],
    )  # fmt: skip


def _check_with_copies(recording: Recording, residencies: ResidencyRows, ends: Ends, folder: Path) -> None:
    """Check the preemptions of an engine that offloads.

    A preempted request may keep its blocks until their copies end. So this only requires that its blocks are freed
    after the preemption, and before the request resumes or ends.
    """
    requests, steps = recording.requests, recording.steps
    begun = np.bincount(residencies.birth_request, minlength=len(requests))
    least = np.maximum(begun - 1, 0)
    # A request may also be preempted after its last step, before the output that ends it.
    end = np.full(len(requests), len(steps))
    end[ends.request] = np.searchsorted(steps.schedule_seq, steps.output_seq[ends.step])
    num_before = np.append(0, np.cumsum(steps.preempted > 0))
    at_last = num_before[end] > num_before[np.minimum(last_steps(recording) + 1, end)]
    holds = (requests.preemptions == least) | ((requests.preemptions == begun) & at_last)
    require(holds, folder / "requests.parquet", "preemptions should be as often as memory.parquet begins anew")
    if (requests.status == RequestStatus.ABORTED).any():
        return
    # running = running before + begun - ended - preempted. A request that was preempted after its last step counts as
    # preempted, not as ended.
    moments = steps.schedule_seq
    finished = ends.step[requests.preemptions[ends.request] < begun[ends.request]]
    ended = np.diff(count_up_to(moments, steps.output_seq[finished]), prepend=0)
    running = steps.running.astype(np.int64)
    preempted = np.append(0, running[:-1]) - running + _num_beginning(recording, residencies) - ended
    agree(steps.preempted, preempted, folder / "steps.parquet", "preempted", "running, with schedule.parquet,")
    _check_intervals(recording, residencies, end, folder / "steps.parquet")


def _check_intervals(recording: Recording, residencies: ResidencyRows, end: IntArray, file: Path) -> None:
    """Check that each preemption fits a step after the request's last step, and before the request resumes or ends.

    The interval of a residency has the steps in which it may have ended by a preemption. An interval is open from its
    first step until a preemption is assigned to it. A step with n preemptions takes the n open intervals that end
    first, which finds an assignment if there is one. If a step preempts requests but no memory is released when it is
    scheduled, it must leave fewer free units than some preempted request may have needed to grow: the one, among those
    with open intervals, that needs most.
    """
    steps, by_request = recording.steps, RowsByRequest.of(recording)
    # A residency may end by a preemption in one of the steps [since, upto): after its last schedule row, and before
    # the request's next residency, or before the request ends.
    birth = np.searchsorted(steps.schedule_seq, residencies.birth_seq)
    is_last = np.append(is_new(residencies.birth_request)[1:], True)
    upto = np.where(is_last, end[residencies.birth_request], np.append(birth[1:], 0))
    row = by_request.last_row_before(residencies.birth_request, upto)
    since = recording.schedule.step[row] + recording.schedule.repeats[row].astype(np.int64)
    begun = np.bincount(residencies.birth_request, minlength=len(recording.requests))
    is_victim = ~is_last | (recording.requests.preemptions == begun)[residencies.birth_request]
    most = _most_to_grow(recording, residencies.birth_request, upto)
    columns = (since[is_victim].tolist(), upto[is_victim].tolist(), most[is_victim].tolist())
    intervals = sorted(zip(*columns, strict=True), reverse=True)  # the earliest is popped first
    frees_at_once = np.isin(steps.schedule_seq, recording.memory.seq[recording.memory.end_rows])
    # Heaps of the open intervals: their ends, and their needs in units, negative so that the largest is first.
    open_ends, needs = list[int](), list[tuple[int, int]]()
    for step in np.flatnonzero(steps.preempted).tolist():
        while intervals and intervals[-1][0] <= step:
            _, until, units = intervals.pop()
            heapq.heappush(open_ends, until)
            heapq.heappush(needs, (-units, until))
        while needs and needs[0][1] <= step:
            heapq.heappop(needs)
        for _ in range(int(steps.preempted[step])):
            if not open_ends or heapq.heappop(open_ends) <= step:
                raise RecordingError(f"{file}, row {step}: preempted counts a request that goes on.")
        if not frees_at_once[step] and steps.free_units[step] + needs[0][0] >= 0:
            raise RecordingError(f"{file}, row {step}: {_SHORTAGE}.")


def _num_beginning(recording: Recording, residencies: ResidencyRows) -> npt.NDArray[np.int64]:
    """Return, for each step, the number of requests that compute in it for the first time after an admission."""
    schedule, by_request = recording.schedule, RowsByRequest.of(recording)
    step = np.searchsorted(recording.steps.schedule_seq, residencies.birth_seq)
    at = np.searchsorted(by_request.key, sort_key(residencies.birth_request, step))
    begins = np.unique(at[np.append(schedule.request[by_request.row], -1)[at] == residencies.birth_request])
    return np.bincount(schedule.step[by_request.row][begins], minlength=len(recording.steps))


class _SchedulingRows(NamedTuple):
    """Rows of `memory.parquet` with what some steps allocated and released when they were scheduled, in order."""

    row: IntArray
    """Index of each row in `memory.parquet`."""
    step_of: IntArray
    """Index of each row's step in the argument `schedule_seq` of `of`."""
    taken: npt.NDArray[np.int64]
    """Number of units that each row allocates; 0 for a row that allocates none."""
    given: npt.NDArray[np.int64]
    """Number of units that each row releases; 0 for a row that releases none."""

    @classmethod
    def of(cls, memory: Memory, schedule_seq: IntArray) -> _SchedulingRows:
        """Find the rows of the steps that were scheduled at `schedule_seq`."""
        begin, end = (np.searchsorted(memory.seq, schedule_seq, side) for side in ("left", "right"))
        step_of, offset = expanded(end - begin)
        row = begin[step_of] + offset
        length, kind = memory.length[row].astype(np.int64), memory.kind[row]
        return cls(row, step_of, length * (kind == MemoryKind.APPEND), length * (kind == MemoryKind.RELEASE))


def _check_shortage(recording: Recording, file: Path) -> None:
    """Check that a step of a paged policy preempts only if too few units were free for another request, or the
    preempted one, to grow.

    The number of free units right before the step's last preemption is not recorded. The check computes a lower bound:
    the number after scheduling, plus the units allocated later in the step, minus the units of the preempted request's
    table. The true number may be higher, because units of this table that other requests share were not freed.
    """
    memory, steps = recording.memory, recording.steps
    ends = memory.end_rows
    ends = ends[steps.schedule_seq[np.minimum(memory.step[ends], len(steps) - 1)] == memory.seq[ends]]
    ends = ends[np.append(is_new(memory.seq[ends])[1:], True)[: len(ends)]]  # the last victim of each step
    victim = memory.request[ends]
    of_steps = _SchedulingRows.of(memory, memory.seq[ends])
    rows, step_of = of_steps.row, of_steps.step_of
    is_later = rows > ends[step_of]
    # The first request that grows after the last victim is the one for which that victim was preempted.
    grows = np.flatnonzero((of_steps.taken > 0) & is_later)
    grown, first = np.unique(step_of[grows], return_index=True)
    request = victim.copy()
    needed = _most_to_grow(recording, request, memory.step[ends])  # the victim itself, unless another request grows
    # With fcfs, the victim is the last request of the step, so the request needed exactly the units by which it grew.
    if recording.meta.policy.get("order", recording.meta.engine.get("policy")) == "fcfs":
        needed[grown] = 0
    request[grown] = memory.request[rows[grows[first]]]
    grows = grows[memory.request[rows[grows]] == request[step_of[grows]]]
    grown_by = np.bincount(step_of[grows], weights=of_steps.taken[grows], minlength=len(ends)).astype(np.int64)
    needed = np.maximum(needed, grown_by)
    # Undo the release of the victim, which may have several rows, and all later rows of the step.
    is_later |= (of_steps.given > 0) & (memory.request[rows] == victim[step_of])
    free = steps.free_units[memory.step[ends]].astype(np.int64)
    is_known = free >= 0
    np.add.at(free, step_of[is_later], (of_steps.taken - of_steps.given)[is_later])
    require(~is_known | (free < needed), file, _SHORTAGE, memory.step[ends])


def check_retractions(recording: Recording, file: Path) -> None:
    """Check that SGLang retracts only if a pool has too few free units for one more token of each running request.

    Steps during copies between GPU and host are not checked, because a copy may lock units of the radix tree. The free
    units before scheduling are those after it, plus the units allocated in the step, minus those released. SGLang
    allocates units of the second pool (layers with windows) only after it retracts. So before scheduling, this pool has
    as many free units as after the scheduling of the previous step.
    """
    memory, steps = recording.memory, recording.steps
    rows = np.flatnonzero((steps.preempted > 0) & (steps.free_units >= 0) & ~_during_copies(recording))
    of_steps = _SchedulingRows.of(memory, steps.schedule_seq[rows])
    change = of_steps.taken - of_steps.given
    free = steps.free_units[rows] + np.bincount(of_steps.step_of, weights=change, minlength=len(rows))
    most = steps.running[rows].astype(np.int64) + steps.preempted[rows]
    is_short, windows = free < most, recording.meta.pool.windows
    if windows is not None and steps.free_window_units is not None:
        is_short |= np.append(windows.num_units, steps.free_window_units[:-1])[rows] < most
    require(is_short, file, _SHORTAGE, rows)


def _during_copies(recording: Recording) -> npt.NDArray[np.bool_]:
    copies, num_steps = recording.copies, len(recording.steps)
    if copies is None:
        return np.zeros(num_steps, np.bool_)
    end = np.where(copies.reported_step < 0, num_steps - 1, copies.reported_step) + 1
    changes = np.bincount(copies.begun_step, minlength=num_steps + 1)[: num_steps + 1]
    changes -= np.bincount(end, minlength=num_steps + 1)[: num_steps + 1]
    return np.asarray(np.cumsum(changes)[:-1] > 0)


def _most_to_grow(recording: Recording, request: IntArray, step: IntArray) -> npt.NDArray[np.int64]:
    """Return the largest number of units by which the tables of each request may have to grow in its `step`."""
    schedule, requests, meta = recording.schedule, recording.requests, recording.meta
    computed = RowsByRequest.of(recording).computed_before(schedule, request, step)
    left = requests.prompt_tokens[request].astype(np.int64) + requests.output_tokens[request] - computed
    # After an earlier preemption, a request may compute output tokens together with its prompt.
    decodes = (computed >= requests.prompt_tokens[request]) & (requests.preemptions[request] <= 1)
    most = {**meta.engine, **meta.policy}.get("max_num_batched_tokens") or NO_LIMIT
    tokens = np.where(decodes, 1, np.minimum(np.maximum(left, 1), most))
    tokens += 2 * (meta.num_drafts + 1) if meta.num_drafts else 0
    # A group of recurrent states may need new units for all tokens of the step.
    tokens_of = [(group.block_size, group.kind is not CacheKind.MAMBA) for group in meta.pool.groups]
    units = np.zeros(len(request), np.int64)
    for size, is_of_tokens in tokens_of or [(meta.pool.unit_tokens, True)]:
        begin = computed if is_of_tokens else np.zeros_like(computed)
        units += -(-(begin + tokens) // size) - -(-begin // size)
    return units
