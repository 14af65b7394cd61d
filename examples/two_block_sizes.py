"""An allocator of your own: blocks of 64 tokens for prompts, blocks of 16 for answers.

A unit of the pool holds 16 tokens. A large block is four units in a row that begin at a multiple of four, so a table is
shorter, and a large block may be missing although four units are free: external fragmentation.
"""

from bisect import insort

import kvsim

SMALL_PER_LARGE = 4


class TwoBlockSizes(kvsim.Allocator):
    """Large blocks from the bottom of the pool, small ones from pieces of large ones."""

    def __init__(self, num_units, unit_tokens):
        self.unit_tokens = unit_tokens
        last = num_units // SMALL_PER_LARGE * SMALL_PER_LARGE - SMALL_PER_LARGE
        self.whole = list(range(last, -1, -SMALL_PER_LARGE))  # the lowest is last
        self.pieces = set()

    @property
    def num_free(self):
        """Free units, in large blocks and in pieces."""
        return SMALL_PER_LARGE * len(self.whole) + len(self.pieces)

    def allocate(self, request, num_tokens):
        """Large blocks for as much of the prompt as fills them, small ones behind it; None where there are too few."""
        missing = -(-num_tokens // self.unit_tokens) - request.num_units
        num_large = missing // SMALL_PER_LARGE if request.num_units == 0 else 0
        if num_large > len(self.whole) or missing > self.num_free:
            return None
        units = [unit for _ in range(num_large) for unit in self.units_of(self.whole.pop())]
        while len(units) < missing:
            self.pieces.update(() if self.pieces else self.units_of(self.whole.pop()))
            units.append(min(self.pieces))
            self.pieces.remove(units[-1])
        return units

    def free(self, request, units):
        """Four free units that belong together are a large block again."""
        self.pieces.update(units)
        for first in {unit - unit % SMALL_PER_LARGE for unit in units}:
            if self.pieces.issuperset(self.units_of(first)):
                self.pieces.difference_update(self.units_of(first))
                insort(self.whole, first, key=lambda begin: -begin)

    def units_of(self, first):
        """Return the units of a large block."""
        return range(first, first + SMALL_PER_LARGE)

    def unusable_units(self, request):
        """Everything, if it would be enough for the request and lies in pieces too small."""
        needed = -(-request.known_tokens // self.unit_tokens)
        return self.num_free if needed <= self.num_free and needed // SMALL_PER_LARGE > len(self.whole) else 0


class TwoSizes(kvsim.CustomPolicy):
    """vLLM's schedule over blocks of two sizes."""

    name, allocator = "two-block-sizes", TwoBlockSizes
