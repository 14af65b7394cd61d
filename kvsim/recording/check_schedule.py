"""Checks of the steps of a recording against the schedule and the requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.recording.by_request import computed_after, first_rows, last_steps
from kvsim.recording.check_times import MAX_STEPS, Ends, begun_before, check_outputs, tokens_behind_outputs
from kvsim.recording.model import Recording
from kvsim.recording.order import stable_order
from kvsim.recording.rules import CLOCK_S, agree, is_time, require, require_of, rises, within
from kvsim.recording.tables import IntArray, MemoryKind, RequestStatus, Schedule, Steps

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
        if "rules" not in recording.meta.policy:  # an allocator of a user's may fragment in parts
            whole = (steps.unusable_units == 0) | ((steps.unusable_units == steps.free_units) & (steps.waiting > 0))
            require(whole, file, "unusable_units should be none, or all free units while a request waits")
            if recording.meta.policy_name != "contiguous":
                require(steps.unusable_units == 0, file, "unusable_units are for reservations of contiguous memory")
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


def check_agreement(recording: Recording, ends: Ends, folder: Path) -> None:
    """Check that the schedule agrees with the steps, and the requests with both.

    Raises:
        RecordingError: naming the file and row of the first disagreement.
    """
    _check_steps_against_schedule(recording, folder / "steps.parquet")
    _check_rows_of_requests(recording, folder / "schedule.parquet")
    _check_requests_against_schedule(recording, ends, folder / "requests.parquet")


def _check_steps_against_schedule(recording: Recording, file: Path) -> None:
    schedule, steps = recording.schedule, recording.steps
    repeats = schedule.repeats.astype(np.int64)
    scheduled = _per_step(schedule, len(steps), np.ones(len(schedule), np.int32), repeats)
    agree(steps.num_scheduled, scheduled, file, "num_scheduled", "schedule.parquet")
    del scheduled
    tokens = _per_step(schedule, len(steps), schedule.tokens.astype(np.int64), repeats)
    rule = "prefill_tokens and decode_tokens should add up to the tokens of schedule.parquet"
    require_of(
        lambda rows: tokens[rows] == np.add(steps.prefill_tokens[rows], steps.decode_tokens[rows], dtype=np.int64),
        steps, file, rule,
    )  # fmt: skip
    least, most = _prefill_tokens(recording)
    prefill = _per_step(schedule, len(steps), schedule.tokens.astype(np.int64), least)
    if most is least:
        agree(steps.prefill_tokens, prefill, file, "prefill_tokens", "schedule.parquet")
        return
    require(steps.prefill_tokens >= prefill, file, "prefill_tokens should be no less than schedule.parquet has")
    prefill = _per_step(schedule, len(steps), schedule.tokens.astype(np.int64), most)
    require(steps.prefill_tokens <= prefill, file, "prefill_tokens should be no more than schedule.parquet has")


def _prefill_tokens(recording: Recording) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the least and the most prefill steps of each row of the schedule.

    Several tokens at once are no answer, unless drafts are verified; those of a request that was preempted may be both.
    """
    schedule, requests = recording.schedule, recording.requests
    repeats, drafts = schedule.repeats.astype(np.int64), recording.meta.policy.get("num_speculative_tokens") or 0
    rest = requests.prompt_tokens[schedule.request].astype(np.int64) - schedule.computed_before
    of_prompt = np.clip(-(-rest // schedule.tokens), 0, repeats)
    least = np.where(schedule.tokens > 1 + drafts, repeats, of_prompt)
    if not drafts:
        return least, least
    may_be = (schedule.tokens > 1) & (requests.preemptions[schedule.request] > 0)
    return least, np.where(may_be, repeats, least)


def _per_step(schedule: Schedule, num_steps: int, amount: IntArray, repeats: IntArray) -> IntArray:
    """Return the sum of `amount` over the rows of the schedule, for each step that they cover."""
    change = np.zeros(num_steps + 1, amount.dtype)
    np.add.at(change, schedule.step, amount)
    np.add.at(change, schedule.step.astype(np.int64) + repeats, -amount)
    return np.cumsum(change, dtype=change.dtype, out=change)[:-1]


def _check_rows_of_requests(recording: Recording, file: Path) -> None:
    """Check that a request is scheduled after its arrival, once in a step, and continues at or before its tokens."""
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
    released = np.sort(memory.request[memory.kind == MemoryKind.RELEASE].astype(np.int64) * MAX_STEPS
                         + memory.step[memory.kind == MemoryKind.RELEASE])  # fmt: skip
    row_key = request.astype(np.int64) * MAX_STEPS
    since = np.searchsorted(released, row_key[:-1] + schedule.step[rows[:-1]])
    upto = np.searchsorted(released, row_key[1:] + schedule.step[rows[1:]], side="right")
    was_preempted = goes_on & (upto > since)
    least, before = _accepted_tokens(recording)[rows], schedule.computed_before[rows[1:]]
    no_gap = ~goes_on | was_preempted | ((before <= after[:-1]) & (before >= least[:-1]))
    require(no_gap, file, "computed_before should be what the request has computed in earlier rows", rows[1:])


def _accepted_tokens(recording: Recording) -> npt.NDArray[np.int64]:
    """Return the computed tokens that are left of each row of the schedule at least: all, but for drafts."""
    schedule, requests, after = recording.schedule, recording.requests, computed_after(recording.schedule)
    before_last = after - schedule.tokens
    is_of_prompt = before_last < requests.prompt_tokens[schedule.request]
    drafts = recording.meta.policy.get("num_speculative_tokens") or 0
    return np.where(is_of_prompt | (schedule.tokens > 1 + drafts), after, before_last + 1)


def _check_requests_against_schedule(recording: Recording, ends: Ends, file: Path) -> None:
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    final = np.zeros(len(requests), np.int64)
    np.maximum.at(final, schedule.request, computed_after(schedule))
    is_scheduled = final > 0
    finished = requests.status == RequestStatus.FINISHED
    require(~finished | is_scheduled, file, "a finished request should be in schedule.parquet")
    require((requests.status != RequestStatus.REFUSED) | ~is_scheduled, file, "a refused request was scheduled")
    enough = (requests.output_tokens == 0) | (final >= tokens_behind_outputs(recording)) | begun_before(recording)
    require(enough, file, "output_tokens should not be more than schedule.parquet has computed")
    if recording.meta.policy.get("num_speculative_tokens"):
        accepted = np.zeros(len(requests), np.int64)
        np.maximum.at(accepted, schedule.request, _accepted_tokens(recording))
        least = accepted - requests.prompt_tokens + finished
        require(requests.output_tokens >= least, file, "output_tokens should be no less than schedule.parquet needs")
    if not len(steps):
        return
    left = ~is_scheduled | ~(requests.finished_s < steps.start_s[last_steps(recording)])
    require(left, file, "finished_s should not be before the start of the request's last step")
    check_outputs(recording, ends, file)
    if recording.meta.begins_in_the_middle:
        return
    require(is_scheduled == ~np.isnan(requests.first_scheduled_s), file, "first_scheduled_s is not schedule.parquet's")
    rows, first_row = first_rows(schedule)
    begin_s = steps.start_s[schedule.step[first_row]]
    agree(requests.first_scheduled_s[rows], begin_s, file, "first_scheduled_s", "steps.parquet", rows, within=CLOCK_S)
    before = schedule.computed_before[first_row]
    agree(requests.cached_tokens[rows], before, file, "cached_tokens", "schedule.parquet", rows)
