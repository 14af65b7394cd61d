"""Count the slots of units by state, for pools with one KV-cache group and with several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvsim.kv_groups.group import CacheKind
from kvsim.memory.waste import NUM_STATES, SlotState, split_extent
from kvsim.recording.order import is_new
from kvsim.replay.unfolding import NO_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.recording.model import Pool
    from kvsim.recording.tables import IntArray
    from kvsim.replay.ledger import Ledger

Numbers = npt.NDArray[np.int64]
TableRanges = tuple[Numbers, Numbers]
"""Arrays `begin` and `end`: for each of several requests, the block-table indices from `begin` to `end` - 1."""


class UnitContents(NamedTuple):
    """Contents of some units at one or more frames. All arrays have the same shape."""

    owner: IntArray
    """Row of a request that holds the unit; `NO_OWNER` if it is free."""
    position: IntArray
    """Index of the unit in its owner's table."""
    is_shared: npt.NDArray[np.bool_]
    """True for units that several requests hold."""
    is_cached: npt.NDArray[np.bool_]
    """True for units that no request holds and that are in the prefix cache."""
    computed: Numbers
    """Number of tokens that the owner has computed; undefined for a unit without an owner."""


def slots_of_units(
    contents: UnitContents, *, unit_tokens: int, pad: Numbers, full: Numbers, requested: Numbers
) -> Numbers:
    """Return the number of slots of each unit in each state. The last axis has the eight states of `SlotState`, and
    adds up to `unit_tokens`.

    `pad`, `full` and `requested` have one entry for each request: the number of padding slots before its tokens, the
    largest number of slots that it fills (with padding), and the number of slots that were requested for it.
    """
    slots = np.zeros((*contents.owner.shape, NUM_STATES), np.int64)
    slots[..., SlotState.FREE] = np.where(contents.is_cached, 0, unit_tokens)
    slots[..., SlotState.CACHED] = np.where(contents.is_cached, unit_tokens, 0)
    held = contents.owner != NO_OWNER
    requests, begin = contents.owner[held].astype(np.int64), contents.position[held].astype(np.int64) * unit_tokens
    end = begin + unit_tokens
    slots[held] = split_extent(
        begin,
        end,
        pad=pad[requests],
        full=full[requests],
        # Only full units are ever shared.
        computed=np.where(contents.is_shared[held], end, contents.computed[held]),
        requested=requested[requests],
    )
    return slots


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroup:
    """One KV-cache group: whether its units hold tokens or recurrent states (Mamba), and how many slots one has."""

    kind: CacheKind
    block_size: int
    """Number of tokens per unit."""
    window: int | None
    """Number of tokens in the window or chunk; None if every token is kept."""
    token_slots: int
    """Number of slots of one token; 0 if units hold recurrent states."""
    state_slots: int
    """Number of slots of one recurrent state; 0 if units hold tokens."""

    @property
    def may_hold_unread(self) -> bool:
        """True if a request may hold units whose tokens or states no later step reads."""
        return self.kind is CacheKind.MAMBA or self.window is not None

    def num_unread(self, computed: IntArray) -> Numbers:
        """Return the number of leading tokens that no later step reads, for requests with `computed` tokens.

        It is 0 for a group of recurrent states.
        """
        computed = np.asarray(computed, np.int64)
        if self.kind is CacheKind.MAMBA or self.window is None:
            return np.zeros_like(computed)
        if self.kind is CacheKind.CHUNKED_LOCAL:
            return np.asarray(computed // self.window * self.window)
        return np.maximum(computed - self.window + 1, 0)

    def changed(self, old: Numbers, new: Numbers) -> Iterator[TableRanges]:
        """Yield the ranges of table indices whose slots change state when computed tokens grow from `old` to `new`."""
        size = self.block_size
        yield (np.maximum(old - (self.kind is CacheKind.MAMBA), 0) // size, -(-new // size))
        if self.may_hold_unread and self.kind is not CacheKind.MAMBA:
            yield (self.num_unread(old) // size, -(-self.num_unread(new) // size))


def table_groups(pool: Pool) -> tuple[TableGroup, ...]:
    """Return the KV-cache groups of a pool. A pool without a layout has one group, with full attention."""
    layout = pool.layout
    if layout is None:
        full = TableGroup(kind=CacheKind.FULL, block_size=pool.unit_tokens, window=None, token_slots=1, state_slots=0)
        return (full,)
    return tuple(
        TableGroup(
            kind=group.kind,
            block_size=group.block_size,
            window=group.window,
            token_slots=layout.token_slots(group),
            state_slots=layout.state_slots(group),
        )
        for group in layout.groups
    )


class _ReplayedState(Protocol):
    ledger: Ledger
    num_units: int
    unit_slots: int
    first_unit: int
    groups: tuple[TableGroup, ...]
    full: Numbers

    @property
    def cached(self) -> npt.NDArray[np.bool_]: ...
    @property
    def refs(self) -> IntArray: ...
    def held_extents(self) -> IntArray: ...
    def computed(self, requests: IntArray) -> Numbers: ...


def slots_of_groups(replay: _ReplayedState, units: IntArray | slice) -> Numbers:
    """Return the number of slots of each unit in each state: int64[units, 8], in the order of `SlotState`.

    A slot of a shared unit counts as a token as long as a later step of one of its holders reads it.
    """
    tables, extents = replay.ledger.tables, replay.held_extents()
    unit = tables.address[extents] - replay.first_unit
    end = int(unit.max(initial=-1)) + 1
    # A unit may be in several tables. Its slots are written if they are in one of these tables, but expired or still to
    # be written only if they are in all: hence the largest and the smallest numbers. The last row of `sums` is for all
    # units from `end` on, which no table holds.
    sums = np.zeros((end + 1, 3), np.int64)
    written, expired, reserved = sums.T
    expired[:] = reserved[:] = replay.unit_slots
    is_last_in_table = np.append(is_new(tables.table[extents])[1:], True)
    computed = replay.computed(tables.request[extents])
    for number, group in enumerate(replay.groups):
        in_group = np.flatnonzero(tables.group[extents] == number)
        if group.state_slots:  # only the newest state of a table is read again
            np.maximum.at(written, unit[in_group], group.state_slots)
            np.minimum.at(expired, unit[in_group], np.where(is_last_in_table[in_group], 0, group.state_slots))
            reserved[unit[in_group]] = 0
            continue
        begin = tables.position[extents[in_group]].astype(np.int64) * group.block_size
        full, reached = replay.full[tables.request[extents[in_group]]], computed[in_group]
        unread = np.minimum(group.num_unread(reached), reached)
        size, slots = group.block_size, group.token_slots
        np.maximum.at(written, unit[in_group], np.clip(reached - begin, 0, size) * slots)
        np.minimum.at(expired, unit[in_group], np.clip(unread - begin, 0, size) * slots)
        to_write = np.clip(np.minimum(full, begin + size) - np.maximum(begin, reached), 0, size)
        np.minimum.at(reserved, unit[in_group], to_write * slots)
    is_held, is_cached = replay.refs[units] > 0, replay.cached[units]
    written, expired, reserved = sums[np.minimum(np.arange(replay.num_units)[units], end)].T
    slots_of = np.zeros((len(is_held), NUM_STATES), np.int64)
    slots_of[:, SlotState.TOKEN] = np.where(is_held, written - expired, 0)
    slots_of[:, SlotState.EXPIRED] = np.where(is_held, expired, 0)
    slots_of[:, SlotState.RESERVED] = np.where(is_held, reserved, 0)
    slots_of[:, SlotState.INTERNAL] = np.where(is_held, replay.unit_slots - written - reserved, 0)
    slots_of[:, SlotState.CACHED] = np.where(~is_held & is_cached, replay.unit_slots, 0)
    slots_of[:, SlotState.FREE] = np.where(~is_held & ~is_cached, replay.unit_slots, 0)
    return slots_of
