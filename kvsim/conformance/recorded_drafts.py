"""Drafts of a recording: how many were proposed, and how many were right, for every number of a request's outputs.

The scheduler decides neither: both follow from the columns `known`, `outputs` and `proposed` of the schedule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import RecordingError
from kvsim.policies.draft_counts import DraftCounts
from kvsim.policies.drafts import Drafts
from kvsim.recording.order import stable_order

if TYPE_CHECKING:
    from kvsim.policies.settings import ContinuousSettings
    from kvsim.recording import Recording
    from kvsim.recording.tables import IntArray


def drafts_of(recording: Recording, scheduler: ContinuousSettings) -> Drafts | None:
    """Return the speculative decoding of a recording; None without.

    Raises:
        RecordingError: it is not known how many drafts were right.
    """
    config, meta = scheduler.drafting, recording.meta
    if config is None:
        return None
    schedule = recording.schedule
    outputs = _inferred_outputs(recording) if schedule.outputs is None else schedule.outputs
    proposed = schedule.proposed if schedule.proposed is not None else np.empty(0, np.int32)
    right, waiting = _by_outputs(recording, outputs, proposed)
    return Drafts.of(
        replace(config, num_modules=int(meta.engine.get("num_draft_modules", 1))),
        scheduler.vllm,
        caches_prefixes=meta.prefix_caching,
        has_connector=recording.transfers is not None,
        accepted=right,
        proposed=waiting,
    )


def _by_outputs(recording: Recording, outputs: IntArray, proposed: IntArray) -> tuple[DraftCounts, DraftCounts]:
    """Return the right drafts of each request, and the proposed ones, by the outputs that it has.

    Without `proposed`, as many are proposed as may be.
    """
    num_requests = len(recording.requests)
    rows = stable_order(recording.schedule.request, num_requests)
    rows = rows[outputs[rows] > 0]
    request, given = recording.schedule.request[rows], outputs[rows].astype(np.int64)
    lengths = np.bincount(request, weights=given, minlength=num_requests).astype(np.int64) + 1
    first = np.cumsum(lengths) - lengths
    # One entry more than outputs for each request: those of earlier requests are skipped, too.
    before = np.cumsum(given) - given + request
    right, waiting = np.zeros((2, int(lengths.sum())), np.int64)
    right[before] = given - 1
    if not len(proposed):
        nothing = DraftCounts.from_rows([()] * num_requests)
        return DraftCounts(values=right, first=first, lengths=lengths), nothing
    waiting[before + given] = proposed[rows]
    proposals = DraftCounts(values=waiting, first=first, lengths=lengths)
    return DraftCounts(values=right, first=first, lengths=lengths), proposals


def _inferred_outputs(recording: Recording) -> IntArray:
    """Return the tokens that each row of the schedule gave its request, from the tokens that were known at others.

    Raises:
        RecordingError: two outputs of a request came between two of its steps, of which one has drafts.
    """
    schedule, steps, requests = recording.schedule, recording.steps, recording.requests
    assert schedule.known is not None
    rows = stable_order(schedule.request, len(requests))
    request, known = schedule.request[rows], schedule.known[rows].astype(np.int64)
    step = schedule.step[rows]
    yields = schedule.computed_before[rows] + schedule.tokens[rows] >= known
    span = int(steps.output_seq.max(initial=0)) + 1
    key = request.astype(np.int64) * span
    # The row of its request before which the output of each row came; that of the next request for the last ones.
    gap = np.searchsorted(key + steps.schedule_seq[step], key + steps.output_seq[step])
    is_first = np.append(True, request[1:] != request[:-1])
    in_all = requests.prompt_tokens[request].astype(np.int64) + requests.output_tokens[request]
    last = np.where(is_first, requests.prompt_tokens[request], np.append(0, known[:-1]))
    gained = np.append(known - last, 0)
    at_end = np.flatnonzero(np.append(is_first[1:], True))
    of_end = np.zeros(len(rows) + 1, np.int64)
    of_end[at_end + 1] = in_all[at_end] - known[at_end]
    start = np.append(is_first, True)
    gained = np.where(start, of_end, gained)
    num_outputs = np.bincount(gap[yields], minlength=len(rows) + 1)
    several = (num_outputs > 1) & (gained != num_outputs)
    if several.any():
        row = int(np.flatnonzero(yields & several[gap])[0])
        raise RecordingError(
            f"recording {recording.name!r}: request {requests.id[request[row]]!r} got two outputs between two of its "
            "steps, and the recording has their sum alone; it can be compared with the column outputs in "
            "schedule.parquet."
        )
    outputs = np.zeros(len(rows), np.int64)
    outputs[rows] = np.where(yields, np.where(num_outputs[gap] > 1, 1, gained[gap]), 0)
    return outputs
