"""Check the times of a recording: each is the time of its event, and times rise in the order of `seq`.

Latencies and throughput are differences of these times.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.recording.by_request import (
    RowsByRequest,
    TokenSteps,
    computed_after,
    first_rows,
    last_steps,
    rows_with_output,
)
from kvsim.recording.check_batches import check_batches
from kvsim.recording.model import Recording
from kvsim.recording.order import sort_key
from kvsim.recording.rules import CLOCK_S, agree, require, require_of
from kvsim.recording.tables import FloatArray, IntArray, MemoryKind, RequestStatus, TransferKind

_OWN_READING_S = 0.01
"""Most seconds from a step's end to an event of its output, if each event has its own reading of the clock."""


def check_clock(recording: Recording, folder: Path) -> None:
    """Check that times rise from event to event, as `seq` does.

    A request gets its `seq` when the engine takes it in: at `arrival_s` or later, but before the next step.
    """
    requests, steps = recording.requests, recording.steps
    if not len(steps):
        return

    def is_between_outputs(rows: slice) -> npt.NDArray[np.bool_]:
        next_output = np.searchsorted(steps.output_seq, steps.schedule_seq[rows])
        before_s = np.where(next_output > 0, steps.end_s[next_output - 1], -np.inf)
        is_after: npt.NDArray[np.bool_] = before_s <= steps.start_s[rows] + CLOCK_S
        return is_after & (steps.start_s[rows] <= steps.end_s[next_output] + CLOCK_S)

    rule = "start_s should lie between the end_s of the outputs before and behind schedule_seq"
    require_of(is_between_outputs, steps, folder / "steps.parquet", rule)
    scheduled = np.searchsorted(steps.schedule_seq, requests.arrival_seq)
    processed = np.searchsorted(steps.output_seq, requests.arrival_seq)
    next_s = np.append(steps.start_s, np.inf)[scheduled]
    is_certain = np.append(steps.output_seq <= _last_seq(recording), False)[processed]
    next_s[is_certain] = np.minimum(next_s[is_certain], steps.end_s[processed[is_certain]])
    rule = "arrival_s should not be after the step that comes next by arrival_seq"
    require(requests.arrival_s <= next_s + CLOCK_S, folder / "requests.parquet", rule)
    if recording.meta.begins_in_the_middle:
        return
    # A request that arrives while the engine takes in others is taken in only after the next step, so compare with the
    # engine's last look at arrivals before the step that precedes `arrival_seq`.
    last = np.maximum(scheduled - 1, 0)
    earlier = np.searchsorted(steps.output_seq, steps.schedule_seq[last])
    looked_s = np.maximum(np.append(-np.inf, steps.end_s)[earlier], np.append(-np.inf, steps.start_s)[last])
    rule = "arrival_s should not be before the engine looked last by arrival_seq"
    holds = (scheduled == 0) | (requests.arrival_s >= looked_s - CLOCK_S)
    require(holds, folder / "requests.parquet", rule)


class Ends(NamedTuple):
    """Finished requests, and the step whose output ended each."""

    request: IntArray
    step: IntArray

    @classmethod
    def of(cls, recording: Recording) -> Ends:
        """Find the step that ended each finished request, except requests that were scheduled before the recording.

        If the schedule has the column `outputs`, this is the step of the request's last output. In other recordings
        with speculative decoding, it is the step whose output frees the memory of the request, or the request's last
        step if no output does. In a static batch, it is the request's last step. In all other recordings, it is the
        step that samples the last output token. There are two exceptions. If preemptions make this step uncertain, it
        is the step whose output frees the memory of the request, provided that the number of computed tokens allows it.
        If other servers read the request's KV, it is the step with whose output this sending begins.
        """
        requests = recording.requests
        finished = (requests.status == RequestStatus.FINISHED) & ~begun_before(recording)
        if (outputs := recording.schedule.outputs) is not None:
            last, has_output = np.full(len(requests), -1), outputs > 0
            np.maximum.at(last, recording.schedule.request[has_output], recording.schedule.step[has_output])
            rows = np.flatnonzero(finished & (last >= 0))
            return cls(rows, last[rows])
        if recording.has_drafts:  # a preempted request has no memory, and ends with the output of its step in flight
            rows, released = np.flatnonzero(finished), _step_of_last_release(recording)
            return cls(rows, np.where(released >= 0, released, last_steps(recording))[rows])
        if recording.meta.policy_name == "static":
            rows = np.flatnonzero(finished)
            return cls(rows, last_steps(recording)[rows])
        tokens, unsure = _tokens_for_outputs(recording)
        step = np.full(len(requests), -1)
        reached = TokenSteps.of(rows_with_output(recording), np.where(finished, tokens, 0))
        step[reached.request] = reached.step
        # If the number of tokens is not certain, the step that frees memory decides, as far as it is possible.
        rows = np.flatnonzero(finished & (unsure > 0))
        released = _step_of_last_release(recording)[rows] if len(rows) else rows
        computed = [_computed_by(recording, row, at) for row, at in zip(rows.tolist(), released.tolist(), strict=True)]
        is_end = (tokens[rows] - unsure[rows] <= computed) & (computed <= tokens[rows])
        step[rows[is_end]] = released[is_end]
        if (transfers := recording.transfers) is not None:  # an output may be lost if its request is preempted
            sends = transfers.kind == TransferKind.SEND
            step[transfers.request[sends]] = np.searchsorted(recording.steps.output_seq, transfers.begun_seq[sends])
        rows = np.flatnonzero(step >= 0)
        return cls(rows, step[rows])


def check_outputs(recording: Recording, ends: Ends, file: Path) -> None:
    """Check that requests got their first and last tokens with the outputs of the steps that computed them.

    Requests that were scheduled before the recording began are skipped. With static batching, the batches are checked,
    too. With other policies, a step must end exactly where each prompt ends, unless it also verifies drafts, and the
    times of aborted requests are checked. These two checks are skipped if the recording begins in the middle of a run.
    """
    requests, steps = recording.requests, recording.steps
    answered = (requests.output_tokens > 0) & ~begun_before(recording)
    first = TokenSteps.of(rows_with_output(recording), np.where(answered, requests.prompt_tokens, 0))
    for name, reached in (("first_token_s", first), ("finished_s", ends)):
        complete = steps.output_seq[reached.step] <= _last_seq(recording)
        rows, computed_in = reached.request[complete], reached.step[complete]
        times, end_s = getattr(requests, name)[rows], steps.end_s[computed_in]
        within = CLOCK_S if _are_of_one_reading(recording, times - end_s) else _OWN_READING_S
        before = times >= end_s - CLOCK_S
        require(before, file, f"{name} should not be before the end of the step that computes what it needs", rows)
        if recording.transfers is not None:  # outputs in flight are lost if a load fails or the request is preempted
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
    """Tell, for each request in `first`, whether its step computes only the last prompt token, and drafts after it.

    This is so after a hit of all other prompt tokens. Such a step ends behind the prompt, not with it.
    """
    if not recording.has_drafts:
        return np.zeros(len(first.request), np.bool_)
    row = RowsByRequest.of(recording).last_row_before(first.request, first.step + 1)
    return np.asarray(recording.schedule.computed_before[row] + 1 == recording.requests.prompt_tokens[first.request])


def _last_seq(recording: Recording) -> int:
    """Return the event number (`seq`) up to which all events are recorded.

    This is the `seq` of the last output if all requests have ended, or if there are no memory rows. Otherwise it is the
    largest `seq` of an arrival, a scheduled step or a memory row.
    """
    requests, steps, memory = recording.requests, recording.steps, recording.memory
    if not (len(memory) and (requests.status == RequestStatus.UNFINISHED).any()):
        return int(steps.output_seq[-1])
    return int(max(steps.schedule_seq[-1], requests.arrival_seq[-1], memory.seq[-1]))


def _check_aborted(recording: Recording, file: Path) -> None:
    requests, last_step = recording.requests, last_steps(recording, never=-1)
    if recording.has_failed_loads:  # the request may end with an error then
        return
    if recording.has_drafts and recording.transfers is None:
        last_step = np.maximum(_step_of_last_release(recording), -1)
    aborted = np.flatnonzero((requests.status == RequestStatus.ABORTED) & (last_step >= 0))
    differs = requests.finished_s[aborted] != recording.steps.end_s[last_step[aborted]]
    require(differs, file, "an aborted request should not end with the output of its last step", aborted)


def _are_of_one_reading(recording: Recording, late_s: FloatArray) -> bool:
    """Tell whether the recorder read the clock once for an output and all its events, as most recorders do.

    `late_s` has the seconds from each step's end to an event of its output; with one reading, their median is about 0.
    """
    return recording.meta.source == "simulation" or bool(np.median(np.abs(late_s)) <= CLOCK_S if len(late_s) else True)


def begun_before(recording: Recording) -> npt.NDArray[np.bool_]:
    """Tell, for each request, whether it was scheduled before the recorder joined a running engine."""
    requests, steps, schedule = recording.requests, recording.steps, recording.schedule
    if not recording.meta.begins_in_the_middle or not len(steps):
        return np.zeros(len(requests), np.bool_)
    recorded_s = np.full(len(requests), steps.end_s[-1])
    rows, first_row = first_rows(schedule)
    recorded_s[rows] = steps.start_s[schedule.step[first_row]]
    begun = np.asarray(requests.first_scheduled_s < recorded_s - CLOCK_S)
    if (computed := recording.meta.initial_computed) is not None:
        begun[: len(computed)] |= computed > 0  # some started in the step in flight at that time
    return begun


def _computed_by(recording: Recording, request: int, step: int) -> int:
    """Return the number of a request's computed tokens after `step`; -1 if the step does not compute the request."""
    schedule = recording.schedule
    rows = np.flatnonzero(schedule.request == request)
    rows = rows[(schedule.step[rows] <= step) & (step < schedule.step[rows] + schedule.repeats[rows].astype(np.int64))]
    if not len(rows):
        return -1
    row = rows[-1]
    return int(schedule.computed_before[row] + schedule.tokens[row] * (step - int(schedule.step[row]) + 1))


def _step_of_last_release(recording: Recording) -> npt.NDArray[np.int64]:
    """Return, for each request, the step whose output released its memory the last time; -2 if no output did."""
    output_seq, end_seq = recording.steps.output_seq, _last_release(recording)
    output = np.minimum(np.searchsorted(output_seq, end_seq), len(output_seq) - 1)
    return np.where(output_seq[output] == end_seq, output, -2)


def _last_release(recording: Recording) -> IntArray:
    memory, last = recording.memory, np.full(len(recording.requests), -1)
    rows = np.flatnonzero(memory.kind == MemoryKind.RELEASE)
    np.maximum.at(last, memory.request[rows], memory.seq[rows])
    return last


def least_tokens_for_outputs(recording: Recording) -> npt.NDArray[np.int64]:
    """Return, for each request, the least number of tokens that must be computed to sample its last output."""
    tokens, unsure = _tokens_for_outputs(recording)
    return tokens - unsure


def _tokens_for_outputs(recording: Recording) -> tuple[npt.NDArray[np.int64], IntArray]:
    """Return `(tokens, unsure)`, with an entry for each request: it has computed from `tokens - unsure` to `tokens`
    tokens when its last output is sampled.

    Usually all tokens but the last output are computed, and `unsure` is 0. But with pipeline parallelism, vLLM may
    resume a preempted request while one of its tokens is in flight. The resumed steps may sample this token again. The
    request then has one more output without one more computed token, depending on when the first sample arrives:

    - After the resumed steps reached the token's position: there is one more output, unless the request ends before the
      second sample.
    - Earlier, but after the request resumed: there may be one more output. Only then is `unsure` above 0.
    """
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    tokens = requests.prompt_tokens.astype(np.int64) + requests.output_tokens - 1
    if recording.meta.engine.get("pipeline_parallel_size", 1) == 1 or not requests.preemptions.any():
        return tokens, np.zeros(len(tokens), np.int64)
    rows = np.flatnonzero(requests.preemptions[schedule.request])
    rows = rows[np.argsort(schedule.request[rows], kind="stable")]
    request, begins, repeats = schedule.request[rows], schedule.step[rows], schedule.repeats[rows].astype(np.int64)
    before = schedule.computed_before[rows].astype(np.int64)
    after = computed_after(schedule)[rows]
    # A row samples an output if no earlier row of its request got further, and it reaches the end of the prompt.
    progress = sort_key(request, after)
    samples = (progress == np.maximum.accumulate(progress)) & (after >= requests.prompt_tokens[request])
    is_resumed = (request[1:] == request[:-1]) & (before[1:] < after[:-1])
    unsure, end_seq = np.zeros(len(tokens), np.int64), _last_release(recording)
    for row in np.flatnonzero(is_resumed & samples[:-1]).tolist():
        # Find the row, and the step, in which the resumed request reaches the same token again.
        again = row + 1
        while again < len(rows) and request[again] == request[row] and after[again] < after[row]:
            again += 1
        if again < len(rows) and request[again] == request[row]:
            step = begins[again] + -(-(after[row] - before[again]) // schedule.tokens[rows[again]]) - 1
            if steps.output_seq[step] > end_seq[request[row]]:
                continue
            first_sample = steps.output_seq[begins[row] + repeats[row] - 1]
            tokens[request[row]] -= first_sample > steps.schedule_seq[step]
            unsure[request[row]] += steps.schedule_seq[begins[row + 1]] < first_sample <= steps.schedule_seq[step]
    return tokens, unsure
