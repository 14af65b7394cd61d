"""Refuse recordings that contradict themselves, before `kvsim info` prints any of their figures.

A recording states some figures that also follow from its other tables, such as the free units of each step. The checks
replay the other tables and compare.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError, UsageError
from kvsim.machines.choice import served_model
from kvsim.metrics.kept_prefixes import check_kept_prefixes
from kvsim.metrics.slot_account import GapSlots, Waste, waste
from kvsim.recording import Recording
from kvsim.recording.check import check_events
from kvsim.recording.order import expanded, sort_key
from kvsim.recording.rules import agree, require
from kvsim.recording.tables import IntArray, MemoryKind
from kvsim.replay import Replay
from kvsim.replay.by_unit import Successions

_SHAPE = ("num_layers", "num_kv_heads", "head_dim", "dtype")
"""Fields of a model's shape that determine the KV-cache bytes of a token."""
_WEIGHT_FIELDS = ("num_attention_heads", "hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
"""Fields of a model's shape that determine only the size of its weights."""


def refuse_contradictions(recording: Recording, folder: Path) -> Waste | None:
    """Check the figures of a recording that also follow from its other tables. Return the slots of its pool by state.

    Return None for a recording without steps. `folder` is named in errors. `read_recording` has checked the rest.
    """
    check_events(recording, folder)
    _check_bytes(recording, folder / "meta.json")
    if not len(recording.steps):
        return None
    replay = Replay(recording)
    slots = waste(replay)
    if recording.meta.pool.num_units is not None:
        _check_free_units(recording, (slots.capacity - slots.held[:-1]) // replay.unit_slots, folder / "steps.parquet")
        assert slots.in_gaps is not None
        free = (slots.capacity - slots.in_gaps.held) // replay.unit_slots
        _check_after_outputs(recording, slots.in_gaps, free, folder / "steps.parquet")
    if replay.ledger.unit_by_unit:
        _check_units(replay, folder)
        _check_evictions(recording, folder / "memory.parquet")
        check_kept_prefixes(replay, folder / "memory.parquet")
    return slots


def _check_free_units(recording: Recording, free: IntArray, file: Path) -> None:
    """Check the column `free_units` of the steps against `free`.

    `free` has the number of free units after each step was scheduled, counted from the memory table.
    """
    steps = recording.steps
    compared = np.flatnonzero((steps.free_units >= 0) & ~_has_later_releases(recording))
    agree(steps.free_units[compared], free[compared], file, "free_units", "memory.parquet", compared)


def _has_later_releases(recording: Recording) -> npt.NDArray[np.bool_]:
    """Return bool[num_steps]: True if rows with a step's `seq` free more units than the engine knew at this step.

    A request that is aborted after a step frees its memory before the next step. These releases have the `seq` (event
    number) of the step before the abort.
    """
    memory, steps = recording.memory, recording.steps
    rows = np.flatnonzero((memory.kind == MemoryKind.RELEASE) & (memory.step > 0))
    before = memory.step[rows] - 1
    found = np.zeros(len(steps), np.bool_)
    found[before[steps.schedule_seq[before] == memory.seq[rows]]] = True
    return found


def _check_after_outputs(recording: Recording, in_gaps: GapSlots, free: IntArray, file: Path) -> None:
    """Check the columns with running requests, waiting requests and free units after each output.

    `free` has the number of free units in each gap. A gap is a time in which no step is in flight.
    """
    gaps, steps = in_gaps.gaps, recording.steps
    compared = ~_has_later_releases(recording)[gaps.step]
    step = gaps.step[compared]
    derived = {"running_after": gaps.running, "waiting_after": gaps.waiting, "free_units_after": free}
    for name, values in derived.items():
        stated = getattr(steps, name)
        if stated is not None:
            agree(stated[step], values[compared], file, name, "the other tables", step)


def _check_bytes(recording: Recording, file: Path) -> None:
    """Check the bytes per token against the model's shape, and the bytes and layers of blocks against the groups."""
    meta, pool = recording.meta, recording.meta.pool
    if all(key in meta.model for key in _SHAPE) and not (pool.groups and "kv_bytes_per_token" not in meta.model):
        # `served_model` compares the bytes. It needs a whole shape, but the fields of weights do not affect them.
        stated = meta.model.get("kv_bytes_per_token", pool.bytes_per_unit // pool.unit_tokens)
        weights = dict.fromkeys(_WEIGHT_FIELDS, 1)
        try:
            served_model(replace(meta, model=weights | dict(meta.model) | {"kv_bytes_per_token": stated}))
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


def _check_units(replay: Replay, folder: Path) -> None:
    """Check that a cached unit is evicted before it is overwritten, and shared only by prompts with its prefix."""
    recording, file = replay.recording, folder / "memory.parquet"
    memory, meta = recording.memory, recording.meta
    contents = _UnitContents(replay)
    for part in replay.ledger.successions(with_prefixes=True):
        kind = memory.kind[part.row]
        require(
            (kind != MemoryKind.APPEND) | ~part.kept, file,
            "a unit that keeps a prefix should be evicted before it is allocated", part.row,
        )  # fmt: skip
        # Each rule applies to rows of one kind, so rows of other kinds pass. In the recording of a server, a unit may
        # become cached after its release was reported.
        if meta.source == "simulation":
            had_prefix = (kind != MemoryKind.EVICT) | part.kept
            require(had_prefix, file, "a unit that is evicted should keep a prefix", part.row)
            was_there = (kind != MemoryKind.SHARE) | part.kept | part.is_held
            require(was_there, file, "a unit that is shared should keep a prefix, or be held", part.row)
        contents.check_shared(part, kind, file)


def _check_evictions(recording: Recording, file: Path) -> None:
    """Check that evicted blocks are allocated in the same step, and that every block was used before any eviction.

    Only recordings of kvsim's own paged policy are checked. There, a block keeps its prefix until it is allocated
    again, and freed blocks are behind all unused blocks in the free queue.
    """
    memory, meta, pool = recording.memory, recording.meta, recording.meta.pool
    if meta.source != "simulation" or meta.policy_name != "paged" or "rules" in meta.policy:
        return
    evicts = np.flatnonzero(memory.kind == MemoryKind.EVICT)
    if not len(evicts):
        return

    def moments(rows: IntArray) -> tuple[IntArray, IntArray, npt.NDArray[np.int64]]:
        """Return three arrays with an entry per unit of `rows`: row, address, and a key of address and `seq`."""
        extent, offset = expanded(memory.length[rows])
        unit = memory.address[rows][extent] + offset
        return rows[extent], unit, sort_key(unit, memory.seq[rows][extent])

    (rows, _, evicted), (given_in, unit, given) = map(
        moments, (evicts, np.flatnonzero(memory.kind == MemoryKind.APPEND))
    )
    require(np.isin(evicted, given), file, "a unit that is evicted should be allocated in the same step", rows)
    num_used = len(np.unique(unit[memory.seq[given_in] <= memory.seq[evicts[0]]]))
    if num_used != pool.num_units:
        raise RecordingError(
            f"{file}, row {int(evicts[0])}: a unit is evicted after {num_used:,} were used, and pool.num_units of "
            f"meta.json is {pool.num_units or 0:,}."
        )


class _UnitContents:
    """The request that wrote each unit last, and the unit's position in that request's table.

    Together they determine the prefix that the unit holds.
    """

    def __init__(self, replay: Replay) -> None:
        recording, pool = replay.recording, replay.recording.meta.pool
        self._memory, hashes = recording.memory, recording.requests.prompt_hashes
        self._hashes, self._first = hashes.values, np.append(0, np.cumsum(hashes.lengths))
        sizes = [group.block_size for group in pool.groups] or [pool.unit_tokens]
        self._hashes_per_unit = np.array(sizes) // recording.meta.hash_block_size
        # Indexed by address: the request that last wrote the unit (-1 for none), and the position of the unit in its
        # table.
        self._writer = np.full(replay.ledger.end_of_pool, -1, np.int32)
        self._position = np.full(replay.ledger.end_of_pool, -1, np.int32)

    def check_shared(self, part: Successions, kind: IntArray, file: Path) -> None:
        """Check the units that are shared in `part`, and update the last writer of each unit.

        `part` has the uses of units: allocations, shares and evictions. `kind` has the `MemoryKind` of each use.
        """
        memory = self._memory
        request = memory.request[part.row]
        position = memory.position[part.row] + part.unit - memory.address[part.row]
        # The last writer is in an earlier row of this part, which is sorted by unit, or else in an earlier part.
        index = np.arange(len(kind))
        last_append = np.maximum.accumulate(np.where(kind == MemoryKind.APPEND, index, -1))
        shared = np.flatnonzero(kind == MemoryKind.SHARE)
        append = last_append[shared]
        is_here = (append >= 0) & (part.unit[append] == part.unit[shared])
        writer = np.where(is_here, request[append], self._writer[part.unit[shared]])
        old_position = np.where(is_here, position[append], self._position[part.unit[shared]])
        rows, is_known = part.row[shared], writer >= 0
        same_place = old_position == position[shared]
        require(~is_known | same_place, file, "a unit should be shared at its old position", rows)
        hashes, has_hash = self._hash(request[shared], position[shared], rows)
        old_hashes, had_hash = self._hash(writer, old_position, rows)
        is_comparable = is_known & has_hash & had_hash
        require(
            ~is_comparable | (hashes == old_hashes), file,
            "a unit should be shared by prompts that requests.parquet gives the same prompt_hashes", rows,
        )  # fmt: skip
        written = np.flatnonzero(kind == MemoryKind.APPEND)
        self._writer[part.unit[written]] = request[written]  # for a unit written twice, the last assignment counts
        self._position[part.unit[written]] = position[written]

    def _hash(self, request: IntArray, position: IntArray, row: IntArray) -> tuple[IntArray, IntArray]:
        """Return the hash of each prompt up to the end of the unit at `position`, and whether the prompt has it.

        `row` has the rows of the memory table, from which the KV-cache groups follow. A missing hash is 0.
        """
        group = 0 if self._memory.group is None else self._memory.group[row]
        # The hash of a unit is that of its last tokens, since hashes are chained.
        nth = (position.astype(np.int64) + 1) * self._hashes_per_unit[group] - 1
        at = self._first[request] + nth
        is_known = (nth >= 0) & (at < self._first[request + 1])
        hashes = np.append(self._hashes, 0)[np.where(is_known, at, -1)]
        return hashes, is_known
