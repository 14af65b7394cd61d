"""The paged cache as vLLM's scheduler sees it: hit lookup, all-or-nothing allocation, registration, freeing."""

from __future__ import annotations

from collections.abc import Sequence as Row

import numpy as np

from kvsim.memory.blocks import BlockPool
from kvsim.memory.waste import NUM_STATES, Breakdown, SlotState, split_extent
from kvsim.scheduling.journal import Journal
from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import PagedSettings


class PagedManager:
    """Block tables over a `BlockPool`. A failed allocation leaves no trace."""

    def __init__(
        self,
        pool: BlockPool,
        settings: PagedSettings,
        journal: Journal,
        *,
        max_model_len: int,
        reserve_full_prompt: bool = True,
    ) -> None:
        """Share out `pool` among sequences of at most `max_model_len` tokens, reporting to `journal`."""
        self.pool = pool
        self.block_size = settings.block_size
        self.capacity_slots = pool.num_usable * settings.block_size
        self._caching = settings.enable_prefix_caching
        self._watermark_blocks = int(settings.watermark * pool.num_blocks)
        self._lookahead_tokens = settings.num_speculative_tokens
        self._max_model_len = max_model_len
        self._reserve_full_prompt = reserve_full_prompt
        self._journal = journal
        self.num_queried_tokens = 0
        """Tokens of all lookups, as vLLM counts them: every attempt to admit counts, successful or not."""
        self.num_hit_tokens = 0

    @property
    def num_free_units(self) -> int:
        """Blocks that could be handed out now, those holding a reusable prefix included."""
        return self.pool.num_free

    @property
    def num_cached_units(self) -> int:
        """Of them, the blocks that hold a reusable prefix."""
        return self.pool.num_cached

    def unusable_units(self, head: Sequence | None) -> int:  # noqa: ARG002  the seam is wider than this policy
        """Any free block serves any sequence: there is no external fragmentation."""
        return 0

    def fits(self, sequence: Sequence) -> bool:
        """Whether the whole pool, all for itself, would see `sequence` to its end."""
        # A stop that only the output reveals is noticed one scheduled token late.
        surprise = sequence.output_tokens < sequence.max_tokens
        # Its last step may verify as many drafted tokens as it leaves room for after them.
        longest = sequence.prompt_tokens + sequence.output_tokens - 1 + surprise + 2 * self._lookahead_tokens
        return self._missing(longest, 0) <= self.pool.num_usable

    def lookup(self, sequence: Sequence) -> Row[int]:
        """Leading blocks of `sequence` that some block already holds. The last token is always left to compute."""
        if not self._caching or sequence.computed:
            return ()
        hits: list[int] = []
        for index in range((sequence.num_tokens - 1) // self.block_size):
            block = self.pool.find(sequence.key_of(index))
            if block is None:
                break
            hits.append(block)
        self.num_queried_tokens += sequence.num_tokens
        self.num_hit_tokens += len(hits) * self.block_size
        return hits

    def tokens_in(self, hits: Row[int]) -> int:
        """Tokens that `hits` hold."""
        return len(hits) * self.block_size

    def admit(self, sequence: Sequence, num_tokens: int, hits: Row[int], *, others_running: bool) -> bool:
        """Make room for the first `num_tokens` tokens after `hits`, above the watermark unless nothing else runs."""
        free = self.pool.num_free - (self._watermark_blocks if others_running else 0)
        # Hits that nobody holds are free now and will not be.
        free -= sum(self.pool.refs(block) == 0 for block in hits)
        if self._reserve_full_prompt and self._missing(sequence.num_tokens, len(hits)) > free:
            return False
        needed = self._missing(self.tokens_in(hits) + num_tokens + self._lookahead_tokens, len(hits))
        if needed > free:
            return False
        if hits:
            self.pool.touch(hits)
            sequence.blocks.extend(hits)
            sequence.num_registered = len(hits)
            self._journal.share_blocks(sequence.row, 0, hits)
        self._extend(sequence, needed)
        self.commit(sequence, min(self.tokens_in(hits) + num_tokens, sequence.num_tokens))
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` more tokens of a running sequence, and for those drafted after them."""
        total = sequence.computed + num_tokens
        slots = total + self._lookahead_tokens
        if slots > len(sequence.blocks) * self.block_size:  # most tokens find room in the last block
            needed = self._missing(slots, len(sequence.blocks))
            if needed > self.pool.num_free:
                return False
            self._extend(sequence, needed)
        self.commit(sequence, min(total, sequence.num_tokens))
        return True

    def grow_each(self, sequences: Row[Sequence], *, known: bool) -> None:
        """Make room for one more token of each of `sequences`, whose tables are full; the caller knows it is there.

        `known` says whether that token's value is known, so that a block which it fills can be shared.
        """
        if self._caching:
            for sequence in sequences:
                full_tokens = len(sequence.blocks) * self.block_size
                self._extend(sequence, 1)
                self.commit(sequence, full_tokens + known)
            return
        taken, _ = self.pool.take(len(sequences))
        append_blocks = self._journal.append_blocks
        for sequence, block in zip(sequences, taken, strict=True):
            blocks = sequence.blocks
            append_blocks(sequence.row, len(blocks), (block,))
            blocks.append(block)

    def fill_each(self, sequences: Row[Sequence]) -> None:
        """The next known token of each of `sequences` fills its last block: it may be shared from now on."""
        for sequence in sequences:
            self.commit(sequence, len(sequence.blocks) * self.block_size)

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """Register the keys of whole blocks among the first `num_tokens` tokens.

        This happens when a step is scheduled, before its KV exists: a later request of the same step can hit it.
        """
        if not self._caching:
            return
        full_blocks = num_tokens // self.block_size
        for index in range(sequence.num_registered, full_blocks):
            self.pool.register(sequence.blocks[index], sequence.key_of(index))
            sequence.num_registered = index + 1

    def free(self, sequence: Sequence) -> None:
        """Take back the whole table, last block first, so that the tail is reused before the prefix."""
        if sequence.blocks:
            self._journal.release(sequence.row, len(sequence.blocks), sequence.num_registered)
            self.pool.give(sequence.blocks[::-1])
            sequence.blocks = []
        sequence.num_registered = 0

    def breakdown(self, live: Row[Sequence], head: Sequence | None) -> Breakdown:  # noqa: ARG002
        """Where every slot goes now."""
        slots = np.zeros(NUM_STATES, np.int64)
        for sequence in live:
            allocated = len(sequence.blocks) * self.block_size
            full = max(sequence.prompt_tokens + sequence.output_tokens - 1, sequence.computed)
            slots += split_extent(0, allocated, full=full, computed=sequence.computed, requested=allocated)
        # A block with several holders was counted once for each of them, and only whole blocks are shared.
        held = sum(len(sequence.blocks) for sequence in live)
        slots[SlotState.TOKEN] -= (held - (self.pool.num_usable - self.pool.num_free)) * self.block_size
        slots[SlotState.CACHED] = self.pool.num_cached * self.block_size
        slots[SlotState.FREE] = (self.pool.num_free - self.pool.num_cached) * self.block_size
        return Breakdown(slots=slots)

    def _missing(self, num_tokens: int, num_blocks: int) -> int:
        """Blocks that `num_tokens` tokens need beyond `num_blocks`."""
        return max(0, -(-min(num_tokens, self._max_model_len) // self.block_size) - num_blocks)

    def _extend(self, sequence: Sequence, num_blocks: int) -> None:
        if not num_blocks:
            return
        taken, evicted = self.pool.take(num_blocks)
        if evicted:
            self._journal.evict(evicted)
        self._journal.append_blocks(sequence.row, len(sequence.blocks), taken)
        sequence.blocks.extend(taken)
