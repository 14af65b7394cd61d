"""Check the steps and the schedule: each by itself, against each other, and against the requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.recording.by_request import computed_after, first_rows, last_steps
from kvsim.recording.check_times import Ends, begun_before, check_outputs, least_tokens_for_outputs
from kvsim.recording.model import Outline, Recording
from kvsim.recording.order import sort_key, stable_order
from kvsim.recording.rules import CLOCK_S, agree, is_time, require, require_of, rises, within
from kvsim.recording.tables import IntArray, RequestStatus, Schedule, Steps

AFTER_OUTPUT = (
    "running_after", "waiting_after", "free_units_after", "free_window_units_after", "cached_window_units_after",
)  # fmt: skip
"""Columns with the state after the output of a step. They are -1 if another step is in flight at that time."""
_COUNTS = ("prefill_tokens", "decode_tokens", "num_scheduled", "running", "waiting", "preempted")


def check_steps(recording: Recording | Outline, file: Path) -> None:
    """Check all rules that need only the steps table and `meta.json`."""
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
        if name in AFTER_OUTPUT:
            require(getattr(steps, name) >= -1, file, f"{name} should not be less than -1")
        else:
            require(getattr(steps, name) >= 0, file, f"{name} should not be negative")
    require(steps.num_scheduled <= steps.running, file, "num_scheduled should not be more than running")
    if pool.num_units is not None:
        fits = (steps.free_units >= -1) & (steps.free_units <= pool.num_units)
        require(fits, file, f"free_units should lie between 0 and the pool's {pool.num_units}")
    if steps.unusable_units is not None:
        are_free = steps.unusable_units <= np.maximum(steps.free_units, 0)
        require(are_free, file, "unusable_units should not be more than free_units")
        if "rules" not in recording.meta.policy:  # with a custom allocator, some of the free units may be unusable
            all_or_none = (steps.unusable_units == 0) | (
                (steps.unusable_units == steps.free_units) & (steps.waiting > 0)
            )
            require(all_or_none, file, "unusable_units should be none, or all free units while a request waits")
            if recording.meta.policy_name != "contiguous":
                require(steps.unusable_units == 0, file, "unusable_units are for reservations of contiguous memory")
    if steps.allocated_bytes is not None and steps.reserved_bytes is not None:
        require(steps.allocated_bytes <= steps.reserved_bytes, file, "allocated_bytes should not exceed reserved_bytes")


def check_schedule(recording: Recording, file: Path) -> None:
    """Check each schedule row by itself."""
    schedule = recording.schedule
    require(within(schedule.request, len(recording.requests)), file, "request is not a row of requests.parquet")
    require(within(schedule.step, len(recording.steps)), file, "step is not a row of steps.parquet")
    last = schedule.step.astype(np.int64) + schedule.repeats - 1
    require((schedule.repeats > 0) & (last < len(recording.steps)), file, "repeat runs past the last step")
    # If more padding drafts are rejected than tokens are computed, vLLM counts less than no token as computed.
    least = -_most_cut(recording)
    require(
        schedule.computed_before >= least, file,
        f"computed_before should not be below {least}" if least else "computed_before should not be negative",
    )  # fmt: skip
    require(schedule.tokens > 0, file, "tokens should be positive")
    require(rises(schedule.step), file, "step should not decrease")


def check_agreement(recording: Recording, ends: Ends, folder: Path) -> None:
    """Check that schedule, steps and requests agree with each other. `ends` has the steps that ended requests."""
    _check_rows_of_requests(recording, folder / "schedule.parquet")
    _check_steps_against_schedule(recording, folder / "steps.parquet")
    _check_requests_against_schedule(recording, ends, folder / "requests.parquet")
    _check_adapters(recording, folder / "requests.parquet")


def _check_adapters(recording: Recording, file: Path) -> None:
    """Check the numbers of adapters, and that no step computes requests of more than `max_loras`."""
    adapter, slots = recording.requests.adapter, recording.meta.policy.get("max_loras")
    if adapter is None:
        return
    require(adapter >= 0, file, "adapter should not be negative")
    if not isinstance(slots, int) or not recording.meta.policy.get("enable_lora"):
        return
    schedule, steps = recording.schedule, recording.steps
    of_row = adapter[schedule.request].astype(np.int64)
    in_use = np.zeros(len(steps), np.int64)
    for number in np.unique(of_row[of_row > 0]).tolist():
        rows = np.flatnonzero(of_row == number)
        change = np.zeros(len(steps) + 1, np.int64)
        np.add.at(change, schedule.step[rows], 1)
        np.add.at(change, schedule.step[rows].astype(np.int64) + schedule.repeats[rows], -1)
        in_use += np.cumsum(change)[:-1] > 0
    rule = f"a step should compute requests of at most {slots} adapters (max_loras), by requests.parquet"
    in_use = in_use[int(recording.meta.begins_in_the_middle) :]  # its first step stands for all steps before
    require(in_use <= slots, file.with_name("steps.parquet"), rule)


def _check_steps_against_schedule(recording: Recording, file: Path) -> None:
    schedule, steps = recording.schedule, recording.steps
    repeats = schedule.repeats.astype(np.int64)
    scheduled = _sum_per_step(schedule, len(steps), np.ones(len(schedule), np.int32), repeats)
    agree(steps.num_scheduled, scheduled, file, "num_scheduled", "schedule.parquet")
    del scheduled
    tokens = _sum_per_step(schedule, len(steps), schedule.tokens.astype(np.int64), repeats)
    rule = "prefill_tokens and decode_tokens should add up to the tokens of schedule.parquet"
    require_of(
        lambda rows: tokens[rows] == np.add(steps.prefill_tokens[rows], steps.decode_tokens[rows], dtype=np.int64),
        steps, file, rule,
    )  # fmt: skip
    prefill = _sum_per_step(schedule, len(steps), schedule.tokens.astype(np.int64), _prefill_steps(recording))
    agree(steps.prefill_tokens, prefill, file, "prefill_tokens", "schedule.parquet")


def _prefill_steps(recording: Recording) -> npt.NDArray[np.int64]:
    schedule, requests = recording.schedule, recording.requests
    repeats = schedule.repeats.astype(np.int64)
    left_tokens = requests.prompt_tokens[schedule.request].astype(np.int64) - schedule.computed_before
    of_prompt = np.clip(-(-left_tokens // schedule.tokens), 0, repeats)
    # A row of several tokens per step is a prefill in all its steps, unless it verifies drafts.
    is_prefill = schedule.tokens > 1
    if schedule.known is not None:
        is_prefill &= schedule.computed_before < schedule.known - 1
    return np.where(is_prefill, repeats, of_prompt)


def _sum_per_step(schedule: Schedule, num_steps: int, amount: IntArray, repeats: IntArray) -> IntArray:
    """Return, for each step, the sum of `amount[i]` over the schedule rows i that count in the step.

    Row i counts in `repeats[i]` consecutive steps, from its first step on.
    """
    change = np.zeros(num_steps + 1, amount.dtype)
    np.add.at(change, schedule.step, amount)
    np.add.at(change, schedule.step.astype(np.int64) + repeats, -amount)
    return np.cumsum(change, dtype=change.dtype, out=change)[:-1]


def _check_rows_of_requests(recording: Recording, file: Path) -> None:
    """Check that the rows of a request are in order and, except after preemptions, without gaps."""
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    arrived = requests.arrival_seq[schedule.request] <= steps.schedule_seq[schedule.step]
    require(arrived, file, "the request has not arrived yet")
    rows = stable_order(schedule.request, len(requests))
    request, repeats = schedule.request[rows], schedule.repeats[rows].astype(np.int64)
    end = schedule.step[rows] + repeats
    after = computed_after(schedule)[rows]
    goes_on = request[1:] == request[:-1]
    once = ~goes_on | (schedule.step[rows[1:]] >= end[:-1])
    require(once, file, "the request is scheduled twice in one step", rows[1:])
    # A preempted request may start anywhere: it may hit a longer prefix than it had computed, which others cached.
    memory = recording.memory
    released = np.sort(sort_key(memory.request[memory.end_rows], memory.seq[memory.end_rows]))
    since = np.searchsorted(released, sort_key(request[:-1], steps.schedule_seq[end[:-1] - 1]), side="right")
    upto = np.searchsorted(released, sort_key(request[1:], steps.schedule_seq[schedule.step[rows[1:]]]), side="right")
    was_preempted = goes_on & (upto > since)
    before = schedule.computed_before[rows[1:]]
    expected = after[:-1] if schedule.known is None else _expected_with_drafts(recording, rows, after)
    # After the first step of a recording that begins in the middle, drafts of steps before it may be rejected.
    is_joined = recording.has_drafts & recording.meta.begins_in_the_middle & (schedule.step[rows[:-1]] == 0)
    follows = before == expected
    if _most_cut(recording):
        follows |= before == expected - _cut_drafts(recording, rows, np.append(True, ~goes_on | was_preempted))
    no_gap = ~goes_on | was_preempted | is_joined | follows
    require(no_gap, file, "computed_before should be what the request has computed in earlier rows", rows[1:])


def _expected_with_drafts(recording: Recording, rows: IntArray, after: IntArray) -> npt.NDArray[np.int64]:
    """Return the `computed_before` that a row should have if it continues the row before it: one number for each of
    `rows` but the first.

    `rows` are sorted by request and then by step, and `after` has the number of computed tokens after each. In prefill,
    a row begins where the row before it ended. In decode, drafts may have been rejected: a row begins at the last known
    token, plus the tokens of a step in flight.
    """
    schedule, steps = recording.schedule, recording.steps
    assert schedule.known is not None
    known, step = schedule.known[rows].astype(np.int64), schedule.step[rows]
    in_flight = steps.output_seq[step[:-1]] > steps.schedule_seq[step[1:]]
    least_computed = np.where(in_flight, schedule.computed_before[rows[:-1]] + 1, after[:-1])
    in_decode = known[1:] - 1 + np.where(in_flight, schedule.tokens[rows[:-1]], 0)
    return np.where(least_computed < known[:-1], after[:-1], in_decode)


def _most_cut(recording: Recording) -> int:
    """Return the largest number of padding drafts that `long_prefill_token_threshold` cuts off an admission."""
    threshold = recording.meta.policy.get("long_prefill_token_threshold") or 0
    return max(recording.meta.num_drafts + 1 - threshold, 0) if recording.has_drafts and threshold else 0


def _cut_drafts(recording: Recording, rows: IntArray, is_admission: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return by how many tokens a row may begin earlier than `_expected_with_drafts`: one number for each of `rows` but
    the first.

    A request with one token to compute is admitted with padding drafts. vLLM rejects all these drafts with the output
    of this step, including drafts that `long_prefill_token_threshold` has cut off, so that they were never computed.
    `is_admission` tells which rows follow an admission.
    """
    schedule, steps = recording.schedule, recording.steps
    assert schedule.known is not None
    tokens, step = schedule.tokens[rows].astype(np.int64), schedule.step[rows]
    is_padded = is_admission & (schedule.computed_before[rows] == schedule.known[rows] - 1)
    cut = np.where(is_padded, np.maximum(recording.meta.num_drafts + 1 - tokens, 0), 0)
    in_flight = steps.output_seq[step[:-1]] > steps.schedule_seq[step[1:]]
    # While the row before is in flight, the last output is that of the row before it, unless an admission lies between.
    cut_before = np.where(is_admission[:-1], 0, np.append(0, cut[:-2]))
    return np.where(in_flight, cut_before, cut[:-1])


def _check_known(recording: Recording, known: IntArray, file: Path) -> None:
    """Check that known tokens never fall, and grow by at most the tokens that the steps before verify."""
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    rows = stable_order(schedule.request, len(requests))
    request, tokens = schedule.request[rows], schedule.tokens[rows].astype(np.int64)
    now = known[rows].astype(np.int64)
    require(now >= requests.prompt_tokens[request], file, "known should be no less than the prompt", rows)
    is_last = np.append(request[1:] != request[:-1], True)
    ended = requests.status[request] == RequestStatus.FINISHED
    in_all = requests.prompt_tokens[request].astype(np.int64) + requests.output_tokens[request]
    # Known tokens at the request's next row; after its last row, all its tokens.
    later = np.where(is_last, in_all, np.append(now[1:], 0))
    if recording.meta.begins_in_the_middle:  # it lacks outputs that came before
        later = np.where(is_last, now + ended, later)
    rule = "known should not fall, and an output comes behind the last step of a request"
    require(later >= now + (is_last & ended), file, rule, rows)
    # A row can make all its tokens known. So can the request's previous row if it was in flight when the row was
    # scheduled.
    schedule_seq, output_seq = steps.schedule_seq[schedule.step[rows]], steps.output_seq[schedule.step[rows]]
    in_flight = np.zeros(len(rows), np.bool_)
    in_flight[1:] = (request[1:] == request[:-1]) & (output_seq[:-1] > schedule_seq[1:])
    most = now + tokens
    most[1:] += np.where(in_flight[1:], tokens[:-1], 0)
    is_joined = recording.meta.begins_in_the_middle & (schedule.step[rows] <= 1)
    require(is_joined | (later <= most), file, "known should be no more than the steps before verify", rows)


def _check_outputs(recording: Recording, known: IntArray, outputs: IntArray, file: Path) -> None:
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    rows = stable_order(schedule.request, len(requests))
    request, step, num_outputs = (
        schedule.request[rows].astype(np.int64),
        schedule.step[rows],
        outputs[rows].astype(np.int64),
    )
    require(num_outputs >= 0, file, "outputs should not be negative", rows)
    total = np.append(0, np.cumsum(num_outputs))
    # Rows [first, end) of the request have had their outputs when each row was scheduled.
    end = np.searchsorted(sort_key(request, steps.output_seq[step]), sort_key(request, steps.schedule_seq[step]))
    first = np.searchsorted(request, request)
    expected = requests.prompt_tokens[request] + total[end] - total[first]
    require(known[rows] == expected, file, "known should be the prompt and the outputs of earlier steps", rows)
    in_all = np.bincount(request, weights=num_outputs, minlength=len(requests)).astype(np.int64)
    agree(requests.output_tokens, in_all, file.with_name("requests.parquet"), "output_tokens", "schedule.parquet")


def _check_requests_against_schedule(recording: Recording, ends: Ends, file: Path) -> None:
    """Check status, outputs and times of the requests against the tokens and steps of the schedule."""
    schedule, requests, steps = recording.schedule, recording.requests, recording.steps
    final = np.zeros(len(requests), np.int64)
    np.maximum.at(final, schedule.request, computed_after(schedule))
    is_scheduled = final > 0
    finished = requests.status == RequestStatus.FINISHED
    require(~finished | is_scheduled, file, "a finished request should be in schedule.parquet")
    require((requests.status != RequestStatus.REFUSED) | ~is_scheduled, file, "a refused request was scheduled")
    enough = (requests.output_tokens == 0) | (final >= least_tokens_for_outputs(recording)) | begun_before(recording)
    require(enough, file, "output_tokens should not be more than schedule.parquet has computed")
    if schedule.known is not None:
        _check_known(recording, schedule.known, file.with_name("schedule.parquet"))
        if schedule.outputs is not None and not recording.meta.begins_in_the_middle:
            _check_outputs(recording, schedule.known, schedule.outputs, file.with_name("schedule.parquet"))
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
