"""An allocator of your own: blocks of 64 tokens for prompts, blocks of 16 for answers.

A unit of the pool holds 16 tokens. A large block is four units in a row that begin at a multiple of four, so a table is
shorter, and a large block may be missing although four units are free: external fragmentation.
"""

import kvsim

SMALL_PER_LARGE = 4


class TwoBlockSizes(kvsim.Allocator):
    """Large blocks from the bottom of the pool, small ones from pieces of large ones."""

    def __init__(self, num_units, unit_tokens):
        self.unit_tokens = unit_tokens
        self.free_units = set(range(num_units // SMALL_PER_LARGE * SMALL_PER_LARGE))
        self.whole = sorted(range(0, len(self.free_units), SMALL_PER_LARGE), reverse=True)  # the lowest is last

    def allocate(self, request, num_tokens):
        """Large blocks for as much of the prompt as fills them, small ones behind it; None where there are too few."""
        missing = -(-num_tokens // self.unit_tokens) - request.num_units
        num_large = missing // SMALL_PER_LARGE if request.num_units == 0 else 0
        if num_large > len(self.whole) or missing > len(self.free_units):
            return None
        units = [first + place for first in (self.whole.pop() for _ in range(num_large)) for place in range(4)]
        self.free_units.difference_update(units)
        broken = sorted(self.free_units, key=lambda unit: (unit - unit % 4 in self.whole, unit))
        units += broken[: missing - len(units)]
        self.free_units.difference_update(units)
        self.whole = [first for first in self.whole if first not in units]
        return units

    def free(self, request, units):
        """Four free units that belong together are a large block again."""
        self.free_units.update(units)
        first_units = {unit - unit % 4 for unit in units}
        again = {first for first in first_units if all(first + place in self.free_units for place in range(4))}
        self.whole = sorted({*self.whole, *again}, reverse=True)

    def unusable_units(self, request):
        """Everything, if it would be enough for the request and lies in pieces too small."""
        needed = -(-request.known_tokens // self.unit_tokens)
        return len(self.free_units) if needed <= len(self.free_units) and needed // 4 > len(self.whole) else 0


class TwoSizes(kvsim.CustomPolicy):
    """vLLM's schedule over blocks of two sizes."""

    name, allocator = "two-block-sizes", TwoBlockSizes
