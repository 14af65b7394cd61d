"""Check of cached blocks of windows and states, for vLLM releases that keep few of these blocks.

Since vLLM 0.30, a request keeps only the blocks before two positions: the last block boundary of its prompt, and its
junction. The junction is the end of the prefix that full-attention layers had cached when the request was admitted, if
that prefix is longer than the hit. No table has the junction, so it is derived from the blocks that were cached at the
admission. For a request that was admitted several times, the junction may be anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.kv_groups.group import CacheKind, KVCacheGroup
from kvsim.recording import Recording
from kvsim.recording.by_request import RowsByRequest, computed_after
from kvsim.recording.holdings import Holdings
from kvsim.recording.order import expanded, is_new, sort_key
from kvsim.recording.rules import require
from kvsim.recording.tables import WHOLE_TABLE, IntArray, MemoryKind
from kvsim.replay import Replay

SPARSELY_CACHED = (CacheKind.SLIDING_WINDOW, CacheKind.MAMBA)
"""Kinds of KV-cache groups that may keep blocks in the prefix cache at only some boundaries."""
_UNKNOWN = -1
_FULL = (CacheKind.FULL, CacheKind.MLA)
_RULE = "cached should be the units before the end of the prompt, or before a longer prefix that other layers had"


def check_retained(replay: Replay, file: Path, *, least: IntArray, most: IntArray, dropping: Sequence[int]) -> None:
    """Check the column `cached` of blocks of windows and states that requests release one by one.

    Args:
        replay: the recording.
        file: `memory.parquet`, which is named in errors.
        least: smallest possible number of cached tokens of the request, for each row of `memory.parquet`.
        most: largest possible number of these tokens.
        dropping: groups in which the last block of a hit is computed again.

    Raises:
        RecordingError: a value is wrong; the error names the first row.
    """
    recording, tables = replay.recording, replay.ledger.tables
    held = tables.residencies
    residency = np.repeat(np.arange(len(held.request)), np.diff(held.first_extent, append=len(tables.request)))
    junctions = _junctions(recording, tables, residency)
    for number, group in enumerate(recording.meta.pool.groups):
        if group.kind not in SPARSELY_CACHED:
            continue
        extents = np.flatnonzero((tables.group == number) & (tables.death_row < len(recording.memory)))
        extents = extents[recording.memory.address[tables.death_row[extents]] != WHOLE_TABLE]
        released = _ReleasedBlocks.of(recording, tables, extents, junctions[residency[extents]])
        kept = released.kept(recording, group, drops=number in dropping, ends_below=bool(dropping))
        released.check(recording, group, file, kept=kept, least=least, most=most)


class _ReleasedBlocks(NamedTuple):
    """Blocks of one KV-cache group that requests released one by one; one entry for each block."""

    row: IntArray
    position: IntArray
    prompt_tokens: IntArray
    junction: IntArray
    """Number of tokens before the junction of the block's request; 0 for none, `_UNKNOWN` if it may be anywhere."""
    is_hit: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, recording: Recording, tables: Holdings, extents: IntArray, junction: IntArray) -> _ReleasedBlocks:
        prompts = recording.requests.prompt_tokens[tables.request[extents]].astype(np.int64)
        is_hit = recording.memory.kind[tables.birth_row[extents]] == MemoryKind.SHARE
        return cls(tables.death_row[extents], tables.position[extents], prompts, junction, is_hit)

    def kept(
        self, recording: Recording, group: KVCacheGroup, *, drops: bool, ends_below: bool
    ) -> npt.NDArray[np.bool_]:
        """Return True for each block that is needed by a hit that ends with the prompt or at the junction.

        Args:
            recording: the recording.
            group: the group of the blocks.
            drops: True if drafting computes the last block of a hit again in this group, so a hit needs one block more.
            ends_below: True if this is so in any group. Then hits of the prompt end one boundary earlier.
        """
        aligned, size = recording.meta.pool.unit_tokens, group.block_size
        extent = 1 if group.kind is CacheKind.MAMBA else -(-((group.window or 1) - 1) // size) + drops

        def is_before(tokens: IntArray) -> npt.NDArray[np.bool_]:
            end = tokens // aligned * aligned // size + drops
            return np.asarray((end - extent <= self.position) & (self.position < end))

        before_junction = is_before(self.junction)
        if drops:
            before_junction |= is_before(self.junction - size)
        # A hit of the same prompt ends before its last token; so does a hit of a longer prompt, unless it ends below.
        repeated, longer = self.prompt_tokens - 1, self.prompt_tokens - 1
        if ends_below:
            repeated, longer = (np.maximum(each // aligned - 1, 0) * aligned for each in (repeated, longer + 1))
        return is_before(repeated) | is_before(longer) | (before_junction & (self.junction > 0))

    def check(
        self, recording: Recording, group: KVCacheGroup, file: Path, *, kept: npt.NDArray[np.bool_],
        least: IntArray, most: IntArray,
    ) -> None:  # fmt: skip
        """Check that exactly these blocks stay cached: those that were prefix hits, and full blocks True in `kept`.

        `least` and `most` are bounds on the number of cached tokens of the request, by row of `memory.parquet`. They
        determine which blocks must be full, and which may be. If the junction is unknown, any block that may be full
        may stay cached.
        """
        assert recording.memory.cached is not None
        aligned, size = recording.meta.pool.unit_tokens, group.block_size
        is_unknown = self.junction == _UNKNOWN
        together = size if recording.has_drafts else aligned
        is_full = self.position < least[self.row] // aligned * aligned // size
        may_be_full = self.position < most[self.row] // together * together // size
        must = self.is_hit | (is_full & kept)
        may = self.is_hit | (may_be_full & (kept | is_unknown))
        cached = recording.memory.cached[self.row]
        require((cached >= must) & (cached <= may), file, _RULE, self.row)


def _junctions(recording: Recording, tables: Holdings, residency: IntArray) -> npt.NDArray[np.int64]:
    """Return the number of tokens before the junction of each residency; 0 for none, `_UNKNOWN` if it is not known.

    A residency is the time from an admission of a request to the release of its memory. `residency` has the index of
    each extent's residency.
    """
    held, pool, hashes = tables.residencies, recording.meta.pool, recording.requests.prompt_hashes
    junctions = np.full(len(held.request), _UNKNOWN)
    full = next((number for number, group in enumerate(pool.groups) if group.kind in _FULL), None)
    if full is None or recording.has_drafts or not len(recording.schedule):
        return junctions
    moments = _ScheduleMoments(recording)
    step = np.searchsorted(recording.steps.schedule_seq, held.birth_seq)
    row = moments.row_in(held.request, step)
    # Only for the first residency of a request that computes at once, the schedule shows the hit.
    is_known = is_new(held.request) & (row >= 0)
    is_known[is_known] = recording.schedule.step[row[is_known]] == step[is_known]
    kept = _CachedTimes.of(recording, tables, residency, full, moments)
    size, first = pool.groups[full].block_size, np.append(0, np.cumsum(hashes.lengths))
    per = size // recording.meta.hash_block_size
    for nth in np.flatnonzero(is_known).tolist():
        request = int(held.request[nth])
        keys = hashes.values[first[request] : first[request + 1]][per - 1 :: per]
        keys = keys[: (int(recording.requests.prompt_tokens[request]) - 1) // size]
        is_cached = kept.at(keys, int(moments.moment(step[nth], row[nth])))
        num_blocks = int(np.argmin(np.append(is_cached, False)))  # the index of the first key that is not cached
        tokens = num_blocks * size // pool.unit_tokens * pool.unit_tokens
        junctions[nth] = tokens if tokens > recording.schedule.computed_before[row[nth]] else 0
    return junctions


class _ScheduleMoments:
    """Numbers for moments inside steps. A step schedules requests one by one, in the order of its schedule rows.

    Schedule row n begins at the odd moment 2n + 1. Even moments are between rows.
    """

    def __init__(self, recording: Recording) -> None:
        self._schedule, self._by_request = recording.schedule, RowsByRequest.of(recording)
        self.row = self._by_request.row
        """Indices of the schedule rows, sorted by request and then by step."""
        self.span = 2 * len(recording.schedule) + 2
        """Number larger than all moments."""

    def moment(self, step: IntArray, row: IntArray) -> npt.NDArray[np.int64]:
        """Return the moment at which `step` schedules `row`.

        If `row` is -1 or began in an earlier step, this is a moment before all rows that begin in `step`.
        """
        begins = (row >= 0) & (self._schedule.step[row] == step)
        return np.asarray(np.where(begins, 2 * row + 1, 2 * np.searchsorted(self._schedule.step, step)))

    def row_in(self, request: IntArray, step: IntArray) -> npt.NDArray[np.int64]:
        """Return the schedule row of each request that covers the request's `step`; -1 if none does."""
        row = self._by_request.last_row_before(request, step + 1)
        schedule = self._schedule
        is_there = (schedule.request[row] == request) & (step < schedule.step[row] + schedule.repeats[row])
        return np.where(is_there & (step >= schedule.step[row]), row, -1)


class _CachedTimes(NamedTuple):
    """Moments at which prefixes entered the cache of a KV-cache group, and moments at which they were evicted."""

    keys: IntArray
    """Keys of the prefixes, in ascending order."""
    cached: npt.NDArray[np.int64]
    """Index of the prefix in `keys` times `span`, plus the moment, for each time that a prefix enters the cache.

    The numbers are in ascending order.
    """
    evicted: npt.NDArray[np.int64]
    """Index of the prefix in `keys` times `span`, plus the moment, for each eviction; in ascending order."""
    span: int
    """Number larger than all moments."""

    @classmethod
    def of(
        cls, recording: Recording, tables: Holdings, residency: IntArray, group: int, moments: _ScheduleMoments
    ) -> _CachedTimes:
        """Collect the moments at which steps fill the blocks of prompts, and at which these blocks are evicted."""
        memory, hashes = recording.memory, recording.requests.prompt_hashes
        size = recording.meta.pool.groups[group].block_size
        extents = np.flatnonzero((tables.group == group) & (memory.kind[tables.birth_row] == MemoryKind.APPEND))
        request = tables.request[extents]
        nth = (tables.position[extents].astype(np.int64) + 1) * (size // recording.meta.hash_block_size) - 1
        filled = np.where(
            nth < hashes.lengths[request],
            _filled(recording, tables, extents, residency=residency, size=size, moments=moments),
            _UNKNOWN,
        )
        is_kept = filled >= 0
        extents, nth, request, filled = extents[is_kept], nth[is_kept], request[is_kept], filled[is_kept]
        values = hashes.values[np.append(0, np.cumsum(hashes.lengths))[request] + nth]
        keys, prefix = np.unique(values, return_inverse=True)
        prefix_of_extent = np.full(len(tables.request), _UNKNOWN)
        prefix_of_extent[extents] = prefix
        owner, lost = _evictions(recording, tables, moments)
        in_group = prefix_of_extent[owner] >= 0
        evicted = np.sort(prefix_of_extent[owner[in_group]] * moments.span + lost[in_group])
        return cls(keys, np.sort(prefix * moments.span + filled), evicted, moments.span)

    def at(self, keys: IntArray, moment: int) -> npt.NDArray[np.bool_]:
        """Return True for each of `keys` in the cache right before `moment`: entered more often than evicted."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        prefix = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        # The sorted numbers of a prefix are in [begin, begin + span), so a binary search counts those before `moment`.
        begin = prefix * self.span
        num_cached, num_evicted = (
            np.searchsorted(each, begin + moment) - np.searchsorted(each, begin) for each in (self.cached, self.evicted)
        )
        return np.asarray((self.keys[prefix] == keys) & (num_cached > num_evicted))


def _filled(
    recording: Recording, tables: Holdings, extents: IntArray, *, residency: IntArray, size: int,
    moments: _ScheduleMoments,
) -> npt.NDArray[np.int64]:  # fmt: skip
    """Return the moment at which each of `extents` enters the cache; `_UNKNOWN` if it never does.

    It is a moment in the first step of the extent's residency that computes tokens up to the next common boundary of
    all groups. `size` is the number of tokens in an extent, which is one block.
    """
    schedule, held, aligned = recording.schedule, tables.residencies, recording.meta.pool.unit_tokens
    row = moments.row
    scheduled = sort_key(schedule.request[row], recording.steps.schedule_seq[schedule.step[row]])
    of_residency = np.searchsorted(sort_key(held.request, held.birth_seq), scheduled, side="right") - 1
    # (residency, computed tokens after the row) as one sorted number, so that a binary search finds the first row that
    # computes enough tokens for an extent. A row may cover several steps.
    upto = sort_key(of_residency, computed_after(schedule)[row])
    tokens = -(-(tables.position[extents].astype(np.int64) + 1) * size // aligned) * aligned
    filled = sort_key(residency[extents], tokens)
    at = np.minimum(np.searchsorted(upto, filled), len(upto) - 1)
    by = row[at]
    num_steps = -(-(tokens - schedule.computed_before[by]) // schedule.tokens[by])
    moment = moments.moment(schedule.step[by] + np.maximum(num_steps - 1, 0), by)
    return np.where((of_residency[at] == residency[extents]) & (upto[at] >= filled), moment, _UNKNOWN)


def _evictions(
    recording: Recording, tables: Holdings, moments: _ScheduleMoments
) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """Return the extent that held each evicted prefix, and the moment at which another request gets the block."""
    memory = recording.memory
    extents = np.flatnonzero(memory.kind[tables.birth_row] == MemoryKind.APPEND)
    place = sort_key(tables.address[extents], tables.birth_row[extents])
    order = np.argsort(place)
    extents, place = extents[order], place[order]
    rows = np.flatnonzero(memory.kind == MemoryKind.EVICT)
    extent, offset = expanded(memory.length[rows])
    rows, unit = rows[extent], memory.address[rows][extent] + offset
    at = np.searchsorted(place, sort_key(unit, rows))
    owner, taken_by = extents[np.maximum(at - 1, 0)], extents[np.minimum(at, len(extents) - 1)]
    return owner, moments.moment(memory.step[rows], moments.row_in(tables.request[taken_by], memory.step[rows]))
