"""Copy of the free queue of a block pool, with which `--check` compares the engine's queue at every step.

Only the blocks that the engine has written are compared, so a check takes no longer in a larger pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kvsim.engine.arrays import Records
from kvsim.engine.linked_list import HEAD
from kvsim.engine.records import Block
from kvsim.engine.state import NO_KEY
from kvsim.errors import IntegrityError


class QueueMirror:
    """Copy of the engine's free queue, to check the engine's links after each step.

    The copy is a linked list whose last block links to its head, so it is one ring. Only blocks that the engine wrote
    since the last check are moved in the copy. If their links are then equal in both, the engine's queue is one ring
    too, with exactly the blocks without references.
    """

    def __init__(self, num_blocks: int, *, reuses_first: bool) -> None:
        """Begin with an empty queue. With `reuses_first`, also check that free blocks without a prefix come first."""
        self._reuses_first = reuses_first
        self._next, self._previous = [HEAD] * num_blocks, [HEAD] * num_blocks
        self._is_free, self._is_keyed = [False] * num_blocks, [False] * num_blocks
        self.num_free = 0
        self.num_cached = 0
        """Number of blocks in the queue that hold a prefix."""

    def follow(self, blocks: Records[Block], written: Iterable[int]) -> None:
        """Move the blocks in `written` as the engine did. Then compare the links of these blocks and their neighbours.

        Raises:
            IntegrityError: a link differs.
        """
        touched = {HEAD}
        unplaced = set()
        # 1. Remove every written block.
        for number in written:
            if self._is_free[number]:
                touched |= self._remove(number)
            if number != HEAD and blocks[number].refs == 0:
                unplaced.add(number)
        # 2. Insert free blocks after their predecessors; a predecessor that was written too is inserted first.
        while unplaced:
            run = [unplaced.pop()]
            while (before := int(blocks[run[-1]].previous)) in unplaced:
                unplaced.remove(before)
                run.append(before)
            if before != HEAD and not self._is_free[before]:
                raise IntegrityError(f"block {run[-1]} follows block {before}, which is not in the queue.")
            for number in reversed(run):
                touched |= self._insert_after(before, number, is_keyed=bool(blocks[number].key != NO_KEY))
                before = number
        # 3. Compare the links.
        for number in touched:
            if number == HEAD or self._is_free[number]:
                self._compare(blocks, number)

    def _remove(self, number: int) -> set[int]:
        """Remove a block; return the blocks whose links have changed."""
        before, after = self._previous[number], self._next[number]
        self._next[before], self._previous[after] = after, before
        self._is_free[number] = False
        self.num_free -= 1
        self.num_cached -= self._is_keyed[number]
        return {before, after}

    def _insert_after(self, before: int, number: int, *, is_keyed: bool) -> set[int]:
        """Insert block `number`, with a prefix if `is_keyed`, after `before`; return the blocks with changed links."""
        after = self._next[before]
        self._next[before] = self._previous[after] = number
        self._previous[number], self._next[number] = before, after
        self._is_free[number], self._is_keyed[number] = True, is_keyed
        self.num_free += 1
        self.num_cached += is_keyed
        return {before, number, after}

    def _compare(self, blocks: Records[Block], number: int) -> None:
        """Check the engine's links of a block and, with `reuses_first`, that blocks without a prefix come first."""
        before, after = self._previous[number], self._next[number]
        if (blocks[number].previous, blocks[number].next) != (before, after):
            raise IntegrityError(
                f"block {number} of the free queue points to {blocks[number].previous} and {blocks[number].next}, "
                f"and is between {before} and {after}."
            )
        is_keyed = HEAD not in (number, after) and self._is_keyed[number]
        if self._reuses_first and is_keyed and not self._is_keyed[after]:
            raise IntegrityError(f"block {number}, which holds a prefix, precedes block {after}, which does not.")


class _WatchedBlock(Block):
    """A block that adds its number to a set whenever one of its fields is written."""

    __slots__ = ("_number", "_written")
    _number: int
    _written: set[int]

    def __init__(self, block: Block, number: int, written: set[int]) -> None:
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_written", written)
        for name in Block.__match_args__:
            object.__setattr__(self, name, getattr(block, name))

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        self._written.add(self._number)


def watch(blocks: Any) -> Callable[[], set[int]]:
    """Begin to watch which blocks the engine writes. Return a function that returns the numbers of the blocks written
    since its last call.

    Compiled code writes to an array, which is compared with a copy from the last call.
    """
    if isinstance(blocks, np.ndarray):
        before = blocks.copy()

        def changed() -> set[int]:
            numbers = np.flatnonzero(blocks != before)
            before[numbers] = blocks[numbers]
            return set(numbers.tolist())

        return changed
    written: set[int] = set()
    for number, block in enumerate(blocks):
        blocks[number] = _WatchedBlock(block, number, written)

    def taken() -> set[int]:
        numbers = written.copy()
        written.clear()
        return numbers

    return taken
