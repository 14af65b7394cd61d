"""The block pool and its prefixes against a model that keeps the free queue as one plain list, as vLLM's rules say."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.engine.coefficients import no_times
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.paged import block_pool, prefix_cache
from kvsim.engine.state import NO_KEY
from kvsim.errors import IntegrityError
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation.full_check import check

from .by_hand import arrived, demand_of, driver_of


def test_a_bucket_lists_a_block_once_however_often_it_is_offered_and_until_it_is_evicted() -> None:
    """A bucket that lists a block twice, or one that was taken, has no end."""
    engine = driver_of(Paged(cache=PagedSettings(block_size=1)), 3, (3, 1)).engine
    blocks, key = [block_pool.allocate(engine)[0] for _ in range(3)], 5

    def listed() -> list[int]:
        found, block = list[int](), int(engine.buckets[prefix_cache.bucket_of(engine, key)].first)
        while block != prefix_cache.NO_BLOCK and len(found) < 9:
            found.append(block)
            block = int(engine.blocks[block].next_in_bucket)
        return found

    for block in blocks:
        prefix_cache.cache(engine, block, key)
        prefix_cache.offer(engine, block)
    assert listed() == blocks
    prefix_cache.evict(engine, blocks[1])
    assert listed() == [blocks[0], blocks[2]]


class ListPool:
    """The rules, word for word: one queue from head to tail, one list of (key, block) in the order of caching.

    A key below zero is found once its block was offered.
    """

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks))
        self.refs = dict.fromkeys(range(1, num_blocks), 0)
        self.cached: list[tuple[int, int]] = []
        self.offered: list[tuple[int, int]] = []

    def key(self, block: int) -> int:
        return next((key for key, holder in self.cached if holder == block), NO_KEY)

    def find(self, key: int) -> int:
        return next((block for known, block in self.offered if known == key), 0)

    def cache(self, block: int, key: int) -> None:
        self.cached.append((key, block))
        if key >= 0:
            self.offer(block)

    def offer(self, block: int) -> None:
        entry = (self.key(block), block)
        if entry in self.cached and entry not in self.offered:
            self.offered.append(entry)

    def take(self, num_blocks: int) -> list[tuple[int, bool]]:
        taken = []
        for _ in range(num_blocks):
            block = self.queue.pop(0)
            taken.append((block, self.key(block) != NO_KEY))
            self.cached = [entry for entry in self.cached if entry[1] != block]
            self.offered = [entry for entry in self.offered if entry[1] != block]
            self.refs[block] = 1
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1

    def give(self, table: list[int]) -> None:
        bare: list[int] = []
        keyed: list[int] = []
        for block in reversed(table):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                (bare if self.key(block) == NO_KEY else keyed).append(block)
        self.queue = bare + self.queue + keyed


class BlockPoolMachine(RuleBasedStateMachine):
    """Tables that take, share, fill and give back blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[int]] = []

    @initialize(num_blocks=st.integers(2, 14), shuffled=st.randoms(use_true_random=False))
    def make(self, num_blocks: int, shuffled: object) -> None:
        self.model = ListPool(num_blocks)
        shuffled.shuffle(self.model.queue)  # type: ignore[attr-defined]
        policy = Paged(cache=PagedSettings(block_size=1))
        self.driver = driver_of(policy, num_blocks - 1, (num_blocks, 1), initial_free=list(self.model.queue))
        self.engine = self.driver.engine

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        num_blocks = data.draw(st.integers(0, len(self.model.queue)))
        taken = [block_pool.allocate(self.engine) for _ in range(num_blocks)]
        assert taken == self.model.take(num_blocks)
        self.tables.append([block for block, _ in taken])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), key=st.integers(-3, 5))
    def fill(self, data: st.DataObject, key: int) -> None:
        """Equal prefixes may be held by several blocks; all keys but a few are in the same bucket sometimes."""
        bare = [block for table in self.tables for block in table if self.model.key(block) == NO_KEY]
        if bare:
            block = data.draw(st.sampled_from(bare))
            prefix_cache.cache(self.engine, block, key)
            self.model.cache(block, key)

    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(list(self.model.refs)))
        prefix_cache.offer(self.engine, block)
        self.model.offer(block)

    @rule(keys=st.lists(st.integers(-3, 5), max_size=4, unique=True))
    def hit(self, keys: list[int]) -> None:
        found = [prefix_cache.find(self.engine, key) for key in keys]
        assert found == [self.model.find(key) for key in keys]
        hits = [block for block in found if block != prefix_cache.NO_BLOCK]
        for block in hits:
            block_pool.touch(self.engine, block)
        self.model.touch(hits)
        self.tables.append(hits)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        # A table begins with the null block where its first tokens are not needed any more.
        for index, block in enumerate([block_pool.NULL_BLOCK, *table]):
            self.engine.entries[index] = block
        block_pool.free(self.engine, 0, len(table) + 1, reuses_first=True)
        self.model.give(table)

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "driver"):
            return
        state = self.engine.state
        assert self.driver.free_queue() == self.model.queue
        assert state.num_free == len(self.model.queue)
        assert state.num_cached == sum(self.model.key(block) != NO_KEY for block in self.model.queue)
        for block, refs in self.model.refs.items():
            assert self.engine.blocks[block].refs == refs
            assert self.engine.blocks[block].key == self.model.key(block)


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_keys_of_all_sizes_are_found_in_a_crowded_bucket() -> None:
    driver = driver_of(Paged(cache=PagedSettings(block_size=1)), 9, (9, 1))
    engine, keys = driver.engine, [0, -1, 1 << 40, (1 << 62) + 5, -(1 << 62), 7, 8, 9, 10]
    for key in keys:
        block, _ = block_pool.allocate(engine)
        prefix_cache.cache(engine, block, key)
        prefix_cache.offer(engine, block)
    assert [prefix_cache.find(engine, key) for key in keys] == list(range(1, 10))
    assert prefix_cache.find(engine, 11) == prefix_cache.NO_BLOCK


def damaged_refs(engine: object) -> None:
    engine.blocks[1].refs += 1  # type: ignore[attr-defined]


def damaged_free(engine: object) -> None:
    engine.state.num_free -= 1  # type: ignore[attr-defined]


def damaged_cached(engine: object) -> None:
    engine.state.num_cached += 1  # type: ignore[attr-defined]


def damaged_written(engine: object) -> None:
    engine.state.written += 1  # type: ignore[attr-defined]


def damaged_useful(engine: object) -> None:
    engine.state.useful -= 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (damaged_refs, r"block 1 has 2 references and is in 1 tables"),
        (damaged_free, r"8 blocks are in the free queue, 7 are counted"),
        (damaged_cached, r"0 free blocks hold a prefix, 1 are counted"),
        (damaged_written, r"8 slots are token, and by the running totals 9"),
        (damaged_useful, r"0 slots are reserved, and by the running totals -1"),
    ],
)
def test_a_damaged_account_is_noticed(damage: object, complaint: str) -> None:
    driver = arrived(Paged(cache=PagedSettings(block_size=4)), 10, (8, 4))
    driver.schedule()
    check(driver)
    damage(driver.engine)  # type: ignore[operator]
    with pytest.raises(IntegrityError, match=complaint):
        check(driver)


def test_a_pool_of_more_blocks_than_any_server_has_is_refused_before_it_is_made() -> None:
    """A model of a few bytes a token on a large GPU: a block is a record, and tens of millions take gigabytes."""
    from kvsim.errors import BudgetError

    with pytest.raises(BudgetError, match=r"the pool has 5,000,000 blocks of 4 tokens, and at most 4,194,304 are"):
        driver_of(Paged(cache=PagedSettings(block_size=4)), 5_000_000, (8, 4))


@pytest.mark.parametrize(("ahead", "num_in_flight"), [(False, 1), (True, 2)])
def test_blocks_that_are_freed_late_have_a_table_for_each_step_in_flight(*, ahead: bool, num_in_flight: int) -> None:
    scheduler = ContinuousSettings(max_num_seqs=3, async_scheduling=ahead, vllm="0.25.1")
    policy = Paged(scheduler=scheduler, cache=PagedSettings(block_size=4, kv_offloading_size=1))
    driver = driver_of(policy, 10, *[(8, 4)] * 100, unit_bytes=1 << 20)
    assert driver.engine.state.num_free_places == 3 + 3 * num_in_flight + 10, "run, freed late, load"


def test_a_table_for_every_sequence_has_to_fit_into_memory() -> None:
    from kvsim.errors import BudgetError

    requests = [(1 << 20, 1)] * 600
    scheduler = ContinuousSettings(max_num_seqs=1024, max_num_batched_tokens=16384, max_model_len=1 << 21)
    policy = Paged(scheduler=scheduler, cache=PagedSettings(block_size=1))
    import numpy as np

    with pytest.raises(BudgetError, match="600 sequences of up to 1,048,577 tokens in blocks of 1 need tables of"):
        EnginePlan(demand_of(*requests), policy, 1 << 22, no_times(), refused=np.zeros(600, np.bool_)).build()
