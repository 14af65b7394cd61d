"""Host memory behind the paged cache, as a model: what is preempted is copied out and copied back, not computed again.

A victim's blocks go to the host if all of them find room there; otherwise it is recomputed, as without. When it is
admitted again it gets new blocks, and only those come over the link that the prefix cache does not hold any more. Host
copies are private: nobody else hits them. vLLM V1 has no such swap; its predecessor had, and this follows the same
idea. This module knows the link's speed, but no clock.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import NamedTuple

from kvsim.errors import BudgetError
from kvsim.memory.blocks import BlockPool
from kvsim.scheduling.journal import Journal
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Sequence, Status
from kvsim.scheduling.settings import PagedSettings

_GIB = 1 << 30
_GIGA = 1e9


class Transfers(NamedTuple):
    """Copies between the pool and the host that one step has to wait for."""

    num_blocks_out: int
    num_blocks_in: int
    time_s: float
    """Seconds on the link. Out and in never meet: a step that preempts admits nobody."""

    @property
    def columns(self) -> dict[str, int]:
        """What a recording says of the step."""
        return {"swapped_out_units": self.num_blocks_out, "swapped_in_units": self.num_blocks_in}


class SwappingManager(PagedManager):
    """A `PagedManager` that keeps what is preempted in host memory, while there is room."""

    def __init__(
        self,
        pool: BlockPool,
        settings: PagedSettings,
        journal: Journal,
        *,
        max_model_len: int,
        reserve_full_prompt: bool = True,
        block_bytes: int,
    ) -> None:
        """Share out `pool`, whose blocks have `block_bytes` each, with the host memory that `settings` ask for.

        Raises:
            BudgetError: that memory holds not even one block.
        """
        super().__init__(pool, settings, journal, max_model_len=max_model_len, reserve_full_prompt=reserve_full_prompt)
        self.num_host_blocks = int(settings.swap_gib * _GIB) // block_bytes
        """Blocks that the host has room for."""
        if not self.num_host_blocks:
            raise BudgetError(
                f"{settings.swap_gib} GiB of host memory hold no block of {block_bytes} bytes; give swap more, or none."
            )
        self.num_free_host_blocks = self.num_host_blocks
        self._block_s = block_bytes / (settings.swap_gb_per_s * _GIGA)
        self._parked: dict[Sequence, int] = {}  # tokens of each sequence whose blocks are on the host
        self._num_blocks_out = self._num_blocks_in = 0

    def take_transfers(self) -> Transfers:
        """The copies since the last call."""
        out, back = self._num_blocks_out, self._num_blocks_in
        self._num_blocks_out = self._num_blocks_in = 0
        return Transfers(out, back, (out + back) * self._block_s)

    def lookup(self, sequence: Sequence) -> Row[int]:
        """Leading blocks that the pool still holds; and what the host holds beyond them need not be computed either."""
        hits = super().lookup(sequence)
        parked_tokens = self._parked.get(sequence, 0)
        return _Parked(hits, parked_tokens) if parked_tokens > super().tokens_in(hits) else hits

    def tokens_in(self, hits: Row[int]) -> int:
        """Tokens that `hits` hold, here or on the host."""
        return hits.num_tokens if isinstance(hits, _Parked) else super().tokens_in(hits)

    def admit(self, sequence: Sequence, num_tokens: int, hits: Row[int], *, others_running: bool) -> bool:
        """Make room as `PagedManager` does; what comes from the host is copied, and its room there given back."""
        if not super().admit(sequence, num_tokens, hits, others_running=others_running):
            return False
        if isinstance(hits, _Parked):
            self._num_blocks_in += self._blocks_of(hits.num_tokens) - len(hits)
        self._drop(sequence)
        return True

    def free(self, sequence: Sequence) -> None:
        """Take back the whole table. Of a preempted sequence, what is computed goes to the host if that has room."""
        num_blocks = self._blocks_of(sequence.computed)
        if sequence.status is Status.PREEMPTED and sequence.blocks and 0 < num_blocks <= self.num_free_host_blocks:
            self._parked[sequence] = sequence.computed
            self.num_free_host_blocks -= num_blocks
            self._num_blocks_out += num_blocks
        elif not sequence.blocks:
            self._drop(sequence)  # it ends, or is aborted, while it waits to come back
        super().free(sequence)

    def _blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _drop(self, sequence: Sequence) -> None:
        self.num_free_host_blocks += self._blocks_of(self._parked.pop(sequence, 0))


class _Parked(list[int]):
    """Hits of a sequence of which the host holds more: `num_tokens` in all."""

    def __init__(self, hits: Row[int], num_tokens: int) -> None:
        super().__init__(hits)
        self.num_tokens = num_tokens
