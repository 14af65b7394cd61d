"""The memory events of a recording, unfolded: after each operation, who holds which units.

`memory.parquet` says "request 7 gives back its table"; the ledger says which units that were, in which order, and
what each is afterwards. Everything is computed in bulk when a recording is opened, so that replay only copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.recording.model import Recording
from kvsim.recording.progress import Progress
from kvsim.recording.tables import IntArray, MemoryKind

NOBODY = -1
"""The owner of a unit that is free."""
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """Every run of units that a request ever held, sorted by request, then by time."""

    request: IntArray
    position: IntArray
    address: IntArray
    length: IntArray
    requested: IntArray
    birth_row: IntArray
    """The row of `memory.parquet` that gave the run to the request: rows of one step stand in their order."""
    birth_seq: IntArray
    death_seq: IntArray
    first_row: IntArray
    """Row at which each request begins; one more entry than there are requests."""

    def held(self, request: int, seq: int) -> tuple[IntArray, IntArray, IntArray]:
        """Positions, addresses and lengths of the runs that `request` holds after everything up to `seq`."""
        rows = slice(self.first_row[request], self.first_row[request + 1])
        alive = (self.birth_seq[rows] <= seq) & (self.death_seq[rows] > seq)
        return self.position[rows][alive], self.address[rows][alive], self.length[rows][alive]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ledger:
    """One row per operation on a run of units, in the order in which they happened, with the state that it leaves."""

    seq: IntArray
    address: IntArray
    length: IntArray
    owner: npt.NDArray[np.int32]
    """A request that holds the run afterwards, or `NOBODY`."""
    position: npt.NDArray[np.int64]
    """Where the run stands in the owner's table, in units."""
    refs: npt.NDArray[np.int32]
    """How many requests hold it afterwards."""
    cached: npt.NDArray[np.bool_]
    """Free afterwards, but still holding a prefix that could be hit."""
    allocated: npt.NDArray[np.bool_]
    """Whether this operation took a free run."""
    unit_by_unit: bool
    """Whether every run has one unit."""
    tables: Tables


def unfold(recording: Recording, progress: Progress) -> Ledger:
    """Unfold the memory events of `recording`.

    Raises:
        RecordingError: a unit is handed out or evicted while somebody holds it.
    """
    unit_by_unit = _is_paged(recording)
    tables, birth_row, death_row = _tables(recording, unit_by_unit=unit_by_unit)
    memory = recording.memory
    unit_tokens = recording.meta.pool.unit_tokens

    dead = np.flatnonzero(death_row < len(memory))
    evict = np.flatnonzero(memory.kind == MemoryKind.EVICT)
    evict_address, evict_length = memory.address[evict], memory.length[evict]
    if unit_by_unit:
        run, offset = units_of_runs(evict_length)
        evict, evict_address, evict_length = evict[run], evict_address[run] + offset, np.ones(len(run), np.int64)
    row = np.concatenate((birth_row, death_row[dead], evict))
    # A release goes through the table from its end.
    rank = np.concatenate((tables.position, -tables.position[dead], np.zeros(len(evict), np.int64)))
    order = np.lexsort((rank, row))

    born, evicted = len(birth_row), len(evict)
    delta = np.concatenate((np.ones(born, np.int32), np.full(len(dead), -1, np.int32), np.zeros(evicted, np.int32)))[
        order
    ]
    owner = np.concatenate((tables.request, tables.request[dead], np.full(evicted, NOBODY)))[order].astype(np.int32)
    position = np.concatenate((tables.position, tables.position[dead], np.zeros(evicted, np.int64)))[order]
    address = np.concatenate((tables.address, tables.address[dead], evict_address))[order]
    length = np.concatenate((tables.length, tables.length[dead], evict_length))[order]
    row = row[order]

    shared = bool((memory.kind == MemoryKind.SHARE).any())
    refs = _running_refs(address, delta) if unit_by_unit else np.maximum(delta, 0)
    if unit_by_unit:
        _check_free(recording, row, address, refs)
    cached = np.zeros(len(row), np.bool_)
    released = np.flatnonzero((delta < 0) & (refs == 0))
    keep = _cached_units(recording, progress, row[released], owner[released], unit_tokens)
    cached[released] = position[released] < keep
    owner = np.where(refs > 0, owner, NOBODY).astype(np.int32)
    if shared:
        _hand_over(address, delta, refs, owner)
    return Ledger(
        seq=memory.seq[row],
        address=address,
        length=length,
        owner=owner,
        position=position.astype(np.int64),
        refs=refs,
        cached=cached,
        allocated=(delta > 0) & (refs == 1),
        unit_by_unit=unit_by_unit,
        tables=tables,
    )


def units_of_runs(length: IntArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For every unit of runs that are `length` long: the index of its run, and its offset in that."""
    run = np.repeat(np.arange(len(length)), length)
    return run, np.arange(len(run)) - np.repeat(np.cumsum(length) - length, length)


def _check_free(recording: Recording, row: IntArray, address: IntArray, refs: npt.NDArray[np.int32]) -> None:
    """Raise where a unit is handed out or evicted while somebody holds it."""
    kind = recording.memory.kind[row]
    wrong = ((kind == MemoryKind.APPEND) & (refs > 1)) | ((kind == MemoryKind.EVICT) & (refs > 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise RecordingError(
            f"memory.parquet of {recording.name}, row {int(row[first])}: unit {int(address[first])} should be free."
        )


def _is_paged(recording: Recording) -> bool:
    """Whether units are shared and cached one by one, and runs of them were only written together."""
    sharing = np.isin(recording.memory.kind, (MemoryKind.SHARE, MemoryKind.EVICT))
    return recording.meta.pool.unit_tokens > 1 or recording.meta.prefix_caching or bool(sharing.any())


def _tables(recording: Recording, *, unit_by_unit: bool) -> tuple[Tables, IntArray, IntArray]:
    """The runs of every table, with the rows of `memory` at which each is taken and given back."""
    memory, num_rows = recording.memory, len(recording.memory)
    rows = np.flatnonzero(memory.kind != MemoryKind.EVICT)
    rows = rows[np.argsort(memory.request[rows], kind="stable")]
    request, release = memory.request[rows].astype(np.int64), memory.kind[rows] == MemoryKind.RELEASE

    # The release that ends a row's residency is the next one of the same request.
    release_at = np.flatnonzero(release)
    following = np.searchsorted(release_at, np.arange(len(rows)))
    in_range = following < len(release_at)
    candidate = (
        release_at[np.minimum(following, max(len(release_at) - 1, 0))]
        if len(release_at)
        else np.zeros(len(rows), np.int64)
    )
    in_range &= request[candidate] == request
    death = np.where(in_range, rows[candidate], num_rows)

    take = ~release
    birth_row, death_row, request = rows[take], death[take], request[take]
    position, address, length = (values[birth_row] for values in (memory.position, memory.address, memory.length))
    requested = length if memory.requested is None else memory.requested[birth_row]
    if unit_by_unit:
        run, offset = units_of_runs(length)
        birth_row, death_row, request = birth_row[run], death_row[run], request[run]
        position, address = position[run] + offset, address[run] + offset
        length = requested = np.ones(len(run), np.int64)

    seq = np.append(memory.seq, NEVER)
    tables = Tables(
        request=request,
        position=position,
        address=address,
        length=length,
        requested=requested,
        birth_row=birth_row,
        birth_seq=seq[birth_row],
        death_seq=seq[death_row],
        first_row=np.searchsorted(request, np.arange(len(recording.requests) + 1)),
    )
    return tables, birth_row, death_row


def _running_refs(address: IntArray, delta: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """References to each operation's unit after it: a running sum within each unit."""
    order = np.argsort(address, kind="stable")
    total = np.cumsum(delta[order])
    first = np.flatnonzero(np.diff(address[order], prepend=-1))
    before = np.concatenate(([0], total))[first]
    refs = np.empty(len(delta), np.int32)
    refs[order] = total - np.repeat(before, np.diff(np.append(first, len(order))))
    return refs


def _hand_over(
    address: IntArray, delta: npt.NDArray[np.int32], refs: npt.NDArray[np.int32], owner: npt.NDArray[np.int32]
) -> None:
    """Where one of several holders lets go of a unit, name one that stays as its owner."""
    left_shared = (delta < 0) & (refs > 0)
    shared_units = np.unique(address[left_shared])
    holders: dict[int, list[int]] = {int(unit): [] for unit in shared_units}
    for row in np.flatnonzero(np.isin(address, shared_units) & (delta != 0)):
        held_by = holders[int(address[row])]
        if delta[row] > 0:
            held_by.append(int(owner[row]))
        elif refs[row] == 0:
            held_by.clear()
        else:
            held_by.remove(int(owner[row]))
            owner[row] = held_by[-1]


def _cached_units(
    recording: Recording, progress: Progress, rows: IntArray, requests: IntArray, unit_tokens: int
) -> npt.NDArray[np.int64]:
    """How many leading units of the released table keep their prefix, for releases at `rows` of `memory`."""
    memory = recording.memory
    if not recording.meta.prefix_caching:
        return np.zeros(len(rows), np.int64)
    if memory.cached is not None:
        return memory.cached[rows].astype(np.int64)
    # The recorder did not say: a unit keeps its prefix once it is full of tokens whose values were known, and the
    # token that
    # was in flight when a request was preempted was not.
    step = np.searchsorted(recording.steps.schedule_seq, memory.seq[rows]) - 1
    computed = progress.computed(requests, step)
    known = np.where(computed >= progress.final[requests], computed, np.maximum(computed - 1, 0))
    return known // unit_tokens
