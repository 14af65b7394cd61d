"""Branch sequences over one pool, with reference counts and copy-on-write: several answers to one prompt.

A branch holds a table of blocks. A fork copies the table, not the blocks. A branch that writes into a shared block
copies it first. Full blocks are never written again, so only last blocks are copied.

    cache = BranchingCache(CountedBlocks(1000), block_size=16)
    first = cache.start(prompt_tokens)
    second = cache.fork(first)
    cache.append(first)     # copies the last block, if it is not full
    cache.append(second)    # its last block is no longer shared

Tokens and their scores are not modelled. So `beam_search`, which forks and frees branches, draws at random which ones
continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvsim.errors import BudgetError, IntegrityError, UsageError
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState


class CountedBlocks:
    """Blocks with reference counts. A count is the number of tables that contain the block."""

    def __init__(self, num_blocks: int) -> None:
        """Start with all `num_blocks` blocks free, numbered from 0."""
        if num_blocks < 1:
            raise BudgetError(f"a pool cannot have {num_blocks} blocks; give it at least 1.")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._refs = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Number of blocks that no table contains."""
        return len(self._free)

    def refs(self, block: int) -> int:
        """Return the number of tables that contain `block`."""
        return self._refs[block]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` free blocks for one table. The caller makes sure that enough blocks are free."""
        taken = [self._free.pop() for _ in range(num_blocks)]
        self.touch(taken)
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Add one table to the reference count of each of the `blocks`."""
        for block in blocks:
            self._refs[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Remove one table from the count of each of the `blocks`. A block in no table becomes free."""
        for block in blocks:
            self._refs[block] -= 1
            if not self._refs[block]:
                self._free.append(block)

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` unless every block is either free or in a table."""
        in_use = sum(map(bool, self._refs))
        if len(self._free) + in_use != self.num_blocks or any(self._refs[block] for block in self._free):
            raise IntegrityError(f"{len(self._free)} free + {in_use} in use != {self.num_blocks} blocks.")


class Branch:
    """One answer to a prompt, which grows token by token."""

    __slots__ = ("blocks", "num_tokens")

    def __init__(self, blocks: list[int], num_tokens: int) -> None:
        self.blocks = blocks
        self.num_tokens = num_tokens
        """Number of tokens whose KV is in the blocks, prompt included."""


class BranchingCache:
    """Block tables of branches, whose blocks come from one pool."""

    def __init__(self, pool: CountedBlocks, block_size: int) -> None:
        if block_size < 1:
            raise UsageError(f"block_size should be at least 1, not {block_size}.")
        self.pool = pool
        self.block_size = block_size
        self.num_copies = 0
        """Number of shared blocks copied before a write."""
        self._branches: dict[Branch, None] = {}

    @property
    def num_held(self) -> int:
        """Number of blocks in use. A shared block counts once."""
        return self.pool.num_blocks - self.pool.num_free

    @property
    def num_without_sharing(self) -> int:
        """Number of blocks that the branches would need if each had its own copy of every block."""
        return sum(len(branch.blocks) for branch in self._branches)

    def start(self, prompt_tokens: int) -> Branch:
        """Start a branch, and write its prompt of `prompt_tokens` tokens.

        Raises:
            BudgetError: too few blocks are free.
        """
        branch = Branch(self._take(-(-prompt_tokens // self.block_size)), prompt_tokens)
        self._branches[branch] = None
        return branch

    def fork(self, branch: Branch) -> Branch:
        """Return a second branch with the same content as `branch`."""
        self.pool.touch(branch.blocks)
        twin = Branch(list(branch.blocks), branch.num_tokens)
        self._branches[twin] = None
        return twin

    def append(self, branch: Branch) -> None:
        """Write one token of `branch`. If its last block is shared and not full, copy the block first.

        Raises:
            BudgetError: a block is needed and none is free.
        """
        if branch.num_tokens == len(branch.blocks) * self.block_size:
            branch.blocks += self._take(1)
        elif self.pool.refs(branch.blocks[-1]) > 1:
            [copy] = self._take(1)
            self.pool.free([branch.blocks[-1]])
            branch.blocks[-1] = copy
            self.num_copies += 1
        branch.num_tokens += 1

    def free(self, branch: Branch) -> None:
        """Free `branch`, and its blocks that no other branch shares."""
        del self._branches[branch]
        self.pool.free(branch.blocks[::-1])

    def breakdown(self) -> Breakdown:
        """Return the number of slots of the pool in each state. A shared slot counts once."""
        slots = [0] * NUM_STATES
        written: dict[int, int] = {}
        for branch in self._branches:
            for index, block in enumerate(branch.blocks):
                in_block = min(self.block_size, branch.num_tokens - index * self.block_size)
                written[block] = max(written.get(block, 0), in_block)
        slots[SlotState.TOKEN] = sum(written.values())
        slots[SlotState.INTERNAL] = len(written) * self.block_size - slots[SlotState.TOKEN]
        slots[SlotState.FREE] = self.pool.num_free * self.block_size
        return Breakdown(slots=np.array(slots))

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` unless reference counts match the tables, and every slot has exactly one state."""
        self.pool.check_integrity()
        named = Counter(block for branch in self._branches for block in branch.blocks)
        for block, count in named.items():
            if self.pool.refs(block) != count:
                raise IntegrityError(
                    f"{count} tables name block {block}, which has {self.pool.refs(block)} references."
                )
        self.breakdown().check(self.pool.num_blocks * self.block_size)

    def _take(self, num_blocks: int) -> list[int]:
        if num_blocks > self.pool.num_free:
            raise BudgetError(
                f"{num_blocks} blocks are needed and {self.pool.num_free} of {self.pool.num_blocks} are free; "
                "give the pool more blocks."
            )
        return self.pool.allocate(num_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Blocks held during a beam search, with and without sharing. The sum of two objects describes both searches."""

    held_block_steps: int
    """Number of blocks in use, summed over the steps."""
    unshared_block_steps: int
    """Number of blocks that would be in use without sharing, summed over the steps."""
    num_copies: int
    """Number of shared blocks that were copied before a write."""

    def __add__(self, other: Sharing) -> Sharing:
        return Sharing(
            held_block_steps=self.held_block_steps + other.held_block_steps,
            unshared_block_steps=self.unshared_block_steps + other.unshared_block_steps,
            num_copies=self.num_copies + other.num_copies,
        )

    @property
    def saved_percent(self) -> float:
        """Percentage by which sharing lowers the number of blocks in use, on average over the steps."""
        return 100 * (1 - self.held_block_steps / self.unshared_block_steps)


def beam_search(
    cache: BranchingCache,
    prompt_tokens: int,
    output_tokens: int,
    width: int,
    *,
    reshuffle: float,
    rng: np.random.Generator,
) -> Sharing:
    """Run a beam search with `width` beams, each of `output_tokens` tokens, in an empty `cache`.

    In each step, with probability `reshuffle`, all beams are replaced: each by a copy of a randomly drawn beam. So some
    beams are continued several times and others are dropped. With a `reshuffle` of 0, this is parallel sampling:
    `width` answers to one prompt.

    Raises:
        BudgetError: the cache has too few blocks.
        UsageError: `width` is below 1, or `reshuffle` is no probability.
    """
    if width < 1 or not 0 <= reshuffle <= 1:
        raise UsageError(f"width is {width} and reshuffle {reshuffle}; they should be at least 1, and between 0 and 1.")
    copies_before, held, unshared = cache.num_copies, 0, 0
    beams = [cache.start(prompt_tokens)]
    beams += [cache.fork(beams[0]) for _ in range(width - 1)]
    reshuffled = rng.random(output_tokens) < reshuffle
    for step in range(output_tokens - 1):  # the last token is never written
        if reshuffled[step]:
            beams = _forks(cache, beams, rng.integers(width, size=width).tolist())
        for beam in beams:
            cache.append(beam)
        held += cache.num_held
        unshared += cache.num_without_sharing
    for beam in beams:
        cache.free(beam)
    return Sharing(held_block_steps=held, unshared_block_steps=unshared, num_copies=cache.num_copies - copies_before)


def _forks(cache: BranchingCache, beams: list[Branch], parents: list[int]) -> list[Branch]:
    """Return, for each `i`, a beam that continues beam `parents[i]`. Free the beams that are not parents."""
    forks = []
    for parent, count in Counter(parents).items():
        forks += [beams[parent], *(cache.fork(beams[parent]) for _ in range(count - 1))]
    for index in set(range(len(beams))) - set(parents):
        cache.free(beams[index])
    return forks
