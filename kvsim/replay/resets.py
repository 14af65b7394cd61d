"""Find the number of computed tokens with which each request begins when it allocates memory.

This is the number of tokens in its prefix hit and in the blocks that it then loads. The schedule of a recording has no
row for a request that loads blocks before it computes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.recording.model import Recording
from kvsim.recording.order import sort_key
from kvsim.recording.tables import Copies, CopyKind, IntArray, Memory, MemoryKind, TransferKind, Transfers
from kvsim.replay.ledger import Ledger
from kvsim.replay.progress import Progress
from kvsim.replay.unit_slots import Numbers


class _Loads(NamedTuple):
    """Loads from other servers. A failed load has a second entry, at the `seq` of its end, with 0 tokens."""

    request: Numbers
    seq: Numbers
    tokens_before: Numbers
    """Computed tokens before the load; in a failed load's second entry, those in front of the first failed block."""
    loaded_tokens: Numbers


def reset_at_allocations(progress: Progress, ledger: Ledger, recording: Recording, frame_seq: IntArray) -> None:
    """Set the computed tokens of a request, in `progress`, at frames in which it allocates memory while it holds none.

    Blocks from the host or from another server count as computed as soon as their load begins.
    """
    unit_tokens, (requests, seqs) = recording.meta.pool.unit_tokens, _allocations(ledger)
    key, frames = sort_key(requests, seqs), np.searchsorted(frame_seq, seqs)
    tokens = _hit_units(recording.memory, key) * unit_tokens
    if recording.copies is not None:
        tokens += _units_from_host(recording.copies, requests, frames) * unit_tokens
    if recording.transfers is not None and len(key):
        loads = _loads_of(recording.transfers, unit_tokens)
        load_key = sort_key(loads.request, loads.seq)
        order = np.argsort(key)
        allocation = order[np.minimum(np.searchsorted(key[order], load_key), len(key) - 1)]
        is_allocation = key[allocation] == load_key  # other loads follow blocks that the request has
        loaded = np.where(is_allocation, tokens[allocation], loads.tokens_before) + loads.loaded_tokens
        np.maximum.at(progress.most_computed, loads.request, loaded)  # a request may end while it loads
        others = ~np.isin(key, load_key)
        requests = np.append(requests[others], loads.request)
        frames = np.append(frames[others], np.searchsorted(frame_seq, loads.seq))
        tokens = np.append(tokens[others], loaded)
    progress.reset(requests, frames, tokens)


def _allocations(ledger: Ledger) -> tuple[Numbers, Numbers]:
    """Return the request and the event number (`seq`) of each allocation by a request that holds no memory.

    A move of units is left out: the units are freed and allocated at the same time, and their tokens stay computed.
    """
    held = ledger.tables.residencies
    first = ~held.continues_previous
    return held.request[first].astype(np.int64), held.birth_seq[first].astype(np.int64)


def _hit_units(memory: Memory, key: Numbers) -> Numbers:
    shared = memory.kind == MemoryKind.SHARE
    shared_key = sort_key(memory.request[shared], memory.seq[shared])
    order = np.argsort(shared_key, kind="stable")
    units = np.append(0, np.cumsum(memory.length[shared][order].astype(np.int64)))
    begin, end = (np.searchsorted(shared_key[order], key, side) for side in ("left", "right"))
    return np.asarray(units[end] - units[begin])


def _units_from_host(copies: Copies, requests: Numbers, frames: IntArray) -> Numbers:
    loads = copies.kind == CopyKind.LOAD
    loaded_key = np.sort(sort_key(copies.request[loads], copies.begun_step[loads]))
    begin, end = (np.searchsorted(loaded_key, sort_key(requests, frames), side) for side in ("left", "right"))
    return np.asarray(end - begin)


def _loads_of(transfers: Transfers, unit_tokens: int) -> _Loads:
    loads = transfers.kind == TransferKind.LOAD
    fails = loads & (transfers.failed >= 0)
    first_unit = np.append(transfers.position[loads], transfers.failed[fails]).astype(np.int64)
    return _Loads(
        request=np.append(transfers.request[loads], transfers.request[fails]).astype(np.int64),
        seq=np.append(transfers.begun_seq[loads], transfers.ended_seq[fails]),
        tokens_before=first_unit * unit_tokens,
        loaded_tokens=np.append(transfers.tokens[loads], np.zeros_like(transfers.tokens[fails])).astype(np.int64),
    )
