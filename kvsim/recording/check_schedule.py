"""What must hold for the steps of a recording, and between them, the schedule and the requests: what a recording says
twice must agree.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.recording.model import Recording
from kvsim.recording.order import stable_order
from kvsim.recording.rules import is_time, require, require_of, rises, within
from kvsim.recording.tables import MemoryKind, RequestStatus, Schedule, Steps

_COUNTS = ("prefill_tokens", "decode_tokens", "num_scheduled", "running", "waiting", "preempted")


def check_steps(recording: Recording, file: Path) -> None:
    """Check the steps by themselves.

    Raises:
        RecordingError: naming `file` and the row of the first step that cannot be right.
    """
    steps, pool = recording.steps, recording.meta.pool
    require_of(
        lambda rows: steps.step[rows] == np.arange(rows.start, rows.stop),
        steps, file, "step should count the rows from 0",
    )  # fmt: skip
    require(rises(steps.schedule_seq, np.greater), file, "schedule_seq should increase")
    require(steps.output_seq > steps.schedule_seq, file, "output_seq should come after schedule_seq")
    require(rises(steps.output_seq, np.greater), file, "output_seq should increase")
    require_of(
        lambda rows: is_time(steps.start_s[rows])
        & is_time(steps.end_s[rows])
        & (steps.end_s[rows] >= steps.start_s[rows]),
        steps, file, "start_s and end_s should be finite times in this order",
    )  # fmt: skip
    require(rises(steps.start_s, least=-np.inf), file, "start_s should not decrease")
    require(steps.start_s >= 0, file, "start_s should not be negative")
    require(rises(steps.end_s), file, "end_s should not decrease")
    optional = [name for name, spec in Steps.columns() if spec.optional and getattr(steps, name) is not None]
    for name in (*_COUNTS, *optional):
        require(getattr(steps, name) >= 0, file, f"{name} should not be negative")
    require(steps.num_scheduled <= steps.running, file, "num_scheduled should not be more than running")
    if pool.num_units is not None:
        fits = (steps.free_units >= -1) & (steps.free_units <= pool.num_units)
        require(fits, file, f"free_units should lie between 0 and the pool's {pool.num_units}")
    if steps.unusable_units is not None:
        part = steps.unusable_units <= np.maximum(steps.free_units, 0)
        require(part, file, "unusable_units should not be more than free_units")
    if steps.allocated_bytes is not None and steps.reserved_bytes is not None:
        require(steps.allocated_bytes <= steps.reserved_bytes, file, "allocated_bytes should not exceed reserved_bytes")


def check_schedule(recording: Recording, file: Path) -> None:
    """Check the schedule by itself: it speaks of requests and steps that there are.

    Raises:
        RecordingError: naming `file` and the first row that cannot be right.
    """
    schedule = recording.schedule
    require(within(schedule.request, len(recording.requests)), file, "request is not a row of requests.parquet")
    require(within(schedule.step, len(recording.steps)), file, "step is not a row of steps.parquet")
    last = schedule.step.astype(np.int64) + schedule.repeats - 1
    require((schedule.repeats > 0) & (last < len(recording.steps)), file, "repeat runs past the last step")
    require(schedule.computed_before >= 0, file, "computed_before should not be negative")
    require(schedule.tokens > 0, file, "tokens should be positive")
    require(rises(schedule.step), file, "step should not decrease")


def check_agreement(recording: Recording, folder: Path) -> None:
    """Check that the schedule agrees with the steps, and the requests with both.

    Raises:
        RecordingError: naming the file and row of the first disagreement.
    """
    _check_steps_against_schedule(recording, folder / "steps.parquet")
    _check_rows_of_requests(recording, folder / "schedule.parquet")
    _check_requests_against_schedule(recording, folder / "requests.parquet")
    if recording.meta.begins_in_the_middle:
        return
    requests, steps, file = recording.requests, recording.steps, folder / "steps.parquet"
    # There are fewer requests than steps to look for.
    came = np.searchsorted(steps.schedule_seq, requests.arrival_seq)
    arrived = np.bincount(came, minlength=len(steps) + 1)
    np.cumsum(arrived, out=arrived)
    require_of(
        lambda rows: np.add(steps.running[rows], steps.waiting[rows], dtype=np.int64) <= arrived[rows],
        steps, file, "running and waiting should not be more than have arrived",
    )  # fmt: skip
    rows = np.flatnonzero(steps.preempted)
    preempted = np.cumsum(steps.preempted[rows], dtype=np.int64) <= int(requests.preemptions.sum(dtype=np.int64))
    require(preempted, file, "preempted should add up to the preemptions of requests.parquet", rows)
    lost = requests.preemptions.cumsum(dtype=np.int64) <= int(steps.preempted.sum(dtype=np.int64))
    require(lost, folder / "requests.parquet", "preemptions should add up to preempted of steps.parquet")


def _check_steps_against_schedule(recording: Recording, file: Path) -> None:
    schedule, steps = recording.schedule, recording.steps
    scheduled = _per_step(schedule, len(steps), np.ones(len(schedule), np.int32))
    require(scheduled == steps.num_scheduled, file, "num_scheduled should be what schedule.parquet has for the step")
    tokens = _per_step(schedule, len(steps), schedule.tokens.astype(np.int64))
    rule = "prefill_tokens and decode_tokens should add up to the tokens of schedule.parquet"
    require_of(
        lambda rows: tokens[rows] == np.add(steps.prefill_tokens[rows], steps.decode_tokens[rows], dtype=np.int64),
        steps, file, rule,
    )  # fmt: skip


def _per_step(schedule: Schedule, num_steps: int, amount: np.ndarray) -> np.ndarray:
    """`amount` of the rows of the schedule, added up for each step."""
    change = np.zeros(num_steps + 1, amount.dtype)
    np.add.at(change, schedule.step, amount)
    np.add.at(change, schedule.step.astype(np.int64) + schedule.repeats, -amount)
    return np.cumsum(change, dtype=change.dtype, out=change)[:-1]


def _check_rows_of_requests(recording: Recording, file: Path) -> None:
    """A request is scheduled when it has arrived, once in a step, and goes on where it was, or further back."""
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    arrived = requests.arrival_seq[schedule.request] <= steps.schedule_seq[schedule.step]
    require(arrived, file, "the request has not arrived yet")
    rows = stable_order(schedule.request, len(requests))
    request, repeats = schedule.request[rows], schedule.repeats[rows].astype(np.int64)
    end = schedule.step[rows] + repeats
    after = schedule.computed_before[rows] + schedule.tokens[rows] * repeats
    goes_on = request[1:] == request[:-1]
    once = ~goes_on | (schedule.step[rows[1:]] >= end[:-1])
    require(once, file, "the request is scheduled twice in one step", rows[1:])
    # Others may have computed more of a prefix than a request that was preempted, and it hits what they left.
    memory = recording.memory
    released = np.sort(memory.request[memory.kind == MemoryKind.RELEASE].astype(np.int64) * _MOST_STEPS
                         + memory.step[memory.kind == MemoryKind.RELEASE])  # fmt: skip
    row_key = request.astype(np.int64) * _MOST_STEPS
    since = np.searchsorted(released, row_key[:-1] + schedule.step[rows[:-1]])
    upto = np.searchsorted(released, row_key[1:] + schedule.step[rows[1:]], side="right")
    was_preempted = goes_on & (upto > since)
    no_gap = ~goes_on | was_preempted | (schedule.computed_before[rows[1:]] <= after[:-1])
    require(no_gap, file, "computed_before should not be more than the request has computed in earlier rows", rows[1:])


def _check_requests_against_schedule(recording: Recording, file: Path) -> None:
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    repeats, num_requests = schedule.repeats.astype(np.int64), len(requests)
    final = np.zeros(num_requests, np.int64)
    np.maximum.at(final, schedule.request, schedule.computed_before + schedule.tokens * repeats)
    is_scheduled = final > 0
    finished = requests.status == RequestStatus.FINISHED
    require(~finished | is_scheduled, file, "a finished request should be in schedule.parquet")
    require((requests.status != RequestStatus.REFUSED) | ~is_scheduled, file, "a refused request was scheduled")
    needed = _tokens_behind_outputs(recording)
    enough = (requests.output_tokens == 0) | (final >= needed) | _begun_before(recording)
    require(enough, file, "output_tokens should not be more than schedule.parquet has computed")
    if not len(steps):
        return
    last_step = np.zeros(num_requests, np.int64)
    np.maximum.at(last_step, schedule.request, schedule.step + repeats - 1)
    left = ~is_scheduled | ~(requests.finished_s < steps.start_s[last_step])
    require(left, file, "finished_s should not be before the start of the request's last step")
    _check_times_of_outputs(recording, file)
    if recording.meta.begins_in_the_middle:
        return
    require(is_scheduled == ~np.isnan(requests.first_scheduled_s), file, "first_scheduled_s is not schedule.parquet's")
    rows, first_row = np.unique(schedule.request, return_index=True)
    begins = schedule.step[first_row]
    within_step = (requests.first_scheduled_s[rows] >= steps.start_s[begins] - _CLOCK_S) & (
        requests.first_scheduled_s[rows] <= steps.end_s[begins] + _CLOCK_S
    )
    require(within_step, file, "first_scheduled_s should lie within the request's first step", rows)
    cached = requests.cached_tokens[rows] == schedule.computed_before[first_row]
    require(cached, file, "cached_tokens should be what was computed before the request's first step", rows)


def _check_times_of_outputs(recording: Recording, file: Path) -> None:
    """A token is there no earlier than the step that computes it ends, and the engine notices soon after its last.

    Where a recording begins in the middle, a request that was scheduled before may have its tokens from then.
    """
    requests, steps = recording.requests, recording.steps
    answered = (requests.output_tokens > 0) & ~_begun_before(recording)
    finished = answered & (requests.status == RequestStatus.FINISHED)
    for name, asked, tokens in (
        ("first_token_s", answered, requests.prompt_tokens.astype(np.int64)),
        ("finished_s", finished, _tokens_behind_outputs(recording)),
    ):
        times = getattr(requests, name)
        rows, computed_in = _steps_of_tokens(recording.schedule, np.where(asked, tokens, 0))
        holds = times[rows] >= steps.end_s[computed_in] - _CLOCK_S
        require(holds, file, f"{name} should not be before the end of the step that computes what it needs", rows)
        upto = ~asked | (times <= steps.end_s[-1] + _NOTICED_S)
        require(upto, file, f"{name} should not be long after the last step")


def _begun_before(recording: Recording) -> npt.NDArray[np.bool_]:
    """Whether each request was scheduled before a recording that begins in the middle tells of it."""
    requests, steps, schedule = recording.requests, recording.steps, recording.schedule
    if not recording.meta.begins_in_the_middle or not len(steps):
        return np.zeros(len(requests), np.bool_)
    told_s = np.full(len(requests), steps.end_s[-1])
    rows, first_row = np.unique(schedule.request, return_index=True)
    told_s[rows] = steps.start_s[schedule.step[first_row]]
    return np.asarray(requests.first_scheduled_s < told_s - _CLOCK_S)


def _tokens_behind_outputs(recording: Recording) -> npt.NDArray[np.int64]:
    """Tokens of each request that must be computed for its last output: all but that one.

    In a pipeline vLLM may resume a request while a token of it is under way. Its model runner, which is handed the
    tokens known by then, answers that token again, and from then on the request has one output more.
    """
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    behind = requests.prompt_tokens.astype(np.int64) + requests.output_tokens - 1
    if recording.meta.engine.get("pipeline_parallel_size", 1) == 1 or not requests.preemptions.any():
        return behind
    rows = np.flatnonzero(requests.preemptions[schedule.request])
    rows = rows[np.argsort(schedule.request[rows], kind="stable")]
    request, begins, repeats = schedule.request[rows], schedule.step[rows], schedule.repeats[rows].astype(np.int64)
    before = schedule.computed_before[rows].astype(np.int64)
    after = before + schedule.tokens[rows] * repeats
    of_request = request.astype(np.int64) * _MOST_STEPS
    answers = (of_request + after == np.maximum.accumulate(of_request + after)) & (
        after >= requests.prompt_tokens[request]
    )
    is_resumed = (request[1:] == request[:-1]) & (before[1:] < after[:-1])
    is_under_way = steps.output_seq[(begins + repeats - 1)[:-1]] > steps.schedule_seq[begins[1:]]
    return behind - np.bincount(request[1:][is_resumed & is_under_way & answers[:-1]], minlength=len(requests))


def _steps_of_tokens(schedule: Schedule, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The requests of which so many tokens are computed, if any are asked for, and the first step that gets there."""
    wanted, before = tokens[schedule.request], schedule.computed_before
    gets_there = np.flatnonzero(
        (before < wanted) & (before + schedule.tokens * schedule.repeats.astype(np.int64) >= wanted)
    )
    rows, first = np.unique(schedule.request[gets_there], return_index=True)
    row = gets_there[first]
    return rows, schedule.step[row] + -(-(wanted[row] - before[row]) // schedule.tokens[row]) - 1


_MOST_STEPS = 1 << 32
"""A number of steps that no recording has."""
_CLOCK_S = 1e-6
"""Seconds by which two readings of one clock may differ when they are written down."""
_NOTICED_S = 10.0
"""An engine that does nothing else has noticed by then what its last step brought."""
