"""Block tables of one request by kind of layers: which parts of the sequence each kind still holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..pool.layer_kinds import layer_kinds

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray
    from kvsim.replay import Replay

    from ..look.states import Symbols
    from ..playback.session import Session
    from ..pool.layer_kinds import LayerKind

RELEASED, HELD, AHEAD = range(3)
"""States of a part of a sequence in a block table: released or never held, held, not computed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Facts about the block tables of a request for one kind of layers.

    A kind has one table for each of its KV-cache groups.
    """

    kind: LayerKind
    num_held: int
    """Number of blocks held in these tables."""
    num_missing_before: int
    """Number of blocks before the last held one that the request does not hold: released, or never held."""
    parts: tuple[int, ...]
    """`RELEASED`, `HELD` or `AHEAD` for equally long parts of the sequence, in order, in this kind's first table."""


def table_rows(session: Session, request: int, num_parts: int) -> list[TableRow]:
    """Return one row per kind of layers for `request` at the current frame. A row has `num_parts` parts."""
    replay = session.replay
    rows = []
    for kind in layer_kinds(replay):
        held = [replay.block_table(request, number)[0] for number in kind.numbers]
        rows.append(
            TableRow(
                kind=kind,
                num_held=sum(map(len, held)),
                num_missing_before=sum(_num_missing_before_last(positions) for positions in held),
                parts=_states_of_parts(np.sort(held[0]), kind.group.block_size, int(replay.full[request]), num_parts),
            )
        )
    return rows


def uniform_words(session: Session, request: int) -> str:
    """Return how much more memory a uniform cache, in which every layer keeps all tokens, would need for `request`.

    The text is empty for models with recurrent states, and if the request holds nothing.
    """
    replay, groups = session.replay, session.recording.meta.pool.groups
    if any(group.state_slots for group in replay.groups):
        return ""  # a state is no number of tokens
    units = len(replay.block_table(request)[0])
    reach = max(_num_tokens_in_table(replay, request, number) for number in range(len(groups)))
    token_slots = sum(group.token_slots for group in replay.groups)
    held, uniform = units * replay.unit_slots, reach * token_slots
    return f"a uniform cache: {uniform / held:.1f} times as much" if held else ""


def _num_tokens_in_table(replay: Replay, request: int, number: int) -> int:
    positions = replay.block_table(request, number)[0]
    return (int(positions.max()) + 1) * replay.groups[number].block_size if len(positions) else 0


def _num_missing_before_last(positions: npt.NDArray[np.integer]) -> int:
    return int(positions.max()) + 1 - len(positions) if len(positions) else 0


def _states_of_parts(
    positions: npt.NDArray[np.integer], block_size: int, tokens: int, num_parts: int
) -> tuple[int, ...]:
    """Return `RELEASED`, `HELD` or `AHEAD` for each of `num_parts` equal parts of a sequence of `tokens` tokens.

    `positions` are the indices, in the sequence, of the blocks that it holds.
    """
    edges = np.linspace(0, max(tokens, 1), num_parts + 1)
    begins = positions.astype(np.int64) * block_size
    # A block overlaps the parts `low` to `high - 1`; a block beyond the tokens counts for the last part.
    low = np.minimum(np.searchsorted(edges, begins, side="right") - 1, num_parts - 1)
    high = np.maximum(np.searchsorted(edges, np.minimum(begins + block_size, tokens), side="left"), low + 1)
    begun, ended = (np.bincount(parts, minlength=num_parts + 1) for parts in (low, high))
    held = np.cumsum(begun - ended)[:num_parts] > 0
    reached = np.flatnonzero(held).max(initial=-1)
    return tuple(HELD if held[part] else RELEASED if part < reached else AHEAD for part in range(num_parts))


class BlockExtent(NamedTuple):
    """Consecutive entries of a block table whose block ids rise or fall by one from entry to entry."""

    position: int
    """Index in the block table of the first block of the extent."""
    address: int
    """Block id of the first block."""
    length: int
    step: int
    """1 if block ids rise, -1 if they fall, because blocks that were freed together are reused in reverse order."""

    def words(self, symbols: Symbols) -> str:
        """Return the entries as text: `12→407` for one block, `13-20 → 408-415` for several."""
        if self.length == 1:
            return f"{self.position}{symbols.arrow}{self.address}"
        last = self.length - 1
        ends = (f"{self.position + last}", f"{self.address + self.step * last}")
        positions, addresses = (
            f"{begin}{symbols.dash}{end}" for begin, end in zip((self.position, self.address), ends, strict=True)
        )
        return f"{positions} {symbols.arrow} {addresses}"


def block_extents(positions: IntArray, addresses: IntArray) -> list[BlockExtent]:
    """Return the extents of a block table in order of position, each as long as possible."""
    order = np.argsort(positions)
    positions, addresses = positions[order].astype(np.int64), addresses[order].astype(np.int64)
    steps = np.where(np.diff(positions) == 1, np.diff(addresses), 0).tolist()
    extents, begin = list[BlockExtent](), 0
    while begin < len(positions):
        step = steps[begin] if begin < len(steps) and abs(steps[begin]) == 1 else 0
        end = begin + 1
        while step and end <= len(steps) and steps[end - 1] == step:
            end += 1
        extents.append(BlockExtent(int(positions[begin]), int(addresses[begin]), end - begin, step or 1))
        begin = end
    return extents
