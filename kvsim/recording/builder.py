"""Make a recording as things happen: the simulation reports, the builder keeps columns.

It is also the journal of the schedulers: changes of ownership are reported to it while a step is being scheduled, and
belong to the sequence number that was current then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kvsim.recording.model import Meta, Recording
from kvsim.recording.tables import Memory, MemoryKind, Requests, RequestStatus, Schedule, Steps, Table
from kvsim.workload import Ragged


class RecordingBuilder:
    """Collects one run; requests are numbered in the order in which they arrive."""

    def __init__(self) -> None:
        self._seq = -1
        self._num_steps = 0
        self._ids: list[str] = []
        self._hashes = array("q")
        self._hash_offsets = array("q", [0])
        self._requests: dict[str, array[float]] = {
            name: array("d" if spec.dtype == "float64" else "q")
            for name, spec in Requests.columns()
            if name not in ("id", "prompt_hashes")
        }
        self._steps: dict[str, array[float]] = {
            name: array("d" if spec.dtype == "float64" else "q") for name, spec in Steps.columns()
        }
        self._schedule = {name: array("q") for name, _ in Schedule.columns()}
        self._memory = {name: array("q") for name, _ in Memory.columns()}
        self._last_scheduled: list[int] = []
        self._previous_scheduled: list[int] = []
        self._open_row: list[int] = []  # the schedule row that each request's next tokens may extend

    @property
    def num_steps(self) -> int:
        """Steps recorded so far."""
        return self._num_steps

    @property
    def num_requests(self) -> int:
        """Requests that have arrived so far."""
        return len(self._ids)

    def next_seq(self) -> int:
        """Begin the next change of the engine's state; what the journal hears from now on belongs to it."""
        self._seq += 1
        return self._seq

    def arrived(
        self,
        name: str,
        time_s: float,
        prompt_tokens: int,
        max_tokens: int,
        *,
        priority: int = 0,
        prompt_hashes: Iterable[int] = (),
        refused: bool = False,
    ) -> int:
        """A request became visible to the engine; return its row. A refused one will never be served."""
        row = len(self._ids)
        self._ids.append(name)
        self._hashes.extend(prompt_hashes)
        self._hash_offsets.append(len(self._hashes))
        self._open_row.append(-1)
        columns = {
            "request": row,
            "arrival_s": time_s,
            "arrival_seq": self.next_seq(),
            "prompt_tokens": prompt_tokens,
            "output_tokens": 0,
            "max_tokens": max_tokens,
            "priority": priority,
            "first_scheduled_s": np.nan,
            "first_token_s": np.nan,
            "finished_s": np.nan,
            "status": RequestStatus.REFUSED if refused else RequestStatus.UNFINISHED,
            "preemptions": 0,
            "cached_tokens": 0,
        }
        for column, value in columns.items():
            self._requests[column].append(value)
        return row

    def scheduled(self, request: int, computed_before: int, tokens: int, time_s: float, repeat: int = 1) -> None:
        """`request` computes `tokens` more tokens in the step being recorded, and in each of the next `repeat - 1`
        steps.
        """
        rows, step = self._schedule, self._num_steps
        self._last_scheduled.append(request)
        row = self._open_row[request]
        if row >= 0:
            times = rows["repeat"][row]
            follows = (
                rows["step"][row] + times == step and rows["computed_before"][row] + tokens * times == computed_before
            )
            if follows and rows["tokens"][row] == tokens:
                rows["repeat"][row] = times + repeat
                return
        else:
            self._requests["first_scheduled_s"][request] = time_s
            self._requests["cached_tokens"][request] = computed_before
        self._open_row[request] = len(rows["step"])
        for name, value in (
            ("step", step),
            ("request", request),
            ("computed_before", computed_before),
            ("tokens", tokens),
            ("repeat", repeat),
        ):
            rows[name].append(value)

    def joined(self, request: int, computed_before: int, time_s: float) -> None:
        """`request` computes a token in the step being recorded, and in the following ones until `scheduled_on`."""
        self.scheduled(request, computed_before, 1, time_s)

    def scheduled_on(self, request: int, num_steps: int) -> None:
        """`request` has computed a token in each of `num_steps` steps, the first of which `joined` reported."""
        self._schedule["repeat"][self._open_row[request]] += num_steps - 1

    def scheduled_again(self, time_s: float) -> None:
        """The requests of the step before compute one more token each."""
        rows = self._schedule
        for request in self._previous_scheduled:
            row = self._open_row[request]
            done = rows["computed_before"][row] + rows["tokens"][row] * rows["repeat"][row]
            self.scheduled(request, done, 1, time_s)

    def step(self, **columns: float) -> int:
        """Close the step being recorded, whose output is not known yet, and return its number."""
        number = self._num_steps
        columns |= {"step": number, "schedule_seq": self._seq, "output_seq": -1, "end_s": np.nan}
        for name, column in self._steps.items():
            if name in columns:
                column.append(columns[name] if column.typecode == "d" else int(columns[name]))
        self._num_steps += 1
        self._previous_scheduled, self._last_scheduled = self._last_scheduled, []
        return number

    def output(self, step: int, time_s: float) -> None:
        """The output of `step` was processed."""
        self._steps["output_seq"][step] = self._seq
        self._steps["end_s"][step] = time_s

    def pass_step(self) -> None:
        """Go on to the next of the steps that `passed_steps` will add: one was scheduled, and an output processed."""
        self._seq += 1
        self._num_steps += 1

    def passed_steps(
        self,
        start_s: Sequence[float],
        end_s: Sequence[float],
        *,
        ahead: bool,
        num_seqs: int,
        waiting: int,
        free_units: Sequence[int],
        cached_units: Sequence[int],  # noqa: ARG002  follows from the changes of ownership
        unusable_units: int,
    ) -> None:
        """Add the steps that were passed: one token each for the same `num_seqs` requests, and nothing else.

        `end_s` are the times at which outputs were processed after each of them: of these steps themselves, or, where
        they were scheduled one `ahead`, of the step before each.
        """
        steps, num_steps = self._steps, len(start_s)
        first, first_seq = self._num_steps - num_steps, self._seq - 2 * num_steps + 1
        begin = first - ahead
        same = {
            "prefill_tokens": 0, "decode_tokens": num_seqs, "num_scheduled": num_seqs, "running": num_seqs,
            "waiting": waiting, "preempted": 0, "unusable_units": unusable_units,
        }  # fmt: skip
        for name, value in same.items():
            steps[name].extend([value] * num_steps)
        steps["step"].extend(range(first, first + num_steps))
        steps["schedule_seq"].extend(range(first_seq, first_seq + 2 * num_steps, 2))
        steps["start_s"].extend(start_s)
        steps["free_units"].extend(free_units)
        del steps["output_seq"][begin:], steps["end_s"][begin:]
        steps["output_seq"].extend(range(first_seq + 1, first_seq + 1 + 2 * num_steps, 2))
        steps["end_s"].extend(end_s)
        if ahead:
            steps["output_seq"].append(-1)
            steps["end_s"].append(np.nan)

    def emitted(self, request: int, time_s: float, count: int = 1) -> None:
        """`request` has `count` more outputs."""
        outputs = self._requests["output_tokens"]
        if not outputs[request]:
            self._requests["first_token_s"][request] = time_s
        outputs[request] += count

    def preempted(self, request: int) -> None:
        """`request` lost its memory and will compute its tokens again."""
        self._requests["preemptions"][request] += 1

    def ended(self, request: int, status: RequestStatus, time_s: float) -> None:
        """`request` left the engine."""
        self._requests["status"][request] = status
        self._requests["finished_s"][request] = time_s

    def append_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """`request` got free `blocks`; runs of consecutive ones become one row."""
        self._memory_runs(MemoryKind.APPEND, request, position, blocks)

    def share_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """`request` joined the holders of `blocks`."""
        self._memory_runs(MemoryKind.SHARE, request, position, blocks)

    def append_extent(self, request: int, position: int, address: int, length: int, requested: int) -> None:
        """`request` got `length` slots from `address` on, having asked for `requested`."""
        self._memory_row(MemoryKind.APPEND, request, position, address, length, requested)

    def release(self, request: int, num_units: int, num_cached: int) -> None:
        """`request` gave back its whole table."""
        self._memory_row(MemoryKind.RELEASE, request, 0, -1, num_units, cached=num_cached)

    def vacate(self, request: int, num_units: int) -> None:
        """`request` left its units for others; a recording has no kind of row for it but a release."""
        self.release(request, num_units, 0)

    def evict(self, blocks: Sequence[int]) -> None:
        """`blocks` lost their prefix."""
        self._memory_runs(MemoryKind.EVICT, -1, 0, blocks)

    def finish(self, meta: Meta, name: str = "") -> Recording:
        """The recording of everything reported so far; steps whose output is still under way are taken to end now."""
        steps = _columns(self._steps, Steps)
        under_way = steps["output_seq"] < 0
        steps["output_seq"][under_way] = self._seq + 1 + np.arange(under_way.sum())
        steps["end_s"][under_way] = max(np.nanmax(steps["end_s"], initial=0.0), steps["start_s"].max(initial=0.0))
        return Recording(
            meta=meta,
            name=name,
            requests=Requests(
                id=np.asarray(self._ids, np.str_) if self._ids else np.empty(0, np.str_),
                prompt_hashes=Ragged(np.array(self._hashes), np.array(self._hash_offsets), np.int64),
                **_columns(self._requests, Requests),
            ),
            steps=Steps(**steps),
            schedule=Schedule(**self._schedule_of_closed_steps()),
            memory=Memory(**_columns(self._memory, Memory)),
        )

    def _schedule_of_closed_steps(self) -> dict[str, Any]:
        """The schedule without the step being recorded: a log may end in the middle of one."""
        columns = _columns(self._schedule, Schedule)
        if not len(columns["step"]):
            return columns
        columns["repeat"] = np.minimum(columns["repeat"], self._num_steps - columns["step"])
        closed = columns["repeat"] > 0
        return {name: values[closed] for name, values in columns.items()}

    def _memory_runs(self, kind: MemoryKind, request: int, position: int, blocks: Iterable[int]) -> None:
        begin, length = -1, 0
        for block in blocks:
            if block == begin + length:
                length += 1
                continue
            if length:
                self._memory_row(kind, request, position, begin, length)
                position += length
            begin, length = block, 1
        if length:
            self._memory_row(kind, request, position, begin, length)

    def _memory_row(
        self,
        kind: MemoryKind,
        request: int,
        position: int,
        address: int,
        length: int,
        requested: int | None = None,
        cached: int = 0,
    ) -> None:
        memory = self._memory
        memory["seq"].append(self._seq)
        memory["step"].append(self._num_steps)
        memory["kind"].append(kind)
        memory["request"].append(request)
        memory["position"].append(position)
        memory["address"].append(address)
        memory["length"].append(length)
        memory["requested"].append(length if requested is None else requested)
        memory["cached"].append(cached)


def _columns(columns: Mapping[str, array[Any]], table: type[Table]) -> dict[str, Any]:
    """The columns that anything was reported for, as numpy arrays of the declared types."""
    return {
        name: np.array(columns[name], spec.dtype)
        for name, spec in table.columns()
        if name in columns and (columns[name] or not spec.optional)
    }
