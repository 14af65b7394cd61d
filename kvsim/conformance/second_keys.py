"""Count of the second keys that vLLM gives to some blocks of full attention, which a record includes.

A second key is that of the last hash boundary of a prompt that ends inside the block. It changes no decision of the
simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvsim.engine.ownership import MemoryKind
from kvsim.engine.records import NEVER
from kvsim.engine.state import FULL, table_of
from kvsim.policies.releases import SecondKey, rules_of

if TYPE_CHECKING:
    from kvsim.conformance.oracle_files import OracleWorkload
    from kvsim.engine.driver import Driver


class SecondKeys:
    """Second keys of all blocks, by block."""

    def __init__(self, workload: OracleWorkload, driver: Driver) -> None:
        self._driver, self._rule = driver, rules_of(workload.scheduler.vllm).second_key
        is_used = self._rule is not SecondKey.NONE and workload.cache.enable_prefix_caching
        groups, num_groups = driver.engine.groups, int(driver.engine.settings.num_groups) if is_used else 0
        self._groups = [
            index for index in range(num_groups) if groups[index].kind == FULL and groups[index].hashes_per_block > 1
        ]
        self._of_block: dict[int, set[tuple[int, int]]] = {}
        self._next: dict[tuple[int, int], tuple[int, int, int]] = {}
        """Block of each sequence and group that may get a second key: index in the table, block and key."""

    def __len__(self) -> int:
        return len(set().union(*self._of_block.values()))

    def follow(self, changes: Iterable[Any]) -> None:
        """Apply changes of block tables in order: freed tables may add keys, evictions remove the keys of blocks."""
        for row in changes:
            if int(row.kind) == MemoryKind.EVICT:
                for block in range(int(row.address), int(row.address + row.length)):
                    self._of_block.pop(block, None)
            elif int(row.kind) == MemoryKind.RELEASE:
                group = int(row.group)
                index, block, key = self._next.pop((int(row.request) + 1, group), (NEVER, 0, 0))
                if index < row.cached:
                    self._of_block.setdefault(block, set()).add((group, key))

    def note(self, numbers: Iterable[int]) -> None:
        """Update the keys of the sequences `numbers`, which have block tables."""
        engine = self._driver.engine
        for group in self._groups:
            record = engine.groups[group]
            hash_tokens = record.block_size // record.hashes_per_block
            for number in numbers:
                sequence = engine.sequences[number]
                tokens = int(sequence.prompt_tokens) - (self._rule is SecondKey.BEFORE_LAST)
                num_hashes = tokens // hash_tokens
                index = num_hashes // record.hashes_per_block
                table = table_of(engine, sequence, group)
                if num_hashes % record.hashes_per_block == 0 or index >= table.num_blocks:
                    continue
                # A hash beyond the known keys of the prompt is unique to the sequence: a negative number is no hash.
                key = -number << 32 | num_hashes
                if num_hashes <= sequence.num_keys:
                    key = int(engine.prompt_keys[sequence.first_key + num_hashes - 1])
                block = int(engine.entries[table.begin + index])
                self._next[number, group] = index, block, key
                if index < table.num_cached:
                    self._of_block.setdefault(block, set()).add((group, key))
