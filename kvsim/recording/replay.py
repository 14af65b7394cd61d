"""Seek to any step of a recording: keyframes of the pool, and the few operations since the nearest one.

A frame is the state right after a step was scheduled; one more frame follows the last step, when everything has been
given back that was going to be. Stepping backward costs what stepping forward does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.memory.waste import NUM_STATES, SlotState, split_extent
from kvsim.recording.ledger import NOBODY, unfold, units_of_runs
from kvsim.recording.model import Recording
from kvsim.recording.progress import Progress
from kvsim.recording.rectangle import with_addresses
from kvsim.recording.tables import IntArray, RequestStatus

_UNITS_PER_KEYFRAME = 8_192
"""Units rewritten between two keyframes, where memory allows: about 50 microseconds of copying."""
_LONG_RUN_UNITS = 64
"""Mean length from which a run is faster to write as a slice than unit by unit."""
_KEYFRAME_BYTES = 256 << 20
"""What all keyframes together may cost."""
_POSITION_BITS = 40
"""Bits of a run's key that hold its position; above them stands the number of its table, one for each admission."""


class Replay:
    """The pool of a recording at any of its frames.

    After `seek`, the arrays `owner`, `position`, `refs` and `cached` (one entry per unit, in address order) describe
    the pool. Treat them as read-only; they change at the next seek.
    """

    def __init__(self, recording: Recording) -> None:
        """Index `recording` for seeking.

        Raises:
            RecordingError: it has no step to show.
        """
        if not len(recording.steps):
            raise RecordingError(f"recording {recording.name!r} has no steps, so there is nothing to replay.")
        self.recording = recording = with_addresses(recording)
        self.progress = Progress(recording)
        self.ledger = unfold(recording, self.progress)
        pool, steps = recording.meta.pool, recording.steps
        assert pool.num_units is not None  # with_addresses gave every recording a pool
        self.num_units: int = pool.num_units
        self.unit_tokens = pool.unit_tokens
        self.first_unit = pool.first_unit
        self.num_frames = len(steps) + 1
        self.frame_seq = np.append(steps.schedule_seq, max(steps.output_seq.max(), self.ledger.seq.max(initial=0)))
        self._frame_op = np.searchsorted(self.ledger.seq, self.frame_seq, side="right")
        self.pad = self._padding_per_request()
        self.full = self._full_per_request()

        self.frame = -1
        self.owner = np.full(self.num_units, NOBODY, np.int32)
        self.position = np.zeros(self.num_units, np.int64)
        self.refs = np.zeros(self.num_units, np.int32)
        self.cached = np.zeros(self.num_units, np.bool_)
        self._op = 0
        self._index_keyframes()
        self.seek(0)

    @property
    def time_s(self) -> float:
        """Time of the current frame."""
        return self.time_of(self.frame)

    def time_of(self, frame: int) -> float:
        """When `frame` begins, in seconds from the first event."""
        steps = self.recording.steps
        return float(steps.start_s[frame]) if frame < len(steps) else self.recording.duration_s

    def frame_at(self, time_s: float) -> int:
        """The last frame that has begun at `time_s`."""
        if time_s >= self.recording.duration_s:
            return self.num_frames - 1
        return max(0, int(np.searchsorted(self.recording.steps.start_s, time_s, side="right")) - 1)

    def seek(self, frame: int) -> None:
        """Make `frame` (clamped to the recording) the current one."""
        frame = min(max(frame, 0), self.num_frames - 1)
        target = int(self._frame_op[frame])
        keyframe = int(np.searchsorted(self._keyframe_op, target, side="right")) - 1
        if not self._keyframe_op[keyframe] <= self._op <= target:
            self.owner[:], self.position[:], self.refs[:], self.cached[:] = self._keyframes[keyframe]
            self._op = int(self._keyframe_op[keyframe])
        self._apply(target)
        self.frame = frame

    def touched(self, before: int, after: int) -> npt.NDArray[np.int64]:
        """Units whose picture may differ between two frames, each once, in address order."""
        low, high = sorted((before, after))
        units = self._units(self._frame_op[low], self._frame_op[high])[0]
        first_runs = self._live_first_runs()
        live = self.ledger.tables.request[first_runs].astype(np.int64)
        old, new = (self._computed(live, frame) for frame in (low, high))
        # Where a row ends and is written on, because its batch is, all of it turns into padding.
        old = np.where((old <= self.full[live]) & (new > self.full[live]), 0, old)
        growing = new > old
        written = self._units_written(first_runs[growing], old[growing], new[growing])
        return np.unique(np.concatenate((units, written)))

    def live_requests(self) -> npt.NDArray[np.int64]:
        """Requests that hold memory now, in the order in which they were admitted."""
        live: npt.NDArray[np.int64] = self.ledger.tables.request[self._live_first_runs()].astype(np.int64)
        return live

    def waiting_requests(self) -> npt.NDArray[np.int64]:
        """Requests that have arrived and hold no memory but will again, preempted ones first, then in order of
        arrival.
        """
        requests, seq = self.recording.requests, self.frame_seq[self.frame]
        arrived = (requests.arrival_seq <= seq) & (requests.status != RequestStatus.REFUSED)
        arrived[self.live_requests()] = False
        # The last thing that happens to a request is that its memory goes, or, if it never had any, that it is aborted.
        arrived &= (self._last_death > seq) & ~(requests.finished_s <= self.time_s)
        rows = np.flatnonzero(arrived)
        started = self._first_birth[rows] <= seq
        return rows[np.lexsort((requests.arrival_seq[rows], ~started))].astype(np.int64)

    def block_table(self, request: int) -> tuple[IntArray, IntArray]:
        """Logical positions and physical addresses of the units that `request` holds now."""
        positions, addresses, lengths = self.ledger.tables.held(request, int(self.frame_seq[self.frame]))
        run, offset = units_of_runs(lengths)
        return positions[run] + offset, addresses[run] + offset

    def computed(self, requests: IntArray) -> npt.NDArray[np.int64]:
        """Tokens computed so far for each of `requests`, which must hold memory."""
        return self._computed(requests, self.frame)

    def slots(self, units: IntArray | slice = slice(None)) -> npt.NDArray[np.int64]:
        """The slots of each unit by state: shape (units, 7), every row adding up to the unit's size.

        `units` are indices from 0, in address order. The state `external` of free units is a property of the whole
        pool and the queue, so it is not seen here: such units are `free`.
        """
        owner, cached = self.owner[units], self.cached[units]
        begin = self.position[units] * self.unit_tokens
        held = np.flatnonzero(owner != NOBODY)
        slots = np.zeros((len(owner), NUM_STATES), np.int64)
        slots[:, SlotState.FREE] = self.unit_tokens
        slots[cached, SlotState.FREE], slots[cached, SlotState.CACHED] = 0, self.unit_tokens
        requests = owner[held].astype(np.int64)
        live = self.live_requests()
        computed = np.zeros(len(self.full), np.int64)
        computed[live] = self._computed(live, self.frame)
        slots[held] = split_extent(
            begin[held],
            begin[held] + self.unit_tokens,
            pad=self.pad[requests],
            full=self.full[requests],
            # Only full units are ever shared, whoever counts as their owner.
            computed=np.where(self.refs[units][held] > 1, begin[held] + self.unit_tokens, computed[requests]),
            requested=self._requested[requests],
        )
        return slots

    def _computed(self, requests: IntArray, frame: int) -> npt.NDArray[np.int64]:
        return self.progress.computed(requests, min(frame, self.num_frames - 2))

    def _live_first_runs(self) -> npt.NDArray[np.int64]:
        """The run with which each table of the current frame begins, in order of admission."""
        tables, seq = self.ledger.tables, self.frame_seq[self.frame]
        alive = (tables.birth_seq[self._first_runs] <= seq) & (tables.death_seq[self._first_runs] > seq)
        first_runs: npt.NDArray[np.int64] = self._first_runs[alive]
        return first_runs

    def _units_written(
        self, first_runs: npt.NDArray[np.int64], old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The units in which the slots [old, new) now stand of the tables that begin with `first_runs`."""
        tables, seq = self.ledger.tables, self.frame_seq[self.frame]
        low, high = old // self.unit_tokens, -(-new // self.unit_tokens)
        table_key = self._run_key[first_runs]
        first = np.searchsorted(self._run_key, table_key + low, side="right") - 1
        last = np.searchsorted(self._run_key, table_key + high, side="left")
        span, nth = units_of_runs(last - first)
        rows = first[span] + nth
        # Stepping backward, a table is shorter now than the slots that it had.
        born = tables.birth_seq[rows] <= seq
        span, rows = span[born], rows[born]
        begin = np.maximum(tables.position[rows], low[span])
        end = np.minimum(tables.position[rows] + tables.length[rows], high[span])
        run, offset = units_of_runs(np.maximum(end - begin, 0))
        address: npt.NDArray[np.int64] = tables.address[rows] + begin - tables.position[rows]
        return address[run] + offset - self.first_unit

    def _padding_per_request(self) -> npt.NDArray[np.int64]:
        """Pad slots in front of each request's tokens: in a static batch, what its first step computed beyond its
        prompt.
        """
        if self.recording.meta.policy_name != "static":
            return np.zeros(len(self.recording.requests), np.int64)
        pad: npt.NDArray[np.int64] = np.maximum(self.progress.first_tokens - self.recording.requests.prompt_tokens, 0)
        return pad

    def _full_per_request(self) -> npt.NDArray[np.int64]:
        """Where each request's last live token stands. The last token that a request generates is never written."""
        requests = self.recording.requests
        if self.recording.meta.policy_name != "static":
            return self.progress.final
        full: npt.NDArray[np.int64] = self.pad + np.maximum(requests.prompt_tokens + requests.output_tokens - 1, 0)
        return full

    def _index_keyframes(self) -> None:
        ledger, tables = self.ledger, self.ledger.tables
        num_requests = len(self.recording.requests)
        # One run per table, in order of admission: looking at every run of a long recording takes milliseconds.
        begins = tables.position == 0
        first_runs = np.flatnonzero(begins)
        self._first_runs: npt.NDArray[np.int64] = first_runs[np.argsort(tables.birth_row[first_runs])]
        # Runs ascend by table and then by position, so that any position of any table is found at once.
        self._run_key: npt.NDArray[np.int64] = np.cumsum(begins) << _POSITION_BITS | tables.position
        self._first_birth = np.full(num_requests, np.iinfo(np.int64).max)
        np.minimum.at(self._first_birth, tables.request, tables.birth_seq)
        # A request that never held memory is still waiting at the end.
        self._last_death = np.full(num_requests, -1, np.int64)
        np.maximum.at(self._last_death, tables.request, tables.death_seq)
        self._last_death[self._last_death < 0] = np.iinfo(np.int64).max
        self._requested = np.zeros(num_requests, np.int64)
        np.maximum.at(self._requested, tables.request, (tables.position + tables.requested) * self.unit_tokens)

        self._long_runs = not ledger.unit_by_unit and int(ledger.length.sum()) > _LONG_RUN_UNITS * len(ledger.length)
        frame_bytes = sum(array.nbytes for array in (self.owner, self.position, self.refs, self.cached))
        written = int(ledger.length.sum())
        count = max(1, min(written // _UNITS_PER_KEYFRAME, _KEYFRAME_BYTES // frame_bytes))
        boundaries = np.searchsorted(np.cumsum(ledger.length), np.arange(count) * (written / count))
        self._keyframe_op = np.unique(np.concatenate(([0], boundaries)))
        self._keyframes = []
        for op in self._keyframe_op:
            self._apply(int(op))
            self._keyframes.append((self.owner.copy(), self.position.copy(), self.refs.copy(), self.cached.copy()))

    def _apply(self, target: int) -> None:
        """Apply the operations up to `target`, all at once: where a unit is named twice, the later assignment
        stands.
        """
        if target == self._op:
            return
        if self._long_runs:
            self._apply_runs(target)
        else:
            units, op, offset = self._units(self._op, target)
            ledger = self.ledger
            self.owner[units] = ledger.owner[op]
            self.position[units] = ledger.position[op] + offset
            self.refs[units] = ledger.refs[op]
            self.cached[units] = ledger.cached[op]
        self._op = target

    def _apply_runs(self, target: int) -> None:
        """The same, run by run: a reservation of thousands of slots is one slice, not thousands of indices."""
        ledger = self.ledger
        for op in range(self._op, target):
            begin, length = int(ledger.address[op]) - self.first_unit, int(ledger.length[op])
            run, position = slice(begin, begin + length), int(ledger.position[op])
            self.owner[run] = ledger.owner[op]
            self.position[run] = np.arange(position, position + length)
            self.refs[run] = ledger.refs[op]
            self.cached[run] = ledger.cached[op]

    def _units(self, begin: int, end: int) -> tuple[npt.NDArray[np.int64], IntArray | slice, IntArray | int]:
        """The units that the operations [begin, end) touch, with each one's operation and its offset in the run."""
        address, length = self.ledger.address[begin:end], self.ledger.length[begin:end]
        if self.ledger.unit_by_unit:
            return (address - self.first_unit).astype(np.int64), slice(begin, end), 0
        run, offset = units_of_runs(length)
        return (address[run] + offset - self.first_unit).astype(np.int64), run + begin, offset
