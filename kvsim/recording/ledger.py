"""The memory events of a recording, unfolded: after each operation, who holds which units.

`memory.parquet` says "request 7 gives back its table"; the ledger says which units that were, in which order, and
what each is afterwards. Everything is computed in bulk when a recording is opened, so that replay only copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.recording.holdings import Tables, tables_of
from kvsim.recording.model import Recording
from kvsim.recording.order import is_new, stable_order, units_of_runs
from kvsim.recording.progress import Progress
from kvsim.recording.tables import IntArray, Memory, MemoryKind

NOBODY = -1
"""The owner of a unit that is free."""
_OPS_AT_ONCE = 1 << 20
"""Operations on shared units that are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ledger:
    """One row per operation on a run of units, in the order in which they happened, with the state that it leaves.

    A run that grows is taken with the units of its first step, and given back with all of them.
    """

    seq: IntArray
    address: IntArray
    length: IntArray
    owner: IntArray
    """A request that holds the run afterwards, or `NOBODY`."""
    position: IntArray
    """Where the run stands in the owner's table, in units."""
    refs: npt.NDArray[np.int32]
    """How many requests hold it afterwards."""
    cached: npt.NDArray[np.bool_]
    """Free afterwards, but still holding a prefix that could be hit."""
    unit_by_unit: bool
    """Whether every run has one unit."""
    tables: Tables


def unfold(recording: Recording, progress: Progress) -> Ledger:
    """Unfold the memory events of `recording`.

    Raises:
        RecordingError: a unit is handed out or evicted while somebody holds it.
    """
    memory = recording.memory
    unit_by_unit = _has_single_units(recording)
    tables, death_row = tables_of(memory, len(recording.requests), unit_by_unit=unit_by_unit)
    evict = np.flatnonzero(memory.kind == MemoryKind.EVICT)
    num_units = memory.length[evict] if unit_by_unit else np.ones(len(evict), np.int32)
    num_ops = _count_operations(memory, tables, death_row, evict, num_units)
    run = _run_of_each(tables, death_row, num_ops)
    row: IntArray = np.repeat(np.arange(len(memory), dtype=np.int32), num_ops)

    address, position, owner = (
        column[run] if len(column) else np.zeros(len(run), np.int32)
        for column in (tables.address, tables.position, tables.request)
    )
    evictions = np.flatnonzero(memory.kind[row] == MemoryKind.EVICT)
    nth, offset = units_of_runs(num_units)
    address[evictions], position[evictions], owner[evictions] = memory.address[evict[nth]] + offset, 0, NOBODY
    length = np.broadcast_to(np.int32(1), len(run)) if unit_by_unit else _lengths(memory, tables, run, row)
    del num_ops, evict, num_units, evictions, nth, offset  # a long recording has tens of millions of operations

    delta = _DELTA[memory.kind][row]
    if unit_by_unit:
        by_address = stable_order(address, int(address.max(initial=0)) + 1)
        refs = _running_refs(address, delta, by_address)
        _check_free(recording, row, address, refs)
        if (memory.kind == MemoryKind.SHARE).any():
            _hand_over(tables, run, address, delta, refs, by_address, owner, position)
        del by_address
    else:
        refs = np.maximum(delta, 0).astype(np.int32)
    del run
    released = np.flatnonzero((delta < 0) & (refs == 0))
    cached = np.zeros(len(row), np.bool_)
    if recording.meta.prefix_caching:
        cached[released] = position[released] < _cached_units(recording, progress, row[released], owner[released])
    owner[released] = NOBODY
    return Ledger(
        seq=memory.seq.astype(tables.birth_seq.dtype)[row],
        address=address,
        length=length,
        owner=owner,
        position=position,
        refs=refs,
        cached=cached,
        unit_by_unit=unit_by_unit,
        tables=tables,
    )


_DELTA = np.zeros(len(MemoryKind), np.int8)
"""Holders that a run gains or loses, by the kind of the operation."""
_DELTA[[MemoryKind.APPEND, MemoryKind.SHARE]] = 1
_DELTA[MemoryKind.RELEASE] = -1


def _has_single_units(recording: Recording) -> bool:
    """Whether units are shared and cached one by one, and runs of them were only written together."""
    meta, kind, repeat = recording.meta, recording.memory.kind, recording.memory.repeat
    if repeat is not None and (repeat > 1).any():
        return False
    if meta.policy_name == "paged" or meta.pool.unit_tokens > 1 or meta.prefix_caching:
        return True
    return bool(((kind == MemoryKind.SHARE) | (kind == MemoryKind.EVICT)).any())


def _count_operations(
    memory: Memory, tables: Tables, death_row: IntArray, evict: IntArray, num_units: IntArray
) -> npt.NDArray[np.int32]:
    """How many operations each row of `memory` stands for."""
    num_ops = np.bincount(tables.birth_row, minlength=len(memory)).astype(np.int32)
    num_ops += np.bincount(death_row, minlength=len(memory) + 1)[:-1].astype(np.int32)
    num_ops[evict] = num_units
    return num_ops


def _run_of_each(tables: Tables, death_row: IntArray, num_ops: npt.NDArray[np.int32]) -> IntArray:
    """The run that each operation takes or gives back, a table being given back from its end; 0 for evictions."""
    begin = np.cumsum(num_ops, dtype=np.int32) - num_ops
    run = np.zeros(int(num_ops.sum()), np.int32)
    runs = np.arange(len(death_row), dtype=np.int32)
    first = np.zeros(len(num_ops), np.int32)
    # Of several assignments to one place the last stands, which is here the first run of a row.
    first[tables.birth_row[::-1]] = runs[::-1]
    run[begin[tables.birth_row] + runs - first[tables.birth_row]] = runs
    dead = np.flatnonzero(death_row < len(num_ops)).astype(np.int32)
    row = death_row[dead]
    first[row[::-1]] = dead[::-1]
    run[begin[row] + num_ops[row] - 1 - (dead - first[row])] = dead
    return run


def _lengths(memory: Memory, tables: Tables, run: IntArray, row: IntArray) -> IntArray:
    """Units of each operation's run: when it is taken, those of its first step."""
    kind = memory.kind[row]
    whole, at_first = tables.length[run], (tables.length // tables.repeat)[run]
    return np.where(kind == MemoryKind.RELEASE, whole, np.where(kind == MemoryKind.EVICT, memory.length[row], at_first))


def _running_refs(
    address: IntArray, delta: npt.NDArray[np.int8], by_address: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """References to each operation's unit after it: a running sum within each unit."""
    total = np.cumsum(delta[by_address], dtype=np.int32)
    first = np.flatnonzero(is_new(address[by_address]))
    before = np.concatenate((np.zeros(1, np.int32), total))[first]
    total -= np.repeat(before, np.diff(first, append=len(total)))
    refs = np.empty_like(total)
    refs[by_address] = total
    return refs


def _check_free(recording: Recording, row: IntArray, address: IntArray, refs: npt.NDArray[np.int32]) -> None:
    """Raise where a unit is handed out or evicted while somebody holds it."""
    kind = recording.memory.kind[row]
    wrong = ((kind == MemoryKind.APPEND) & (refs > 1)) | ((kind == MemoryKind.EVICT) & (refs > 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise RecordingError(
            f"memory.parquet of {recording.name}, row {int(row[first])}: unit {int(address[first])} should be free."
        )


def _hand_over(
    tables: Tables,
    run: IntArray,
    address: IntArray,
    delta: npt.NDArray[np.int8],
    refs: npt.NDArray[np.int32],
    by_address: npt.NDArray[np.int32],
    owner: IntArray,
    position: IntArray,
) -> None:
    """Where one of several holders lets go of a unit, name as its owner the one that will stay longest."""
    is_shared = np.zeros(int(address.max()) + 1, np.bool_)
    is_shared[address[(delta < 0) & (refs > 0)]] = True
    ops = by_address[is_shared[address[by_address]]]
    # The last operation of each run; those that are never given back come after all others.
    num_ops, num_runs = len(run), len(tables.request)
    last_op = np.arange(num_ops, num_ops + num_runs, dtype=np.int32)
    given_back = np.flatnonzero(delta < 0).astype(np.int32)
    last_op[run[given_back]] = given_back
    for part in _split_between_units(ops, address):
        # Of all that have taken a unit so far, whoever leaves it last is still there if anybody is.
        unit = np.cumsum(is_new(address[part])) * (num_ops + num_runs)
        longest = np.maximum.accumulate(unit + np.where(delta[part] > 0, last_op[run[part]], 0)) - unit
        leaving = (delta[part] < 0) & (refs[part] > 0)
        left, longest = part[leaving], longest[leaving]
        stays = np.where(longest < num_ops, run[np.minimum(longest, num_ops - 1)], longest - num_ops)
        owner[left], position[left] = tables.request[stays], tables.position[stays]


def _split_between_units(ops: npt.NDArray[np.int32], address: IntArray) -> list[npt.NDArray[np.int32]]:
    """`ops`, which are in order of address, in parts of bounded size, all of one unit's in the same."""
    begins = np.flatnonzero(is_new(address[ops]))
    cuts = np.searchsorted(begins, np.arange(_OPS_AT_ONCE, len(ops), _OPS_AT_ONCE))
    return np.split(ops, np.unique(begins[cuts[cuts < len(begins)]]))


def _cached_units(
    recording: Recording, progress: Progress, rows: IntArray, requests: IntArray
) -> npt.NDArray[np.integer[Any]]:
    """How many leading units of the released table keep their prefix, for releases at `rows` of `memory`."""
    memory = recording.memory
    if memory.cached is not None:
        return memory.cached[rows]
    # The recorder did not say: a unit keeps its prefix once it is full of tokens whose values were known, and the
    # token that was in flight when a request was preempted was not.
    step = np.searchsorted(recording.steps.schedule_seq, memory.seq[rows]) - 1
    computed = progress.computed(requests, step)
    known = np.where(computed >= progress.final[requests], computed, np.maximum(computed - 1, 0))
    return known // recording.meta.pool.unit_tokens
