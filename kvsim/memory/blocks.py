"""The block pool of a paged KV cache, with reference counts and a prefix cache, as in vLLM V1.

Free blocks stand in one queue. Blocks without a key (nothing reusable in them) are taken first and put back at the
head; blocks that still hold a prefix wait at the tail, least recently freed first. A block gets its key while
somebody holds it and loses it only when it is taken, so the queue is always a stack of unkeyed blocks in front of a
first-in-first-out line of keyed ones. It is stored as these two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvsim.errors import BudgetError, IntegrityError

NULL_BLOCK = 0
"""Block 0 exists but is never handed out: it pads tables, so every pool has one usable block fewer than blocks."""


class BlockPool:
    """`num_blocks` blocks, of which `num_blocks - 1` can be used.

    A *key* is any hashable that is equal exactly when the whole prefix up to and including the block is equal.
    """

    def __init__(self, num_blocks: int, initial_free: Sequence[int] | None = None) -> None:
        """Make a pool whose free queue is `initial_free`, or all usable blocks in ascending order.

        Raises:
            BudgetError: there is no usable block.
        """
        if num_blocks < 2:
            raise BudgetError(
                f"a pool of {num_blocks} blocks has none to hand out: block {NULL_BLOCK} is reserved, so it needs 2."
            )
        self.num_blocks = num_blocks
        queue = range(1, num_blocks) if initial_free is None else initial_free
        self._unkeyed = list(reversed(queue))  # the top of the stack, its last element, is the head of the queue
        self._keyed: OrderedDict[int, None] = OrderedDict()
        self._refs = [0] * num_blocks
        self._ever_shared = False  # until then, nobody else holds what is given back
        self._key_of: list[int | None] = [None] * num_blocks
        self._holders: dict[int, dict[int, None]] = {}  # key -> the blocks that hold it, first registered first

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that `take` can hand out now, keyed ones included."""
        return len(self._unkeyed) + len(self._keyed)

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a prefix."""
        return len(self._keyed)

    @property
    def num_keys(self) -> int:
        """Distinct prefixes that could be hit."""
        return len(self._holders)

    def free_queue(self) -> list[int]:
        """The free blocks in the order in which they will be taken."""
        return [*reversed(self._unkeyed), *self._keyed]

    def refs(self, block: int) -> int:
        """How many tables hold `block`."""
        return self._refs[block]

    def key(self, block: int) -> int | None:
        """The prefix that `block` holds, if any."""
        return self._key_of[block]

    def find(self, key: int) -> int | None:
        """The block that has held `key` for longest, in use or free; None if no block does."""
        holders = self._holders.get(key)
        return next(iter(holders)) if holders else None

    def take(self, num_blocks: int) -> tuple[list[int], list[int]]:
        """Take blocks from the head of the queue: all of them in order, and those that lost a prefix by it.

        The caller has made sure that there are enough.
        """
        unkeyed = self._unkeyed
        split = max(0, len(unkeyed) - num_blocks)
        taken = unkeyed[split:]
        taken.reverse()
        del unkeyed[split:]
        evicted: list[int] = []
        for _ in range(num_blocks - len(taken)):
            block, _ = self._keyed.popitem(last=False)
            self._forget(block)
            evicted.append(block)
        taken += evicted
        for block in taken:
            self._refs[block] = 1
        return taken, evicted

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold blocks that were found by their key; free ones leave the queue."""
        self._ever_shared = True
        for block in blocks:
            if self._refs[block] == 0:
                del self._keyed[block]
            self._refs[block] += 1

    def give(self, blocks: Sequence[int]) -> None:
        """Let go of `blocks` in the given order; those that nobody holds any more return to the queue."""
        unkeyed: list[int] = []
        if not self._holders and not self._ever_shared:
            refs = self._refs
            for block in blocks:
                refs[block] = 0
            unkeyed.extend(blocks)
            blocks = ()
        for block in blocks:
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._key_of[block] is None:
                    unkeyed.append(block)
                else:
                    self._keyed[block] = None
        self._unkeyed.extend(reversed(unkeyed))

    def register(self, block: int, key: int) -> None:
        """Say that `block`, which somebody holds and which has no key, holds the prefix `key`."""
        self._key_of[block] = key
        self._holders.setdefault(key, {})[block] = None

    def reset_prefix_cache(self) -> bool:
        """Forget every prefix; refused (False) while any block is in use. The order of the queue stays."""
        if self.num_free != self.num_usable:
            return False
        self._unkeyed = list(reversed(self.free_queue()))
        self._keyed.clear()
        self._holders.clear()
        self._key_of = [None] * self.num_blocks
        return True

    def check_integrity(self) -> None:
        """Raise unless every block is accounted for exactly once.

        Raises:
            IntegrityError: with the figures that do not agree.
        """
        free = self.free_queue()
        in_use = sum(map(bool, self._refs))
        if len(free) + in_use != self.num_usable or len(set(free)) != len(free):
            raise IntegrityError(f"{len(free)} free + {in_use} in use != {self.num_usable} usable blocks.")
        if self._refs[NULL_BLOCK] or NULL_BLOCK in free or self._key_of[NULL_BLOCK] is not None:
            raise IntegrityError(f"block {NULL_BLOCK} was handed out, freed or given a key.")
        for block in free:
            if self._refs[block]:
                raise IntegrityError(f"block {block} is free and has {self._refs[block]} references.")
            if (self._key_of[block] is not None) != (block in self._keyed):
                raise IntegrityError(f"free block {block} stands on the wrong side of the queue for its key.")
        keyed = {(key, block) for key, holders in self._holders.items() for block in holders}
        if keyed != {(key, block) for block, key in enumerate(self._key_of) if key is not None}:
            raise IntegrityError(
                f"the prefix cache lists {len(keyed)} blocks, and the blocks disagree about their keys."
            )

    def _forget(self, block: int) -> None:
        key = self._key_of[block]
        assert key is not None
        self._key_of[block] = None
        holders = self._holders[key]
        del holders[block]
        if not holders:
            del self._holders[key]
