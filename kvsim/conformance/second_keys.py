"""Count of the second keys of blocks, which vLLM's records include.

vLLM hashes prompts in units that may be smaller than a block. If the last hash of a prompt ends inside a block of full
attention, the block gets that hash as a second key. With drafts, such a block may have no other key, because it is not
full. The engine then marks the block with `HAS_TAIL`. No look-up finds a block by these keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvsim.engine.arrays import column
from kvsim.engine.ownership import MemoryKind
from kvsim.engine.state import FULL_ATTENTION, HAS_TAIL, NO_KEY, table_of
from kvsim.policies.releases import SecondKey, rules_of

if TYPE_CHECKING:
    from kvsim.conformance.oracle_files import OracleWorkload
    from kvsim.engine.driver import Driver

_BLOCKS_AHEAD = 3
"""Number of blocks that are stored for each sequence and group, from the block in which its last known hash ends."""


class SecondKeys:
    """Second prefix keys of all blocks, as the module's text explains them. `len` returns the number of keys."""

    def __init__(self, workload: OracleWorkload, driver: Driver) -> None:
        self._driver, self._rule = driver, rules_of(workload.scheduler.vllm).second_key
        is_used = self._rule is not SecondKey.NONE and workload.cache.enable_prefix_caching
        groups, num_groups = driver.engine.groups, int(driver.engine.settings.num_groups) if is_used else 0
        self._groups = [
            index
            for index in range(num_groups)
            if groups[index].kind == FULL_ATTENTION and groups[index].hashes_per_block > 1
        ]
        self._of_block: dict[int, set[tuple[int, int]]] = {}
        self._next: dict[tuple[int, int], tuple[int, list[int]]] = {}
        """Blocks that may get a second key, by (sequence, group), with the table index of the first block."""
        self._tails: set[int] = set()
        """Blocks whose only key is a hash that ends inside them."""

    def __len__(self) -> int:
        return len(set().union(*self._of_block.values()))

    def follow(self, changes: Iterable[Any]) -> None:
        """Apply changes of block tables in order.

        A release may add second keys. A block loses its second keys if it is allocated or its prefix is evicted.
        """
        for row in changes:
            if int(row.kind) in (MemoryKind.EVICT, MemoryKind.APPEND):
                for block in range(int(row.address), int(row.address + row.length)):
                    self._of_block.pop(block, None)
                    self._tails.discard(block)
            elif int(row.kind) == MemoryKind.RELEASE:
                place = int(row.request) + 1, int(row.group)
                if place in self._next:
                    self._add(*place, *self._next.pop(place), num_cached=int(row.cached))

    def note(self, numbers: Iterable[int]) -> None:
        """Update the second keys of the sequences `numbers`. Each must have a block table."""
        engine = self._driver.engine
        self._forget_tails([block for block in self._tails if engine.blocks[block].key != NO_KEY])
        for group in self._groups:
            for number in numbers:
                table = table_of(engine, engine.sequences[number], group)
                index = self._last_hash(number, group) // int(engine.groups[group].hashes_per_block)
                until = min(index + _BLOCKS_AHEAD, int(table.num_blocks))
                blocks = [int(engine.entries[table.begin + place]) for place in range(index, until)]
                self._next[number, group] = index, blocks
                self._add(number, group, index, blocks, num_cached=int(table.num_cached))

    def _last_hash(self, number: int, group: int) -> int:
        engine = self._driver.engine
        record, sequence = engine.groups[group], engine.sequences[number]
        tokens = int(sequence.prompt_tokens)
        if self._rule is SecondKey.BEFORE_LAST and not record.drops_hit:
            tokens -= 1
        known = int(sequence.num_tokens - engine.settings.ahead_tokens)
        return max(min(tokens, known), 0) // int(record.block_size // record.hashes_per_block)

    def _add(self, number: int, group: int, first: int, blocks: list[int], *, num_cached: int) -> None:
        """Add the second key of sequence `number` to the block in which its last hash ends.

        `blocks` has some blocks of the sequence's table, from index `first` on. The first `num_cached` blocks of the
        table are full and cached.
        """
        engine = self._driver.engine
        self._forget_tails(self._tails.intersection(blocks[: max(num_cached - first, 0)]))
        num_hashes, per_block = self._last_hash(number, group), int(engine.groups[group].hashes_per_block)
        index = num_hashes // per_block
        if num_hashes % per_block == 0 or index - first >= len(blocks):
            return
        block = blocks[index - first]
        if index >= num_cached:
            if not (engine.blocks[block].cached_in == HAS_TAIL and engine.blocks[block].key == NO_KEY):
                return
            self._of_block.pop(block, None)  # a block that is not full has one key, which the next replaces
            self._tails.add(block)
        # A hash beyond the known keys of the prompt is unique to the sequence: a negative number is no hash.
        key, sequence = -number << 32 | num_hashes, engine.sequences[number]
        if num_hashes <= sequence.num_keys:
            key = int(engine.prompt_keys[sequence.first_key + num_hashes - 1])
        self._of_block.setdefault(block, set()).add((group, key))

    def _forget_tails(self, full: Iterable[int]) -> None:
        for block in full:
            self._of_block.pop(block, None)
            self._tails.discard(block)

    def has_tail(self, has_key: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return bool[num_blocks]: True for each block whose only key is the last hash of a prompt, inside the block.

        `has_key` is bool[num_blocks]: True for each block with the key of a full block.
        """
        if not self._driver.engine.settings.marks_tails:
            return np.zeros_like(has_key)
        return np.asarray((column(self._driver.engine.blocks, "cached_in") == HAS_TAIL) & ~has_key)
