"""Check each step's numbers of running and waiting requests against arrivals, memory events and ends."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.policies import Radix
from kvsim.recording.check_replaced_units import replacing_rows
from kvsim.recording.check_times import Ends
from kvsim.recording.grouped import tables_of_groups
from kvsim.recording.model import Recording
from kvsim.recording.order import in_parts, sort_key
from kvsim.recording.rules import agree, require_of
from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus


class ResidencyRows(NamedTuple):
    """Rows of `memory.parquet` that begin residencies, and those that end them, each sorted by request, then by time.

    A residency is the time from an admission of a request to the release of its memory. A preempted request has
    several. A release and an allocation of one request with the same `seq` move its units, and neither end nor begin a
    residency here.
    """

    birth_row: IntArray
    birth_request: IntArray
    birth_seq: IntArray
    end_row: IntArray
    end_request: IntArray
    end_seq: IntArray
    end_step: IntArray

    @classmethod
    def of(cls, recording: Recording) -> ResidencyRows:
        """Find the rows that begin and end residencies in a recording."""
        memory = recording.memory
        if recording.meta.pool.groups:
            births = tables_of_groups(memory, len(recording.requests))[0].residencies.birth_row
        else:
            begins = (memory.position == 0) & (memory.kind <= MemoryKind.SHARE)
            births = np.flatnonzero(begins & ~replacing_rows(memory))
        rows, num_births = np.concatenate((births, memory.end_rows)), len(births)
        key = sort_key(memory.request[rows], memory.seq[rows])
        moments, first, number = np.unique(key, return_index=True, return_inverse=True)
        # Births minus ends of each request and moment: 0 for a move.
        change = np.bincount(number[:num_births], minlength=len(moments))
        change -= np.bincount(number[num_births:], minlength=len(moments))
        begins, leaves = rows[first[change > 0]], rows[first[change < 0]]
        return cls(
            begins, memory.request[begins], memory.seq[begins], leaves, memory.request[leaves], memory.seq[leaves],
            memory.step[leaves],
        )  # fmt: skip


def check_queue(recording: Recording, residencies: ResidencyRows, ends: Ends, file: Path) -> None:
    """Check the numbers of running and waiting requests that every step states."""
    steps = recording.steps
    moments = steps.schedule_seq
    if recording.meta.pool.num_units is None:  # a batch that runs as a whole
        agree(steps.running, steps.num_scheduled, file, "running", "num_scheduled")
    else:
        # An abort between two steps has the `seq` of the earlier step, and the number of the later one: the request
        # still ran in the earlier step.
        end_step, end_seq = residencies.end_step, residencies.end_seq
        end_moment = moments[np.minimum(end_step, len(steps) - 1)]
        end_seq = np.where(end_step < len(steps), np.maximum(end_seq, end_moment), end_seq)
        held = count_up_to(moments, residencies.birth_seq) - count_up_to(moments, end_seq)
        is_exact = recording.copies is None or recording.meta.policy_name == Radix.name
        if is_exact and not recording.meta.exchanges_kv:
            agree(steps.running, held, file, "running", "memory.parquet")
        else:  # a request that waits for a load, or whose blocks are still being copied, holds memory without running
            require_of(lambda rows: steps.running[rows] <= held[rows], steps, file,
                       "running should not be more requests than hold memory")  # fmt: skip
        del held
    status = recording.requests.status
    present = count_up_to(moments, recording.requests.arrival_seq[status != RequestStatus.REFUSED])
    present -= count_up_to(moments, _left_seq(recording, ends))
    for rows in in_parts(len(steps)):
        waiting = present[rows] - steps.running[rows]
        agree(steps.waiting[rows], waiting, file, "waiting", "requests.parquet", np.arange(rows.start, rows.stop))


def _left_seq(recording: Recording, ends: Ends) -> npt.NDArray[np.int64]:
    """Return the event numbers (`seq`) at which finished and aborted requests leave, in any order.

    A finished request leaves with its last output. A request that is aborted because its load failed leaves with the
    output that reports the failure. Any other aborted request leaves at the first step that starts at or after its
    `finished_s`; it has no entry if there is none.
    """
    requests, steps = recording.requests, recording.steps
    is_aborted, failed_seq = requests.status == RequestStatus.ABORTED, np.empty(0, np.int64)
    if (transfers := recording.transfers) is not None:
        # Steps without a batch may begin at one time: the report of the failed load says between which a request left.
        has_failed = (transfers.failed >= 0) & is_aborted[transfers.request]
        if recording.meta.engine.get("kv_load_failure_policy") == "fail":
            failed_seq = transfers.ended_seq[has_failed]
            is_aborted[transfers.request[has_failed]] = False
    following = np.searchsorted(steps.start_s, requests.finished_s[is_aborted])
    recorded = following[following < len(steps)]
    return np.concatenate((steps.output_seq[ends.step], failed_seq, steps.schedule_seq[recorded]))


def count_up_to(moments: IntArray, seq: IntArray) -> npt.NDArray[np.int64]:
    """Return, for each of `moments`, the number of entries of `seq` that are not larger. Both are event numbers.

    `moments` must ascend; `seq` may have any order.
    """
    count = np.bincount(np.searchsorted(moments, seq), minlength=len(moments) + 1)[:-1]
    return np.cumsum(count, out=count)
