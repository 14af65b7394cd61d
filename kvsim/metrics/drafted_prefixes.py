"""Number of tokens that requests with drafts have in the prefix cache when they release blocks.

The check of kept prefixes (`kvsim.metrics.kept_prefixes`) compares these numbers with the column `cached`.

A step caches the known tokens that it computes. Some engines cache again when they process an output: all known tokens
but the newest, whose KV is not computed yet. `schedule.parquet` states the known tokens at each step, and
`requests.parquet` those at the end, so most numbers are exact. An exception is a request that is preempted with two
outputs in flight: one is processed before it releases its blocks, and one after. Only the sum of their tokens is
recorded, so the functions here return a lower and an upper bound.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kvsim.engine.paged.group_initialization import specs_dropping_hits
from kvsim.policies.releases import rules_of
from kvsim.policies.speculative_config import SpeculativeConfig
from kvsim.recording import Meta, Recording, RequestStatus
from kvsim.recording.by_request import RowsByRequest
from kvsim.recording.order import sort_key
from kvsim.recording.tables import IntArray

Tokens = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_NEVER = np.iinfo(np.int64).max
"""Later than every event number."""


class CachedTokens(NamedTuple):
    """Numbers of tokens of requests that release units: int64, one entry for each release."""

    least: Tokens
    """Smallest possible number of tokens in the prefix cache."""
    most: Tokens
    """Largest possible number of tokens in the prefix cache."""
    computed: Tokens
    """Number of computed tokens."""
    with_next_step: Tokens
    """Largest number of tokens that would be in the prefix cache if one more step had been scheduled."""


def cached_with_drafts(recording: Recording, rows: IntArray, previous_end: IntArray, release: str) -> CachedTokens:
    """Return the number of tokens that a request has in the prefix cache at each release of units.

    `rows` has the rows of `memory.parquet` with these releases. `previous_end` has, for each row, the last step before
    the request's previous release of all memory; -1 if there was none. `release` is the version of vLLM.
    """
    if not len(recording.schedule):
        return CachedTokens(*(np.zeros(len(rows), np.int64),) * 4)
    meta, last = recording.meta, _LastSteps.of(recording, rows, previous_end)
    # With n draft modules that draft one after the other, the last n - 1 computed tokens are not cached yet.
    ahead, lag = _tokens_ahead(meta, release), int(meta.engine.get("num_draft_modules", 1)) - 1
    known = last.known_at_release()
    # With several groups, some groups cache these tokens.
    lags = lag, (0 if len(meta.pool.groups) > 1 else lag)
    computed = [np.minimum(np.minimum(last.end, last.known) - each, last.known - ahead) for each in lags]
    least, most = computed
    if "speculative_config" not in meta.policy or _caches_outputs(meta, release):
        least, most = (
            np.where(last.has_output, np.maximum(each, tokens - max(ahead, 1 + late)), each)
            for each, tokens, late in zip(computed, known, lags, strict=True)
        )
    most_known = known[1]
    return CachedTokens(*(np.where(last.has_step, each, 0) for each in (least, most, last.end, most_known - ahead)))


def dropping_groups(recording: Recording, release: str) -> tuple[int, ...]:
    """Return the indices of the KV-cache groups in which a prefix hit drops its last block, because the draft layers
    need the hidden states of this block.

    The result is empty without drafts.
    """
    meta = recording.meta
    config, groups = meta.policy.get("speculative_config"), meta.pool.groups
    if not config or not SpeculativeConfig.parse(config).drops_last_hit(release):
        return ()
    kinds = specs_dropping_hits(groups, rules_of(release))
    return tuple(index for index, group in enumerate(groups) if group.spec in kinds)


def _tokens_ahead(meta: Meta, release: str) -> int:
    """Return the number of tokens after a block that the block's key also covers."""
    config = meta.policy.get("speculative_config")
    return meta.hash_ahead_tokens or (SpeculativeConfig.parse(config).tokens_ahead(release) if config else 0)


def _caches_outputs(meta: Meta, release: str) -> bool:
    """Tell whether the engine also caches blocks when it processes an output, and not only when it schedules a step."""
    return rules_of(release).caches_processed or bool({**meta.engine, **meta.policy}.get("async_scheduling"))


class _LastSteps(NamedTuple):
    """Last step of a request before a release of units, and the outputs in flight at the release.

    Each array has one entry for each release.
    """

    has_step: Flags
    """True if the request had a step between its admission and the release; if False, other fields have no meaning."""
    known: Tokens
    """Number of the request's known tokens when the last step was scheduled."""
    end: Tokens
    """Number of the request's computed tokens after the last step."""
    known_later: Tokens
    """Number of known tokens at the request's next step after the release; without one, at the end of the request."""
    is_preempted: Flags
    """True if the release is a preemption. Otherwise the request has ended, and later outputs are discarded."""
    most_before: Tokens
    """Largest possible number of tokens in the outputs between the last step and the release."""
    least_before: Tokens
    """Smallest possible number of tokens in the outputs between the last step and the release."""
    most_after: Tokens
    """Largest possible number of tokens in the outputs between the release and the next step."""
    least_after: Tokens
    """Smallest possible number of tokens in the outputs between the release and the next step."""

    @property
    def has_output(self) -> Flags:
        """True if an output came between the last step and the release."""
        return self.least_before > 0

    @classmethod
    def of(cls, recording: Recording, rows: IntArray, previous_end: IntArray) -> Self:
        """Look up the steps of the requests that release units in `rows` of `memory.parquet`.

        `previous_end` is as in `cached_with_drafts`.
        """
        schedule, steps, order = recording.schedule, recording.steps, RowsByRequest.of(recording)
        request, seq = recording.memory.request[rows].astype(np.int64), recording.memory.seq[rows]
        # Indices in `order` of the last step before each release, and of the first step after the previous release.
        at = np.searchsorted(order.key, sort_key(request, np.searchsorted(steps.schedule_seq, seq))) - 1
        first = np.searchsorted(order.key, sort_key(request, previous_end), side="right")
        # Schedule rows of the last step, of the request's step before it, and of its step after it.
        newest, before = order.row[np.maximum(at, 0)], order.row[np.maximum(at - 1, 0)]
        following = order.row[np.minimum(at + 1, len(order.row) - 1)]
        goes_on = (at + 1 < len(order.row)) & (schedule.request[following] == request)
        assert schedule.known is not None
        known_at_end = recording.requests.prompt_tokens[request].astype(np.int64)
        known_at_end += recording.requests.output_tokens[request]
        next_seq = np.where(goes_on, steps.schedule_seq[schedule.step[following]], _NEVER)
        is_preempted = np.isin(seq, steps.schedule_seq)
        is_awaited = goes_on | (recording.requests.status[request] == RequestStatus.FINISHED)
        # Sum over the two steps that may be in flight: most_before, least_before, most_after and least_after.
        counts = np.zeros((4, len(rows)), np.int64)
        for row, is_there, is_first in ((newest, at >= first, at == first), (before, at > first, at == first + 1)):
            output_seq, most = steps.output_seq[schedule.step[row]], _most_tokens(recording, row, is_first)
            in_flight = is_there & (most > 0) & (output_seq > steps.schedule_seq[schedule.step[newest]])
            is_before, is_after = in_flight & (output_seq <= seq), in_flight & (output_seq > seq) & is_preempted
            is_certain = is_after & is_awaited & (output_seq < next_seq)
            counts += np.array([is_before * most, is_before, is_after * most, is_certain])
        return cls(
            at >= first,
            schedule.known[newest].astype(np.int64),
            _end(recording, newest),
            np.where(goes_on, schedule.known[following], known_at_end),
            is_preempted,
            *counts,
        )

    def known_at_release(self) -> tuple[Tokens, Tokens]:
        """Return the smallest and the largest possible number of known tokens of each request at its release."""
        least = np.maximum(self.known + self.least_before, self.known_later - self.most_after)
        most = np.minimum(self.known + self.most_before, self.known_later - self.least_after)
        return least, most


def _end(recording: Recording, row: IntArray) -> Tokens:
    """Return the number of computed tokens after each schedule row; with drafts, a row is one step."""
    schedule = recording.schedule
    return schedule.computed_before[row].astype(np.int64) + schedule.tokens[row]


def _most_tokens(recording: Recording, row: IntArray, is_first: Flags) -> Tokens:
    """Return the largest number of tokens in the output of each schedule row: one new token, and all verified drafts.

    It is 0 if the step leaves known tokens to compute. In the step that admits a request (`is_first`), all drafts are
    rejected.
    """
    schedule = recording.schedule
    assert schedule.known is not None
    num_drafts = _end(recording, row) - schedule.known[row]
    verified = np.where(is_first, 0, np.minimum(num_drafts, schedule.tokens[row] - 1))
    return np.where(num_drafts < 0, 0, 1 + verified)
