"""Checks of the times of a recording: each is the time of an event, and events have an order."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.recording.by_request import (
    RowsByRequest,
    TokenSteps,
    answered_rows,
    computed_after,
    first_rows,
    last_steps,
)
from kvsim.recording.check_batches import check_batches
from kvsim.recording.model import Recording
from kvsim.recording.rules import CLOCK_S, agree, require, require_of
from kvsim.recording.tables import FloatArray, IntArray, MemoryKind, RequestStatus, TransferKind

_OWN_READING_S = 0.01
"""Seconds after the end of a step at which a recorder has read the clock again for the answers that it brought."""
MAX_EVENTS = 1 << 32
"""A number of steps, and of events, that no recording has."""


def check_clock(recording: Recording, folder: Path) -> None:
    """Check that times rise from event to event as `seq` does.

    A request may be taken in some time after it came, but the engine looks for such before each step.

    Raises:
        RecordingError: naming the file and row of the first time that is out of order.
    """
    requests, steps = recording.requests, recording.steps
    if not len(steps):
        return

    def is_behind_outputs(rows: slice) -> npt.NDArray[np.bool_]:
        place = np.searchsorted(steps.output_seq, steps.schedule_seq[rows])
        before = np.where(place > 0, steps.end_s[place - 1], -np.inf)
        found: npt.NDArray[np.bool_] = (before <= steps.start_s[rows] + CLOCK_S) & (
            steps.start_s[rows] <= steps.end_s[place] + CLOCK_S
        )
        return found

    rule = "start_s should lie between the end_s of the outputs before and behind schedule_seq"
    require_of(is_behind_outputs, steps, folder / "steps.parquet", rule)
    scheduled = np.searchsorted(steps.schedule_seq, requests.arrival_seq)
    processed = np.searchsorted(steps.output_seq, requests.arrival_seq)
    next_s = np.append(steps.start_s, np.inf)[scheduled]
    told = np.append(steps.output_seq <= _last_seq(recording), False)[processed]
    next_s[told] = np.minimum(next_s[told], steps.end_s[processed[told]])
    rule = "arrival_s should not be after the step that comes next by arrival_seq"
    require(requests.arrival_s <= next_s + CLOCK_S, folder / "requests.parquet", rule)
    if recording.meta.begins_in_the_middle:
        return
    # Those that come while others are taken in are taken in behind the next step.
    last = np.maximum(scheduled - 1, 0)
    earlier = np.searchsorted(steps.output_seq, steps.schedule_seq[last])
    looked_s = np.maximum(np.append(-np.inf, steps.end_s)[earlier], np.append(-np.inf, steps.start_s)[last])
    rule = "arrival_s should not be before the engine looked last by arrival_seq"
    since = (scheduled == 0) | (requests.arrival_s >= looked_s - CLOCK_S)
    require(since, folder / "requests.parquet", rule)


class Ends(NamedTuple):
    """The requests that finished, and the step whose output ended each."""

    request: IntArray
    step: IntArray

    @classmethod
    def of(cls, recording: Recording) -> Ends:
        """Return the ends: the last step of a request in a static batch, the one that frees its memory with drafts."""
        requests = recording.requests
        finished = (requests.status == RequestStatus.FINISHED) & ~begun_before(recording)
        if (outputs := recording.schedule.outputs) is not None:
            last, given = np.full(len(requests), -1), outputs > 0
            np.maximum.at(last, recording.schedule.request[given], recording.schedule.step[given])
            rows = np.flatnonzero(finished & (last >= 0))
            return cls(rows, last[rows])
        if recording.has_drafts:  # a preempted request has no memory, and ends with the output that was under way
            rows, released = np.flatnonzero(finished), _step_of_last_release(recording)
            return cls(rows, np.where(released >= 0, released, last_steps(recording))[rows])
        if recording.meta.policy_name == "static":
            rows = np.flatnonzero(finished)
            return cls(rows, last_steps(recording)[rows])
        behind, unsure = _tokens_behind_outputs(recording)
        step = np.full(len(requests), -1)
        there = TokenSteps.of(answered_rows(recording), np.where(finished, behind, 0))
        step[there.request] = there.step
        rows = np.flatnonzero(finished & (unsure > 0))
        released = _step_of_last_release(recording)[rows] if len(rows) else rows
        computed = [_computed_by(recording, row, at) for row, at in zip(rows.tolist(), released.tolist(), strict=True)]
        is_end = (behind[rows] - unsure[rows] <= computed) & (computed <= behind[rows])
        step[rows[is_end]] = released[is_end]  # memory is freed with one of these outputs
        if (transfers := recording.transfers) is not None:  # an output may be lost where a request gives way
            sends = transfers.kind == TransferKind.SEND
            step[transfers.request[sends]] = np.searchsorted(recording.steps.output_seq, transfers.begun_seq[sends])
        rows = np.flatnonzero(step >= 0)
        return cls(rows, step[rows])


def check_outputs(recording: Recording, ends: Ends, file: Path) -> None:
    """Check that the first and the last token of each request came with the outputs of the steps that computed them.

    Where a recording begins in the middle, a request that was scheduled before may have its tokens from then.

    Raises:
        RecordingError: naming `file` and the row of the first request that had its tokens at another time.
    """
    requests, steps = recording.requests, recording.steps
    answered = (requests.output_tokens > 0) & ~begun_before(recording)
    first = TokenSteps.of(answered_rows(recording), np.where(answered, requests.prompt_tokens, 0))
    for name, there in (("first_token_s", first), ("finished_s", ends)):
        complete = steps.output_seq[there.step] <= _last_seq(recording)
        rows, computed_in = there.request[complete], there.step[complete]
        times, end_s = getattr(requests, name)[rows], steps.end_s[computed_in]
        within = CLOCK_S if _are_of_one_reading(recording, times - end_s) else _OWN_READING_S
        before = times >= end_s - CLOCK_S
        require(before, file, f"{name} should not be before the end of the step that computes what it needs", rows)
        if recording.transfers is not None:  # what is under way when a load fails, or a request gives way, may be lost
            sure = (requests.preemptions[rows] == 0) & (not recording.has_failed_loads)
            times, end_s, rows = times[sure], end_s[sure], rows[sure]
        agree(times, end_s, file, name, "steps.parquet", rows, within=within)
    if recording.meta.policy_name == "static":
        check_batches(recording, file)
    elif not recording.meta.begins_in_the_middle:
        rule = "prompt_tokens should be where a step of schedule.parquet ends"
        require(first.is_end | _begins_with_drafts(recording, first), file, rule, first.request)
        _check_aborted(recording, file)


def _begins_with_drafts(recording: Recording, first: TokenSteps) -> npt.NDArray[np.bool_]:
    """Return whether the last token of each prompt is computed together with drafts, behind a hit of all others."""
    if not recording.has_drafts:
        return np.zeros(len(first.request), np.bool_)
    rows = RowsByRequest.of(recording)
    row = rows.newest(first.request, first.step + 1)
    before: npt.NDArray[np.bool_] = (
        recording.schedule.computed_before[row] + 1 == recording.requests.prompt_tokens[first.request]
    )
    return before


def _last_seq(recording: Recording) -> int:
    """Return the last moment that a log certainly holds whole: outputs behind all other events may be cut off."""
    requests, steps, memory = recording.requests, recording.steps, recording.memory
    if not (len(memory) and (requests.status == RequestStatus.UNFINISHED).any()):
        return int(steps.output_seq[-1])
    return int(max(steps.schedule_seq[-1], requests.arrival_seq[-1], memory.seq[-1]))


def _check_aborted(recording: Recording, file: Path) -> None:
    """Check that an aborted request did not leave with the output of its last token."""
    requests, last_step = recording.requests, last_steps(recording, never=-1)
    if recording.has_failed_loads:  # it may end with an error then
        return
    if recording.has_drafts and recording.transfers is None:
        last_step = np.maximum(_step_of_last_release(recording), -1)
    aborted = np.flatnonzero((requests.status == RequestStatus.ABORTED) & (last_step >= 0))
    apart = requests.finished_s[aborted] != recording.steps.end_s[last_step[aborted]]
    require(apart, file, "an aborted request should not end with the output of its last step", aborted)


def _are_of_one_reading(recording: Recording, late_s: FloatArray) -> bool:
    """Tell whether the recorder read its clock once for an output and all of its events, as most do."""
    return recording.meta.source == "simulation" or bool(np.median(np.abs(late_s)) <= CLOCK_S if len(late_s) else True)


def begun_before(recording: Recording) -> npt.NDArray[np.bool_]:
    """Tell for each request whether it was scheduled before a recording that begins in the middle."""
    requests, steps, schedule = recording.requests, recording.steps, recording.schedule
    if not recording.meta.begins_in_the_middle or not len(steps):
        return np.zeros(len(requests), np.bool_)
    told_s = np.full(len(requests), steps.end_s[-1])
    rows, first_row = first_rows(schedule)
    told_s[rows] = steps.start_s[schedule.step[first_row]]
    begun = np.asarray(requests.first_scheduled_s < told_s - CLOCK_S)
    if (computed := recording.meta.initial_computed) is not None:
        begun[: len(computed)] |= computed > 0  # some in the very step that was under way then
    return begun


def _computed_by(recording: Recording, request: int, step: int) -> int:
    """Return the tokens of a request that are computed when `step` is; -1 if it is not in that step."""
    schedule = recording.schedule
    rows = np.flatnonzero(schedule.request == request)
    rows = rows[(schedule.step[rows] <= step) & (step < schedule.step[rows] + schedule.repeats[rows].astype(np.int64))]
    if not len(rows):
        return -1
    row = rows[-1]
    return int(schedule.computed_before[row] + schedule.tokens[row] * (step - int(schedule.step[row]) + 1))


def _step_of_last_release(recording: Recording) -> npt.NDArray[np.int64]:
    """Return the step with whose output each request gave memory back for the last time; -2 where it did otherwise."""
    output_seq, end_seq = recording.steps.output_seq, _last_release(recording)
    output = np.minimum(np.searchsorted(output_seq, end_seq), len(output_seq) - 1)
    return np.where(output_seq[output] == end_seq, output, -2)


def _last_release(recording: Recording) -> IntArray:
    """Return the moment at which each request gave memory back for the last time; -1 if it never did."""
    memory, found = recording.memory, np.full(len(recording.requests), -1)
    rows = np.flatnonzero(memory.kind == MemoryKind.RELEASE)
    np.maximum.at(found, memory.request[rows], memory.seq[rows])
    return found


def tokens_behind_outputs(recording: Recording) -> npt.NDArray[np.int64]:
    """Return the least computed tokens of each request for its last output."""
    behind, unsure = _tokens_behind_outputs(recording)
    return behind - unsure


def _tokens_behind_outputs(recording: Recording) -> tuple[npt.NDArray[np.int64], IntArray]:
    """Return the computed tokens of each request for its last output, and the number of tokens that may be missing.

    In a pipeline vLLM may resume a request while a token of it is under way. Its model runner, which is handed the
    tokens known by then, may answer that token again, and from then on the request has one output more. It does where
    it gets there before that token comes. Where the token comes in between, it may have been answered again or not.
    Where the request ends before that answer, it has no output more.
    """
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    behind = requests.prompt_tokens.astype(np.int64) + requests.output_tokens - 1
    if recording.meta.engine.get("pipeline_parallel_size", 1) == 1 or not requests.preemptions.any():
        return behind, np.zeros(len(behind), np.int64)
    rows = np.flatnonzero(requests.preemptions[schedule.request])
    rows = rows[np.argsort(schedule.request[rows], kind="stable")]
    request, begins, repeats = schedule.request[rows], schedule.step[rows], schedule.repeats[rows].astype(np.int64)
    before = schedule.computed_before[rows].astype(np.int64)
    after = computed_after(schedule)[rows]
    of_request = request.astype(np.int64) * MAX_EVENTS
    answers = (of_request + after == np.maximum.accumulate(of_request + after)) & (
        after >= requests.prompt_tokens[request]
    )
    is_resumed = (request[1:] == request[:-1]) & (before[1:] < after[:-1])
    unsure, end_seq = np.zeros(len(behind), np.int64), _last_release(recording)
    for row in np.flatnonzero(is_resumed & answers[:-1]).tolist():
        there = row + 1
        while there < len(rows) and request[there] == request[row] and after[there] < after[row]:
            there += 1
        if there < len(rows) and request[there] == request[row]:
            again = begins[there] + -(-(after[row] - before[there]) // schedule.tokens[rows[there]]) - 1
            if steps.output_seq[again] > end_seq[request[row]]:
                continue
            comes = steps.output_seq[begins[row] + repeats[row] - 1]
            behind[request[row]] -= comes > steps.schedule_seq[again]
            unsure[request[row]] += steps.schedule_seq[begins[row + 1]] < comes <= steps.schedule_seq[again]
    return behind, unsure
