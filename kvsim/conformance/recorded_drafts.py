"""Numbers of drafts that each step of a recorded request proposed and accepted, for a simulated engine to repeat.

Both numbers follow from the columns `known`, `outputs` and `proposed` of the schedule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import RecordingError
from kvsim.policies.draft_counts import DraftCounts
from kvsim.policies.drafts import Drafts
from kvsim.recording.order import sort_key, stable_order

if TYPE_CHECKING:
    from kvsim.policies.settings import ContinuousSettings
    from kvsim.recording import Recording
    from kvsim.recording.tables import IntArray


def drafts_of(recording: Recording, scheduler: ContinuousSettings) -> Drafts | None:
    """Return the settings of drafts of a recorded engine, with the recorded numbers of drafts; None without drafts.

    Raises:
        RecordingError: with these drafts, hits of shared prompts cannot be compared.
    """
    config, meta = scheduler.drafting, recording.meta
    if config is None:
        return None
    accepted, proposals = recorded_counts(recording)
    drafts = Drafts.of(
        replace(config, num_modules=int(meta.engine.get("num_draft_modules", 1))),
        scheduler.vllm,
        caches_prefixes=meta.prefix_caching,
        has_connector=recording.transfers is not None,
        accepted=accepted,
        proposed=proposals,
    )
    if drafts.ahead_tokens > meta.hash_ahead_tokens and _shares_hashes(recording):
        raise RecordingError(
            f"recording {recording.name!r} has hashes of whole blocks, and with these drafts a block is found only if "
            "the token after it is equal, too; so hits of shared prompts cannot be compared."
        )
    return drafts


def recorded_counts(recording: Recording) -> tuple[DraftCounts, DraftCounts]:
    """Return the accepted and the proposed numbers of drafts of each request of a recording with drafts.

    Entry i of an accepted list is for the step that begins after i outputs. Entry i of a proposed list is
    for the drafts that are proposed when the request has i outputs. If the recording lacks these, the proposed lists
    are empty, which means the maximum.

    Raises:
        RecordingError: the numbers do not follow from the recording.
    """
    schedule = recording.schedule
    outputs = _inferred_outputs(recording) if schedule.outputs is None else schedule.outputs
    proposed = schedule.proposed if schedule.proposed is not None else np.empty(0, np.int32)
    return _by_outputs(recording, outputs, proposed)


def _shares_hashes(recording: Recording) -> bool:
    hashes = recording.requests.prompt_hashes.values
    return len(np.unique(hashes)) < len(hashes)


def _by_outputs(recording: Recording, outputs: IntArray, proposed: IntArray) -> tuple[DraftCounts, DraftCounts]:
    """Return the counts of `recorded_counts`. `outputs` and `proposed` have an entry for each row of the schedule.

    `proposed` may be empty.
    """
    num_requests = len(recording.requests)
    rows = stable_order(recording.schedule.request, num_requests)
    rows = rows[outputs[rows] > 0]
    request, gained = recording.schedule.request[rows], outputs[rows].astype(np.int64)
    # A request with k outputs has entries for 0 to k outputs.
    lengths = np.bincount(request, weights=gained, minlength=num_requests).astype(np.int64) + 1
    first = np.cumsum(lengths) - lengths
    # Entry for the number of outputs before each row: outputs of all rows before, and one more entry of each request.
    before = np.cumsum(gained) - gained + request
    accepted, proposals = np.zeros((2, int(lengths.sum())), np.int64)
    accepted[before] = gained - 1  # a step gives a request its accepted drafts and one further token
    counts = DraftCounts(values=accepted, first=first, lengths=lengths)
    if not len(proposed):
        return counts, DraftCounts.from_rows([()] * num_requests)
    proposals[before + gained] = proposed[rows]
    return counts, DraftCounts(values=proposals, first=first, lengths=lengths)


def _inferred_outputs(recording: Recording) -> IntArray:
    """Return the number of output tokens of each schedule row, inferred from the known tokens of later rows.

    Between two rows of a request, its known tokens grow by the outputs that it gets between them. The same holds before
    its first row and after its last row.

    Raises:
        RecordingError: the rows do not determine the numbers.
    """
    schedule, steps, requests = recording.schedule, recording.steps, recording.requests
    assert schedule.known is not None
    rows = stable_order(schedule.request, len(requests))
    request, known = schedule.request[rows], schedule.known[rows].astype(np.int64)
    step = schedule.step[rows]
    yields = schedule.computed_before[rows] + schedule.tokens[rows] >= known
    yields &= ~(steps.end_s[step] > requests.finished_s[request])  # outputs after the request's end are discarded
    # Gap of each output, named by the row after it; the gap after a request's last row by the next request's first row.
    gap = np.searchsorted(sort_key(request, steps.schedule_seq[step]), sort_key(request, steps.output_seq[step]))
    is_first = np.append(True, request[1:] != request[:-1])
    final = requests.prompt_tokens[request].astype(np.int64) + requests.output_tokens[request]
    last = np.where(is_first, requests.prompt_tokens[request], np.append(0, known[:-1]))
    gained = np.append(known - last, 0)
    at_end = np.flatnonzero(np.append(is_first[1:], True))
    gained_at_end = np.zeros(len(rows) + 1, np.int64)
    gained_at_end[at_end + 1] = final[at_end] - known[at_end]
    gained = np.where(np.append(is_first, True), gained_at_end, gained)
    num_outputs = np.bincount(gap[yields], minlength=len(rows) + 1)
    several = (num_outputs > 1) & (gained != num_outputs)
    if several.any():
        row = int(np.flatnonzero(yields & several[gap])[0])
        raise RecordingError(
            f"recording {recording.name!r}: request {str(requests.id[request[row]])!r} got two outputs between two of "
            "its steps, and the recording has their sum alone; it can be compared with the column outputs in "
            "schedule.parquet."
        )
    outputs = np.zeros(len(rows), np.int64)
    outputs[rows] = np.where(yields, np.where(num_outputs[gap] > 1, 1, gained[gap]), 0)
    return outputs
