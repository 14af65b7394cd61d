"""The seam between a scheduler and its memory: what continuous batching asks of an allocator."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import Protocol

from kvsim.memory.waste import Breakdown
from kvsim.scheduling.sequence import Sequence


class MemoryManager(Protocol):
    """Gives sequences room for their KV, or says that there is none."""

    capacity_slots: int

    @property
    def num_free_units(self) -> int:
        """Units that could be handed out now."""

    def unusable_units(self, head: Sequence | None) -> int:
        """Free units in pieces too small for `head`, the first in the queue, though their sum would do."""

    def fits(self, sequence: Sequence) -> bool:
        """Whether the whole pool, all for itself, would see `sequence` to its end."""

    def lookup(self, sequence: Sequence) -> Row[int]:
        """Blocks that already hold a prefix of `sequence`."""

    def tokens_in(self, hits: Row[int]) -> int:
        """Tokens that need not be computed, given what `lookup` found."""

    def admit(self, sequence: Sequence, num_tokens: int, hits: Row[int], *, others_running: bool) -> bool:
        """Make room for the first step of a waiting sequence; without any effect when there is none."""

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` more tokens of a running sequence; without any effect when there is none."""

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """The first `num_tokens` tokens have known values: whole blocks of them may be shared from now on."""

    def free(self, sequence: Sequence) -> None:
        """Take everything back from `sequence`. Its status says whether it was preempted and will be back."""

    def breakdown(self, live: Row[Sequence], head: Sequence | None) -> Breakdown:
        """Where every slot goes now, given the sequences that hold memory and the first in the queue."""
