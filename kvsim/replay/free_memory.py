"""Compute the lengths of contiguous free ranges in the pool: the measure of its fragmentation."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.recording.order import is_new

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.recording.tables import IntArray
    from kvsim.replay.replay import Replay


def free_run_lengths(replay: Replay) -> IntArray:
    """Return, at the current frame, the length in units of each contiguous range of free or cached units.

    The ranges are in address order.
    """
    return _run_lengths(replay.refs == 0)


def free_run_lengths_at(replay: Replay, frames: Sequence[int]) -> Iterator[IntArray]:
    """Yield `free_run_lengths` at each of `frames`, which must ascend; the current frame may change."""
    if replay.ledger.unit_by_unit and not replay.ledger.lists_operations:
        for holders in _holders_at(replay, frames):
            yield _run_lengths(holders == 0)
        return
    for frame in frames:
        replay.seek(frame)
        yield free_run_lengths(replay)


def _run_lengths(is_free: npt.NDArray[np.bool_]) -> IntArray:
    free = np.concatenate(([False], is_free, [False]))
    edges = np.flatnonzero(np.diff(free.astype(np.int8)))
    return edges[1::2] - edges[::2]


def _holders_at(replay: Replay, frames: Sequence[int]) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the number of holders of each unit at each of `frames`, which must ascend, in the same array each time.

    Allocations that are freed before the next frame are skipped.
    """
    ledger, memory = replay.ledger, replay.recording.memory
    rows_upto = np.searchsorted(memory.seq, replay.frame_seq[np.asarray(frames, np.int64)], side="right")
    holders = np.zeros(replay.num_units, np.int32)
    # Units that requests free before each frame, by its index in `frames`.
    leaving: defaultdict[int, list[IntArray]] = defaultdict(list)
    num_yielded = 0

    def yield_upto(nth: int) -> Iterator[npt.NDArray[np.int32]]:
        for place in range(num_yielded, nth):
            for units in leaving.pop(place, ()):
                np.add.at(holders, units, np.int32(-1))
            yield holders

    for takes in ledger.takes():
        first_place = int(np.searchsorted(rows_upto, takes.row[0], side="right")) if len(takes.row) else len(frames)
        if first_place == len(frames):
            continue
        lasting = np.flatnonzero(takes.until >= rows_upto[first_place])  # few if allocations are short
        begins, ends = (np.searchsorted(rows_upto, rows[lasting], side="right") for rows in (takes.row, takes.until))
        units = takes.address[lasting].astype(np.intp) - replay.first_unit
        stays = np.flatnonzero(begins < ends)
        # First note when these units are freed.
        stays = stays[np.argsort(ends[stays], kind="stable")]
        for first, behind in _stretches(ends[stays]):
            leaving[int(ends[stays[first]])].append(units[stays[first:behind]])
        # Then allocate them, in the order of their rows, and yield the frames before each allocation.
        stays.sort()
        for first, behind in _stretches(begins[stays]):
            begin = int(begins[stays[first]])
            yield from yield_upto(begin)
            num_yielded = max(num_yielded, begin)
            np.add.at(holders, units[stays[first:behind]], np.int32(1))  # equal types are many times as fast
    yield from yield_upto(len(frames))


def _stretches(values: IntArray) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each stretch of equal values."""
    yield from pairwise([*np.flatnonzero(is_new(values)).tolist(), len(values)])
