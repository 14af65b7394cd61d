"""Tokens of each turn's history that were in the prefix cache, and the evictions that removed the others.

The command line and the plots show both for runs with sessions, so that readers see whether the cache is too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from kvsim.engine.paged.prefix_keys import with_answers
from kvsim.errors import RecordingError
from kvsim.recording.order import expanded
from kvsim.recording.tables import ColumnTable, FloatArray, IntArray, MemoryKind, Requests, column

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording import Recording
    from kvsim.recording.tables import Memory

MOST_ROWS = 8
"""Largest number of rows of `by_turn`. The last of these rows is for the 8th turn and all later turns."""
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SessionTurns(ColumnTable):
    """Table with one row for each request of a run with sessions. A request is given by its row in `requests`."""

    name: ClassVar[str] = "turns"

    request: IntArray = column("int32")
    session: IntArray = column("int32")
    """Number of the session, from 0, in the order in which sessions began."""
    turn: IntArray = column("int32")
    """Number of the turn in its session, from 1. (`Turns.turn` of a workload counts from 0.)"""
    after: IntArray = column("int32")
    """Row of the request that the turn waited for; -1 for a first turn."""
    history_tokens: IntArray = column("int32")
    """Number of leading prompt tokens that repeat the prompt and the answer of request `after`."""
    hit_tokens: IntArray = column("int32")
    """Number of prompt tokens that were in the prefix cache when the turn was first scheduled."""
    lost_tokens: IntArray = column("int32")
    """Number of history tokens, in full blocks, that had been computed before and were computed again."""
    evicted_s: FloatArray = column("float64")
    """Time at which the first lost block was evicted, in seconds from the first event.

    NaN if no block was lost, or if no eviction explains the loss.
    """
    evicted_for: IntArray = column("int32")
    """Row of the request for which the first lost block was evicted; -1 if `evicted_s` is NaN."""


class TurnFigures(NamedTuple):
    """Figures of all turns that have the same number, such as the second turns of all sessions."""

    turn: str
    """Number of the turn, from 1; "8+" for the 8th and all later turns."""
    num_requests: int
    prompt_tokens: int
    history_tokens: int
    hit_tokens: int
    lost_tokens: int
    ttft_s: float
    """Mean time to first token in seconds; NaN if no turn was answered."""


def lost_tokens(requests: Requests, unit_tokens: int) -> IntArray:
    """Return, for each request, the number of history tokens in full units that were computed again.

    They had been computed before, but were no hit. The number is 0 without sessions. `unit_tokens` is the number of
    tokens in a unit.
    """
    turns = requests.turns
    if turns is None:
        return np.zeros(len(requests), np.int32)
    # The KV of the last token of an answer is never computed. The last token of a prompt is always computed, even if it
    # is cached. So neither can be a hit.
    computed = np.where(turns.after < 0, 0, (requests.prompt_tokens + requests.output_tokens)[turns.after] - 1)
    most_hits = np.minimum(np.minimum(turns.history_tokens, computed), requests.prompt_tokens - 1)
    lost = most_hits // unit_tokens * unit_tokens - requests.cached_tokens
    has_begun = ~np.isnan(requests.first_scheduled_s)
    return np.where(has_begun, np.maximum(lost, 0), 0).astype(np.int32)


def by_turn(requests: Requests, unit_tokens: int) -> list[TurnFigures]:
    """Return the figures of all first turns, of all second turns, and so on; an empty list without sessions."""
    turns = requests.turns
    if turns is None:
        return []
    lost, number = lost_tokens(requests, unit_tokens), np.minimum(turns.turn + 1, MOST_ROWS)
    figures = []
    for turn in range(1, int(number.max(initial=0)) + 1):
        rows = np.flatnonzero(number == turn)
        ttft_s = requests.ttft_s[rows]
        answered = ttft_s[~np.isnan(ttft_s)]
        figures.append(
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
    return figures


def session_turns(recording: Recording) -> SessionTurns:
    """Return the turns of a recording, each with the eviction of the first block that it computed again.

    Raises:
        RecordingError: the recording has no sessions.
    """
    requests = recording.requests
    turns = requests.turns
    if turns is None:
        raise RecordingError(
            f"recording {recording.name!r} has no sessions: none of its requests waits for another; kvsim run "
            "--sessions makes some."
        )
    lost = lost_tokens(requests, recording.meta.pool.unit_tokens)
    evicted_s, evicted_for = _first_evictions(recording, lost)
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


def _first_evictions(recording: Recording, lost: IntArray) -> tuple[FloatArray, IntArray]:
    """Return when and for which request the first lost block of each turn was evicted; the time is in seconds.

    With several KV-cache groups, a hit ends at the first block that any group lacks. If several groups lack it, the
    latest eviction counts. `lost` has the number of lost tokens of each request.
    """
    requests, memory, hash_tokens = recording.requests, recording.memory, recording.meta.hash_block_size
    evicted_s, evicted_for = np.full(len(requests), np.nan), np.full(len(requests), NONE, np.int32)
    turns, sizes = requests.turns, np.array(_block_sizes(recording))
    if turns is None or (sizes % hash_tokens).any() or not lost.any():
        return evicted_s, evicted_for
    keys = with_answers(turns, requests.prompt_hashes, hash_tokens, recording.meta.hash_ahead_tokens)
    evictions = _evictions(memory, keys.values, keys.offsets, sizes // hash_tokens)
    schedule_s = recording.steps.start_s
    for request in np.flatnonzero(lost > 0).tolist():
        last_of_groups: list[tuple[float, int]] = []
        for group, size in enumerate(sizes.tolist()):
            # A block has the key of its last hash; the first lost block is the one after the hit.
            nth_key = (int(requests.cached_tokens[request]) // size + 1) * (size // hash_tokens) - 1
            if nth_key >= keys.lengths[request]:
                continue
            some = evictions.slice_of(keys.values[keys.offsets[request] + nth_key], group)
            evicted_at, evicted_by = schedule_s[memory.step[evictions.row[some]]], evictions.next_request[some]
            earlier = np.flatnonzero((evicted_at <= requests.first_scheduled_s[request]) & (evicted_by != request))
            if len(earlier):
                last_of_groups.append((float(evicted_at[earlier[-1]]), int(evicted_by[earlier[-1]])))
        if last_of_groups:
            evicted_s[request], evicted_for[request] = max(last_of_groups)
    return evicted_s, evicted_for


def _block_sizes(recording: Recording) -> list[int]:
    pool = recording.meta.pool
    return [group.block_size for group in pool.groups] or [pool.unit_tokens]


class _Evictions(NamedTuple):
    """Evictions of blocks, sorted by the key and the KV-cache group of the block, and then by time."""

    key: npt.NDArray[np.int64]
    """Key of the block's prefix times `num_groups`, plus the index of its group: a single number to search for."""
    num_groups: int
    row: IntArray
    """Row of `memory.parquet` with the eviction."""
    next_request: IntArray
    """Request that got the block next."""

    def slice_of(self, prefix_key: np.int64, group: int) -> slice:
        """Return the slice of these columns with the evictions of one prefix in one KV-cache group."""
        key = prefix_key * self.num_groups + group
        return slice(int(np.searchsorted(self.key, key, "left")), int(np.searchsorted(self.key, key, "right")))


def _evictions(
    memory: Memory, keys: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], hashes_per_block: npt.NDArray[np.int64]
) -> _Evictions:
    """Return the evictions of blocks whose prefix key is known.

    The latest allocation of a block before its eviction shows the block's request and position. Its key follows from
    them: `keys[offsets[i]:offsets[i + 1]]` are the keys of request `i`. A block of KV-cache group `g` covers
    `hashes_per_block[g]` keys, and the last one is its own key. The next allocation shows who got the block.
    """
    rows = np.flatnonzero((memory.kind == MemoryKind.APPEND) | (memory.kind == MemoryKind.EVICT))
    extent, nth = expanded(memory.length[rows])
    row = rows[extent]
    address, position = memory.address[row] + nth, memory.position[row] + nth
    order = np.lexsort((row, address))
    row, address, position = row[order], address[order], position[order]
    # Rows are now sorted by block and then by time: keep each eviction between two appends of the same block.
    evicts = np.flatnonzero(memory.kind[row] == MemoryKind.EVICT)
    evicts = evicts[(evicts > 0) & (evicts + 1 < len(row))]
    same_block = (address[evicts - 1] == address[evicts]) & (address[evicts + 1] == address[evicts])
    evicts = evicts[same_block & (memory.kind[row[evicts - 1]] == MemoryKind.APPEND)]
    wrote, group = memory.request[row[evicts - 1]], memory.groups[row[evicts - 1]]
    at_key = offsets[wrote] + (position[evicts - 1] + 1) * hashes_per_block[group] - 1
    known = at_key < offsets[wrote + 1]
    num_groups = len(hashes_per_block)
    evicts, key = evicts[known], keys[at_key[known]] * num_groups + group[known]
    order = np.lexsort((row[evicts], key))
    return _Evictions(key[order], num_groups, row[evicts][order], memory.request[row[evicts + 1]][order])
