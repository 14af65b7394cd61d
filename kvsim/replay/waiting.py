"""Find the requests that wait after any event of a recording: they have arrived, hold no memory and have not ended."""

from __future__ import annotations

import numpy as np

from kvsim.recording.model import Recording
from kvsim.recording.tables import IntArray, RequestStatus
from kvsim.replay.ledger import Ledger
from kvsim.replay.progress import Progress
from kvsim.replay.unit_slots import Numbers

_NEVER = np.iinfo(np.int64).max


class Waiting:
    """Lookup of waiting requests, in a time that does not grow with the recording."""

    def __init__(self, recording: Recording, ledger: Ledger, progress: Progress) -> None:
        self._requests, held = recording.requests, ledger.tables.residencies
        self._first_held = np.full(len(recording.requests), _NEVER, np.int64)
        """`seq` of the event with which each request first held memory: -1 before the recording, `_NEVER` if never."""
        np.minimum.at(self._first_held, held.request, held.birth_seq)
        self._first_held[progress.initial > 0] = -1
        self._gone_at = self._ends(recording, ledger)
        """Number (`seq`) of the event after which each request waits no more; see `_ends`."""
        self._all_gone_at = np.maximum.accumulate(self._gone_at)
        self._none_came_by = np.minimum.accumulate(self._requests.arrival_seq[::-1])[::-1]

    @staticmethod
    def _ends(recording: Recording, ledger: Ledger) -> Numbers:
        """Return, for each request, the number (`seq`) of the event after which it waits no more, because it has left.

        This is the last release of its memory or, if it ended while it was preempted, the output with which it ended.
        It is -1 for a request that was refused, and `_NEVER` for others that never held memory or have not ended.
        """
        requests, steps, held = recording.requests, recording.steps, ledger.tables.residencies
        # A request that never held memory waits at the end, unless it was refused.
        gone_at = np.full(len(requests), _NEVER, np.int64)
        gone_at[held.request] = -1
        np.maximum.at(gone_at, held.request, held.death_seq)
        gone_at[requests.status == RequestStatus.REFUSED] = -1
        # A preempted request may end while it waits, with the output of a step that was in flight.
        queued = np.flatnonzero((requests.preemptions > 0) & np.isin(gone_at, steps.schedule_seq))
        output = np.minimum(np.searchsorted(steps.end_s, requests.finished_s[queued]), len(steps) - 1)
        gone_at[queued] = np.maximum(gone_at[queued], steps.output_seq[output])
        # A request that is preempted when the recording ends still waits.
        gone_at[requests.status == RequestStatus.UNFINISHED] = _NEVER
        return gone_at

    def at(self, seq: int, time_s: float, live: IntArray) -> Numbers:
        """Return the requests that wait after event `seq`, at `time_s`: preempted ones first, each in order of arrival.

        `live` are the requests that hold memory at that time.
        """
        requests = self._requests
        # All requests before the window have left, and none after it has arrived.
        begin, end = (np.searchsorted(edge, seq, "right") for edge in (self._all_gone_at, self._none_came_by))
        window = slice(begin, max(begin, end))
        waits = (requests.arrival_seq[window] <= seq) & (self._gone_at[window] > seq)
        waits &= ~(requests.finished_s[window] <= time_s)
        rows = begin + np.flatnonzero(waits)
        rows = rows[~np.isin(rows, live)]
        started = self._first_held[rows] <= seq
        waiting: Numbers = rows[np.lexsort((requests.arrival_seq[rows], ~started))].astype(np.int64)
        return waiting
