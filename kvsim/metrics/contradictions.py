"""Replay a recording from its tables and compare the result with its stated figures: printed figures must agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError, UsageError
from kvsim.machines.choice import served_model
from kvsim.metrics.kept_prefixes import check_kept_prefixes
from kvsim.metrics.slot_account import Waste, waste
from kvsim.recording import Recording
from kvsim.recording.check import check_events
from kvsim.recording.order import units_of_runs
from kvsim.recording.rules import agree, require
from kvsim.recording.tables import IntArray, MemoryKind
from kvsim.replay import Replay
from kvsim.replay.by_unit import Successions


def refuse_contradictions(recording: Recording, folder: Path) -> Waste | None:
    """Check the redundant figures of `recording`, already checked by the reader; return the account of its pool."""
    check_events(recording, folder)
    _check_bytes(recording, folder / "meta.json")
    if not len(recording.steps):
        return None
    replay = Replay(recording)
    slots = waste(replay)
    steps = recording.steps
    if recording.meta.pool.num_units is not None:
        free = (slots.capacity - slots.held[:-1]) // replay.unit_slots
        # A request aborted after a step releases its memory at the moment shown by that step's frame.
        memory, is_stated = recording.memory, steps.free_units >= 0
        rows = np.flatnonzero((memory.kind == MemoryKind.RELEASE) & (memory.step > 0))
        before = memory.step[rows] - 1
        is_stated[before[steps.schedule_seq[before] == memory.seq[rows]]] = False
        stated = np.flatnonzero(is_stated)
        agree(steps.free_units[stated], free[stated], folder / "steps.parquet", "free_units", "memory.parquet", stated)
    if replay.ledger.unit_by_unit:
        _check_units(replay, folder)
        _check_evictions(recording, folder / "memory.parquet")
        check_kept_prefixes(replay, folder / "memory.parquet")
    return slots


def _check_bytes(recording: Recording, file: Path) -> None:
    """Check the bytes of a token against the model's shape, if stated, and those of a block against its layers."""
    meta, pool = recording.meta, recording.meta.pool
    if all(key in meta.model for key in _SHAPE) and not (pool.groups and "kv_bytes_per_token" not in meta.model):
        stated = meta.model.get("kv_bytes_per_token", pool.bytes_per_unit // pool.unit_tokens)
        irrelevant = dict.fromkeys(_OF_WEIGHTS, 1)
        try:
            served_model(replace(meta, model=irrelevant | dict(meta.model) | {"kv_bytes_per_token": stated}))
        except (RecordingError, UsageError) as error:
            raise RecordingError(f"{file}: {error}") from error
    stages = meta.model.get("pipeline_parallel_size", meta.engine.get("pipeline_parallel_size", 1))
    largest = max((group.num_layers * group.page_bytes for group in pool.groups), default=0)
    if pool.groups and stages == 1 and largest != pool.bytes_per_unit:
        raise RecordingError(
            f"{file}: pool.bytes_per_unit says {pool.bytes_per_unit:,}, and the layers of its kv_cache_groups make it "
            f"{largest:,}."
        )
    num_layers, stated_layers = sum(group.num_layers for group in pool.groups), meta.model.get("num_layers")
    num_layers -= meta.model.get("num_draft_layers", 0)
    is_stated = bool(pool.groups) and not meta.model.get("layer_caches")
    if is_stated and isinstance(stated_layers, int) and num_layers > stated_layers:
        raise RecordingError(
            f"{file}: kv_cache_groups have {num_layers:,} layers, and model.num_layers says {stated_layers:,}."
        )


_SHAPE = ("num_layers", "num_kv_heads", "head_dim", "dtype")
"""Fields of a shape that determine the bytes of a token."""
_OF_WEIGHTS = ("num_attention_heads", "hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
"""Other fields of a shape."""


def _check_units(replay: Replay, folder: Path) -> None:
    """Check that a cached unit is evicted before it is overwritten, and shared only for the same prefix."""
    recording, file = replay.recording, folder / "memory.parquet"
    memory, meta = recording.memory, recording.meta
    kept_prefixes = _Prefixes(replay)
    for part in replay.ledger.successions(with_prefixes=True):
        kind = memory.kind[part.row]
        require(
            ~((kind == MemoryKind.APPEND) & part.kept), file,
            "a unit that keeps a prefix should be evicted before it is handed out", part.row,
        )  # fmt: skip
        if meta.source == "simulation":  # a server may cache a unit after the report of its release
            lost = (kind != MemoryKind.EVICT) | part.kept
            require(lost, file, "a unit that is evicted should keep a prefix", part.row)
            found = (kind != MemoryKind.SHARE) | part.kept | part.is_held
            require(found, file, "a unit that is shared should keep a prefix, or be held", part.row)
        kept_prefixes.check(part, kind, file)


def _check_evictions(recording: Recording, file: Path) -> None:
    """Check that a simulated block is evicted in the step that hands it out, and after all that no request ever had.

    Nothing else takes its prefix, and a block that was freed is behind the new ones in the queue.
    """
    memory, meta, pool = recording.memory, recording.meta, recording.meta.pool
    if meta.source != "simulation" or meta.policy_name != "paged" or "rules" in meta.policy:
        return
    evicts = np.flatnonzero(memory.kind == MemoryKind.EVICT)
    if not len(evicts):
        return

    def moments(rows: IntArray) -> tuple[IntArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row of each unit of `rows`, its address, and a number for its address and the moment."""
        run, offset = units_of_runs(memory.length[rows])
        unit = memory.address[rows][run].astype(np.int64) + offset
        return rows[run], unit, unit * (int(memory.seq[-1]) + 1) + memory.seq[rows][run]

    (rows, _, evicted), (given_in, unit, given) = map(
        moments, (evicts, np.flatnonzero(memory.kind == MemoryKind.APPEND))
    )
    require(np.isin(evicted, given), file, "a unit that is evicted should be handed out in the same step", rows)
    num_used = len(np.unique(unit[memory.seq[given_in] <= memory.seq[evicts[0]]]))
    if num_used != pool.num_units:
        raise RecordingError(
            f"{file}, row {int(evicts[0])}: a unit is evicted after {num_used:,} were used, and pool.num_units of "
            f"meta.json is {pool.num_units or 0:,}."
        )


class _Prefixes:
    """Request that wrote each unit, and the unit's position in its table."""

    def __init__(self, replay: Replay) -> None:
        recording, pool = replay.recording, replay.recording.meta.pool
        self._memory, hashes = recording.memory, recording.requests.prompt_hashes
        self._hashes, self._first = hashes.values, np.append(0, np.cumsum(hashes.lengths))
        sizes = [group.block_size for group in pool.groups] or [pool.unit_tokens]
        self._hashes_per_unit = np.array(sizes) // recording.meta.hash_block_size
        self._writer = np.full((2, replay.ledger.end_of_pool), -1, np.int32)

    def check(self, part: Successions, kind: IntArray, file: Path) -> None:
        """Check the sharers of the units in `part`, whose rows have these kinds, and update the writers."""
        memory = self._memory
        request = memory.request[part.row]
        position = memory.position[part.row] + part.unit - memory.address[part.row]
        rows = np.arange(len(kind))
        last = np.maximum.accumulate(np.where(kind == MemoryKind.APPEND, rows, -1))
        shared = np.flatnonzero(kind == MemoryKind.SHARE)
        by = last[shared]
        here = (by >= 0) & (part.unit[by] == part.unit[shared])
        writer, place = self._writer[:, part.unit[shared]]
        writer, place = np.where(here, request[by], writer), np.where(here, position[by], place)
        at_row, known = part.row[shared], writer >= 0
        require(
            ~known | (place == position[shared]),
            file,
            "a unit should be shared at its old position",
            at_row,
        )
        own, other = self._hash(request[shared], position[shared], at_row), self._hash(writer, place, at_row)
        comparable = known & (own[1] & other[1])
        require(
            ~comparable | (own[0] == other[0]), file,
            "a unit should be shared by prompts that requests.parquet gives the same prompt_hashes", at_row,
        )  # fmt: skip
        written = np.flatnonzero(kind == MemoryKind.APPEND)
        self._writer[:, part.unit[written]] = request[written], position[written]  # the last writer remains

    def _hash(self, request: IntArray, position: IntArray, row: IntArray) -> tuple[IntArray, IntArray]:
        """Return the hash of each prompt up to the end of a unit, and whether it is known."""
        group = 0 if self._memory.group is None else self._memory.group[row]
        nth = (position.astype(np.int64) + 1) * self._hashes_per_unit[group] - 1
        at = self._first[request] + nth
        is_known = (nth >= 0) & (at < self._first[request + 1])
        found = np.append(self._hashes, 0)[np.where(is_known, at, -1)]
        return found, is_known
