"""Tokens that requests with drafts had put into the prefix cache, as far as a recording says them.

A step caches the known tokens that it computes. Where the engine also caches when an output comes, it caches all known
tokens but the newest, whose KV is not computed yet. `schedule.parquet` says the known tokens at each step, and
`requests.parquet` those at the end, so that most numbers are exact. A request that is preempted with two outputs under
way gets one before it gives its blocks back, and one after: only the sum of their tokens is said.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kvsim.policies.releases import rules_of
from kvsim.policies.speculative_config import SpeculativeConfig
from kvsim.recording import Meta, Recording, RequestStatus
from kvsim.recording.by_request import RowsByRequest
from kvsim.recording.tables import IntArray

Tokens = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def cached_with_drafts(
    recording: Recording, rows: IntArray, previous_end: IntArray, release: str
) -> tuple[Tokens, ...]:
    """Return the tokens of each request that had been cached when `rows` released its units, at least and at most,
    those that had been computed, and those, at most, that another step could cache.

    Args:
        recording: a recording with drafts.
        rows: rows of `memory.parquet`.
        previous_end: the last step before each request released all of its memory earlier; -1 for none.
        release: the release of vLLM that the engine followed.
    """
    if not len(recording.schedule):
        return (np.zeros(len(rows), np.int64),) * 4
    meta, turns = recording.meta, _LastSteps.of(recording, rows, previous_end)
    ahead, lag = _tokens_ahead(meta, release), int(meta.engine.get("num_draft_modules", 1)) - 1
    computed = np.minimum(np.minimum(turns.end, turns.known) - lag, turns.known - ahead)
    known = turns.known_at_release()
    least, most = (
        np.where(turns.has_output, np.maximum(computed, tokens - max(ahead, 1 + lag)), computed) for tokens in known
    )
    if "speculative_config" in meta.policy and not _caches_outputs(meta, release):
        least = most = computed
    return tuple(np.where(turns.is_there, each, 0) for each in (least, most, turns.end, known[1] - ahead))


def _tokens_ahead(meta: Meta, release: str) -> int:
    """Return the tokens behind a block that its key covers."""
    told = meta.policy.get("speculative_config")
    return meta.hash_ahead_tokens or (SpeculativeConfig.parse(told).tokens_ahead(release) if told else 0)


def _caches_outputs(meta: Meta, release: str) -> bool:
    """Tell whether blocks are also cached when outputs come."""
    return rules_of(release).caches_processed or bool({**meta.engine, **meta.policy}.get("async_scheduling"))


class _LastSteps(NamedTuple):
    """The newest step of each request before a release of its units, and the outputs that were under way then."""

    is_there: Flags
    known: Tokens
    """Known tokens when the step was scheduled."""
    end: Tokens
    """Computed tokens behind it."""
    known_behind: Tokens
    """Known tokens at the next step of the request, or in the end."""
    is_preempted: Flags
    """Whether a step gave the units to others; else the request ended, and later outputs are dropped."""
    most_before: Tokens
    """Tokens that outputs brought from the step to the release, at most."""
    least_before: Tokens
    most_after: Tokens
    """Tokens that outputs brought from the release to the next step, at most."""
    least_after: Tokens

    @property
    def has_output(self) -> Flags:
        """Whether an output came from the step to the release."""
        return self.least_before > 0

    @classmethod
    def of(cls, recording: Recording, rows: IntArray, previous_end: IntArray) -> Self:
        """Look up the steps of the requests that release units in `rows` of `memory.parquet`."""
        schedule, steps, order = recording.schedule, recording.steps, RowsByRequest.of(recording)
        request, seq = recording.memory.request[rows].astype(np.int64), recording.memory.seq[rows]
        at = np.searchsorted(order.key, order.key_of(request, np.searchsorted(steps.schedule_seq, seq))) - 1
        first = np.searchsorted(order.key, order.key_of(request, previous_end), side="right")
        newest, before = order.row[np.maximum(at, 0)], order.row[np.maximum(at - 1, 0)]
        following = order.row[np.minimum(at + 1, len(order.row) - 1)]
        goes_on = (at + 1 < len(order.row)) & (schedule.request[following] == request)
        assert schedule.known is not None
        in_all = recording.requests.prompt_tokens[request].astype(np.int64) + recording.requests.output_tokens[request]
        next_seq = np.where(goes_on, steps.schedule_seq[schedule.step[following]], _NEVER)
        is_preempted = np.isin(seq, steps.schedule_seq)
        is_awaited = goes_on | (recording.requests.status[request] == RequestStatus.FINISHED)
        counts = np.zeros((4, len(rows)), np.int64)
        for row, is_there, is_first in ((newest, at >= first, at == first), (before, at > first, at == first + 1)):
            output_seq, most = steps.output_seq[schedule.step[row]], _most_tokens(recording, row, is_first)
            is_under_way = is_there & (most > 0) & (output_seq > steps.schedule_seq[schedule.step[newest]])
            came, comes = is_under_way & (output_seq <= seq), is_under_way & (output_seq > seq) & is_preempted
            counts += np.array([came * most, came, comes * most, comes & is_awaited & (output_seq < next_seq)])
        return cls(
            at >= first,
            schedule.known[newest].astype(np.int64),
            _end(recording, newest),
            np.where(goes_on, schedule.known[following], in_all),
            is_preempted,
            *counts,
        )

    def known_at_release(self) -> tuple[Tokens, Tokens]:
        """Return the known tokens of each request when it released its units, at least and at most."""
        least = np.maximum(self.known + self.least_before, self.known_behind - self.most_after)
        most = np.minimum(self.known + self.most_before, self.known_behind - self.least_after)
        return least, most


_NEVER = np.iinfo(np.int64).max


def _end(recording: Recording, row: IntArray) -> Tokens:
    """Return the computed tokens behind rows of the schedule."""
    schedule = recording.schedule
    return schedule.computed_before[row].astype(np.int64) + schedule.tokens[row]


def _most_tokens(recording: Recording, row: IntArray, is_first: Flags) -> Tokens:
    """Return the tokens that the outputs of rows of the schedule may bring: a new one, and the drafts verified.

    There is none where known tokens are left to compute. Drafts of a step that admits a request are all wrong.
    """
    schedule = recording.schedule
    assert schedule.known is not None
    behind = _end(recording, row) - schedule.known[row]
    verified = np.minimum(behind, schedule.tokens[row] - 1)
    return np.where(behind < 0, 0, np.where(is_first, 1, 1 + verified))
