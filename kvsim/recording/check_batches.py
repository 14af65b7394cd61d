"""Check the batches of the static policy: requests of a batch start and end together, as their lengths require."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.recording.by_request import first_rows, last_steps
from kvsim.recording.model import Recording
from kvsim.recording.rules import CLOCK_S, NO_LIMIT, agree, require
from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus


def check_batches(recording: Recording, file: Path) -> None:
    """Check that the requests of a batch are padded to its longest prompt, and end together.

    A batch that has ended must be as long as its longest answer. In a simulation, batches must also fit into the pool;
    in other recordings, all requests of a batch must have the same limit.
    """
    requests = recording.requests
    batches = _BatchRows.of(recording)
    rows, width, longest = batches.rows, batches.width, batches.longest
    source = "requests.parquet"
    agree(width, longest(requests.prompt_tokens), file, "the longest prompt of the batch", source, rows)
    alike = longest(requests.status) == requests.status[rows]
    require(alike, file, "the requests of a batch should end alike", rows)
    ended = requests.status[rows] == RequestStatus.FINISHED
    if recording.meta.source == "simulation":
        ended |= requests.status[rows] == RequestStatus.ABORTED
        _check_room(recording, batches, file)
    else:  # one call of `generate` has one limit
        most = longest(requests.max_tokens)
        agree(requests.max_tokens[rows], most, file, "max_tokens", "another request of the batch", rows)
    agree(longest(requests.finished_s)[ended], requests.finished_s[rows][ended], file, "finished_s",
          "another request of the batch", rows[ended], within=CLOCK_S)  # fmt: skip
    agree(batches.length[ended], longest(requests.output_tokens)[ended], file,
          "the longest answer of the batch", "schedule.parquet", rows[ended])  # fmt: skip


class _BatchRows(NamedTuple):
    """Scheduled requests and their batches, one entry each. Requests whose first step is the same are a batch."""

    rows: IntArray
    number: IntArray
    width: IntArray
    length: npt.NDArray[np.int64]

    @classmethod
    def of(cls, recording: Recording) -> _BatchRows:
        schedule = recording.schedule
        rows, first = first_rows(schedule)
        begin = schedule.step[first]
        length = last_steps(recording)[rows] - begin + 1
        return cls(rows, np.unique(begin, return_inverse=True)[1], schedule.tokens[first], length)

    def longest(self, values: npt.NDArray[np.float64] | IntArray) -> npt.NDArray[np.float64]:
        """Return, for each entry, the largest of `values` among the requests of its batch. `values` has one number for
        each request of the recording.
        """
        most = np.full(self.number.max(initial=-1) + 1, -np.inf)
        np.fmax.at(most, self.number, values[self.rows])
        return most[self.number]


def _check_room(recording: Recording, batches: _BatchRows, file: Path) -> None:
    """Check that batches have no more requests than allowed, and that a batch whose requests were aborted had filled
    the pool.

    If the policy has `memory_guard`, no batch may need more slots than the pool has. If it has `preallocated`, each
    request has slots for the longest answer that its batch may give.
    """
    requests, memory, policy = recording.requests, recording.memory, recording.meta.policy
    rows, num_units = batches.rows, recording.meta.pool.num_units
    size = np.bincount(batches.number)[batches.number]
    rule = "a batch should have no more requests than policy.batch_size"
    require(size <= policy.get("batch_size", NO_LIMIT), file, rule, rows)
    if num_units is None:
        return
    most_tokens = np.minimum(requests.prompt_tokens.astype(np.int64) + requests.max_tokens,
                             policy.get("max_model_len", NO_LIMIT))  # fmt: skip
    # Slots of a row if every answer is as long as allowed. The last token of an answer needs no slot.
    most = batches.width + batches.longest(most_tokens - requests.prompt_tokens) - 1
    if policy.get("memory_guard"):
        require(size * most <= num_units, file, "a batch that might not fit should be closed by the memory guard", rows)
    # Steps that fit: the first step fills the columns of the prompt, and each step after it adds a column.
    room = num_units // size - batches.width + 1
    failed = requests.status[rows] == RequestStatus.ABORTED
    require(~failed | (batches.length == room), file, "a batch should fail where the next column does not fit", rows)
    if policy.get("preallocated"):
        begins = np.flatnonzero((memory.kind == MemoryKind.APPEND) & (memory.position == 0))
        allocated = np.zeros(len(requests), np.int64)
        allocated[memory.request[begins]] = memory.length[begins]
        agree(most, allocated[rows], file, "the longest sequence of the batch", "memory.parquet", rows)
