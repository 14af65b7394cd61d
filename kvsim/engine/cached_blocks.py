"""The free blocks that keep a prefix, as an eviction rule of a custom policy sees them.

The prefixes form a tree: a block's parent is the block before it in the prompt. `CachedBlocks` follows the prefix cache
event by event, and keeps the free blocks in the order of the free queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import overload

from kvsim.engine import prefix_hits
from kvsim.engine.records import Sequence as Request
from kvsim.engine.state import NO_KEY, Engine, table_of
from kvsim.policies.custom import ServedRequest


class Cached:
    """A block of the prefix cache."""

    __slots__ = (
        "_tree", "cached_s", "end_tokens", "key", "last_used_s", "num_hits", "parent_key", "request", "tokens", "unit"
    )  # fmt: skip

    def __init__(self, tree: CachedBlocks, unit: int, key: int, request: ServedRequest) -> None:
        self._tree, self.unit, self.key, self.request = tree, unit, key, request
        self.parent_key = NO_KEY
        self.tokens = self.end_tokens = self.num_hits = 0
        self.cached_s = self.last_used_s = 0.0

    def __repr__(self) -> str:
        return f"<block {self.unit}: {self.end_tokens} tokens of a prefix, {self.num_hits} hits>"

    @property
    def tokens_below(self) -> int:
        """Tokens in cached blocks that continue this prefix."""
        return self._tree.tokens_below(self.key)


class CachedBlocks:
    """The prefix cache of one engine, block by block."""

    def __init__(self) -> None:
        self._by_unit: dict[int, Cached] = {}
        self.free_blocks: OrderedDict[int, Cached] = OrderedDict()
        """The blocks that no table holds, by block id, the least recently freed first."""
        self._children: dict[int, dict[int, Cached]] = {}
        """The cached blocks that continue a prefix, by block id."""

    def add(self, engine: Engine, sequence: Request, request: ServedRequest, group: int, index: int) -> None:
        """Add the block of entry `index` of a table."""
        table, tokens = table_of(engine, sequence, group), engine.groups[group].block_size
        unit = engine.entries[table.begin + index]
        cached = Cached(self, unit, engine.blocks[unit].key, request)
        cached.tokens, cached.end_tokens = tokens, (index + 1) * tokens
        cached.cached_s = cached.last_used_s = engine.state.host_s
        if index > 0:
            cached.parent_key = prefix_hits.key_of(engine, sequence, group, index - 1)
            self._children.setdefault(cached.parent_key, {})[unit] = cached
        self._by_unit[unit] = cached

    def hit(self, unit: int, request: ServedRequest) -> None:
        """Note that a request was admitted with block `unit`."""
        cached = self._by_unit[unit]
        cached.num_hits += 1
        cached.request = request
        self.free_blocks.pop(unit, None)

    def free(self, unit: int, now_s: float) -> None:
        """Note that no table holds block `unit` from `now_s` on; ignore a block that keeps no prefix."""
        if (cached := self._by_unit.get(unit)) is not None:
            self.free_blocks[unit] = cached
            cached.last_used_s = now_s

    def remove(self, unit: int) -> None:
        """Remove a block that is evicted."""
        cached = self._by_unit.pop(unit)
        del self.free_blocks[unit]
        if siblings := self._children.get(cached.parent_key):
            del siblings[unit]
            if not siblings:
                del self._children[cached.parent_key]

    def tokens_below(self, key: int) -> int:
        """Count the tokens in cached blocks that continue the prefix `key`, each prefix once."""
        total, ahead, seen = 0, [key], {key}
        while ahead:
            for child in self._children.get(ahead.pop(), {}).values():
                if child.key not in seen:
                    seen.add(child.key)
                    ahead.append(child.key)
                    total += child.tokens
        return total


class Candidates(Sequence[Cached]):
    """The free blocks that keep a prefix, the least recently freed first."""

    def __init__(self, cached: CachedBlocks) -> None:
        self._free = cached.free_blocks

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[Cached]:
        return iter(self._free.values())

    @overload
    def __getitem__(self, index: int) -> Cached: ...
    @overload
    def __getitem__(self, index: slice) -> list[Cached]: ...
    def __getitem__(self, index: int | slice) -> Cached | list[Cached]:
        if index == 0 and len(self):
            return next(iter(self))
        return list(self)[index]

    def __contains__(self, block: object) -> bool:
        return isinstance(block, Cached) and self._free.get(block.unit) is block
