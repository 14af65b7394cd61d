"""Checks of contiguous memory: extents have the lengths of the settings, and holes are recorded correctly."""

from __future__ import annotations

import heapq
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.recording.check_queue import Stays
from kvsim.recording.model import Recording
from kvsim.recording.order import is_new
from kvsim.recording.rules import agree, require
from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus

_MOST_SEQS = 1 << 40
"""A number of events that no recording has."""
_POOL = -1
"""A request that no recording has: the whole pool, of which both ends bound holes."""


def check_reservations(recording: Recording, stays: Stays, folder: Path) -> None:
    """Check what kvsim's contiguous policies reserved, and in which steps no hole was long enough.

    Raises:
        RecordingError: naming the file and row of the first disagreement.
    """
    memory, meta = recording.memory, recording.meta
    if meta.policy_name != "contiguous" or "rules" in meta.policy or memory.requested is None:
        return
    rows = np.flatnonzero(memory.kind == MemoryKind.APPEND)
    asked = memory.position[rows].astype(np.int64) + memory.requested[rows]
    _check_asked(recording, rows, asked, folder / "memory.parquet")
    length = memory.position[rows] + memory.length[rows]
    given = _power_of_two_from(asked) if meta.policy.get("fit") == "buddy" else asked
    agree(length, given, folder / "memory.parquet", "length", "requested", rows)
    if recording.steps.unusable_units is not None:
        _check_unusable(recording, recording.steps.unusable_units, stays, folder / "steps.parquet")


def _check_asked(recording: Recording, rows: IntArray, asked: IntArray, file: Path) -> None:
    """Compare what `rows` of the memory ask for, from the beginning of their extents, with `reserve` of the policy."""
    requests, policy = recording.requests, recording.meta.policy
    request, longest = recording.memory.request[rows], policy.get("max_model_len", _MOST_SEQS)
    prompt, output = requests.prompt_tokens.astype(np.int64), requests.output_tokens.astype(np.int64)
    is_known = requests.status == RequestStatus.FINISHED
    late = 0
    match policy.get("reserve"):
        case "doubling":
            holds = (asked == longest) | ((asked == _power_of_two_from(asked)) & (asked < longest))
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
    holds = ~is_known[request] | ((asked >= least) & (asked <= most))
    require(holds, file, "requested should be what policy.reserve makes of requests.parquet", rows)


def _check_unusable(recording: Recording, stated: IntArray, stays: Stays, file: Path) -> None:
    """Check that free units are of no use where no hole is as long as the head of the queue asks."""
    memory, steps = recording.memory, recording.steps
    assert memory.requested is not None
    buddies = recording.meta.policy.get("fit") == "buddy"
    rows = np.flatnonzero((steps.waiting > 0) & (steps.free_units >= 0))
    birth_row = _births_of_heads(recording, stays, rows)
    rows, birth_row = rows[birth_row >= 0], birth_row[birth_row >= 0]
    asked = memory.requested[birth_row].astype(np.int64)
    would_do = steps.free_units[rows] >= asked
    needed = _power_of_two_from(asked) if buddies else asked
    is_split = would_do & (_longest_holes(recording, rows, buddies=buddies) < needed)
    found = np.where(is_split, steps.free_units[rows], 0)
    agree(stated[rows], found, file, "unusable_units", "memory.parquet", rows)


def _births_of_heads(recording: Recording, stays: Stays, steps: IntArray) -> IntArray:
    """Find the row of the memory in which the head of the queue of each step is served; -1 where it never is.

    Of those that wait at one time, the head is the one that is served first. One that gave way asks for more when the
    token that was under way arrives: until then it has -1 too.
    """
    request, birth_seq = stays.birth_request.astype(np.int64), stays.birth_seq
    since = recording.requests.arrival_seq[request].astype(np.int64)
    again = np.flatnonzero(~is_new(request))
    key = stays.end_request.astype(np.int64) * _MOST_SEQS + stays.end_seq
    since[again] = stays.end_seq[np.searchsorted(key, request[again] * _MOST_SEQS + birth_seq[again]) - 1]
    complete, moments = since.copy(), recording.steps.schedule_seq
    complete[again] = recording.steps.output_seq[np.searchsorted(moments, since[again]) - 1]
    heads, queue = np.full(len(steps), -1, np.int64), list[tuple[int, int, int]]()
    came = np.argsort(-since, kind="stable").tolist()
    for nth, moment in enumerate(moments[steps].tolist()):
        while came and since[came[-1]] <= moment:
            stay = came.pop()
            heapq.heappush(queue, (int(stays.birth_row[stay]), int(birth_seq[stay]), int(complete[stay])))
        while queue and queue[0][1] <= moment:
            heapq.heappop(queue)
        if queue and queue[0][2] <= moment:
            heads[nth] = queue[0][0]
    return heads


def _longest_holes(recording: Recording, steps: IntArray, *, buddies: bool) -> IntArray:
    """Return the length of the longest hole in each of the steps; of buddies, the longest that one can be handed."""
    memory, pool = recording.memory, recording.meta.pool
    assert pool.num_units is not None
    request, position, length = memory.request.tolist(), memory.position.tolist(), memory.length.tolist()
    address, is_release = (memory.address - pool.first_unit).tolist(), (memory.kind == MemoryKind.RELEASE).tolist()
    behind = np.searchsorted(memory.seq, recording.steps.schedule_seq[steps], side="right").tolist()
    found, done = np.zeros(len(steps), np.int64), 0
    begins, ends = {_POOL: pool.num_units}, {_POOL: 0}
    for nth, upto in enumerate(behind):
        if nth and done == upto:
            found[nth] = found[nth - 1]
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
        found[nth] = (_longest_buddies(hole_begins, hole_ends) if buddies else hole_ends - hole_begins).max()
    return found


def _longest_buddies(begin: IntArray, end: IntArray) -> npt.NDArray[np.int64]:
    """Return the length of the longest power of two that begins at a multiple of itself, in each of the holes."""
    length = np.asarray(1 << (np.frexp(np.maximum(end - begin, 1))[1].astype(np.int64) - 1))
    while (too_long := (-(-begin // length) * length + length > end) & (length > 1)).any():
        length[too_long] //= 2
    return np.where(end > begin, length, 0)


def _power_of_two_from(values: IntArray) -> IntArray:
    """Return the smallest powers of two that are not below `values`."""
    return np.asarray(1 << np.frexp(values - 1)[1].astype(np.int64))
