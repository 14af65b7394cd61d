"""Check which blocks of windows and states stay cached if vLLM keeps them only for hits at the end of a prompt.

Since vLLM 0.30 a request keeps the blocks before two positions: the last block boundary of its prompt, and its
junction. The junction is the end of the prefix that full-attention layers had cached at its admission, if that is
longer than the hit. No table has the junction, so it is derived from the blocks that were cached then. For a request
that was admitted several times, the junction of any admission is accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.kv_groups.group import CacheKind, KVCacheGroup
from kvsim.recording import Recording
from kvsim.recording.by_request import RowsByRequest, computed_after
from kvsim.recording.holdings import Holdings
from kvsim.recording.order import is_new, units_of_runs
from kvsim.recording.rules import require
from kvsim.recording.tables import WHOLE_TABLE, IntArray, MemoryKind
from kvsim.replay import Replay

SPARSE = (CacheKind.SLIDING_WINDOW, CacheKind.MAMBA)
"""Kinds whose blocks may be kept for hits at some boundaries alone."""
_UNKNOWN = -1
_MOST = 1 << 31
"""More tokens, and more moments, than there can be."""
_FULL = (CacheKind.FULL, CacheKind.MLA)
_RULE = "cached should be the units before the end of the prompt, or before a longer prefix that other layers had"


def check_retained(replay: Replay, least: IntArray, most: IntArray, file: Path) -> None:
    """Check `cached` of the blocks that requests release one by one, of groups that keep them at the last boundary.

    Args:
        replay: the recording.
        least: tokens that the request of each row of `memory.parquet` had put into the cache, at least.
        most: the same, at most.
        file: `memory.parquet`.

    Raises:
        RecordingError: naming the first row that keeps another.
    """
    recording, tables = replay.recording, replay.ledger.tables
    stays = tables.residencies
    stay = np.repeat(np.arange(len(stays.request)), np.diff(stays.first_run, append=len(tables.request)))
    junctions = _junctions(recording, tables, stay)
    for number, group in enumerate(recording.meta.pool.groups):
        if group.kind not in SPARSE:
            continue
        runs = np.flatnonzero((tables.group == number) & (tables.death_row < len(recording.memory)))
        runs = runs[recording.memory.address[tables.death_row[runs]] != WHOLE_TABLE]
        left = _Left.of(recording, tables, runs, junctions[stay[runs]])
        left.check(recording, group, least, most, file)


class _Left(NamedTuple):
    """Blocks of one group that requests released one by one."""

    row: IntArray
    position: IntArray
    prompt_tokens: IntArray
    junction: IntArray
    """Tokens before the junction of the request then; `_UNKNOWN` where it may be any."""
    is_hit: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, recording: Recording, tables: Holdings, runs: IntArray, junction: IntArray) -> _Left:
        prompts = recording.requests.prompt_tokens[tables.request[runs]].astype(np.int64)
        is_hit = recording.memory.kind[tables.birth_row[runs]] == MemoryKind.SHARE
        return cls(tables.death_row[runs], tables.position[runs], prompts, junction, is_hit)

    def check(self, recording: Recording, group: KVCacheGroup, least: IntArray, most: IntArray, file: Path) -> None:
        """Require that each keeps a prefix if it was a hit, or full and before one of the two boundaries."""
        assert recording.memory.cached is not None
        aligned, size = recording.meta.pool.unit_tokens, group.block_size
        run = 1 if group.kind is CacheKind.MAMBA else -(-((group.window or 1) - 1) // size)

        def is_before(tokens: IntArray) -> npt.NDArray[np.bool_]:
            end = tokens // aligned * aligned // size
            found: npt.NDArray[np.bool_] = (end - run <= self.position) & (self.position < end)
            return found

        before_end = is_before(self.prompt_tokens - 1)
        before_junction = is_before(self.junction)
        is_unknown = self.junction == _UNKNOWN
        full_least, full_most = (tokens[self.row] // aligned * aligned // size for tokens in (least, most))
        must = self.is_hit | ((self.position < full_least) & (before_end | before_junction))
        may = self.is_hit | ((self.position < full_most) & (before_end | before_junction | is_unknown))
        cached = recording.memory.cached[self.row]
        require((cached >= must) & (cached <= may), file, _RULE, self.row)


def _junctions(recording: Recording, tables: Holdings, stay: IntArray) -> npt.NDArray[np.int64]:
    """Return the junction of each stay: the tokens that full attention had cached, if more than those of the hit."""
    stays, pool, hashes = tables.residencies, recording.meta.pool, recording.requests.prompt_hashes
    found = np.full(len(stays.request), _UNKNOWN)
    full = next((number for number, group in enumerate(pool.groups) if group.kind in _FULL), None)
    if full is None or recording.has_drafts or not len(recording.schedule):
        return found
    turns = _ScheduleMoments(recording)
    step = np.searchsorted(recording.steps.schedule_seq, stays.birth_seq)
    row = turns.row_in(stays.request, step)
    is_told = is_new(stays.request) & (row >= 0)
    is_told[is_told] = recording.schedule.step[row[is_told]] == step[is_told]
    kept = _Kept.of(recording, tables, stay, full, turns)
    size, first = pool.groups[full].block_size, np.append(0, np.cumsum(hashes.lengths))
    per = size // recording.meta.hash_block_size
    for nth in np.flatnonzero(is_told).tolist():
        request = int(stays.request[nth])
        keys = hashes.values[first[request] : first[request + 1]][per - 1 :: per]
        keys = keys[: (int(recording.requests.prompt_tokens[request]) - 1) // size]
        there = kept.at(keys, int(turns.moment(step[nth], row[nth])))
        tokens = int(np.argmin(np.append(there, False))) * size // pool.unit_tokens * pool.unit_tokens
        found[nth] = tokens if tokens > recording.schedule.computed_before[row[nth]] else 0
    return found


class _ScheduleMoments:
    """The rows of the schedule as moments: within a step, requests have their turns in the order of its rows."""

    def __init__(self, recording: Recording) -> None:
        self._schedule, self._by_request = recording.schedule, RowsByRequest.of(recording)
        self.row, self.span = self._by_request.row, 2 * len(recording.schedule) + 2
        """Rows of the schedule by request, and a number above all moments."""

    def moment(self, step: IntArray, row: IntArray) -> npt.NDArray[np.int64]:
        """Return the moment of a row in a step: before all that begin there, if it begins earlier or is -1."""
        begins = (row >= 0) & (self._schedule.step[row] == step)
        found: npt.NDArray[np.int64] = np.where(begins, 2 * row + 1, 2 * np.searchsorted(self._schedule.step, step))
        return found

    def row_in(self, request: IntArray, step: IntArray) -> npt.NDArray[np.int64]:
        """Return the row in which each of `request` computes in a step; -1 where it does not."""
        row = self._by_request.newest(request, step + 1)
        schedule = self._schedule
        is_there = (schedule.request[row] == request) & (step < schedule.step[row] + schedule.repeats[row])
        return np.where(is_there & (step >= schedule.step[row]), row, -1)


class _Kept(NamedTuple):
    """Moments at which blocks of a group got the key of a prefix, and lost it: by key, then by time."""

    keys: IntArray
    """The keys of prefixes, which rise: their places are their numbers."""
    gets: npt.NDArray[np.int64]
    loses: npt.NDArray[np.int64]
    span: int

    @classmethod
    def of(cls, recording: Recording, tables: Holdings, stay: IntArray, group: int, turns: _ScheduleMoments) -> _Kept:
        """Follow the blocks of prompts from the step that fills them to their eviction."""
        memory, hashes, size = (
            recording.memory,
            recording.requests.prompt_hashes,
            recording.meta.pool.groups[group].block_size,
        )
        runs = np.flatnonzero((tables.group == group) & (memory.kind[tables.birth_row] == MemoryKind.APPEND))
        request = tables.request[runs]
        nth = (tables.position[runs].astype(np.int64) + 1) * (size // recording.meta.hash_block_size) - 1
        filled = np.where(nth < hashes.lengths[request], _filled(recording, tables, stay, runs, size, turns), _UNKNOWN)
        is_kept = filled >= 0
        runs, nth, request, filled = runs[is_kept], nth[is_kept], request[is_kept], filled[is_kept]
        values = hashes.values[np.append(0, np.cumsum(hashes.lengths))[request] + nth]
        keys, number = np.unique(values, return_inverse=True)
        of_run = np.full(len(tables.request), _UNKNOWN)
        of_run[runs] = number
        owner, lost = _evictions(recording, tables, turns)
        mine = of_run[owner] >= 0
        loses = np.sort(of_run[owner[mine]] * turns.span + lost[mine])
        return cls(keys, np.sort(number * turns.span + filled), loses, turns.span)

    def at(self, keys: IntArray, moment: int) -> npt.NDArray[np.bool_]:
        """Tell which of `keys` a block has before `moment`."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        number = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        begin = number * self.span
        got, lost = (
            np.searchsorted(each, begin + moment) - np.searchsorted(each, begin) for each in (self.gets, self.loses)
        )
        found: npt.NDArray[np.bool_] = (self.keys[number] == keys) & (got > lost)
        return found


def _filled(
    recording: Recording, tables: Holdings, stay: IntArray, runs: IntArray, size: int, turns: _ScheduleMoments
) -> npt.NDArray[np.int64]:
    """Return the moment at which each of `runs` is put into the cache; `_UNKNOWN` if it never is."""
    schedule, stays, aligned = recording.schedule, tables.residencies, recording.meta.pool.unit_tokens
    row = turns.row
    of_stay = np.searchsorted(
        stays.request.astype(np.int64) * _MOST + stays.birth_seq,
        schedule.request[row].astype(np.int64) * _MOST + recording.steps.schedule_seq[schedule.step[row]], side="right",
    ) - 1  # fmt: skip
    upto = of_stay * _MOST + computed_after(schedule)[row]
    tokens = -(-(tables.position[runs].astype(np.int64) + 1) * size // aligned) * aligned
    at = np.minimum(np.searchsorted(upto, stay[runs] * _MOST + tokens), len(upto) - 1)
    by = row[at]
    num_steps = -(-(tokens - schedule.computed_before[by]) // schedule.tokens[by])
    moment = turns.moment(schedule.step[by] + np.maximum(num_steps - 1, 0), by)
    return np.where((of_stay[at] == stay[runs]) & (upto[at] >= stay[runs] * _MOST + tokens), moment, _UNKNOWN)


def _evictions(
    recording: Recording, tables: Holdings, turns: _ScheduleMoments
) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """Return the run that had each evicted unit last, and the moment: the turn of the request that gets the unit."""
    memory, span = recording.memory, len(recording.memory) + 1
    runs = np.flatnonzero(memory.kind[tables.birth_row] == MemoryKind.APPEND)
    place = tables.address[runs].astype(np.int64) * span + tables.birth_row[runs]
    order = np.argsort(place)
    runs, place = runs[order], place[order]
    rows = np.flatnonzero(memory.kind == MemoryKind.EVICT)
    run, offset = units_of_runs(memory.length[rows])
    rows, unit = rows[run], memory.address[rows][run].astype(np.int64) + offset
    at = np.searchsorted(place, unit * span + rows)
    owner, given = runs[np.maximum(at - 1, 0)], runs[np.minimum(at, len(runs) - 1)]
    return owner, turns.moment(memory.step[rows], turns.row_in(tables.request[given], memory.step[rows]))
