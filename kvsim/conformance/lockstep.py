"""Comparison of the paged policy with a recording of a real engine, in lockstep.

The recording gives the order in which requests arrived, steps were scheduled and outputs were processed. The simulated
engine decides everything else, and its decisions are compared.

The recording has no step for a call of the scheduler that scheduled nothing. Such calls are checked too. An engine
schedules steps until its pipeline is full, and then processes an output. So an output that is processed earlier shows
that a call before it had nothing to schedule.

Moments, the numbered events of the recording, are simulated in ranges. The events of both engines in a range are
compared as columns. Only the recording shows when a client aborted a request, so a range ends at every abort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.conformance.event_columns import EventColumns, changes_in_words, joined
from kvsim.conformance.follower import MAX_MOMENTS, Follower
from kvsim.conformance.recorded import Recorded
from kvsim.conformance.recorded_copies import CopiesInLockstep, Differing, RecordedCopies
from kvsim.conformance.recorded_transfers import TransfersInLockstep
from kvsim.conformance.verdict import Difference, Verdict, difference
from kvsim.engine.driver import has_machine_code
from kvsim.engine.initialization import memory_of
from kvsim.engine.machine_code.compiled import has_numba
from kvsim.engine.moments import LEAVE, LOOK, NOTHING, SCHEDULE, UPDATE
from kvsim.engine.paged.kv_cache import PAGED
from kvsim.engine.state import ABORTED, LOADING, PREEMPTED, RUNNING, WAITING
from kvsim.errors import RecordingError
from kvsim.recording import MemoryKind, Recording, RequestStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.conformance.event_columns import Change

_LIVE = (RUNNING, LOADING, WAITING, PREEMPTED)
_WORTH_LOADING, _WORTH_COMPILING = 2_000, 300_000
"""Smallest numbers of steps for which it saves time to load machine code from disk, and to compile it."""


def verify_recording(
    recording: Recording, progress: Callable[[int, int], None] | None = None, *, compiled: bool | None = None
) -> Verdict:
    """Simulate the engine of `recording`, and compare every decision up to the first difference.

    Compared at every step: the scheduled requests in order, with their tokens before and in this step; the blocks that
    each request allocated or shared, in order; releases, preemptions and (if recorded) evictions; the numbers of
    running and waiting requests and of free blocks.

    Args:
        recording: a recording of vLLM, or of a simulation of the paged policy.
        progress: function called from time to time with the number of compared steps and of all steps.
        compiled: True to run the engine as machine code, with the same verdict; None to do so if it saves time.

    Raises:
        RecordingError: the recording is not of a paged engine, or lacks data that the comparison needs.
    """
    recorded = Recorded(recording)
    if compiled is None:
        compiled = _is_worth_compiling(recorded)
    return _Lockstep(recorded, compiled=compiled).run(progress)


def _is_worth_compiling(recorded: Recorded) -> bool:
    num_steps, memory = len(recorded.recording.steps), memory_of(recorded.policy, recorded.connector)
    if memory is not PAGED or num_steps < _WORTH_LOADING:
        return False
    return has_machine_code(memory) or (num_steps >= _WORTH_COMPILING and has_numba())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Range:
    """Events of both engines from the last comparison up to, but not including, moment `end`."""

    end: int
    ours: EventColumns
    theirs: EventColumns
    differing_transfers: Differing | None
    """Copies or transfers at the last moment of the range, as recorded and as simulated; None if they are equal."""

    def first_difference(self) -> int | None:
        moment = self.ours.first_difference(self.theirs)
        return self.end - 1 if moment is None and self.differing_transfers is not None else moment


class _Lockstep:
    def __init__(self, recorded: Recorded, *, compiled: bool) -> None:
        self._recorded, self._timeline = recorded, recorded.timeline
        recording = self._recording = recorded.recording
        self._follower = Follower(recorded, compiled=compiled)
        self._driver = self._follower.driver
        self._transfers: list[CopiesInLockstep | TransfersInLockstep] = [
            each
            for each in (
                CopiesInLockstep(self._driver, RecordedCopies(recording)),
                TransfersInLockstep(self._driver, recording, self._timeline),
            )
            if each.has_copies
        ]
        self._names: list[str] = recording.requests.id.tolist()
        self._aborts: dict[int, int] = {}

    def run(self, progress: Callable[[int, int], None] | None) -> Verdict:
        verdict, done = Verdict(), 0
        while done < self._timeline.breaks_off_at:
            played = self._follow(done)
            moment = played.first_difference()
            verdict = self._with(verdict, played.ours, done, played.end if moment is None else moment)
            if moment is not None:
                return replace(verdict, difference=self._difference(played, moment))
            done = played.end
            if progress:
                progress(verdict.num_steps, len(self._recording.steps))
        return replace(verdict, difference=self._left_over() if done == len(self._timeline) else self._broken_off(done))

    def _follow(self, begin: int) -> _Range:
        """Simulate from moment `begin` to the next possible abort, but at most `MAX_MOMENTS` moments."""
        end = min(begin + MAX_MOMENTS, self._timeline.breaks_off_at)
        aborts = self._recorded.aborts(begin, end)
        end = int(aborts[0]) + 1 if len(aborts) else end
        differing: Differing | None = None
        if self._transfers:
            end, parts, differing = self._play_with_transfers(begin, end)
        else:
            end, parts = self._follower.play(begin, end)
        theirs = self._recorded.events(begin, end)
        if len(aborts) and end == aborts[0] + 1:
            parts += self._abort(end - 1, joined(parts).changes_at(end - 1), theirs.changes_at(end - 1))
        ours = joined(parts)
        if not self._recorded.has_evictions:
            theirs = replace(theirs, evicted=ours.evicted)
        return _Range(end=end, ours=ours, theirs=theirs, differing_transfers=differing)

    def _play_with_transfers(self, begin: int, end: int) -> tuple[int, list[EventColumns], Differing | None]:
        """Simulate the moments [begin, end) one by one, until copies or transfers differ.

        Return the moment after the last simulated one, the engine's events, and the differing copies or transfers;
        None if none differ.
        """
        parts: list[EventColumns] = []
        for moment in range(begin, end):
            kind, step = int(self._timeline.kind[moment]), int(self._timeline.row[moment])
            for each in self._transfers:
                if (found := each.before(kind, step)) is not None:
                    return moment + 1, parts, found
            after, done = self._follower.play(moment, moment + 1)
            parts += done
            for each in self._transfers:
                if (found := each.after(kind, step)) is not None:
                    return after, parts, found
        return end, parts, None

    def _abort(self, moment: int, done: list[Change], recorded: list[Change]) -> list[EventColumns]:
        """Abort requests in the simulated engine if aborts explain all changes at `moment` that the engine lacks.

        `done` has the simulated changes at `moment`, and `recorded` the recorded ones. Return the events of the aborts.
        """
        rest = recorded[len(done) :]
        if recorded[: len(done)] != done or not all(map(self._is_abort, rest)):
            return []
        parts = []
        for row in dict.fromkeys(row for _, row, _, _, _ in rest):
            parts.append(self._follower.abort(row, moment))
            self._aborts[row] = moment
        return parts

    def _is_abort(self, change: Change) -> bool:
        kind, row, _, _, _ = change
        aborted = bool(self._recording.requests.status[row] == RequestStatus.ABORTED)
        sequence = self._driver.sequence(row + 1)
        return kind == MemoryKind.RELEASE and aborted and sequence.status in _LIVE and sequence.num_units > 0

    def _with(self, verdict: Verdict, ours: EventColumns, begin: int, end: int) -> Verdict:
        ours, timeline = ours.before(end), self._timeline
        for moment in (begin + np.flatnonzero(timeline.kind[begin:end] == LEAVE)).tolist():
            row = int(timeline.row[moment])
            if self._driver.sequence(row + 1).status == ABORTED:
                self._aborts.setdefault(row, moment)
        return Verdict(
            num_steps=verdict.num_steps + len(ours.steps),
            num_allocations=verdict.num_allocations + int((ours.changes[:, 1] == MemoryKind.APPEND).sum()),
            num_preemptions=verdict.num_preemptions + int(ours.steps[:, 3].sum()),
            num_hits=verdict.num_hits + int((ours.changes[:, 1] == MemoryKind.SHARE).sum()),
            num_evictions=verdict.num_evictions + len(ours.evicted),
            num_aborts=sum(moment < end for moment in self._aborts.values()),
        )

    def _difference(self, played: _Range, moment: int) -> Difference:
        transfers: Differing = ({}, {})
        if played.differing_transfers is not None and moment == played.end - 1:
            transfers = played.differing_transfers
        recorded, done = (self._in_words(events, moment) for events in (played.theirs, played.ours))
        return difference(self._moment_in_words(moment), recorded | transfers[0], done | transfers[1])

    def _in_words(self, events: EventColumns, moment: int) -> dict[str, Any]:
        if events.has_step(moment):
            return events.step_at(moment, self._names)
        changes = changes_in_words(events.changes_at(moment), self._names)
        memory = {"memory": changes, "evicted": events.evicted_at(moment)} | events.images_at(moment, self._names)
        return {"preempted": 0, "scheduled": []} | memory if self._timeline.kind[moment] == LOOK else memory

    def _moment_in_words(self, moment: int) -> str:
        timeline, steps = self._timeline, self._recording.steps
        if timeline.kind[moment] in (NOTHING, LEAVE):
            return f"what came before {self._moment_in_words(moment + 1)}"
        row = int(timeline.row[moment])
        if timeline.kind[moment] == SCHEDULE:
            return f"step {row:,} (schedule_seq {steps.schedule_seq[row]:,})"
        output = f"the output of step {row:,} (output_seq {steps.output_seq[row]:,})"
        return f"a call before {output}" if timeline.kind[moment] == LOOK else output

    def _broken_off(self, moment: int) -> Difference:
        timeline = self._timeline
        before = timeline.kind[:moment]
        if timeline.kind[moment] == UPDATE:
            raise RecordingError(
                f"recording {self._recording.name!r}: the output of step {timeline.row[moment]} is processed out of "
                "turn; outputs come in the order of their steps."
            )
        begun, ended = int((before == SCHEDULE).sum()), int((before == UPDATE).sum())
        in_flight = [f"step {number:,}" for number in range(ended, begun)]
        recorded, most = {"in flight already": in_flight}, {"in flight already": in_flight[1:]}
        return difference(self._moment_in_words(moment), recorded, most)

    def _left_over(self) -> Difference | None:
        requests, ends_s = self._recording.requests, self._recording.steps.end_s
        num_outputs = int((self._timeline.kind == UPDATE).sum())
        # A recording that breaks off has requests that finished with outputs that are not compared.
        compared_s = ends_s[num_outputs] if num_outputs < len(ends_s) else np.inf
        finished = np.flatnonzero((requests.status == RequestStatus.FINISHED) & (requests.finished_s < compared_s))
        left = {number - 1 for number in (*self._driver.running(), *self._driver.waiting())}
        names = [self._names[row] for row in finished.tolist() if row in left]
        return difference("the end", {"unfinished": []}, {"unfinished": names}) if names else None
