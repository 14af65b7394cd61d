from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvsim.errors import BudgetError, IntegrityError, UsageError
from kvsim.memory.caching import KIB, MIB, CachingAllocator, _SegmentPiece
from kvsim.recording import AllocatorHistory, find, read, read_allocator

HISTORY = Path(__file__).with_name("history")
BATCH64 = "hf-h200-granite-350m-batch64-history"


@pytest.mark.parametrize(
    ("asked", "held", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
        (int(11.5 * MIB), 12 * MIB, 12 * MIB),  # half a MiB is not worth cutting off
        (int(19.5 * MIB), 20 * MIB, 20 * MIB),
    ],
)
def test_a_request_is_rounded_and_its_segment_too(asked: int, held: int, segment: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(asked)
    counters = allocator.counters
    assert (counters.requested_bytes, counters.reserved_bytes, counters.segments) == (asked, segment, 1)
    # 11 MiB of 12 leave exactly 1 MiB, which is not more than 1 MiB.
    assert counters.allocated_bytes == (segment if 0 < segment - held <= MIB and asked > MIB else held)
    assert counters.inactive_split_bytes == segment - counters.allocated_bytes


def test_the_smallest_block_that_fits_is_taken_and_the_lowest_of_equals() -> None:
    places = iter([300 * MIB, 100 * MIB, 200 * MIB, 500 * MIB])
    allocator = CachingAllocator(place_segment=lambda _: next(places))
    blocks = [allocator.allocate(size * MIB) for size in (40, 40, 30, 60)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(20 * MIB) == 200 * MIB  # 30 MiB, cut
    assert allocator.allocate(35 * MIB) == 100 * MIB
    assert allocator.allocate(40 * MIB) == 300 * MIB


def test_pools_and_streams_do_not_share() -> None:
    allocator = CachingAllocator()
    for stream in (0, 1):
        allocator.free(allocator.allocate(4 * MIB, stream))
        allocator.free(allocator.allocate(4 * KIB, stream))
    assert allocator.counters.segments == 4
    allocator.check_integrity()


def test_neighbours_merge_but_segments_do_not() -> None:
    allocator = CachingAllocator()
    first = [allocator.allocate(5 * MIB) for _ in range(4)]
    second = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in (*first[::2], *first[1::2], *second):
        allocator.free(block)
    assert allocator.counters.inactive_split_bytes == 0
    allocator.allocate(30 * MIB)  # 40 MiB are free, in two segments of 20
    assert allocator.counters.reserved_bytes == 70 * MIB


def test_a_growing_cache_leaves_segments_that_nothing_fits() -> None:
    """Why a dynamic cache of large tensors reserves several times what it holds."""
    allocator = CachingAllocator()
    held = allocator.allocate(20 * MIB)
    for step in range(1, 50):
        wider = allocator.allocate((20 + 2 * step) * MIB)
        allocator.free(held)
        held = wider
    assert allocator.allocated_bytes == 118 * MIB
    assert allocator.reserved_bytes > 15 * allocator.allocated_bytes


def test_a_full_gpu_gets_its_cached_segments_back_before_it_gives_up() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    kept = allocator.allocate(30 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(70 * MIB)
    assert (allocator.num_retries, allocator.reserved_bytes) == (1, 100 * MIB)
    with pytest.raises(BudgetError, match="out of memory"):
        allocator.allocate(2 * MIB)
    allocator.free(kept)
    allocator.check_integrity()


def test_peaks_last_until_they_are_reset() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(50 * MIB))
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (50 * MIB, 50 * MIB)
    allocator.empty_cache()
    allocator.reset_peaks()
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (0, 0)


def test_misuse_is_refused() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(100)
    allocator.free(block)
    with pytest.raises(IntegrityError, match="no block in use"):
        allocator.free(block)
    with pytest.raises(UsageError, match="at least 1"):
        allocator.allocate(0)


class AnyProgram(RuleBasedStateMachine):
    """Whatever a program asks for, the books balance and nothing is handed out twice."""

    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = CachingAllocator(capacity_bytes=400 * MIB)
        self.used: dict[int, int] = {}

    @rule(
        target=blocks, num_bytes=st.one_of(st.integers(1, 2 * MIB), st.integers(1, 40 * MIB)), stream=st.integers(0, 1)
    )
    def allocate(self, num_bytes: int, stream: int) -> int | None:
        try:
            address = self.allocator.allocate(num_bytes, stream)
        except BudgetError:
            return None
        assert address not in self.used
        self.used[address] = num_bytes
        return address

    @rule(block=consumes(blocks))
    def free(self, block: int | None) -> None:
        if block is not None:
            self.allocator.free(block)
            del self.used[block]

    @rule()
    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        assert self.allocator.reserved_bytes == self.allocator.allocated_bytes + self.allocator.inactive_split_bytes

    @invariant()
    def adds_up(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.requested_bytes == sum(self.used.values())
        ordered = sorted(self.used)
        assert all(below + self.used[below] <= above for below, above in pairwise(ordered))
        assert self.allocator.reserved_bytes <= 400 * MIB


AnyProgram.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestAnyProgram = AnyProgram.TestCase


def test_a_history_from_the_first_tensor_on_is_reproduced_address_for_address() -> None:
    history = read_allocator(HISTORY)
    assert history is not None
    rows = list(zip(history.action.tolist(), history.address.tolist(), history.size_bytes.tolist(), strict=True))
    segments = iter([(address, size) for action, address, size in rows if action == "segment_alloc"])
    held: dict[int, int] = {}

    def place(num_bytes: int) -> int:
        address, recorded = next(segments)
        assert num_bytes == recorded
        return int(address)

    allocator = CachingAllocator(place_segment=place)
    for before, (action, address, size) in zip(["", *history.action.tolist()], rows, strict=False):
        if action == "alloc":
            assert allocator.allocate(size) == address
        elif action == "free_completed":
            allocator.free(address)
        elif action == "segment_alloc":
            held[address] = size
        elif action == "segment_free":
            if before != "segment_free":
                allocator.empty_cache()
            del held[address]
        if action == "alloc":
            assert allocator.reserved_bytes == sum(held.values())
    assert dict(allocator.segments()) == held
    assert allocator.allocated_bytes == 738_315_776  # torch.cuda.memory_allocated() at that moment
    allocator.check_integrity()


BEGINS_WITH = (
    *((0x7FBA9E000000 + number * 32 * MIB, 32 * MIB) for number in range(7)),
    (0x7FBAAC000000, 26 * MIB),
    (0x7FBAADA00000, 26 * MIB),
    (0x7FBCBE000000, 164 * MIB),
    (0x7FBCCA800000, 12 * MIB),
    (0x7FBAB0C00000, 2 * MIB),
    (0x7FBD13F9CC00, 512),
    (0x7FBD13F9D000, 396 * KIB),
    (0x7FBD19C80000, 1536 * KIB),
)
"""Address and bytes of what the shipped history shows of the memory that was there before it: whole segments, and the
parts of segments that the weights leave free. The last four are of the small pool."""


def test_the_shipped_history_is_reproduced_from_the_middle_on() -> None:
    history, recording = read_allocator(find(BATCH64)), read(find(BATCH64))
    assert history is not None
    steps = recording.steps
    allocator = _in_the_middle(history)
    weights = recording.meta.extra["baseline_allocated_bytes"]
    assert isinstance(weights, int)
    rest = int(steps.reserved_bytes[31]) - allocator.reserved_bytes  # type: ignore[index]
    landed = 0
    ends = np.append(np.flatnonzero(np.diff(history.step)) + 1, len(history))
    begin = 0
    for step, end in zip(history.step[ends - 1].tolist(), ends.tolist(), strict=True):
        for row in range(begin, end):
            action, address = history.action[row], int(history.address[row])
            if action == "alloc":
                assert allocator.allocate(int(history.size_bytes[row])) == address
                landed += 1
            elif action == "free_completed":
                allocator.free(address)
        begin = end
        if step < len(steps):
            assert allocator.allocated_bytes + weights == steps.allocated_bytes[step]  # type: ignore[index]
            assert allocator.reserved_bytes + rest == steps.reserved_bytes[step]  # type: ignore[index]
    assert landed == 133_279
    allocator.check_integrity()


def adopt(
    allocator: CachingAllocator, address: int, num_bytes: int, used: dict[int, tuple[int, int]], *, small: bool
) -> None:
    """Add a segment to `allocator`, with the bytes and the requested bytes of each block in use, by address."""
    pool = allocator._pools.setdefault((0, small), [])
    allocator._segments[address] = num_bytes
    allocator.reserved_bytes += num_bytes
    pieces: list[_SegmentPiece] = []
    end = address
    for begin, (size, requested) in [*sorted(used.items()), (address + num_bytes, (0, 0))]:
        if begin > end:
            pieces.append(_SegmentPiece(end, begin - end, pool))
        if size:
            block = _SegmentPiece(begin, size, pool)
            block.free, block.requested = False, requested
            allocator._used[begin] = block
            allocator.allocated_bytes += size
            allocator.requested_bytes += requested
            pieces.append(block)
        end = begin + size
    for before, after in pairwise(pieces):
        before.after, after.before = after, before
    for block in pieces:
        if block.free:
            allocator._cache(block)
    allocator.reset_peaks()


def _in_the_middle(history: AllocatorHistory) -> CachingAllocator:
    """The allocator as it was before the first event: what is freed without having been allocated was in use."""
    rows = list(zip(history.action.tolist(), history.address.tolist(), history.size_bytes.tolist(), strict=True))
    born: set[int] = set()
    used: dict[int, int] = {}
    for action, address, size in rows:
        if action == "alloc":
            born.add(address)
        elif action == "free_completed":
            if address not in born:
                used[address] = size
            born.discard(address)
    places = iter([address for action, address, _ in rows if action == "segment_alloc"])
    allocator = CachingAllocator(place_segment=lambda _: next(places))
    for begin, length in BEGINS_WITH:
        inside = sorted(address for address in used if begin <= address < begin + length)
        blocks = {}
        for address, after in zip(inside, [*inside[1:], begin + length], strict=False):
            size = -(-used[address] // 512) * 512
            # A large block is not cut where at most 1 MiB would remain, so such a gap belongs to the block before it.
            uncut = length > 2 * MIB and after - address - size <= MIB
            blocks[address] = (after - address if uncut else size, used[address])
        adopt(allocator, begin, length, blocks, small=length <= 2 * MIB)
    allocator.check_integrity()
    return allocator
