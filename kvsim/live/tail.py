"""Recording of a server's last steps, so that a screen can be updated at a cost that does not grow with time.

It begins at a cut: a moment of the whole recording, identified by the number of the event that was then the newest.
Requests that are present at the cut keep the data of the whole recording, such as their arrival times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.model import INITIAL_IMAGES, Meta, Recording
from kvsim.recording.run_marks import Mark, Since
from kvsim.recording.tables import EncoderEvents, IntArray, Memory, PromptImages, Requests, Schedule, Steps

_Table = TypeVar("_Table", Steps, Schedule, Memory, EncoderEvents)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """Moment of a whole recording at which a shorter recording, of the last steps, may begin."""

    step: int
    """Number of steps that the server had run before the cut."""
    mark: Mark
    """Number of rows that each table of the whole recording had at the cut."""
    rows: IntArray
    """Rows, in the whole recording, of the requests that are present at the cut; ascending."""
    before: Recording
    """Recording up to the cut: the present requests arrive and get their blocks, in at most one step."""
    next_seq: int
    """Event number that follows those of `before`."""


class Excerpt(NamedTuple):
    """Part of a server's steps, as a recording."""

    recording: Recording
    first_step: int
    """Index, among all steps of the server, of the excerpt's first step that is not a summary."""
    num_summary_steps: int
    """Number of steps, 0 or 1, at the beginning of `recording` that summarize everything before the excerpt."""

    @property
    def end_step(self) -> int:
        """Number of steps that the server has run up to the end of the excerpt."""
        return self.first_step - self.num_summary_steps + len(self.recording.steps)


def tail(builder: RecordingBuilder, cut: Cut, name: str) -> Excerpt | None:
    """Return the steps in `builder` since `cut`; None if there are none."""
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
        images=_images(since),
        encoder=_encoder(cut, since),
    )
    return Excerpt(recording, cut.step, len(before.steps))


def joined_meta(meta: Meta, first_step: int, cached: list[int], computed: list[int], images: list[list[int]]) -> Meta:
    """Return the metadata of a recording that begins with step `first_step` of a server.

    At its beginning, `cached` are the free blocks with a cached prefix, `computed` has the number of computed tokens of
    each present request, and `images` has [image id, number of encoder outputs] of each cached image.
    """
    if not first_step:
        return meta
    return replace(
        meta,
        initial_free=None,
        initial_cached=np.array(cached, np.int64) if meta.prefix_caching else None,
        initial_computed=np.array(computed, np.int64),
        extra={**meta.extra, "joined_at_step": first_step} | ({INITIAL_IMAGES: images} if images else {}),
    )


def _requests(cut: Cut, since: Since) -> Requests:
    arrival_seq = since.requests.arrival_seq + _seq_offset(cut)
    arrival_seq[: len(cut.rows)] = cut.before.requests.arrival_seq
    return replace(since.requests, request=np.arange(len(since.rows), dtype=np.int32), arrival_seq=arrival_seq)


def _steps(cut: Cut, since: Since) -> Steps:
    steps, seqs = since.steps, _seq_offset(cut)
    own = replace(
        steps,
        step=steps.step + np.int32(_step_offset(cut)),
        schedule_seq=steps.schedule_seq + seqs,
        output_seq=steps.output_seq + seqs,
    )
    return _joined(cut.before.steps, own)


def _schedule(cut: Cut, since: Since) -> Schedule:
    schedule, first = since.schedule, cut.mark.num_steps
    # Rows that began earlier continue from the cut.
    passed = np.maximum(first - schedule.step, 0).astype(np.int32)
    own = replace(
        schedule,
        step=schedule.step + passed + np.int32(_step_offset(cut)),
        request=_rows(since, schedule.request),
        computed_before=schedule.computed_before + schedule.tokens * passed,
        repeat=schedule.repeats - passed,
    )
    return _joined(cut.before.schedule, own)


def _memory(cut: Cut, since: Since) -> Memory:
    memory = since.memory
    request = np.where(memory.request < 0, memory.request, _rows(since, memory.request))
    step, seq = memory.step + np.int32(_step_offset(cut)), memory.seq + _seq_offset(cut)
    return _joined(cut.before.memory, replace(memory, request=request, step=step, seq=seq))


def _images(since: Since) -> PromptImages | None:
    images = since.images
    return None if images is None else replace(images, request=_rows(since, images.request))


def _encoder(cut: Cut, since: Since) -> EncoderEvents | None:
    events, before = since.encoder, cut.before.encoder
    if events is None or before is None:
        return events or before
    request = np.where(events.request < 0, events.request, _rows(since, events.request))
    step, seq = events.step + np.int32(_step_offset(cut)), events.seq + _seq_offset(cut)
    return _joined(before, replace(events, request=request, step=step, seq=seq))


def _seq_offset(cut: Cut) -> int:
    """Return the number to add to an event number of the whole recording, to get that in the tail."""
    return cut.next_seq - cut.mark.seq - 1


def _step_offset(cut: Cut) -> int:
    """Return the number to add to a step's number in the whole recording, to get that in the tail."""
    return len(cut.before.steps) - cut.mark.num_steps


def _rows(since: Since, requests: IntArray) -> IntArray:
    rows: IntArray = np.searchsorted(since.rows, requests).astype(np.int32)
    return rows


def _joined(before: _Table, after: _Table) -> _Table:
    """Return the rows of `before`, then those of `after`. Optional columns that one table lacks become 0 there."""
    if not len(before) or not len(after):
        return after if len(after) else before
    columns = {}
    for name, _ in before.columns():
        parts = [getattr(table, name) for table in (before, after)]
        if any(part is not None for part in parts):
            sizes = (len(before), len(after))
            parts = [np.zeros(n, np.int32) if part is None else part for part, n in zip(parts, sizes, strict=True)]
            columns[name] = np.concatenate(parts)
    return type(before)(**columns)
