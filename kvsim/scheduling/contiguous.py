"""Contiguous reservations as a memory manager: each sequence gets one extent when it is admitted.

Most reservations never grow, so nobody is ever preempted; what is reserved and never written is the price. Those that
double grow in place, or move, or give up. Every move is a copy, which somebody has to wait for: `take_copied_slots`.
"""

from __future__ import annotations

from collections.abc import Sequence as Row

import numpy as np

from kvsim.memory.compaction import compacted
from kvsim.memory.contiguous import Extent, contiguous_allocator
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState, split_extent
from kvsim.scheduling.journal import Journal
from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import ContiguousSettings, Growth, Reserve


class ContiguousManager:
    """One extent per sequence, as long as `reserve` says."""

    def __init__(
        self, capacity_slots: int, settings: ContiguousSettings, journal: Journal, *, max_model_len: int
    ) -> None:
        """Share out `capacity_slots` among sequences of at most `max_model_len` tokens, reporting to `journal`."""
        self.capacity_slots = capacity_slots
        self._allocator = contiguous_allocator(settings.fit, capacity_slots)
        self._longest_extent = self._allocator.largest_hole
        self._settings = settings
        self._journal = journal
        self._max_model_len = max_model_len
        self._extents: dict[Sequence, Extent] = {}
        self._batch_is_open = True
        self._copied_slots = 0

    @property
    def num_free_units(self) -> int:
        """Slots that no extent holds."""
        return self._allocator.num_free

    def unusable_units(self, head: Sequence | None) -> int:
        """All free slots, if they would be enough for `head` but no hole is: external fragmentation."""
        if head is None or self._allocator.num_free < self.reservation(head):
            return 0
        return 0 if self._allocator.can_allocate(self.reservation(head)) else self._allocator.num_free

    def reservation(self, sequence: Sequence) -> int:
        """Slots that `sequence` asks for when it is admitted."""
        prompt = sequence.prompt_tokens
        match self._settings.reserve:
            case Reserve.MAX:
                return self._max_model_len
            case Reserve.LIMIT:
                wanted = prompt + sequence.max_tokens
            case Reserve.POW2:
                wanted = prompt + (1 << (sequence.output_tokens - 1).bit_length())
            case Reserve.ORACLE:
                # The last token's KV is never written, unless the stop is noticed one scheduled token late.
                surprise = sequence.output_tokens < sequence.max_tokens
                wanted = prompt + sequence.output_tokens - 1 + surprise
            case Reserve.DOUBLING:
                wanted = _next_power_of_two(sequence.num_tokens)
        return min(wanted, self._max_model_len)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the whole pool, all for itself, has an extent as long as `sequence` will ever ask for."""
        if self._settings.reserve is Reserve.DOUBLING:
            last = sequence.prompt_tokens + sequence.output_tokens
            return min(_next_power_of_two(last), self._max_model_len) <= self._longest_extent
        return self.reservation(sequence) <= self._longest_extent

    def lookup(self, sequence: Sequence) -> Row[int]:  # noqa: ARG002  the seam is wider than this policy
        """Nothing is shared."""
        return ()

    def tokens_in(self, hits: Row[int]) -> int:  # noqa: ARG002
        """Nothing is shared."""
        return 0

    def admit(self, sequence: Sequence, num_tokens: int, hits: Row[int], *, others_running: bool) -> bool:  # noqa: ARG002
        """Reserve the extent that `sequence` will live in."""
        if not self._extents:
            self._batch_is_open = True
        if self._settings.request_level and not self._batch_is_open:
            return False
        wanted = self.reservation(sequence)
        if not self._make_hole(wanted):
            return False
        self._place(sequence, self._allocator.allocate(wanted))
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` more tokens; all reservations but the doubling one cover every token that can
        come.
        """
        self._batch_is_open = False  # whoever is admitted from now on would join a batch under way
        extent, needed = self._extents[sequence], sequence.computed + num_tokens
        if needed <= extent.requested:
            return True
        wanted = min(_next_power_of_two(needed - 1), self._max_model_len)
        if self._allocator.can_extend(extent, wanted - extent.requested):
            longer = self._allocator.extend(extent, wanted - extent.requested)
            self._extents[sequence] = longer
            self._journal.append_extent(
                sequence.row, extent.length, extent.end, longer.length - extent.length, wanted - extent.length
            )
            return True
        if self._settings.growth is Growth.FAIL or not self._make_hole(wanted):
            return False
        extent = self._extents[sequence]  # making the hole may have moved it
        new = self._allocator.allocate(wanted)
        self._allocator.free(extent)
        self._move({sequence: new})
        return True

    def take_copied_slots(self) -> int:
        """Written slots that were copied since the last call: each was read and written once."""
        copied, self._copied_slots = self._copied_slots, 0
        return copied

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """Nothing is shared."""

    def free(self, sequence: Sequence) -> None:
        """Give back the extent."""
        extent = self._extents.pop(sequence, None)
        if extent is not None:
            self._allocator.free(extent)
            self._journal.release(sequence.row, extent.length, 0)

    def breakdown(self, live: Row[Sequence], head: Sequence | None) -> Breakdown:
        """Where every slot goes now."""
        slots = np.zeros(NUM_STATES, np.int64)
        for sequence in live:
            extent = self._extents[sequence]
            full = max(sequence.prompt_tokens + sequence.output_tokens - 1, sequence.computed)
            slots += split_extent(0, extent.length, full=full, computed=sequence.computed, requested=extent.requested)
        unusable = self.unusable_units(head)
        slots[SlotState.EXTERNAL] += unusable
        slots[SlotState.FREE] = self._allocator.num_free - unusable
        return Breakdown(slots=slots)

    def _make_hole(self, num_slots: int) -> bool:
        """Whether there is a hole of `num_slots`, if need be after compaction."""
        if self._allocator.can_allocate(num_slots):
            return True
        if not self._settings.compaction or self._allocator.num_free < num_slots:
            return False
        plan = compacted(self._allocator, self._settings.fit)
        if not plan.allocator.can_allocate(num_slots):
            return False
        self._allocator = plan.allocator
        self._move({sequence: plan.moved[old] for sequence, old in self._extents.items() if old in plan.moved})
        return True

    def _move(self, places: dict[Sequence, Extent]) -> None:
        """Copy sequences to other extents; all leave before any arrives, since one may go where another was."""
        for sequence in places:
            self._copied_slots += sequence.computed
            self._journal.vacate(sequence.row, self._extents[sequence].length)
        for sequence, extent in places.items():
            self._place(sequence, extent)

    def _place(self, sequence: Sequence, extent: Extent) -> None:
        self._extents[sequence] = extent
        self._journal.append_extent(sequence.row, 0, extent.address, extent.length, extent.requested)


def _next_power_of_two(num_tokens: int) -> int:
    """The smallest power of two above `num_tokens`, so that there is room for one more."""
    return 1 << num_tokens.bit_length()
