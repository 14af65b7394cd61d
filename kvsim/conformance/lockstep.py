"""The paged policy in lockstep with a recording of a real engine.

The recording says in which order requests arrived, steps were scheduled and outputs were processed; everything else is
decided here and compared. Calls that scheduled nothing left no step behind. They decide nothing either, but the loop of
the engine rests on them: it looks at an output before its pipeline is full only where there was nothing more to
schedule, and that is checked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.conformance.changes import Change, Changes
from kvsim.conformance.oracle_files import OFFLOAD_BLOCK_BYTES
from kvsim.conformance.recorded import Event, Recorded
from kvsim.conformance.recorded_copies import CopiesInLockstep, RecordedCopies
from kvsim.conformance.verdict import Difference, Verdict, difference
from kvsim.conformance.words import StepFacts, changes_in_words, step_in_words
from kvsim.engine.driver import Driver
from kvsim.engine.packing import Demand, no_times, pack
from kvsim.engine.prefix_keys import PrefixKeys
from kvsim.engine.state import LOADING, PREEMPTED, RUNNING, WAITING
from kvsim.errors import RecordingError
from kvsim.policies import Paged
from kvsim.recording import MemoryKind, Recording, RequestStatus
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable

_REPORTS = 200
"""How often progress is reported over a recording."""


def verify_recording(
    recording: Recording, progress: Callable[[int, int], None] | None = None, *, compiled: bool = False
) -> Verdict:
    """Replay `recording` and compare every decision.

    Compared are, at every step: which requests, in which order, how many tokens after how many; the blocks that each
    got or shared, in order; releases, preemptions and (where written down) evictions; how many run, wait and are free.

    Args:
        recording: of vLLM, or of a simulation of the paged policy.
        progress: called now and then with the number of steps compared, and of all.
        compiled: run the engine as machine code; the verdict is the same.

    Raises:
        RecordingError: it is no recording of a paged engine, or lacks what a comparison needs.
    """
    return _Lockstep(Recorded(recording), compiled=compiled).run(progress)


class _Lockstep:
    def __init__(self, recorded: Recorded, *, compiled: bool) -> None:
        self._recorded = recorded
        recording = self._recording = recorded.recording
        settings = recorded.scheduler
        demand = _demand(recorded)
        engine = pack(
            demand,
            Paged(scheduler=settings, cache=recorded.cache),
            recorded.num_blocks - 1,
            no_times(),
            refused=np.asarray(recording.requests.status == RequestStatus.REFUSED),
            unit_bytes=OFFLOAD_BLOCK_BYTES,
            initial_free=recorded.initial_free,
            layout=recorded.layout,
            copies_are_timed=False,
            records_memory=True,
            compiled=compiled,
        )
        self._driver = Driver(engine, compiled=compiled)
        self._state = engine.state[0]
        self._changes = Changes(self._driver, tell_lengths=recorded.tells_lengths)
        self._copies = CopiesInLockstep(self._driver, RecordedCopies(recording))
        self._depth = 2 if settings.async_scheduling else 1
        self._names: list[str] = recording.requests.id.tolist()
        self._arrived: set[int] = set()
        self._in_flight: deque[int] = deque()
        self._next_change = 0
        self._aborts_due = recorded.aborts_by_time()
        self._num_steps = self._num_preemptions = self._num_aborts = 0

    def run(self, progress: Callable[[int, int], None] | None) -> Verdict:
        num_steps = len(self._recording.steps)
        verdict = self._equal_so_far()
        for event, row, seq in self._recorded.events():
            found: Difference | None = None
            match event:
                case Event.ARRIVAL:
                    self._arrive(row)
                case Event.SCHEDULE:
                    found = self._schedule(row, seq)
                    if progress and (row * _REPORTS // num_steps != (row - 1) * _REPORTS // num_steps):
                        progress(row, num_steps)
                case Event.OUTPUT:
                    found = self._output(row, seq)
            if found is not None:
                return replace(verdict, difference=found)
            verdict = self._equal_so_far()
        return replace(verdict, difference=self._left_over())

    def _equal_so_far(self) -> Verdict:
        return Verdict(
            num_steps=self._num_steps,
            num_allocations=self._changes.num_allocations,
            num_preemptions=self._num_preemptions,
            num_hits=self._changes.num_hits,
            num_evictions=self._changes.num_evictions,
            num_aborts=self._num_aborts,
        )

    def _arrive(self, row: int) -> None:
        if self._recording.requests.status[row] != RequestStatus.REFUSED:
            self._arrived.add(row)
            self._driver.add(row + 1)

    def _schedule(self, step: int, seq: int) -> Difference | None:
        """Schedule as the recorded engine did, and compare."""
        moment = f"step {step:,} (schedule_seq {seq:,})"
        if found := self._catch_up(seq - 1):
            return found
        if len(self._in_flight) >= self._depth:
            waiting_for = [f"step {number:,}" for number in self._in_flight]
            return difference(moment, {"in flight already": waiting_for}, {"in flight already": waiting_for[1:]})
        self._abort_by_time(float(self._recording.steps.start_s[step]))
        self._driver.schedule()
        self._changes.take()
        self._in_flight.append(step)
        self._num_preemptions += self._state.num_preempted
        self._next_change, expected, evicted = self._recorded.changes(self._next_change, seq)
        changes = self._changes.drain()
        ours, theirs = self._facts(), self._recorded.step_facts(step, evicted)
        copies, told_copies = self._copies.decided(), self._copies.recorded(step)
        if ours != theirs or copies != told_copies or not self._equal_but_for_aborts(changes, expected):
            told = step_in_words(theirs, expected, self._names) | told_copies
            return difference(moment, told, step_in_words(ours, changes, self._names) | copies)
        self._num_steps += 1
        return None

    def _output(self, step: int, seq: int) -> Difference | None:
        """Process the output of `step`, and compare who leaves."""
        moment = f"the output of step {step:,} (output_seq {seq:,})"
        if found := self._catch_up(seq - 1):
            return found
        if not self._in_flight or self._in_flight[0] != step:
            raise RecordingError(
                f"recording {self._recording.name!r}: the output of step {step} is processed out of turn; outputs come "
                "in the order of their steps."
            )
        if self._is_a_call_missing() and (found := self._schedule_nothing(f"a call before {moment}")):
            return found
        self._in_flight.popleft()
        if unknown := self._copies.report(step):
            return difference(moment, {"copies reported": unknown}, {"copies reported": []})
        self._driver.update()
        self._copies.settle(step)
        self._changes.take()
        self._next_change, expected, _ = self._recorded.changes(self._next_change, seq)
        return self._compare_changes(moment, expected)

    def _is_a_call_missing(self) -> bool:
        """Whether the engine has looked for more to schedule, and left no step behind; with an offload it does."""
        return self._recording.copies is None and len(self._in_flight) < self._depth

    def _schedule_nothing(self, moment: str) -> Difference | None:
        """Make the call that left no step behind: it must find nothing to do."""
        self._driver.schedule()
        self._changes.take()
        if not self._state.num_in_batch and not self._state.num_preempted:
            self._driver.forget_last()
            return None
        ours = step_in_words(self._facts(), self._changes.drain(), self._names)
        return difference(moment, {"preempted": 0, "scheduled": [], "memory": []}, ours)

    def _facts(self) -> StepFacts:
        batch, state = self._driver.batch(), self._state
        evicted = self._changes.drain_evicted()
        return StepFacts(
            requests=[node - 1 for node in batch],
            tokens=list(batch.values()),
            computed_before=[int(self._driver.sequence(node).computed) - tokens for node, tokens in batch.items()],
            evicted=evicted if self._recorded.tells_evictions else [],
            running=int(state.num_running),
            waiting=int(state.num_waiting),
            free=int(state.num_free) if self._recorded.tells_free else -1,
            preempted=int(state.num_preempted),
        )

    def _catch_up(self, seq: int) -> Difference | None:
        """Whatever changed between the moments that `seq` counts: requests were aborted."""
        self._next_change, expected, _ = self._recorded.changes(self._next_change, seq)
        return self._compare_changes(f"seq {seq:,}", expected) if expected else None

    def _compare_changes(self, moment: str, expected: list[Change]) -> Difference | None:
        changes = self._changes.drain()
        if self._equal_but_for_aborts(changes, expected):
            return None
        told = {"memory": changes_in_words(expected, self._names)}
        return difference(moment, told, {"memory": changes_in_words(changes, self._names)})

    def _equal_but_for_aborts(self, changes: list[Change], expected: list[Change]) -> bool:
        """Whether `changes` are as `expected`; aborts that are expected after them are done now."""
        if expected == changes:
            return True
        rest = expected[len(changes) :]
        if not rest or expected[: len(changes)] != changes or not all(map(self._is_abort, rest)):
            return False
        for row in dict.fromkeys(row for _, row, _, _, _ in rest):
            self._abort(row)
        return self._changes.drain() == rest

    def _is_abort(self, change: Change) -> bool:
        kind, row, _, _, _ = change
        aborted = bool(self._recording.requests.status[row] == RequestStatus.ABORTED)
        return kind == MemoryKind.RELEASE and aborted and self._stands(row, RUNNING)

    def _abort_by_time(self, now_s: float) -> None:
        """Abort what should be gone by `now_s` and holds no memory, whose release would tell just when."""
        while self._aborts_due and self._aborts_due[-1][0] <= now_s:
            row = self._aborts_due.pop()[1]
            # With an offload, a release comes when it can, and does not tell when its request left.
            told_late = (RUNNING, LOADING) if self._recording.copies is not None else ()
            if any(self._stands(row, status) for status in (WAITING, PREEMPTED, *told_late)):
                self._abort(row)

    def _stands(self, row: int, status: int) -> bool:
        """Whether a request has arrived and its sequence has this status."""
        return row in self._arrived and bool(self._driver.sequence(row + 1).status == status)

    def _abort(self, row: int) -> None:
        self._driver.abort(row + 1)
        self._changes.take()
        self._num_aborts += 1

    def _left_over(self) -> Difference | None:
        """Requests that have finished in the recording and not here."""
        finished = np.flatnonzero(self._recording.requests.status == RequestStatus.FINISHED)
        left = {node - 1 for node in (*self._driver.running(), *self._driver.waiting())}
        names = [self._names[row] for row in finished.tolist() if row in left]
        return difference("the end", {"unfinished": []}, {"unfinished": names}) if names else None


def _demand(recorded: Recorded) -> Demand:
    """What the recorded engine was asked for."""
    requests, block_size, longest = (
        recorded.recording.requests,
        recorded.cache.block_size,
        recorded.scheduler.max_model_len,
    )
    prompt = requests.prompt_tokens.astype(np.int64)
    # Where no limit is given, vLLM goes on to the longest sequence.
    limit = np.where(requests.max_tokens < 1, longest - prompt, requests.max_tokens).astype(np.int64)
    # A request that did not finish did not stop by itself either.
    output = np.where(requests.status == RequestStatus.FINISHED, requests.output_tokens, limit)
    keys = PrefixKeys(block_size)
    return Demand(
        prompt=prompt,
        output=np.minimum(np.minimum(output, limit), np.maximum(longest - prompt, 1)).astype(np.int64),
        limit=limit,
        priority=requests.priority.astype(np.int64),
        arrival_s=np.array(recorded.arrival_ranks()),
        keys=Ragged.from_rows(
            [
                keys.from_hashes(requests.prompt_hashes[row].tolist(), block_size, int(prompt[row]))
                for row in range(len(requests))
            ],
            np.int64,
        ),
    )
