"""Lengths of the free ranges in the pool, which show how fragmented it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.recording.tables import IntArray
    from kvsim.replay.replay import Replay


def free_extent_lengths(replay: Replay) -> IntArray:
    """Return the number of units of each range of free or cached units at the current frame, in order of address."""
    return _extent_lengths(replay.refs == 0)


def free_extent_lengths_at(replay: Replay, frames: Sequence[int]) -> Iterator[IntArray]:
    """Yield `free_extent_lengths` at each of `frames`, which must ascend. This may move the replay to another frame."""
    if replay.ledger.unit_by_unit and not replay.ledger.lists_operations:
        for holders in _holders_at(replay, frames):
            yield _extent_lengths(holders == 0)
        return
    for frame in frames:
        replay.seek(frame)
        yield free_extent_lengths(replay)


def _holders_at(replay: Replay, frames: Sequence[int]) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the number of requests that hold each unit, at each of `frames`: one array, changed in place."""
    rows_upto = np.searchsorted(replay.recording.memory.seq, replay.frame_seq[np.asarray(frames, np.int64)], "right")
    unit, begin, end = _shown_allocations(replay, rows_upto)
    by_end = np.argsort(end, kind="stable")
    edges = np.arange(len(frames) + 1)
    allocated, freed = np.searchsorted(begin, edges), np.searchsorted(end[by_end], edges)
    holders = np.zeros(replay.num_units, np.int32)
    for nth in range(len(frames)):
        # An addend of the same type makes `add.at` many times as fast.
        np.add.at(holders, unit[allocated[nth] : allocated[nth + 1]], np.int32(1))
        np.add.at(holders, unit[by_end[freed[nth] : freed[nth + 1]]], np.int32(-1))
        yield holders


def _shown_allocations(replay: Replay, rows_upto: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return three arrays, with an entry for each allocation that a frame shows: the unit, the first frame that shows
    the allocation, and the next frame that does not.

    Frames are indices in `rows_upto`, which has the number of memory rows up to each frame. If all later frames show an
    allocation, its third number is the number of frames. Allocations are sorted by their first frame.
    """
    parts = []
    for part in replay.ledger.allocations():
        unit, row, until = part.address.astype(np.intp) - replay.first_unit, part.row, part.until
        begin, end = (np.searchsorted(rows_upto, rows, "right").astype(np.int32) for rows in (row, until))
        lasting = np.flatnonzero(begin < end)
        parts.append((unit[lasting], begin[lasting], end[lasting]))
    unit, begin, end = map(np.concatenate, zip(*parts, strict=True))
    return unit, begin, end


def _extent_lengths(is_free: npt.NDArray[np.bool_]) -> IntArray:
    free = np.concatenate(([False], is_free, [False]))
    edges = np.flatnonzero(np.diff(free.astype(np.int8)))
    return edges[1::2] - edges[::2]
