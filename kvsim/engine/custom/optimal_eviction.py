"""Belady's rule over the known requests: evict the cached block whose next use is farthest in the future.

Requests are ordered by their expected admission. The next use of a block is the first request in this order that was
never admitted and whose prompt begins with the block's prefix. A block has no next use if there is no such request, or
if another cached block holds the same prefix. Preempted requests are admitted before all others, so blocks that they
can hit are evicted last. Among blocks with the same next use, the one with the longest prefix is evicted first.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush

from kvsim.engine import waiting_queue
from kvsim.engine.paged import prefix_hits
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.records import Sequence
from kvsim.engine.state import NO_KEY, PREEMPTED, WAITING, Engine, table_of

NEVER = 1 << 62
"""Position of the next use of a block that has none: after all requests."""


class OptimalEviction:
    """Belady's rule in one engine. It observes every change of the prefix cache."""

    def __init__(self, order: list[int]) -> None:
        """Begin with an empty cache. `order` has the requests' workload rows in the expected order of admission."""
        self._order = order
        self._uses: dict[int, list[int]] | None = None
        """Result of `_all_uses`, from which uses by admitted requests are removed; None until it is first needed."""
        self._blocks_of: defaultdict[int, set[int]] = defaultdict(set)
        """Cached blocks that hold a prefix, in use or free, by the key of the prefix."""
        self._end_tokens: dict[int, int] = {}
        """Number of tokens from the beginning of the prompt to the end of each cached block."""
        self._free: list[tuple[int, int, int, int]] = []
        """Heap of free cached blocks. An entry has the position of the block's next use and the number of tokens up to
        its end, both negated, then the block id and its key. Entries may be outdated.
        """
        self._without_prefix: list[int] = []
        """Blocks that held no prefix when they were freed; they are evicted first. A block that is in use or holds a
        prefix again is dropped when its turn comes.
        """
        self._preempted_keys: set[int] = set()
        """Keys that the preempted requests in the queue can hit."""
        self._keys_computed_at = (-1, -1)
        """(`State.num_scheduled`, `State.num_preempted`) of the `_preempted_keys`; (-1, -1) if never computed."""

    def choose_evicted(self, engine: Engine) -> int:
        """Return the id of the free block to evict, and remove it from the candidates."""
        while self._without_prefix:
            block = self._without_prefix.pop()
            if engine.blocks[block].refs == 0 and engine.blocks[block].key == NO_KEY:
                return block
        block, needed_soon = self._pop_farthest(engine)
        if block == NULL_BLOCK:
            assert needed_soon, "no free block keeps a prefix"
            block = min(needed_soon, key=lambda each: (-self._end_tokens[each], each))
            needed_soon.remove(block)
        for other in needed_soon:
            self._push(engine, other)
        self._forget(engine, block, engine.blocks[block].key)
        return block

    def _pop_farthest(self, engine: Engine) -> tuple[int, list[int]]:
        """Remove candidates from the heap up to the first one that no preempted request can hit. Return this block, or
        `NULL_BLOCK` if there is none, and the list of the blocks removed before it.
        """
        awaited, needed_soon = self._keys_of_preempted(engine), []
        while self._free:
            use, end, block, key = heappop(self._free)
            if engine.blocks[block].refs > 0 or engine.blocks[block].key != key:
                continue  # the block is in use or was evicted
            if (-use, -end) != self._next_use_and_end(engine, block, key):
                self._push(engine, block)  # its next use has changed
            elif key in awaited:
                needed_soon.append(block)
            else:
                return block, needed_soon
        return NULL_BLOCK, needed_soon

    def note_cached(self, engine: Engine, sequence: Sequence, group: int, index: int) -> None:
        """Add the block in entry `index` of the sequence's table in `group`, which was put into the prefix cache."""
        block = engine.entries[table_of(engine, sequence, group).begin + index]
        key = engine.blocks[block].key
        self._end_tokens[block] = (index + 1) * engine.groups[group].block_size
        for other in self._blocks_of[key]:
            self._push_if_free(engine, other)
        self._blocks_of[key].add(block)

    def note_hit(self, engine: Engine, sequence: Sequence, block: int) -> None:
        """Ignore the hit: `choose_evicted` passes over blocks that are in use."""

    def note_freed(self, engine: Engine, block: int) -> None:
        """Add a block that is in no table any longer to the candidates for eviction."""
        if engine.blocks[block].key == NO_KEY:
            self._without_prefix.append(block)
        else:
            self._push(engine, block)

    def _forget(self, engine: Engine, block: int, key: int) -> None:
        """Remove an evicted block. If exactly one other block holds the same prefix, it may have a next use now."""
        blocks = self._blocks_of[key]
        blocks.remove(block)
        if not blocks:
            del self._blocks_of[key]
        for other in blocks:
            self._push_if_free(engine, other)

    def _push_if_free(self, engine: Engine, block: int) -> None:
        if engine.blocks[block].refs == 0:
            self._push(engine, block)

    def _push(self, engine: Engine, block: int) -> None:
        key = engine.blocks[block].key
        use, end = self._next_use_and_end(engine, block, key)
        heappush(self._free, (-use, -end, block, key))

    def _next_use_and_end(self, engine: Engine, block: int, key: int) -> tuple[int, int]:
        """Return a block's next use in the order of admission, or `NEVER`, and the number of tokens up to its end."""
        use = NEVER if len(self._blocks_of[key]) > 1 else self._next_use(engine, key)
        return use, self._end_tokens[block]

    def _next_use(self, engine: Engine, key: int) -> int:
        """Return the position, in the order of admission, of the next waiting request that can hit `key`, or `NEVER`.
        Requests that were preempted are not counted.
        """
        if self._uses is None:
            self._uses = self._all_uses(engine)
        places = self._uses.get(key // engine.settings.num_groups)
        while places and engine.sequences[self._order[places[-1]] + 1].status != WAITING:
            places.pop()
        return places[-1] if places else NEVER

    def _all_uses(self, engine: Engine) -> dict[int, list[int]]:
        """Return, by key of `Engine.prompt_keys`, the positions in the order of admission of the requests that can hit
        the key: the last position first.
        """
        group, uses = engine.groups[0], defaultdict(list)
        hash_tokens = group.block_size // group.hashes_per_block
        for place in reversed(range(len(self._order))):
            sequence = engine.sequences[self._order[place] + 1]
            # The last token of a prompt is always computed, so the block that it ends is not looked up.
            num_keys = min(sequence.num_keys, (sequence.prompt_tokens - 1) // hash_tokens)
            if not sequence.is_refused:
                for index in range(sequence.first_key, sequence.first_key + num_keys):
                    uses[int(engine.prompt_keys[index])].append(place)
        return uses

    def _keys_of_preempted(self, engine: Engine) -> set[int]:
        state = engine.state
        if self._keys_computed_at != (state.num_scheduled, state.num_preempted):
            self._keys_computed_at = (state.num_scheduled, state.num_preempted)
            self._preempted_keys = {
                prefix_hits.key_of(engine, sequence, group, index)
                for number in waiting_queue.in_order(engine)
                if (sequence := engine.sequences[number]).status == PREEMPTED
                for group in range(engine.settings.num_groups)
                for index in range((sequence.num_tokens - 1) // engine.groups[group].block_size)
            }
        return self._preempted_keys
