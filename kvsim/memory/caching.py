"""Model PyTorch's CUDA caching allocator: segments from the driver, cut into blocks that are cached when freed.

    allocator = CachingAllocator(capacity_bytes=gpu.memory_bytes)
    address = allocator.allocate(num_bytes)
    allocator.free(address)

The model follows PyTorch 2.11 with default settings. A request is rounded up to 512 bytes and served from the smallest
sufficient cached block of its pool and stream, at the lowest address among equals. Requests up to 1 MiB share one pool
with segments of 2 MiB. Larger requests below 10 MiB have segments of 20 MiB. From 10 MiB on, a segment has the size of
the request, rounded up to 2 MiB. A block is split only if the rest is large enough, so `allocated` may exceed
`requested`. Blocks never merge across segments. If the driver has no memory left, all unused segments are returned to
it before a second attempt.

Sources: the guide of the allocator's author (zdevito.github.io/2022/08/04/cuda-caching-allocator.html), the
documentation of torch.cuda.memory_stats, and allocation histories recorded on an H200, which this model reproduces
address for address. Waiting CUDA streams (`record_stream`) and expandable segments are not modelled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import BudgetError, IntegrityError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KIB = 1024
MIB = 1024 * KIB

ROUNDING_BYTES = 512
"""Requests are rounded up to multiples of this number of bytes."""
SMALL_LIMIT_BYTES = MIB
"""Largest request, in bytes, from the pool of small blocks. A larger block is split if the rest is larger than this."""
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
"""Smallest request, in bytes, that gets a segment of its own, rounded up to `SEGMENT_ROUNDING_BYTES`."""
SEGMENT_ROUNDING_BYTES = 2 * MIB

_HIGHEST_ADDRESS = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Numbers of bytes and segments of all pools, as `allocated_bytes.all.current` in `torch.cuda.memory_stats`."""

    allocated_bytes: int
    """Bytes of the blocks in use. PyTorch's `active_bytes` also counts freed blocks that another stream still uses."""
    requested_bytes: int
    """Bytes that callers have asked for, before rounding, and not freed."""
    reserved_bytes: int
    """Bytes of all segments that the driver has given and not got back."""
    inactive_split_bytes: int
    """Bytes of free blocks in segments with a block in use, which cannot be returned to the driver."""
    segments: int


class _SegmentPiece:
    """Block of a segment, linked to the blocks before and after it in this segment."""

    __slots__ = ("address", "after", "before", "free", "pool", "requested", "size")

    def __init__(self, address: int, size: int, pool: list[tuple[int, int]]) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.requested = 0
        self.free = True
        self.before: _SegmentPiece | None = None
        self.after: _SegmentPiece | None = None


class CachingAllocator:
    """Allocator for the memory of one GPU. Addresses are in bytes."""

    def __init__(self, capacity_bytes: int | None = None, place_segment: Callable[[int], int] | None = None) -> None:
        """Start without segments.

        Args:
            capacity_bytes: bytes that the driver can give; None for no limit.
            place_segment: function that returns the address of a new segment from its number of bytes. By default, each
                segment lies below the last one, as in most recorded histories.
        """
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.requested_bytes = self.reserved_bytes = self.inactive_split_bytes = 0
        self.peak_allocated_bytes = self.peak_requested_bytes = self.peak_reserved_bytes = 0
        self.num_retries = 0
        """Number of times that the driver had no memory left, so that all unused segments were returned to it."""
        self._place = place_segment or self._below_the_last
        self._lowest = _HIGHEST_ADDRESS
        self._segments: dict[int, int] = {}
        self._used: dict[int, _SegmentPiece] = {}
        self._free: dict[int, _SegmentPiece] = {}
        self._pools: dict[tuple[int, bool], list[tuple[int, int]]] = {}

    @property
    def counters(self) -> Counters:
        """The current values."""
        return Counters(
            allocated_bytes=self.allocated_bytes,
            requested_bytes=self.requested_bytes,
            reserved_bytes=self.reserved_bytes,
            inactive_split_bytes=self.inactive_split_bytes,
            segments=len(self._segments),
        )

    def reset_peaks(self) -> None:
        """Set `peak_allocated_bytes`, `peak_requested_bytes` and `peak_reserved_bytes` to the present bytes."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def segments(self) -> Iterator[tuple[int, int]]:
        """Yield address and size in bytes of every segment, in order of address."""
        return iter(sorted(self._segments.items()))

    def allocate(self, num_bytes: int, stream: int = 0) -> int:
        """Allocate a block of at least `num_bytes` for the CUDA stream `stream`, and return its address.

        Raises:
            BudgetError: the driver cannot give enough memory, even after all unused segments were returned.
            UsageError: `num_bytes` is below 1.
        """
        if num_bytes < 1:
            raise UsageError(f"a block of {num_bytes} bytes cannot be allocated; it must have at least 1.")
        size = -(-num_bytes // ROUNDING_BYTES) * ROUNDING_BYTES
        small = size <= SMALL_LIMIT_BYTES
        pool = self._pools.setdefault((stream, small), [])
        found = bisect_left(pool, (size, 0))
        if found < len(pool):
            block = self._free.pop(pool.pop(found)[1])
            if block.before or block.after:
                self.inactive_split_bytes -= block.size
        else:
            block = self._new_segment(size, small, pool)
        rest = block.size - size
        if rest >= ROUNDING_BYTES if small else rest > SMALL_LIMIT_BYTES:
            self._cut(block, size)
        block.free = False
        block.requested = num_bytes
        self._used[block.address] = block
        self.allocated_bytes += block.size
        self.requested_bytes += num_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.requested_bytes)
        return block.address

    def free(self, address: int) -> None:
        """Return the block at `address` to the cache, merged with its free neighbours.

        Raises:
            IntegrityError: no block in use begins at `address`.
        """
        block = self._used.pop(address, None)
        if block is None:
            raise IntegrityError(f"no block in use begins at {address}; free what allocate returned, and only once.")
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        block.free = True
        before, after = block.before, block.after
        if before is not None and before.free:
            self._uncache(before)
            block.address = before.address
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._uncache(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._cache(block)

    def empty_cache(self) -> None:
        """Return every unused segment to the driver."""
        for block in [block for block in self._free.values() if block.before is None and block.after is None]:
            self._uncache(block)
            self.reserved_bytes -= self._segments.pop(block.address)

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` if a counter is wrong, or if the blocks of a segment do not fill it."""
        blocks = {**self._used, **self._free}
        found = 0
        inactive = 0
        for base, size in self._segments.items():
            address, before = base, None
            while address < base + size:
                block = blocks.get(address)
                if block is None or block.before is not before or (before and before.free and block.free):
                    raise IntegrityError(f"segment {base} of {size} bytes is torn at {address}.")
                inactive += block.size if block.free and block.size < size else 0
                found += 1
                address, before = address + block.size, block
        cached = sorted((block.size, block.address) for block in self._free.values())
        counted = {
            "blocks": (len(blocks), found),
            "reserved": (self.reserved_bytes, sum(self._segments.values())),
            "allocated": (self.allocated_bytes, sum(block.size for block in self._used.values())),
            "requested": (self.requested_bytes, sum(block.requested for block in self._used.values())),
            "inactive split": (self.inactive_split_bytes, inactive),
            "cached": (sum(map(len, self._pools.values())), len(cached)),
        }
        for name, (kept, right) in counted.items():
            if kept != right:
                raise IntegrityError(f"the counter of {name} is {kept}, but counting again gives {right}.")
        if sorted(entry for pool in self._pools.values() for entry in pool) != cached:
            raise IntegrityError("the lists of cached blocks differ from the free blocks of the segments.")

    def _new_segment(self, size: int, small: bool, pool: list[tuple[int, int]]) -> _SegmentPiece:
        """Take a segment for `size` bytes from the driver; return it as a free block that is not cached yet."""
        segment = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        if size >= OWN_SEGMENT_BYTES:
            segment = -(-size // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES
        if self._lacks(segment):
            self.num_retries += 1
            self.empty_cache()
            if self._lacks(segment):
                raise BudgetError(
                    f"out of memory: a segment of {segment:,} bytes beside {self.reserved_bytes:,} reserved ones "
                    f"exceeds the {self.capacity_bytes:,} bytes of the GPU."
                )
        address = self._place(segment)
        self._segments[address] = segment
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return _SegmentPiece(address, segment, pool)

    def _lacks(self, num_bytes: int) -> bool:
        return self.capacity_bytes is not None and self.reserved_bytes + num_bytes > self.capacity_bytes

    def _below_the_last(self, num_bytes: int) -> int:
        self._lowest -= num_bytes
        return self._lowest

    def _cut(self, block: _SegmentPiece, size: int) -> None:
        rest = _SegmentPiece(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        block.size = size
        self._cache(rest)

    def _cache(self, block: _SegmentPiece) -> None:
        insort(block.pool, (block.size, block.address))
        self._free[block.address] = block
        if block.before or block.after:
            self.inactive_split_bytes += block.size

    def _uncache(self, block: _SegmentPiece) -> None:
        del self._free[block.address]
        block.pool.pop(bisect_left(block.pool, (block.size, block.address)))
        if block.before or block.after:
            self.inactive_split_bytes -= block.size
