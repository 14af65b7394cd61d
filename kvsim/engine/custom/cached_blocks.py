"""The prefix cache as a custom policy's eviction rule sees it, and the free blocks from which the rule chooses.

The prefixes form a tree: the parent of a block is the block before it in the prompt. `CachedBlocks` observes every
change of the prefix cache. It keeps the free blocks in the order of the free queue and, if the policy's rule ranks
blocks, also in a heap.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from kvsim.engine.paged import prefix_hits
from kvsim.engine.records import Sequence as Request
from kvsim.engine.state import NO_KEY, Engine, table_of
from kvsim.errors import PolicyError, UsageError, shortened
from kvsim.policies.custom import Candidates, ServedRequest


class Cached:
    """A block of the prefix cache, as the eviction rule of a custom policy sees it."""

    __slots__ = (
        "_tree", "cached_s", "end_tokens", "heap_entry", "key", "last_used_s", "num_hits", "parent_key", "place",
        "rank", "request", "tokens", "unit",
    )  # fmt: skip

    def __init__(self, tree: CachedBlocks, unit: int, key: int, request: ServedRequest) -> None:
        self._tree, self.unit, self.key, self.request = tree, unit, key, request
        self.parent_key = NO_KEY
        self.tokens = self.end_tokens = self.num_hits = 0
        self.cached_s = self.last_used_s = 0.0
        self.rank: Any = None
        """Latest rank that the policy's rule gave the block; None if it was never ranked."""
        self.heap_entry: int | None = None
        """Number of the block's valid entry in the heap of ranked free blocks, by order of pushing; or None."""
        self.place = 0
        """Index of the block's row in `FreeColumns`. Valid only while the block is free."""

    def __repr__(self) -> str:
        return f"<block {self.unit}: {self.end_tokens} tokens of a prefix, {self.num_hits} hits>"

    @property
    def tokens_below(self) -> int:
        """Number of tokens in the cached blocks that continue this block's prefix."""
        return self._tree.tokens_below(self.key)


class CachedBlocks:
    """The prefix cache of one engine, block by block."""

    def __init__(self, rank: Callable[[Cached], Any] | None = None) -> None:
        """Begin with an empty cache. If `rank` is None, no block is ranked, and `first_ranked` must not be called."""
        self._by_id: dict[int, Cached] = {}
        self.free_blocks: OrderedDict[int, Cached] = OrderedDict()
        """Cached blocks that no table holds, by block id, the least recently freed first."""
        self._alike: defaultdict[int, dict[int, Cached]] = defaultdict(dict)
        """Cached blocks by their key and then by block id: several blocks may hold the same prefix."""
        self._continued: defaultdict[int, set[int]] = defaultdict(set)
        """Keys of the cached prefixes that are one block longer than a prefix, by the key of that prefix."""
        self._below: dict[int, int] | None = None
        """Number of tokens in the cached blocks that continue a prefix, by the key of the prefix. None until
        `tokens_below` is called for the first time.
        """
        self._rank = rank
        self._ranked: list[tuple[Any, int, Cached]] = []
        """Heap of free blocks: (rank, entry number, block). An entry is outdated if not the block's `heap_entry`."""
        self._entry_numbers = count()
        self._columns: FreeColumns | None = None
        """Table of the free blocks; None until `columns` is called for the first time."""

    def columns(self) -> FreeColumns:
        """Return the attributes of the free blocks as a table. It is kept up to date from the first call on."""
        if self._columns is None:
            self._columns = FreeColumns(self.free_blocks.values())
        return self._columns

    def _take(self, block: int) -> None:
        cached = self.free_blocks.pop(block, None)
        if cached is not None and self._columns is not None:
            self._columns.remove(cached)

    def add(self, engine: Engine, sequence: Request, request: ServedRequest, group: int, index: int) -> None:
        """Add the block in entry `index` of the sequence's table in `group`, which was put into the prefix cache.
        `sequence` is the engine's record of a request, and `request` is the policy's view of it.
        """
        table, tokens = table_of(engine, sequence, group), engine.groups[group].block_size
        unit = engine.entries[table.begin + index]
        cached = Cached(self, unit, engine.blocks[unit].key, request)
        cached.tokens, cached.end_tokens = tokens, (index + 1) * tokens
        cached.cached_s = cached.last_used_s = engine.state.host_s
        if index > 0:
            cached.parent_key = prefix_hits.key_of(engine, sequence, group, index - 1)
        self._by_id[unit] = cached
        alike = self._alike[cached.key]
        alike[unit] = cached
        if len(alike) == 1:
            self._continued[cached.parent_key].add(cached.key)
            if self._below is not None:
                self._below[cached.key] = self._count_below(cached.key)
                self._add_above(cached, tokens + self._below[cached.key])

    def hit(self, block: int, request: ServedRequest) -> None:
        """Count a hit of a cached block, with which `request` is admitted. The block is no longer free."""
        cached = self._by_id[block]
        cached.num_hits += 1
        cached.request = request
        cached.heap_entry = None
        self._take(block)

    def free(self, block: int, now_s: float) -> None:
        """Make a block, which was freed at `now_s` and is in no table, a candidate for eviction, if it is cached."""
        if (cached := self._by_id.get(block)) is not None:
            self.free_blocks[block] = cached
            cached.last_used_s = now_s
            if self._columns is not None:
                self._columns.append(cached)
            if self._rank is not None:
                self._push(cached, self._rank(cached))

    def first_ranked(self) -> Cached:
        """Pop the free block with the smallest rank, the first ranked among equals, from the heap. One must be free."""
        while self._ranked:
            _, entry, cached = heappop(self._ranked)
            if cached.heap_entry == entry:
                return cached
        raise AssertionError("no free block keeps a prefix")

    def remove(self, block: int) -> None:
        """Remove an evicted block from the prefix cache."""
        cached = self._by_id.pop(block)
        self._take(block)
        cached.heap_entry = None
        alike = self._alike[cached.key]
        del alike[block]
        if alike:
            return
        del self._alike[cached.key]
        siblings = self._continued[cached.parent_key]
        siblings.remove(cached.key)
        if not siblings:
            del self._continued[cached.parent_key]
        if self._below is not None:
            self._add_above(cached, -cached.tokens - self._below.pop(cached.key))
        if self._rank is not None:
            self._rank_again(cached)

    def tokens_below(self, key: int) -> int:
        """Return the number of tokens in cached blocks that continue the prefix `key`. Equal prefixes count once."""
        if self._below is None:
            self._below = {}
            # Longest prefixes first, so that all continuations of a prefix are counted before it.
            for each in [cached.key for cached in sorted(self._by_id.values(), key=lambda block: -block.end_tokens)]:
                self._below[each] = self._count_below(each)
        return self._below.get(key, 0)

    def _count_below(self, key: int) -> int:
        assert self._below is not None
        longer = self._continued.get(key, ())
        return sum(next(iter(self._alike[each].values())).tokens + self._below[each] for each in longer)

    def _add_above(self, cached: Cached, tokens: int) -> None:
        """Add `tokens` to the counts of all cached prefixes that the prefix of `cached` continues."""
        assert self._below is not None
        while cached.parent_key in self._alike:
            self._below[cached.parent_key] += tokens
            above = self._alike[cached.parent_key]
            if self._columns is not None:
                for each in above.values():
                    self._columns.add_below(each, tokens)
            cached = next(iter(above.values()))

    def _rank_again(self, evicted: Cached) -> None:
        """Rank the free ancestors of an evicted block again, from its parent upwards. Several blocks may hold the
        prefix of one ancestor; stop at the first ancestor of which no block changes its rank.
        """
        assert self._rank is not None
        while evicted.parent_key in self._alike:
            has_changed = False
            for cached in self._alike[evicted.parent_key].values():
                if cached.heap_entry is not None and (rank := self._rank(cached)) != cached.rank:
                    self._push(cached, rank)
                    has_changed = True
            if not has_changed:
                return
            evicted = cached

    def _push(self, cached: Cached, rank: Any) -> None:
        cached.rank, cached.heap_entry = rank, next(self._entry_numbers)
        try:
            heappush(self._ranked, (rank, cached.heap_entry, cached))
        except TypeError as error:
            raise PolicyError(
                f"eviction_rank returned {shortened(rank)}, which cannot be compared with an earlier rank: {error}."
            ) from error


_COLUMNS = ("unit", "key", "end_tokens", "num_hits", "tokens_below", "cached_s", "last_used_s")
_ROW = np.dtype({"names": _COLUMNS, "formats": [np.int64] * 5 + [np.float64] * 2})
_FEWEST_ROWS = 64


class FreeColumns:
    """A table of the free blocks that are in the prefix cache: a row for each block, in the order of freeing.

    A removed block leaves an empty row. Empty rows are removed only when the table is full, so that the mean time of a
    change does not grow with the pool.
    """

    def __init__(self, blocks: Iterable[Cached]) -> None:
        self._blocks: list[Cached | None] = list(blocks)
        self._counts_below = False
        self._rows: npt.NDArray[np.intp] | None = None
        self._rebuild(max(2 * len(self._blocks), _FEWEST_ROWS))

    def append(self, cached: Cached) -> None:
        """Append a row for a block. If the table is full, remove its empty rows first."""
        if len(self._blocks) == len(self._is_there):
            self._blocks = [block for block in self._blocks if block is not None]
            self._rebuild(max(2 * len(self._blocks), _FEWEST_ROWS))
        self._blocks.append(cached)
        self._write(len(self._blocks) - 1, cached)
        self._rows = None

    def remove(self, cached: Cached) -> None:
        """Mark the row of a block as empty."""
        self._blocks[cached.place] = None
        self._is_there[cached.place] = False
        self._rows = None

    def add_below(self, cached: Cached, tokens: int) -> None:
        """Add `tokens` to the column `tokens_below` of a block, if the block is free and the column was read."""
        if self._counts_below and cached.place < len(self._blocks) and self._blocks[cached.place] is cached:
            self._table["tokens_below"][cached.place] += tokens

    def rows(self) -> npt.NDArray[np.intp]:
        """Return the indices of the rows that are not empty."""
        if self._rows is None:
            self._rows = np.flatnonzero(self._is_there[: len(self._blocks)])
        return self._rows

    def block(self, index: int) -> Cached:
        """Return the block of row `index`, where empty rows are not counted."""
        found = self._blocks[int(self.rows()[index])]
        assert found is not None
        return found

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return an attribute of all blocks, in the order of their rows. Its name must be one of `_COLUMNS`."""
        if name not in _COLUMNS:
            raise UsageError(f"candidates have no column {name!r}; there are {', '.join(_COLUMNS)}.")
        if name == "tokens_below" and not self._counts_below:
            self._counts_below = True
            for place in self.rows().tolist():
                self._write(place, self._blocks[place])
        return self._table[name][self.rows()]

    def _rebuild(self, num_rows: int) -> None:
        self._table = np.zeros(num_rows, _ROW)
        self._is_there = np.zeros(num_rows, np.bool_)
        for place, cached in enumerate(self._blocks):
            self._write(place, cached)
        self._rows = None

    def _write(self, place: int, cached: Cached | None) -> None:
        assert cached is not None
        cached.place = place
        below = cached.tokens_below if self._counts_below else 0
        self._table[place] = (
            cached.unit, cached.key, cached.end_tokens, cached.num_hits, below, cached.cached_s, cached.last_used_s
        )  # fmt: skip
        self._is_there[place] = True


class FreeBlocks(Candidates):
    """The candidates for eviction: the free blocks of the prefix cache, the least recently freed first."""

    def __init__(self, cached: CachedBlocks) -> None:
        self._cached, self._free = cached, cached.free_blocks

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return an attribute of all candidates, in their order. Its name must be one of `_COLUMNS`."""
        return self._cached.columns().column(name)

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[Cached]:
        return iter(self._free.values())

    @overload
    def __getitem__(self, index: int) -> Cached: ...
    @overload
    def __getitem__(self, index: slice) -> list[Cached]: ...
    def __getitem__(self, index: int | slice) -> Cached | list[Cached]:
        if isinstance(index, slice):
            return list(iter(self))[index]
        if index == 0 and len(self):
            return next(iter(self))
        return self._cached.columns().block(index)

    def __contains__(self, block: object) -> bool:
        return isinstance(block, Cached) and self._free.get(block.unit) is block
