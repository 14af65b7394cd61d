"""Check contiguous memory: the lengths of extents follow from the settings, and steps state their unusable free units.

kvsim computes fragmentation from these lengths and units.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.recording.check_queue import ResidencyRows
from kvsim.recording.model import Recording
from kvsim.recording.order import is_new, sort_key
from kvsim.recording.rules import NO_LIMIT, agree, require
from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus

_POOL = -1
"""Key in place of a request, for the borders of the pool: the first and the last hole may begin or end there."""


def check_reservations(recording: Recording, residencies: ResidencyRows, folder: Path) -> None:
    """Check the lengths of extents that contiguous policies of kvsim reserve, and the stated unusable units."""
    memory, meta = recording.memory, recording.meta
    if meta.policy_name != "contiguous" or "rules" in meta.policy or memory.requested is None:
        return
    rows = np.flatnonzero(memory.kind == MemoryKind.APPEND)
    # Lengths of the whole extent after each row, which may extend it.
    requested = memory.position[rows].astype(np.int64) + memory.requested[rows]
    _check_requested(recording, rows, requested, folder / "memory.parquet")
    length = memory.position[rows] + memory.length[rows]
    expected = _power_of_two_from(requested) if meta.policy.get("fit") == "buddy" else requested
    agree(length, expected, folder / "memory.parquet", "length", "requested", rows)
    if recording.steps.unusable_units is not None:
        _check_unusable(recording, recording.steps.unusable_units, residencies, folder / "steps.parquet")


def _check_requested(recording: Recording, rows: IntArray, requested: IntArray, file: Path) -> None:
    """Check `requested`, the slots asked for in the memory `rows`, against the rule of the policy."""
    requests, policy = recording.requests, recording.meta.policy
    request, longest = recording.memory.request[rows], policy.get("max_model_len", NO_LIMIT)
    prompt, output = requests.prompt_tokens.astype(np.int64), requests.output_tokens.astype(np.int64)
    is_known = requests.status == RequestStatus.FINISHED
    late = 0
    match policy.get("reserve"):
        case "doubling":
            is_power = requested == _power_of_two_from(requested)
            holds = (requested == longest) | (is_power & (requested < longest))
            require(holds, file, "requested should make the extent a power of two, or policy.max_model_len", rows)
            return
        case "max":
            wanted = np.full_like(prompt, longest)
        case "limit":
            wanted, is_known = prompt + requests.max_tokens, np.ones_like(is_known)
        case "pow2":
            wanted = prompt + _power_of_two_from(output)
        case "oracle":  # a stop may be noticed one token late
            wanted, late = prompt + output - 1, 1
        case _:
            return
    least, most = np.minimum(wanted, longest)[request], np.minimum(wanted + late, longest)[request]
    holds = ~is_known[request] | ((requested >= least) & (requested <= most))
    require(holds, file, "requested should be what policy.reserve makes of requests.parquet", rows)


def _check_unusable(recording: Recording, stated: IntArray, residencies: ResidencyRows, file: Path) -> None:
    """Check `stated`, the unusable units of each step.

    If the free units suffice for the first request of the queue but no hole does, all free units are unusable.
    Otherwise none is.
    """
    memory, steps = recording.memory, recording.steps
    assert memory.requested is not None
    buddies = recording.meta.policy.get("fit") == "buddy"
    rows = np.flatnonzero((steps.waiting > 0) & (steps.free_units >= 0))
    birth_row = _next_admission_rows(recording, residencies, rows)
    rows, birth_row = rows[birth_row >= 0], birth_row[birth_row >= 0]
    requested = memory.requested[birth_row].astype(np.int64)
    are_enough = steps.free_units[rows] >= requested
    needed = _power_of_two_from(requested) if buddies else requested
    are_unusable = are_enough & (_longest_holes(recording, rows, buddies=buddies) < needed)
    expected = np.where(are_unusable, steps.free_units[rows], 0)
    agree(stated[rows], expected, file, "unusable_units", "memory.parquet", rows)


class _Wait(NamedTuple):
    """Wait of a request for an admission. A queue of waits is in the order of the admissions."""

    admission_row: int
    """Memory row that admits the request."""
    admission_seq: int
    known_seq: int
    """Event number (`seq`) from which it is known how many slots the request asks for."""


def _next_admission_rows(recording: Recording, residencies: ResidencyRows, steps: IntArray) -> IntArray:
    """Return, for each of `steps`, the memory row that admits the first request of the queue.

    The first request is the waiting request that is admitted next. The result is -1 if no waiting request is ever
    admitted. It is also -1 if the first request was preempted and its output in flight is not processed yet, because
    that output will add to the slots that it needs.
    """
    request, birth_seq = residencies.birth_request, residencies.birth_seq
    since = recording.requests.arrival_seq[request].astype(np.int64)
    again = np.flatnonzero(~is_new(request))
    key = sort_key(residencies.end_request, residencies.end_seq)
    # A preempted request waits since the end of its previous residency.
    since[again] = residencies.end_seq[np.searchsorted(key, sort_key(request[again], birth_seq[again])) - 1]
    known_seq, moments = since.copy(), recording.steps.schedule_seq
    known_seq[again] = recording.steps.output_seq[np.searchsorted(moments, since[again]) - 1]
    heads, queue = np.full(len(steps), -1, np.int64), list[_Wait]()
    waiting = np.argsort(-since, kind="stable").tolist()  # the earliest is popped first
    for nth, moment in enumerate(moments[steps].tolist()):
        while waiting and since[waiting[-1]] <= moment:
            nth_wait = waiting.pop()
            columns = (residencies.birth_row, birth_seq, known_seq)
            heapq.heappush(queue, _Wait(*(int(column[nth_wait]) for column in columns)))
        while queue and queue[0].admission_seq <= moment:
            heapq.heappop(queue)
        if queue and queue[0].known_seq <= moment:
            heads[nth] = queue[0].admission_row
    return heads


def _longest_holes(recording: Recording, steps: IntArray, *, buddies: bool) -> IntArray:
    """Return the number of units of the longest hole right after each of `steps` was scheduled.

    A hole is a range of free units. With `buddies`, it is the largest buddy block in a hole.
    """
    memory, pool = recording.memory, recording.meta.pool
    assert pool.num_units is not None
    request, position, length = memory.request.tolist(), memory.position.tolist(), memory.length.tolist()
    address, is_release = (memory.address - pool.first_unit).tolist(), (memory.kind == MemoryKind.RELEASE).tolist()
    end_rows = np.searchsorted(memory.seq, recording.steps.schedule_seq[steps], side="right").tolist()
    longest, done = np.zeros(len(steps), np.int64), 0
    # First unit and end of each request's extent.
    begins, ends = {_POOL: pool.num_units}, {_POOL: 0}
    for nth, upto in enumerate(end_rows):
        if nth and done == upto:
            longest[nth] = longest[nth - 1]
            continue
        for row in range(done, upto):
            if is_release[row]:
                del begins[request[row]], ends[request[row]]
            elif position[row]:
                ends[request[row]] += length[row]
            else:
                begins[request[row]], ends[request[row]] = address[row], address[row] + length[row]
        done = upto
        # Extents do not overlap, so each hole lies between the n-th end and the n-th begin.
        hole_begins, hole_ends = (np.sort(np.fromiter(each.values(), np.int64)) for each in (ends, begins))
        longest[nth] = (_longest_buddies(hole_begins, hole_ends) if buddies else hole_ends - hole_begins).max()
    return longest


def _longest_buddies(begin: IntArray, end: IntArray) -> npt.NDArray[np.int64]:
    """Return the size of the largest buddy block in each hole [begin, end).

    A buddy block has a power of two as its size, and begins at a multiple of its size.
    """
    # Begin with the largest power of two up to the length of the hole, from the exponent of the float.
    length = np.asarray(1 << (np.frexp(np.maximum(end - begin, 1))[1].astype(np.int64) - 1))
    while (too_long := (-(-begin // length) * length + length > end) & (length > 1)).any():
        length[too_long] //= 2
    return np.where(end > begin, length, 0)


def _power_of_two_from(values: IntArray) -> IntArray:
    return np.asarray(1 << np.frexp(values - 1)[1].astype(np.int64))
