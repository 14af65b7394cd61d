"""Totals of several KV-cache groups at every frame of a recording; `engine.totals` computes the same during a run.

A frame is the state after a step was scheduled, or after the last step. An extent is a range of consecutive blocks that
one memory row gives to a request. Most totals are running sums of allocations and releases. Expired tokens are counted
block by block, in each frame from when a window passes the block's first token to the block's release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.kv_groups import CacheKind
from kvsim.memory.waste import SlotTotals
from kvsim.metrics.ramps import Ramps, frames_of, running_sum
from kvsim.recording.order import expanded, is_new, sort_key, stable_order
from kvsim.replay import Replay
from kvsim.replay.by_unit import running_refs
from kvsim.replay.unit_slots import TableGroup

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

Numbers = npt.NDArray[np.int64]

_NO_LIMIT = np.iinfo(np.int64).max // 2
_PAIRS_AT_ONCE = 1 << 21
"""Number of pairs of a block and a frame that are processed together. They take about 200 MB."""


def group_totals(replay: Replay, free: Numbers, cached: Numbers, unusable: Numbers) -> SlotTotals:
    """Return the totals of a pool with several KV-cache groups at every frame, in bytes.

    Tokens of different groups have different sizes, so a slot of such a pool is one byte. `free`, `cached` and
    `unusable` are numbers of slots at every frame, which become part of the result.
    """
    tables = replay.ledger.tables
    born, dead = frames_of(replay, tables.birth_seq), frames_of(replay, tables.death_seq)
    end = _end_of_tables(replay)
    progress, holders = Ramps(replay), _Holders.of(replay)
    zero = np.zeros(len(replay.full), np.int64)
    token_slots = sum(group.token_slots for group in replay.groups)
    written = token_slots * progress.total_between(zero, np.full_like(zero, _NO_LIMIT))
    useful, expired = np.zeros_like(written), np.zeros_like(written)

    def sum_of_held(amount: Numbers, extents: Numbers) -> Numbers:
        """Return, for every frame, the sum of `amount` over those of `extents` that a table holds then."""
        return running_sum(replay.num_frames, (born[extents], amount), (dead[extents], -amount))

    for number, group in enumerate(replay.groups):
        extents = np.flatnonzero(tables.group == number)
        if group.state_slots:
            states = sum_of_held(np.full(len(extents), group.state_slots), extents)
            written += states
            useful += states
        else:
            begin = tables.position[extents].astype(np.int64) * group.block_size
            full = replay.full[tables.request[extents]]
            within = np.minimum(begin + group.block_size, full) - np.minimum(begin, full)
            useful += sum_of_held(within * group.token_slots, extents)
            written -= _null_slots(replay, group, extents, born=born, dead=dead, end=end)
        if group.may_hold_unread:
            expired += _expired(replay, group, extents, holders, born=born, dead=dead)
    return SlotTotals(
        free=free, cached=cached, unusable=unusable, rounding=0, written=written, useful=useful, padding=0,
        shared=_shared(replay, holders), expired=expired,
    )  # fmt: skip


def _end_of_tables(replay: Replay) -> Numbers:
    """Return, for each extent, the frame at which its request releases all memory."""
    held = replay.ledger.tables.residencies
    length = np.diff(held.first_extent, append=len(replay.ledger.tables.birth_row))
    return np.repeat(frames_of(replay, held.death_seq), length)


def _null_slots(
    replay: Replay, group: TableGroup, extents: Numbers, *, born: Numbers, dead: Numbers, end: Numbers
) -> Numbers:
    """Return, for every frame, the number of slots of computed tokens whose table entries are null.

    An entry is null if the table skipped it at its start, or if its block was released while the request kept other
    blocks. `extents` are those of `group`. For every extent of the recording, `born` has the frame of its allocation,
    `dead` the frame of its release, and `end` the frame at which its request releases all memory.
    """
    tables, size = replay.ledger.tables, group.block_size * group.token_slots
    first = extents[is_new(tables.table[extents])]
    skipped = tables.position[first].astype(np.int64) * size
    early = extents[dead[extents] < end[extents]]
    lost = np.full(len(early), size)
    return running_sum(
        replay.num_frames, (born[first], skipped), (end[first], -skipped), (dead[early], lost), (end[early], -lost)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Holders:
    """All allocations and releases of blocks, sorted by block and then by time.

    Each array has one entry per allocation or release.
    """

    address: IntArray
    seq: IntArray
    refs: npt.NDArray[np.int32]
    """Number of tables that hold the block after the allocation or release."""
    group: IntArray
    order: npt.NDArray[np.int32]
    """Place of each allocation or release in the order of the recording."""

    @classmethod
    def of(cls, replay: Replay) -> _Holders:
        ledger = replay.ledger
        part = ledger.part(0, ledger.num_ops)
        assert part.group is not None
        order = stable_order(part.address, ledger.end_of_pool)
        refs = running_refs(part, np.zeros(ledger.end_of_pool, np.int32))
        seq = replay.recording.memory.seq[part.row]
        return cls(part.address[order], seq[order], refs[order], part.group[order], order)


def _shared(replay: Replay, holders: _Holders) -> Numbers:
    """Return, for every frame, the number of slots that sharing saves.

    A block that n tables hold saves n - 1 times its slots.
    """
    sizes = np.array([group.state_slots or group.block_size * group.token_slots for group in replay.groups])
    after = np.maximum(holders.refs - 1, 0) * sizes[holders.group]
    before = np.concatenate((np.zeros(1, np.int64), after[:-1]))
    before[is_new(holders.address)] = 0
    change = np.empty(len(after), np.int64)
    change[holders.order] = after - before
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(change)))
    return np.asarray(total[replay.ledger.ops_until(replay.frame_seq)])


def _expired(
    replay: Replay, group: TableGroup, extents: Numbers, holders: _Holders, *, born: Numbers, dead: Numbers
) -> Numbers:
    """Return, for every frame, the number of slots that no table needs any more, in held blocks of `group`.

    `born` and `dead` have the frames of allocation and release of every extent of the recording.
    """
    tables = replay.ledger.tables
    extents = extents[np.argsort(tables.address[extents], kind="stable")]
    begin = _first_expired(replay, group, extents, born=born, dead=dead)
    count = np.maximum(dead[extents] - begin, 0)
    slots, total = group.state_slots or group.token_slots, np.zeros(replay.num_frames, np.int64)
    # Process some extents at a time, but all extents at one address together, because they may share a block.
    ends = np.append(np.flatnonzero(is_new(tables.address[extents]))[1:], len(extents))
    pairs = np.cumsum(count)[ends - 1] if len(extents) else ends
    cuts = np.unique(np.searchsorted(pairs, np.arange(_PAIRS_AT_ONCE, int(pairs[-1]), _PAIRS_AT_ONCE)) + 1)
    last = 0
    for cut in (*ends[np.minimum(cuts, len(ends)) - 1].tolist(), len(extents)):
        some = slice(last, cut)
        last = cut
        # One entry for each extent and each frame from its first expired token to its release.
        of, nth = expanded(count[some])
        extent, frame = extents[some][of], begin[some][of] + nth
        address, amount = tables.address[extent].astype(np.int64), _expired_in_table(replay, group, extent, frame)
        np.add.at(total, *_expired_in_block(replay, holders, address=address, frame=frame, amount=amount))
    return total * slots


def _first_expired(replay: Replay, group: TableGroup, extents: Numbers, *, born: Numbers, dead: Numbers) -> Numbers:
    """Return, for each of `extents`, the first frame at which a token of its block has expired in its table.

    If none expires before the block is released, it is the frame of the release. `born` and `dead` have the frames of
    allocation and release of every extent of the recording.
    """
    tables = replay.ledger.tables
    if group.kind is CacheKind.MAMBA:
        following = np.minimum(extents + 1, len(born) - 1)
        is_older = (extents + 1 < len(born)) & (tables.table[following] == tables.table[extents])
        return np.where(is_older, np.minimum(born[following], dead[extents]), dead[extents])
    position = tables.position[extents].astype(np.int64) * group.block_size
    low, high = born[extents].copy(), np.minimum(dead[extents], replay.num_frames)
    while (low < high).any():  # a binary search: computed tokens never fall while a table is held
        middle = (low + high) // 2
        has = group.num_unread(replay.computed_at(tables.request[extents], middle)) > position
        is_open = low < high
        high = np.where(is_open & has, middle, high)
        low = np.where(is_open & ~has, middle + 1, low)
    return low


def _expired_in_table(replay: Replay, group: TableGroup, extent: Numbers, frame: Numbers) -> Numbers:
    """Return, for each pair of an extent and a frame, the number of tokens or states that the table no longer needs."""
    if group.kind is CacheKind.MAMBA:
        return np.ones(len(extent), np.int64)
    tables = replay.ledger.tables
    unread = group.num_unread(replay.computed_at(tables.request[extent], frame))
    return np.asarray(
        np.clip(unread - tables.position[extent].astype(np.int64) * group.block_size, 0, group.block_size)
    )


def _expired_in_block(
    replay: Replay, holders: _Holders, *, address: Numbers, frame: Numbers, amount: Numbers
) -> tuple[Numbers, Numbers]:
    """Count, for each block and frame, the tokens or states that no table needs any more; return frames and counts.

    Entry i of the arrays means: at `frame[i]`, a table that holds block `address[i]` no longer needs `amount[i]` of its
    tokens. The count is the smallest amount over all tables that hold the block. It is 0 if some of these tables have
    no entry. `holders` has the number of tables that hold each block.
    """
    if not len(holders.refs) or int(holders.refs.max()) <= 1:
        return frame, amount
    key = sort_key(address, frame)
    order = np.lexsort((amount, key))
    first = np.flatnonzero(is_new(key[order]))
    num_holders = np.diff(first, append=len(order))
    least = amount[order][first]  # sorted by amount, so the first is the smallest
    at = key[order][first]
    op_key = sort_key(holders.address, np.minimum(frames_of(replay, holders.seq), replay.num_frames - 1))
    refs = holders.refs[np.searchsorted(op_key, at, side="right") - 1]
    return frame[order][first], np.where(refs == num_holders, least, 0)
