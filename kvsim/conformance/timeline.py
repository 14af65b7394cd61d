"""The moments of a recording, in the order in which a simulated engine repeats them to be compared.

A moment is an arrival, a scheduled step, a processed output, a departure, or a call that scheduled nothing. It is named
by its index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kvsim.engine.moments import ADD, LEAVE, LOOK, NOTHING, SCHEDULE, UPDATE
from kvsim.recording import Recording, RequestStatus
from kvsim.recording.order import in_parts

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import IntArray


AnyScalar = TypeVar("AnyScalar", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class MomentTimeline:
    """All moments as columns of equal length, and the moment of each change of block tables."""

    kind: IntArray
    """Kind of each moment (`kvsim.engine.moments`).

    Changes of block tables that come from an abort between two other moments have a moment of kind `NOTHING`.
    """
    row: IntArray
    """Row of the request that arrives or leaves, or of the step that is scheduled or whose output is processed.

    For the kinds `NOTHING` and `LOOK` (a call that scheduled nothing), it is the row of the next recorded moment.
    """
    of_change: IntArray
    """Moment at which each memory row is compared. Memory rows after the last moment are left out."""
    breaks_off_at: int
    """First moment that no engine can repeat, because too many steps are in flight, or an output has no step.

    It is the number of moments if all can be repeated.
    """

    def __len__(self) -> int:
        return len(self.kind)


def timeline_of(recording: Recording, depth: int, *, has_every_step: bool) -> MomentTimeline:
    """Return the moments of a recording whose engine has at most `depth` steps in flight.

    With `has_every_step`, the recording also has steps for calls that scheduled nothing.
    """
    kind, row, seq = _recorded_moments(recording)
    # No engine can repeat a moment after which too many steps or fewer than none are in flight, or an output out of
    # turn. Arrays have an entry per moment, so their memory is freed early.
    in_flight = np.cumsum((kind == SCHEDULE).view(np.int8) - (kind == UPDATE).view(np.int8), dtype=np.int32)
    impossible = (in_flight > depth) | (in_flight < 0)
    is_output = kind == UPDATE
    next_output = np.cumsum(is_output, dtype=np.int32)
    next_output -= 1
    impossible |= is_output & (row != next_output)
    del is_output, next_output
    # An output that is processed before the pipeline is full follows a call that scheduled nothing.
    after_idle_call = (kind == UPDATE) & (in_flight < depth - 1) & (not has_every_step)
    del in_flight
    leaving, leaving_before = _leaving(recording, kind, row, after_idle_call)
    reporter, is_late = _reporting_moments(np.arange(len(kind), dtype=np.int32)[kind != ADD], seq, recording.memory.seq)
    del seq
    catches_up = np.zeros(len(kind), np.bool_)
    catches_up[reporter[is_late]] = True

    # Before a recorded moment, up to three kinds of moments are inserted, in this order: NOTHING, to compare changes
    # that came before it; LEAVE, for each request that was aborted before it; LOOK, a call that scheduled nothing.
    inserted = catches_up.astype(np.int32)
    inserted += after_idle_call
    np.add.at(inserted, leaving_before, np.int32(1))
    # Index of each recorded moment in the result.
    place = np.cumsum(inserted, dtype=np.int32)
    place += np.arange(len(kind), dtype=np.int32)
    kinds, rows = _spread(kind, inserted, place), _spread(row, inserted, place)
    kinds[place[catches_up] - inserted[catches_up]] = NOTHING
    kinds[place[after_idle_call] - 1] = LOOK
    nth = np.arange(len(leaving)) - np.searchsorted(leaving_before, leaving_before)
    at = place[leaving_before] - inserted[leaving_before] + catches_up[leaving_before] + nth
    kinds[at], rows[at] = LEAVE, leaving
    return MomentTimeline(
        kind=kinds,
        row=rows,
        of_change=place[reporter] - np.where(is_late, inserted[reporter], 0),
        breaks_off_at=int(place[np.argmax(impossible)]) if impossible.any() else len(kinds),
    )


def _spread(values: npt.NDArray[AnyScalar], inserted: IntArray, place: IntArray) -> npt.NDArray[AnyScalar]:
    """Return `np.repeat(values, inserted + 1)`, in less memory if few values are repeated.

    `place` is the index in the result of the last copy of each value.
    """
    spread = np.empty(int(place[-1]) + 1 if len(place) else 0, values.dtype)
    spread[place] = values
    several = np.flatnonzero(inserted)
    if len(several):
        is_free = np.ones(len(spread), np.bool_)
        is_free[place] = False
        spread[is_free] = np.repeat(values[several], inserted[several])
    return spread


def _recorded_moments(recording: Recording) -> tuple[IntArray, IntArray, IntArray]:
    """Return the kind, the row and the `seq` of every recorded moment, in their order."""
    requests, steps = recording.requests, recording.steps
    outputs = steps.output_seq
    if (requests.status == RequestStatus.UNFINISHED).any():
        # The recording ends before the run: outputs after its last step got their times later.
        outputs = outputs[outputs < steps.schedule_seq.max(initial=-1)]
    queued = np.flatnonzero(requests.status != RequestStatus.REFUSED)
    # Events with the same `seq` are handled in this order.
    columns = (
        (ADD, *_in_order(queued, requests.arrival_seq[queued])),
        (UPDATE, *_in_order(np.arange(len(outputs), dtype=np.int32), outputs)),
        (SCHEDULE, *_in_order(np.arange(len(steps), dtype=np.int32), steps.schedule_seq)),
    )
    size = sum(len(seq) for _, _, seq in columns)
    latest = max(int(seq.max(initial=0)) for seq in (*(seq for _, _, seq in columns), recording.memory.seq))
    narrow = np.int32 if latest <= np.iinfo(np.int32).max else np.int64
    kinds, rows = np.empty(size, np.int8), np.empty(size, np.int32)
    seqs: IntArray = np.empty(size, narrow)
    # Merge the three sorted columns: the place of an event is its index in its own column, plus the number of events in
    # the other columns that come before it.
    for number, (kind, row, seq) in enumerate(columns):
        for part in in_parts(len(seq)):
            place = np.arange(part.start, part.stop)
            for other, (_, _, others) in enumerate(columns):
                if other != number:
                    place += np.searchsorted(others, seq[part], side="right" if other < number else "left")
            kinds[place], rows[place], seqs[place] = kind, row[part], seq[part]
    return kinds, rows, seqs


def _in_order(rows: IntArray, seq: IntArray) -> tuple[IntArray, IntArray]:
    if (seq[1:] >= seq[:-1]).all():
        return rows, seq
    order = np.argsort(seq, kind="stable")
    return rows[order], seq[order]


def _reporting_moments(reporting: IntArray, seq: IntArray, changes: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Return the moment that reports each change of block tables, and whether the change came before that moment.

    `reporting` has the moments that report changes, `seq` the `seq` of each moment, and `changes` the `seq` of each
    change. Changes after the last reporting moment are left out, because they are never compared.
    """
    among = seq[reporting]
    num_reported = int(np.searchsorted(changes, among[-1], side="right")) if len(among) else 0
    reporter, is_late = np.empty(num_reported, np.int32), np.empty(num_reported, np.bool_)
    for part in in_parts(num_reported):
        some = changes[part].astype(seq.dtype)
        reporter[part] = reporting[np.searchsorted(among, some)]
        is_late[part] = seq[reporter[part]] != some
    return reporter, is_late


def _leaving(
    recording: Recording, kind: IntArray, row: IntArray, after_idle_call: npt.NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    """Return the aborted requests in the order in which they left, and for each the moment before which it left.

    That moment is the first call of the scheduler at or after the request's end. `kind` and `row` are those of the
    recorded moments. `after_idle_call` is True for each output that follows a call that scheduled nothing.
    """
    requests, steps = recording.requests, recording.steps
    left = (requests.status == RequestStatus.ABORTED) & np.isfinite(requests.finished_s)
    if (transfers := recording.transfers) is not None:
        failed = np.flatnonzero(transfers.failed >= 0)
        output = np.searchsorted(steps.output_seq, transfers.ended_seq[failed])
        told_s, request = np.append(steps.end_s, np.nan)[output], transfers.request[failed]
        left[request[requests.finished_s[request] == told_s]] = False  # the engine ends these itself
    leaving = np.flatnonzero(left)
    leaving = leaving[np.argsort(requests.finished_s[leaving], kind="stable")]
    calls = np.flatnonzero((kind == SCHEDULE) | after_idle_call)
    # An abort never comes between a call that scheduled nothing and the output after it.
    is_idle, of_step = after_idle_call[calls], row[calls]
    call_s = np.maximum.accumulate(np.where(is_idle, steps.end_s[of_step], steps.start_s[of_step]))
    call_seq = np.where(is_idle, steps.output_seq[of_step], steps.schedule_seq[of_step])
    call = np.searchsorted(call_s, requests.finished_s[leaving])
    there = call < len(calls)
    leaving, call = leaving[there], call[there]
    arrived = requests.arrival_seq[leaving] <= call_seq[call]
    return leaving[arrived], calls[call[arrived]]
