"""Turns of sessions in a run: what each found of its history, and which eviction took the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from kvsim.engine.paged.prefix_keys import with_answers
from kvsim.errors import RecordingError
from kvsim.recording.tables import ColumnTable, FloatArray, IntArray, MemoryKind, Requests, column

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording import Recording
    from kvsim.recording.tables import Memory

MOST_ROWS = 8
"""Turn number, counted from 1, from which all turns are one row of `by_turn`."""
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SessionTurns(ColumnTable):
    """One row per request of a run with sessions; the requests of a row are numbers of `requests`."""

    name: ClassVar[str] = "turns"

    request: IntArray = column("int32")
    session: IntArray = column("int32")
    """Number of the session, in the order in which they began."""
    turn: IntArray = column("int32")
    """Number of the turn in its session, from 1."""
    after: IntArray = column("int32")
    """Request that the turn waited for; -1 for a first turn."""
    history_tokens: IntArray = column("int32")
    """Leading tokens of the prompt that are that request's."""
    hit_tokens: IntArray = column("int32")
    """Tokens of the prompt that the cache had when the turn was first scheduled."""
    lost_tokens: IntArray = column("int32")
    """Tokens of the history that had been computed before, in full blocks, and were computed again."""
    evicted_s: FloatArray = column("float64")
    """Time at which the first lost block was evicted; NaN if nothing was lost, or not to an eviction."""
    evicted_for: IntArray = column("int32")
    """Request that took the memory of that block; -1 where `evicted_s` is NaN."""


class TurnFigures(NamedTuple):
    """Figures of the n-th turns of all sessions."""

    turn: str
    """Number of the turn, from 1."""
    num_requests: int
    prompt_tokens: int
    history_tokens: int
    hit_tokens: int
    lost_tokens: int
    ttft_s: float
    """Mean; NaN without an answer."""


def lost_tokens(requests: Requests, unit_tokens: int) -> IntArray:
    """Return, for each request, the tokens of its history that a cache of full units could have kept and had lost."""
    turns = requests.turns
    if turns is None:
        return np.zeros(len(requests), np.int32)
    # The last token of an answer is never computed, and the last of a prompt always.
    there = np.where(turns.after < 0, 0, (requests.prompt_tokens + requests.output_tokens)[turns.after] - 1)
    kept = np.minimum(np.minimum(turns.history_tokens, there), requests.prompt_tokens - 1) // unit_tokens * unit_tokens
    begun = ~np.isnan(requests.first_scheduled_s)
    return np.where(begun, np.maximum(kept - requests.cached_tokens, 0), 0).astype(np.int32)


def by_turn(requests: Requests, unit_tokens: int) -> list[TurnFigures]:
    """Return the figures of first turns, second turns, and so on; empty if nothing waits for an answer."""
    turns = requests.turns
    if turns is None:
        return []
    lost, number = lost_tokens(requests, unit_tokens), np.minimum(turns.turn + 1, MOST_ROWS)
    found = []
    for turn in range(1, int(number.max(initial=0)) + 1):
        rows = np.flatnonzero(number == turn)
        ttft_s = requests.ttft_s[rows]
        answered = ttft_s[~np.isnan(ttft_s)]
        found.append(
            TurnFigures(
                turn=f"{turn}+" if (turns.turn[rows] >= MOST_ROWS).any() else str(turn),
                num_requests=len(rows),
                prompt_tokens=int(requests.prompt_tokens[rows].sum(dtype=np.int64)),
                history_tokens=int(turns.history_tokens[rows].sum(dtype=np.int64)),
                hit_tokens=int(requests.cached_tokens[rows].sum(dtype=np.int64)),
                lost_tokens=int(lost[rows].sum(dtype=np.int64)),
                ttft_s=float(answered.mean()) if len(answered) else float("nan"),
            )
        )
    return found


def session_turns(recording: Recording) -> SessionTurns:
    """Return the turns of `recording`, with the eviction that hurt each.

    Raises:
        RecordingError: none of its requests waits for another.
    """
    requests = recording.requests
    turns = requests.turns
    if turns is None:
        raise RecordingError(
            f"recording {recording.name!r} has no sessions: none of its requests waits for another; kvsim run "
            "--sessions makes some."
        )
    lost = lost_tokens(requests, recording.meta.pool.unit_tokens)
    evicted_s, evicted_for = _causes(recording, lost)
    return SessionTurns(
        request=requests.request,
        session=turns.session,
        turn=turns.turn + 1,
        after=turns.after,
        history_tokens=turns.history_tokens,
        hit_tokens=requests.cached_tokens,
        lost_tokens=lost,
        evicted_s=evicted_s,
        evicted_for=evicted_for,
    )


def _causes(recording: Recording, lost: IntArray) -> tuple[FloatArray, IntArray]:
    """Return when and for which request the first lost block of each turn was evicted.

    With several KV-cache groups a block is lost that any group lacks behind the hit; the last such eviction counts.
    """
    requests, memory, unit = recording.requests, recording.memory, recording.meta.hash_block_size
    evicted_s, evicted_for = np.full(len(requests), np.nan), np.full(len(requests), NONE, np.int32)
    turns, sizes = requests.turns, np.array(_block_sizes(recording))
    if turns is None or (sizes % unit).any() or not lost.any():
        return evicted_s, evicted_for
    keys = with_answers(turns, requests.prompt_hashes, unit)
    taken = _evictions(memory, keys.values, keys.offsets, sizes // unit)
    schedule_s = recording.steps.start_s
    for request in np.flatnonzero(lost > 0).tolist():
        found: list[tuple[float, int]] = []
        for group, size in enumerate(sizes.tolist()):
            place = (int(requests.cached_tokens[request]) // size + 1) * (size // unit) - 1
            key = (keys.values[keys.offsets[request] + place], group) if place < keys.lengths[request] else None
            begin, end = taken.rows_of(key)
            at_s = schedule_s[memory.step[taken.row[begin:end]]]
            before = np.flatnonzero((at_s <= requests.first_scheduled_s[request]) & (taken.by[begin:end] != request))
            if len(before):
                found.append((float(at_s[before[-1]]), int(taken.by[begin:end][before[-1]])))
        if found:
            evicted_s[request], evicted_for[request] = max(found)
    return evicted_s, evicted_for


def _block_sizes(recording: Recording) -> list[int]:
    """Return the tokens of a block in each KV-cache group."""
    pool = recording.meta.pool
    return [group.block_size for group in pool.groups] or [pool.unit_tokens]


class _Evictions(NamedTuple):
    """Evictions by the key and the group of the evicted block, and in order for each."""

    key: npt.NDArray[np.int64]
    """Key of the block's prefix times the number of groups, and the group."""
    num_groups: int
    row: IntArray
    """Row of the memory table."""
    by: IntArray
    """Request that took the block next."""

    def rows_of(self, key: tuple[np.int64, int] | None) -> tuple[int, int]:
        """Return where the evictions of a block begin and end; the block is given by key and group."""
        if key is None:
            return 0, 0
        wanted = key[0] * self.num_groups + key[1]
        return int(np.searchsorted(self.key, wanted, "left")), int(np.searchsorted(self.key, wanted, "right"))


def _evictions(
    memory: Memory, keys: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], hashes_per_block: npt.NDArray[np.int64]
) -> _Evictions:
    """Return the evictions of blocks whose contents have a key: what was last written there, and who wrote next.

    A block of a group has the key of the last of its `hashes_per_block`.
    """
    rows = np.flatnonzero((memory.kind == MemoryKind.APPEND) | (memory.kind == MemoryKind.EVICT))
    length = memory.length[rows].astype(np.int64)
    row = np.repeat(rows, length)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
    address, position = memory.address[row] + nth, memory.position[row] + nth
    order = np.lexsort((row, address))
    row, address, position = row[order], address[order], position[order]
    evicts = np.flatnonzero(memory.kind[row] == MemoryKind.EVICT)
    evicts = evicts[(evicts > 0) & (evicts + 1 < len(row))]
    alike = (address[evicts - 1] == address[evicts]) & (address[evicts + 1] == address[evicts])
    evicts = evicts[alike & (memory.kind[row[evicts - 1]] == MemoryKind.APPEND)]
    wrote, group = memory.request[row[evicts - 1]], memory.groups[row[evicts - 1]]
    place = offsets[wrote] + (position[evicts - 1] + 1) * hashes_per_block[group] - 1
    known = place < offsets[wrote + 1]
    num_groups = len(hashes_per_block)
    evicts, key = evicts[known], keys[place[known]] * num_groups + group[known]
    order = np.lexsort((row[evicts], key))
    return _Evictions(key[order], num_groups, row[evicts][order], memory.request[row[evicts + 1]][order])
