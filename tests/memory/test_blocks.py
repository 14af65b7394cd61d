"""The block pool against a model that keeps the free queue as one plain list, as vLLM V1's rules are written down."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.errors import BudgetError, IntegrityError
from kvsim.memory.blocks import NULL_BLOCK, BlockPool


class ListPool:
    """The rules, word for word: one queue from head to tail, one list of (key, block) in order of registration."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks))
        self.refs = dict.fromkeys(range(1, num_blocks), 0)
        self.registered: list[tuple[int, int]] = []

    def key(self, block: int) -> int | None:
        return next((key for key, holder in self.registered if holder == block), None)

    def find(self, key: int) -> int | None:
        return next((block for known, block in self.registered if known == key), None)

    def take(self, num_blocks: int) -> tuple[list[int], list[int]]:
        taken, evicted = [self.queue.pop(0) for _ in range(num_blocks)], []
        for block in taken:
            if self.key(block) is not None:
                evicted.append(block)
                self.registered = [entry for entry in self.registered if entry[1] != block]
            self.refs[block] = 1
        return taken, evicted

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1

    def give(self, blocks: list[int]) -> None:
        unkeyed: list[int] = []
        keyed: list[int] = []
        for block in blocks:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                (unkeyed if self.key(block) is None else keyed).append(block)
        self.queue = unkeyed + self.queue + keyed


class BlockPoolMachine(RuleBasedStateMachine):
    """Tables that take, share, fill and give back blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[int]] = []

    @initialize(num_blocks=st.integers(2, 14))
    def make(self, num_blocks: int) -> None:
        self.pool, self.model = BlockPool(num_blocks), ListPool(num_blocks)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        num_blocks = data.draw(st.integers(0, len(self.model.queue)))
        taken = self.pool.take(num_blocks)
        assert taken == self.model.take(num_blocks)
        self.tables.append(taken[0])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), key=st.integers(0, 5))
    def register(self, data: st.DataObject, key: int) -> None:
        """Fill a block; equal prefixes may be held by several."""
        bare = [block for table in self.tables for block in table if self.model.key(block) is None]
        if bare:
            block = data.draw(st.sampled_from(bare))
            self.pool.register(block, key)
            self.model.registered.append((key, block))

    @rule(keys=st.lists(st.integers(0, 5), max_size=4, unique=True))
    def hit(self, keys: list[int]) -> None:
        found = [self.pool.find(key) for key in keys]
        assert found == [self.model.find(key) for key in keys]
        hits = [block for block in found if block is not None]
        self.pool.touch(hits)
        self.model.touch(hits)
        self.tables.append(hits)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.give(table[::-1])
        self.model.give(table[::-1])

    @rule()
    def reset(self) -> None:
        in_use = any(self.model.refs.values())
        assert self.pool.reset_prefix_cache() is not in_use
        if not in_use:
            self.model.registered.clear()
            assert self.pool.num_cached == self.pool.num_keys == 0

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        assert self.pool.free_queue() == self.model.queue
        assert self.pool.num_free == len(self.model.queue)
        assert self.pool.num_cached == sum(self.model.key(block) is not None for block in self.model.queue)
        assert self.pool.num_keys == len({key for key, _ in self.model.registered})
        for block, refs in self.model.refs.items():
            assert self.pool.refs(block) == refs
            assert self.pool.key(block) == self.model.key(block)


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_blocks_are_handed_out_in_ascending_order_and_never_the_null_block() -> None:
    pool = BlockPool(5)
    assert (pool.num_usable, pool.num_free) == (4, 4)
    assert pool.take(4) == ([1, 2, 3, 4], [])
    assert pool.refs(NULL_BLOCK) == 0


def test_one_table_given_back_puts_bare_blocks_in_front_and_prefixes_behind() -> None:
    pool = BlockPool(7)
    table, _ = pool.take(4)
    for block in (1, 2, 3):
        pool.register(block, 100 + block)
    pool.give(table[::-1])
    assert pool.free_queue() == [4, 5, 6, 3, 2, 1]
    assert pool.take(4) == ([4, 5, 6, 3], [3])
    assert pool.find(103) is None
    assert pool.find(102) == 2


def test_the_first_holder_of_a_key_is_found_until_it_loses_it() -> None:
    pool = BlockPool(3)
    pool.take(2)
    pool.register(2, 9)
    pool.register(1, 9)
    assert pool.find(9) == 2
    pool.give([2])
    pool.take(1)
    assert pool.find(9) == 1


def test_the_queue_may_begin_in_any_order() -> None:
    assert BlockPool(4, [3, 1, 2]).take(2) == ([3, 1], [])


@pytest.mark.parametrize("num_blocks", [-1, 0, 1])
def test_a_pool_without_usable_blocks_is_refused(num_blocks: int) -> None:
    with pytest.raises(BudgetError, match=f"a pool of {num_blocks} blocks has none to hand out"):
        BlockPool(num_blocks)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda pool: pool._unkeyed.pop(), "2 free \\+ 1 in use != 4 usable blocks"),
        (lambda pool: pool._unkeyed.append(4), "4 free \\+ 1 in use != 4 usable blocks"),
        (lambda pool: pool._refs.__setitem__(4, 1), "3 free \\+ 2 in use != 4 usable blocks"),
        (lambda pool: pool.register(4, 8), "free block 4 stands on the wrong side of the queue"),
        (lambda pool: pool.register(NULL_BLOCK, 8), "block 0 was handed out"),
        (lambda pool: pool._key_of.__setitem__(1, 8), "the blocks disagree about their keys"),
        (lambda pool: pool._unkeyed.__setitem__(0, 1), "block 1 is free and has 1 references"),
    ],
)
def test_a_damaged_book_is_noticed(damage: object, complaint: str) -> None:
    pool = BlockPool(5)
    pool.take(1)
    pool.register(1, 7)
    pool.check_integrity()
    damage(pool)  # type: ignore[operator]
    if "references" in complaint:
        pool._refs[4] = 0
    with pytest.raises(IntegrityError, match=complaint):
        pool.check_integrity()
