"""Requests on their way in, and the count of those on their way out."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

from kvsim.errors import BudgetError, WorkloadError
from kvsim.importers.recordings import HASH_TOKENS
from kvsim.policies import Paged, Policy
from kvsim.recording import RequestStatus
from kvsim.scheduling.keys import knows_prefixes, prompt_keys
from kvsim.scheduling.sequence import Sequence
from kvsim.simulation.recorder import Recorder
from kvsim.workload import Workload

ProgressCallback = Callable[[int, int], None]
"""Called now and then with the number of requests that have ended, and of all."""
_REPORTS = 200
"""How often progress is reported over a run."""


def hash_tokens(workload: Workload, policy: Policy) -> int:
    """Tokens that each prompt hash of a recording stands for.

    Where memory is handed out slot by slot, no prefix is ever looked up: it is only passed on, as it was given.
    """
    return policy.unit_tokens if isinstance(policy, Paged) else workload.hash_unit_tokens


def provenance_of_hashes(workload: Workload, policy: Policy) -> dict[str, int]:
    """What a recording should say of its prompt hashes: nothing, where each is of a unit of the pool."""
    tokens = hash_tokens(workload, policy)
    return {HASH_TOKENS: tokens} if tokens != policy.unit_tokens and knows_prefixes(workload) else {}


def _at_once(_prompt_tokens: int) -> float:
    return 0.0


class Gate(Protocol):
    """Whatever can say whether a sequence could ever be served."""

    def fits(self, sequence: Sequence) -> bool:
        """Whether the whole pool, all for itself, would see `sequence` to its end."""


class Arrivals:
    """The workload as sequences, in order, each handed over once."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        recorder: Recorder,
        *,
        refuse_misfits: bool,
        concurrency: int | None,
        stamp_at_entry: bool,
        progress: ProgressCallback | None,
    ) -> None:
        """Queue up the workload; see `simulate` for the settings."""
        self._workload = workload
        self._recorder = recorder
        self._refuse_misfits = refuse_misfits
        self._progress = progress
        self._max_model_len = policy.max_model_len
        self._unit_tokens = policy.unit_tokens
        self.hash_tokens = hash_tokens(workload, policy)
        """Tokens that each prompt hash of the recording stands for."""
        self._keys = prompt_keys(workload, self.hash_tokens) if knows_prefixes(workload) else None
        self._stamp_at_entry = stamp_at_entry
        self._closed_loop = concurrency is not None
        self._limit = len(workload) if concurrency is None else concurrency
        self._times: list[float] = [0.0] * len(workload) if concurrency is not None else workload.arrival_s.tolist()
        # One at a time, numbers come out of an array faster than out of a numpy column.
        self._prompt_tokens, self._output_tokens, self._max_tokens, self._priority = (
            array("i", column.tobytes())
            for column in (workload.prompt_tokens, workload.output_tokens, workload.max_tokens, workload.priority)
        )
        self._next = 0
        self._num_ended = 0
        self._refused: frozenset[int] = frozenset()

    def check(self, gate: Gate) -> None:
        """Find the requests that could never be served; they are refused if that is allowed.

        Raises:
            WorkloadError: one is longer than the longest sequence that is allowed.
            BudgetError: one needs more than the whole pool.
        """
        refused = []
        for row in range(len(self._workload)):
            try:
                self._check(self._sequence(row), gate)
            except (WorkloadError, BudgetError):
                if not self._refuse_misfits:
                    raise
                refused.append(row)
        self._refused = frozenset(refused)

    @property
    def next_s(self) -> float | None:
        """When the next request arrives; None when all have."""
        return self._times[self._next] if self._next < len(self._times) else None

    @property
    def visible_s(self) -> float:
        """When the next request will be handed over; infinity if that takes somebody to end, or nobody is left."""
        next_row = self._next
        if next_row < len(self._times) and next_row - self._num_ended < self._limit:
            return self._times[next_row]
        return math.inf

    def until(self, time_s: float, entry_s: Callable[[int], float] = _at_once) -> Iterator[tuple[Sequence, float]]:
        """Hand over everything that has arrived by `time_s`, each with when it is in.

        `entry_s` is how long it takes to let a prompt of so many tokens in.
        """
        times, entered_s = self._times, time_s
        while self._next < len(times) and times[self._next] <= time_s and self._next - self._num_ended < self._limit:
            row = self._next
            self._next += 1
            refused = row in self._refused
            if not refused:
                entered_s += entry_s(self._prompt_tokens[row])
            if self._stamp_at_entry:
                times[row] = entered_s
            elif self._closed_loop:
                times[row] = time_s
            sequence = self._sequence(row, with_keys=True)
            self._record(sequence, refused=refused)
            if refused:
                self._count_ended()
            else:
                yield sequence, entered_s

    def ended(self, sequence: Sequence, time_s: float, status: RequestStatus = RequestStatus.FINISHED) -> None:
        """`sequence` has left the engine, with all its outputs unless `status` says otherwise."""
        self._recorder.ended(sequence.row, status, time_s)
        self._count_ended()

    def _record(self, sequence: Sequence, *, refused: bool) -> None:
        workload, row = self._workload, sequence.row
        # Where anything of a prompt is shared, the recording says all of its keys: it can be served again, and
        # verified.
        num_blocks = sequence.prompt_tokens // self.hash_tokens if sequence.prompt_keys else 0
        self._recorder.arrived(
            workload.ids[row],
            self._times[row],
            sequence.prompt_tokens,
            self._max_tokens[row],
            priority=sequence.priority,
            prompt_hashes=(sequence.key_of(block) for block in range(num_blocks)),
            refused=refused,
        )

    def _count_ended(self) -> None:
        self._num_ended += 1
        total = len(self._workload)
        if self._progress and (self._num_ended * _REPORTS // total != (self._num_ended - 1) * _REPORTS // total):
            self._progress(self._num_ended, total)

    def _check(self, sequence: Sequence, gate: Gate) -> None:
        name = f"request {self._workload.ids[sequence.row]!r} (row {sequence.row})"
        if sequence.prompt_tokens >= self._max_model_len:
            raise WorkloadError(
                f"{name} has a prompt of {sequence.prompt_tokens} tokens, and with a maximum length of "
                f"{self._max_model_len} it may have {self._max_model_len - 1}; raise the maximum, or let "
                "such requests be refused."
            )
        if not gate.fits(sequence):
            raise BudgetError(
                f"{name} with {sequence.prompt_tokens} prompt tokens, {sequence.output_tokens} of output and a limit "
                f"of {sequence.max_tokens} does not fit into the whole pool; give it more memory, or let "
                "such requests be refused."
            )

    def _sequence(self, row: int, *, with_keys: bool = False) -> Sequence:
        prompt = self._prompt_tokens[row]
        # An answer that would run past the longest sequence is cut there, and so is the limit on it.
        longest = max(self._max_model_len - prompt, 1)
        return Sequence(
            row,
            prompt,
            min(self._output_tokens[row], longest),
            min(self._max_tokens[row], longest),
            priority=self._priority[row],
            arrival=self._times[row],
            prompt_keys=self._keys[row].tolist() if with_keys and self._keys is not None else (),
        )
