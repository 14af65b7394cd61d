"""The moments of a recording in order: what an engine that follows it is told to do, and when changes are looked at."""

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
class Timeline:
    """All moments, in columns of equal length, and which of them the changes of ownership belong to."""

    kind: IntArray
    """See `kvsim.engine.moments`. A `NOTHING` is where changes stand between two moments: requests were aborted."""
    row: IntArray
    """The request that arrives or leaves, or the step that is scheduled, or whose output is processed."""
    of_change: IntArray
    """The moment at which each row of the memory table is compared; rows behind the last moment have none."""
    breaks_off_at: int
    """The first moment that no engine can follow: its pipeline is full, or nothing is in flight; or their number."""

    def __len__(self) -> int:
        return len(self.kind)


def timeline_of(recording: Recording, depth: int, *, tells_every_step: bool) -> Timeline:
    """The moments of `recording`, whose engine has at most `depth` steps in flight.

    Where it does not tell every step, calls that scheduled nothing left none behind.
    """
    kind, row, seq = _told(recording)
    in_flight = np.cumsum((kind == SCHEDULE).view(np.int8) - (kind == UPDATE).view(np.int8), dtype=np.int32)
    """Steps in flight behind each moment."""
    impossible = (in_flight > depth) | (in_flight < 0)
    ended = kind == UPDATE
    in_turn = np.cumsum(ended, dtype=np.int32)
    in_turn -= 1
    impossible |= ended & (row != in_turn)
    del ended, in_turn
    # Before an output is looked at although the pipeline is not full, nothing more was found to schedule.
    looks = (kind == UPDATE) & (in_flight < depth - 1) & (not tells_every_step)
    del in_flight  # as long as all moments, as is much of what follows
    taker, is_late = _takers(np.arange(len(kind), dtype=np.int32)[kind != ADD], seq, recording.memory.seq)
    del seq
    catches_up = np.zeros(len(kind), np.bool_)
    catches_up[taker[is_late]] = True
    leaving, leaving_before = _leaving(recording)
    leaving_before = np.flatnonzero(kind == SCHEDULE)[leaving_before]

    inserted = catches_up.astype(np.int32)
    inserted += looks
    np.add.at(inserted, leaving_before, np.int32(1))
    place = np.cumsum(inserted, dtype=np.int32)
    """The index of each moment, behind what is inserted before it."""
    place += np.arange(len(kind), dtype=np.int32)
    kinds, rows = _spread(kind, inserted, place), _spread(row, inserted, place)
    kinds[place[catches_up] - inserted[catches_up]] = NOTHING
    kinds[place[looks] - 1] = LOOK
    nth = np.arange(len(leaving)) - np.searchsorted(leaving_before, leaving_before)
    at = place[leaving_before] - inserted[leaving_before] + catches_up[leaving_before] + nth
    kinds[at], rows[at] = LEAVE, leaving
    return Timeline(
        kind=kinds,
        row=rows,
        of_change=place[taker] - np.where(is_late, inserted[taker], 0),
        breaks_off_at=int(place[np.argmax(impossible)]) if impossible.any() else len(kinds),
    )


def _spread(values: npt.NDArray[AnyScalar], inserted: IntArray, place: IntArray) -> npt.NDArray[AnyScalar]:
    """What `np.repeat(values, inserted + 1)` returns, in less memory where little is inserted; the last stands at
    `place`.
    """
    spread = np.empty(int(place[-1]) + 1 if len(place) else 0, values.dtype)
    spread[place] = values
    several = np.flatnonzero(inserted)
    if len(several):
        is_free = np.ones(len(spread), np.bool_)
        is_free[place] = False
        spread[is_free] = np.repeat(values[several], inserted[several])
    return spread


def _told(recording: Recording) -> tuple[IntArray, IntArray, IntArray]:
    """Every arrival, output and scheduled step in order: what it is, its row in its table, its `seq`."""
    requests, steps = recording.requests, recording.steps
    outputs = steps.output_seq
    if (requests.status == RequestStatus.UNFINISHED).any():
        # The recording ends before the run: outputs after the last step were under way, and were dated afterwards.
        outputs = outputs[outputs < steps.schedule_seq.max(initial=-1)]
    queued = np.flatnonzero(requests.status != RequestStatus.REFUSED)
    # What comes together is handled in this order.
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
    for number, (kind, row, seq) in enumerate(columns):
        for part in in_parts(len(seq)):
            place = np.arange(part.start, part.stop)
            for other, (_, _, others) in enumerate(columns):
                if other != number:
                    place += np.searchsorted(others, seq[part], side="right" if other < number else "left")
            kinds[place], rows[place], seqs[place] = kind, row[part], seq[part]
    return kinds, rows, seqs


def _in_order(rows: IntArray, seq: IntArray) -> tuple[IntArray, IntArray]:
    """Rows of a table, and their `seq`, in the order of that; as a rule they stand so already."""
    if (seq[1:] >= seq[:-1]).all():
        return rows, seq
    order = np.argsort(seq, kind="stable")
    return rows[order], seq[order]


def _takers(taking: IntArray, seq: IntArray, changes: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """For each change of ownership, which of the moments `taking` it is told with, and whether it came before that.

    Changes behind the last of these moments, which are never compared, are left out.
    """
    among = seq[taking]
    num_told = int(np.searchsorted(changes, among[-1], side="right")) if len(among) else 0
    taker, is_late = np.empty(num_told, np.int32), np.empty(num_told, np.bool_)
    for part in in_parts(num_told):
        some = changes[part].astype(seq.dtype)
        taker[part] = taking[np.searchsorted(among, some)]
        is_late[part] = seq[taker[part]] != some
    return taker, is_late


def _leaving(recording: Recording) -> tuple[IntArray, IntArray]:
    """Aborted requests in the order in which they left, and the first step that began no earlier."""
    requests, steps = recording.requests, recording.steps
    rows = np.flatnonzero((requests.status == RequestStatus.ABORTED) & np.isfinite(requests.finished_s))
    rows = rows[np.argsort(requests.finished_s[rows], kind="stable")]
    step = np.searchsorted(np.maximum.accumulate(steps.start_s), requests.finished_s[rows])
    there = step < len(steps)
    rows, step = rows[there], step[there]
    arrived = requests.arrival_seq[rows] <= steps.schedule_seq[step]
    return rows[arrived], step[arrived]
