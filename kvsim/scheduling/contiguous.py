"""Contiguous reservations as a memory manager: each sequence gets one extent when it is admitted and keeps it to its end.

Nothing grows, so nothing is ever preempted; what is reserved and never written is the price.
"""

from __future__ import annotations

from collections.abc import Sequence as Row

import numpy as np

from kvsim.memory.contiguous import Extent, contiguous_allocator
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState, split_extent
from kvsim.scheduling.journal import Journal
from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import ContiguousSettings, Reserve


class ContiguousManager:
    """One extent per sequence, as long as `reserve` says."""

    def __init__(
        self, capacity_slots: int, settings: ContiguousSettings, journal: Journal, *, max_model_len: int
    ) -> None:
        """Share out `capacity_slots` among sequences of at most `max_model_len` tokens, reporting to `journal`."""
        self.capacity_slots = capacity_slots
        self._allocator = contiguous_allocator(settings.fit, capacity_slots)
        self._longest_extent = self._allocator.largest_hole
        self._reserve = settings.reserve
        self._journal = journal
        self._max_model_len = max_model_len
        self._extents: dict[Sequence, Extent] = {}

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
        match self._reserve:
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
        return min(wanted, self._max_model_len)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the whole pool, all for itself, has an extent as long as `sequence` asks for."""
        return self.reservation(sequence) <= self._longest_extent

    def lookup(self, sequence: Sequence) -> Row[int]:  # noqa: ARG002  the seam is wider than this policy
        """Nothing is shared."""
        return ()

    def tokens_in(self, hits: Row[int]) -> int:  # noqa: ARG002
        """Nothing is shared."""
        return 0

    def admit(self, sequence: Sequence, num_tokens: int, hits: Row[int], *, others_running: bool) -> bool:  # noqa: ARG002
        """Reserve the extent that `sequence` will live in."""
        wanted = self.reservation(sequence)
        if not self._allocator.can_allocate(wanted):
            return False
        extent = self._allocator.allocate(wanted)
        self._extents[sequence] = extent
        self._journal.append_extent(sequence.row, 0, extent.address, extent.length, extent.requested)
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:  # noqa: ARG002
        """The reservation covers every token that can come."""
        return True

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
