"""The last steps of a server as a recording of their own, which begins at a cut: a moment that may be long past.

To look at a server once more costs what has happened since the cut, however long it has been followed. What is known
of the requests that were there then, such as when they came, is what is known of them in the whole recording.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.marks import Mark, Since
from kvsim.recording.model import Meta, Recording
from kvsim.recording.tables import IntArray, Memory, Requests, Schedule, Steps

_Table = TypeVar("_Table", Steps, Schedule, Memory)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A moment at which a tail may begin."""

    step: int
    """Steps that the server had taken."""
    mark: Mark
    """The same moment in the whole recording."""
    rows: IntArray
    """Rows, in the whole recording, of the requests that were there, ascending."""
    before: Recording
    """A recording that ends here: those requests come and take what they held, in one step if they held anything."""
    next_seq: int
    """The sequence number behind all of `before`."""


class Excerpt(NamedTuple):
    """Steps of a server."""

    recording: Recording
    first_step: int
    """The server's number of the first of them."""
    num_before: int
    """Steps of the recording in front of that one, which stand for all that happened before: 0 or 1."""

    @property
    def end_step(self) -> int:
        """Steps that the server had taken at its end."""
        return self.first_step - self.num_before + len(self.recording.steps)


def tail(builder: RecordingBuilder, cut: Cut, name: str) -> Excerpt | None:
    """What has happened since `cut`, as `builder` has it; None before the first step."""
    if builder.num_steps == cut.mark.num_steps:
        return None
    before, since = cut.before, builder.since(cut.mark, cut.rows)
    recording = Recording(
        meta=before.meta,
        name=name,
        requests=_requests(cut, since),
        steps=_steps(cut, since),
        schedule=_schedule(cut, since),
        memory=_memory(cut, since),
    )
    return Excerpt(recording, cut.step, len(before.steps))


def meta_of(meta: Meta, first_step: int, cached: list[int], computed: list[int]) -> Meta:
    """The provenance of a recording that begins with a server's step `first_step`, when nobody held the blocks `cached`
    and they kept a prefix, and of each request that was there so many tokens had been `computed`: what the first steps
    decided is not known.
    """
    if not first_step:
        return meta
    return replace(
        meta,
        initial_free=None,
        initial_cached=np.array(cached, np.int64) if meta.prefix_caching else None,
        initial_computed=np.array(computed, np.int64),
        extra={**meta.extra, "joined_at_step": first_step},
    )


def _requests(cut: Cut, since: Since) -> Requests:
    arrival_seq = since.requests.arrival_seq + _seqs(cut)
    arrival_seq[: len(cut.rows)] = cut.before.requests.arrival_seq
    return replace(since.requests, request=np.arange(len(since.rows), dtype=np.int32), arrival_seq=arrival_seq)


def _steps(cut: Cut, since: Since) -> Steps:
    steps, seqs = since.steps, _seqs(cut)
    own = replace(
        steps,
        step=steps.step + np.int32(_moved(cut)),
        schedule_seq=steps.schedule_seq + seqs,
        output_seq=steps.output_seq + seqs,
    )
    return _joined(cut.before.steps, own)


def _schedule(cut: Cut, since: Since) -> Schedule:
    schedule, first = since.schedule, cut.mark.num_steps
    # Rows that had begun before go on from the cut.
    passed = np.maximum(first - schedule.step, 0).astype(np.int32)
    own = replace(
        schedule,
        step=schedule.step + passed + np.int32(_moved(cut)),
        request=_rows(since, schedule.request),
        computed_before=schedule.computed_before + schedule.tokens * passed,
        repeat=schedule.repeats - passed,
    )
    return _joined(cut.before.schedule, own)


def _memory(cut: Cut, since: Since) -> Memory:
    memory = since.memory
    request = np.where(memory.request < 0, memory.request, _rows(since, memory.request))
    step, seq = memory.step + np.int32(_moved(cut)), memory.seq + _seqs(cut)
    return _joined(cut.before.memory, replace(memory, request=request, step=step, seq=seq))


def _seqs(cut: Cut) -> int:
    """What sequence numbers have in the tail beyond those of the whole recording."""
    return cut.next_seq - cut.mark.seq - 1


def _moved(cut: Cut) -> int:
    """What numbers of steps have in the tail beyond those of the whole recording."""
    return len(cut.before.steps) - cut.mark.num_steps


def _rows(since: Since, requests: IntArray) -> IntArray:
    rows: IntArray = np.searchsorted(since.rows, requests).astype(np.int32)
    return rows


def _joined(before: _Table, after: _Table) -> _Table:
    """The rows of one table behind those of another. Columns that only one of them has are those of no rows at all."""
    if not len(before) or not len(after):
        return after if len(after) else before
    columns = {name: (getattr(before, name), getattr(after, name)) for name, _ in before.columns()}
    return type(before)(**{name: np.concatenate(both) for name, both in columns.items() if both[0] is not None})
