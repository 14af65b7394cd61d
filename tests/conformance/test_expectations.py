"""What vLLM's own tests expect of full attention, in numbers: the pool, the cache manager, the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.engine.clock import SCHEDULED
from kvsim.engine.coefficients import no_times
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import Demand
from kvsim.engine.ownership import MemoryKind
from kvsim.engine.paged import block_pool, kv_cache, prefix_cache
from kvsim.engine.paged.prefix_keys import PrefixKeys
from kvsim.engine.state import NO_KEY, PREEMPTED, RUNNING
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, EngineDefaults, Order, PagedSettings
from kvsim.workload import Ragged

from .modes import in_every_way

if TYPE_CHECKING:
    from collections.abc import Sequence as Row

    from kvsim.engine.state import Engine


def driver_of(
    prompts: Row[int],
    num_blocks: int = 10_000,
    *,
    output: int = 16,
    priorities: Row[int] = (),
    arrivals: Row[float] = (),
    keys: Row[Row[int]] = (),
    block_size: int = 16,
    caching: bool = True,
    watermark: float = 0.0,
    compiled: bool = False,
    **settings: object,
) -> Driver:
    """An engine that knows requests with prompts of so many tokens, to be added by hand: the first is number 1."""
    size = len(prompts)
    chosen = {"max_model_len": 8192, "async_scheduling": False} | settings
    plan = EnginePlan(
        Demand(
            prompt=np.array(prompts, np.int64),
            output=np.full(size, output),
            limit=np.full(size, output),
            priority=np.array(priorities or [0] * size, np.int64),
            arrival_s=np.array(arrivals or range(size), np.float64),
            keys=Ragged.from_rows(keys or [[]] * size, np.int64),
        ),
        Paged(
            scheduler=ContinuousSettings(**chosen).limited(8192, EngineDefaults.LLM_LARGE),  # type: ignore[arg-type]
            cache=PagedSettings(block_size=block_size, enable_prefix_caching=caching, watermark=watermark),
        ),
        num_blocks - 1,
        no_times(),
        refused=np.zeros(size, np.bool_),
        records_memory=True,
    )
    return Driver(plan.build(compiled=compiled), compiled=compiled)


def arrived(*prompts: int, **options: object) -> Driver:
    """Such an engine whose requests have arrived."""
    driver = driver_of(prompts, **options)  # type: ignore[arg-type]
    for node in range(1, len(prompts) + 1):
        driver.add(node)
    return driver


class Cache:
    """A cache and prompts by hand. The outputs of the steps are never processed, so nothing goes on by itself."""

    def __init__(self, *prompts: Row[int], num_blocks: int, block_size: int = 16, caching: bool = True, compiled: bool):
        keys = PrefixKeys(block_size)
        self.driver = driver_of(
            [len(tokens) for tokens in prompts],
            num_blocks,
            output=100,
            keys=[keys.from_tokens(tokens) for tokens in prompts],
            block_size=block_size,
            caching=caching,
            compiled=compiled,
        )
        self._num_begun = 0

    @property
    def num_free(self) -> int:
        return len(self.driver.free_queue())

    def begin(self) -> tuple[int, list[int]]:
        """The next prompt arrives and is admitted, if there is room; return it and the blocks it hit."""
        self._num_begun += 1
        self.driver.add(self._num_begun)
        self.driver.schedule()
        hits = [
            int(row.address) + unit
            for row in self.driver.changes()
            if row.kind == MemoryKind.SHARE
            for unit in range(int(row.length))
        ]
        return self._num_begun, hits

    def blocks(self, node: int) -> list[int]:
        return self.driver.blocks(node)

    def key(self, block: int) -> int | None:
        key = int(self.driver.engine.blocks[block].key)
        return None if key == NO_KEY else key

    def num_keys(self) -> int:
        keys = {self.key(block) for block in range(len(self.driver.engine.blocks))}
        return len(keys - {None})

    def refs(self) -> list[int]:
        return [int(block.refs) for block in self.driver.engine.blocks]


def full(*values: int, size: int = 16) -> list[int]:
    """One full block of equal tokens for each value."""
    return [value for value in values for _ in range(size)]


@in_every_way
def test_freed_blocks_are_reused_tail_first_and_prefixes_last(compiled: bool) -> None:
    prompts = full(0, 1, 2) + [3] * 7, full(0, 1, 2) + [4] * 5, list(range(1000, 1160))
    cache = Cache(*prompts, num_blocks=11, compiled=compiled)
    first, _ = cache.begin()
    assert cache.blocks(first) == [1, 2, 3, 4]
    sharer, hits = cache.begin()
    assert (hits, cache.blocks(sharer)) == ([1, 2, 3], [1, 2, 3, 5])
    cache.driver.abort(first)
    cache.driver.abort(sharer)
    order = [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert cache.driver.free_queue() == order
    stranger, hits = cache.begin()
    assert (hits, cache.blocks(stranger)) == ([], order)


@in_every_way
def test_prefixes_are_evicted_in_the_order_in_which_they_were_freed(compiled: bool) -> None:
    prompts = full(0, 1, 2, 3, 4) + [5] * 7, full(6, 7, 8), [*full(0, 1), 9, 9, 9]
    cache = Cache(*prompts, num_blocks=11, compiled=compiled)
    first, _ = cache.begin()
    second, _ = cache.begin()
    cache.driver.abort(first)
    assert cache.driver.free_queue() == [6, 10, 5, 4, 3, 2, 1]
    cache.driver.abort(second)
    assert cache.driver.free_queue() == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    again, hits = cache.begin()
    assert (hits, cache.blocks(again), cache.num_free) == ([1, 2], [1, 2, 6], 7)


@in_every_way
def test_a_block_is_cached_when_it_is_full(compiled: bool) -> None:
    cache = Cache(full(0, 1, 2) + [3] * 7, num_blocks=11, compiled=compiled)
    node, _ = cache.begin()
    for num_tokens, num_blocks in ((4, 4), (19, 5)):
        cache.driver.sequence(node).num_tokens += num_tokens
        cache.driver.schedule()
        assert len(cache.blocks(node)) == num_blocks
    assert cache.key(cache.blocks(node)[-2]) is not None
    assert cache.key(cache.blocks(node)[-1]) is None


@in_every_way
def test_a_reused_block_loses_its_key(compiled: bool) -> None:
    cache = Cache(full(0), [7] * 15, num_blocks=2, compiled=compiled)
    first, _ = cache.begin()
    key = cache.key(1)
    cache.driver.abort(first)
    second, _ = cache.begin()
    assert cache.blocks(second) == [1]
    assert cache.key(1) is None
    assert key is not None
    assert prefix_cache.find(cache.driver.engine, key) == prefix_cache.NO_BLOCK


@in_every_way
def test_a_hit_is_not_evicted_for_its_own_request(compiled: bool) -> None:
    cache = Cache(full(0), full(1), [*full(0), 5, 5], num_blocks=3, compiled=compiled)
    first, _ = cache.begin()
    second, _ = cache.begin()
    cache.driver.abort(first)
    cache.driver.abort(second)
    assert cache.driver.free_queue() == [1, 2]
    again, hits = cache.begin()
    assert (hits, cache.blocks(again)) == ([1], [1, 2])


@in_every_way
def test_without_prefix_caching_nothing_is_kept(compiled: bool) -> None:
    prompts = list(range(10)), list(range(16)), [1] * 4
    cache = Cache(*prompts, num_blocks=5, block_size=4, caching=False, compiled=compiled)
    first, _ = cache.begin()
    assert len(cache.blocks(first)) == 3
    cache.driver.abort(first)
    second, hits = cache.begin()
    assert (hits, len(cache.blocks(second)), cache.num_keys()) == ([], 4, 0)
    third, _ = cache.begin()
    assert (cache.blocks(third), cache.driver.waiting()) == ([], [third])


@in_every_way
def test_a_failed_admission_leaves_no_trace(compiled: bool) -> None:
    prompts = full(0, 1, 2), full(0, 1, 2, 3, 4, 5), full(10, 11), full(0, 1, 2, 3, 4, 5, 6, 7, 8)
    cache = Cache(*prompts, num_blocks=11, compiled=compiled)
    first, _ = cache.begin()
    second, _ = cache.begin()
    cache.driver.abort(second)  # its own three wait in the queue, the three it shared are held
    third, _ = cache.begin()
    refs, queue = cache.refs(), cache.driver.free_queue()
    engine, wanting = cache.driver.engine, 4
    assert len(queue) == 5
    if not compiled:  # a part of the engine, called from outside, runs over the objects of an interpreted one
        assert kv_cache.find_prefix(engine, engine.sequences[wanting]) // 16 == 6
    _, hits = cache.begin()
    assert (cache.driver.waiting(), hits, cache.driver.changes()) == ([wanting], [], [])
    assert (cache.refs(), cache.driver.free_queue()) == (refs, queue)
    assert (cache.blocks(wanting), len(cache.blocks(first)), len(cache.blocks(third))) == ([], 3, 2)


@in_every_way
def test_the_prefix_cache_lasts_only_until_its_blocks_are_taken(compiled: bool) -> None:
    """vLLM can also reset it; kvsim has no use for that. What takes every block has the same effect."""
    prompts = [*full(0, 1, 2), 3, 3], [*full(0, 1, 2), 4, 4], [9] * 160, [*full(0, 1, 2), 5, 5]
    cache = Cache(*prompts, num_blocks=11, compiled=compiled)
    first, _ = cache.begin()
    sharer, hits = cache.begin()
    assert (cache.blocks(first), cache.blocks(sharer)[len(hits) :]) == ([1, 2, 3, 4], [5])
    cache.driver.abort(first)
    cache.driver.abort(sharer)
    assert cache.num_keys() == 3
    everything, _ = cache.begin()
    cache.driver.abort(everything)
    assert cache.begin()[1] == []


def a_pool(num_blocks: int) -> tuple[Driver, Engine]:
    driver = driver_of([100], num_blocks)  # a table of that length has room for every block
    return driver, driver.engine


def take(engine: Engine, num_blocks: int) -> list[tuple[int, bool]]:
    """Take blocks from the pool; each, and whether it lost a prefix."""
    return [block_pool.allocate(engine) for _ in range(num_blocks)]


def give(engine: Engine, table: Row[int]) -> None:
    """Give a table back, the last block first."""
    for index, block in enumerate(table):
        engine.entries[index] = block
    block_pool.free(engine, 0, len(table), reuses_first=True)


def test_equal_blocks_are_both_kept_and_the_first_is_found() -> None:
    driver, engine = a_pool(4)
    first, second, third = (block for block, _ in take(engine, 3))
    for block in (second, first, third):
        prefix_cache.cache(engine, block, 77)
    assert prefix_cache.find(engine, 77) == second
    give(engine, [first, second])
    assert driver.free_queue() == [second, first]
    assert take(engine, 1) == [(second, True)]
    assert prefix_cache.find(engine, 77) == first
    take(engine, 1)
    assert prefix_cache.find(engine, 77) == third


def test_free_blocks_without_a_prefix_go_to_the_front_in_the_order_of_freeing() -> None:
    driver, engine = a_pool(7)
    take(engine, 5)
    give(engine, [2, 1])
    give(engine, [3, 5, 4])
    assert driver.free_queue() == [4, 5, 3, 1, 2, 6]


def test_a_table_is_freed_from_its_end_with_prefixes_behind() -> None:
    driver, engine = a_pool(7)
    take(engine, 4)
    for block in (1, 2, 3):
        prefix_cache.cache(engine, block, block)
    give(engine, [1, 2, 3, 4])
    assert driver.free_queue() == [4, 5, 6, 3, 2, 1]


@in_every_way
def test_a_free_hit_counts_against_the_free_blocks(compiled: bool) -> None:
    cache = Cache(full(0), [7] * 20, [*full(0), 1], num_blocks=4, compiled=compiled)
    first, _ = cache.begin()
    other, _ = cache.begin()
    cache.driver.abort(first)
    wanting, hits = cache.begin()
    # Two blocks are needed and one of them is the hit, which is free now and will not be.
    assert (hits, cache.blocks(wanting), cache.num_free) == ([], [], 1)
    cache.driver.abort(other)
    cache.driver.schedule()
    assert (cache.blocks(wanting)[0], len(cache.blocks(wanting)), cache.num_free) == (1, 2, 1)


@in_every_way
def test_long_prompts_take_turns_below_the_threshold(compiled: bool) -> None:
    driver = arrived(800, 800, 800, max_num_batched_tokens=1024, long_prefill_token_threshold=400, compiled=compiled)
    steps = []
    for _ in range(3):
        driver.schedule()
        steps.append(list(driver.batch().values()))
        driver.update()
    assert steps == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


@in_every_way
@pytest.mark.parametrize(("chunked", "expected"), [(True, [800, 224]), (False, [800])])
def test_the_head_of_the_queue_is_not_overtaken(chunked: bool, expected: list[int], compiled: bool) -> None:
    driver = arrived(800, 800, 10, 10, max_num_batched_tokens=1024, enable_chunked_prefill=chunked, compiled=compiled)
    driver.schedule()
    assert list(driver.batch().values()) == expected


@in_every_way
def test_a_preempted_request_still_gets_the_output_under_way(compiled: bool) -> None:
    driver = arrived(80, 80, num_blocks=11, caching=False, async_scheduling=True, max_num_seqs=2, compiled=compiled)
    driver.schedule()
    driver.schedule()
    assert driver.preempted() == [2]
    driver.update()
    first, second = driver.sequence(1), driver.sequence(2)
    assert (first.num_tokens, second.num_tokens) == (81, 81)
    assert (second.status, second.computed, driver.blocks(2)) == (PREEMPTED, 0, [])


@in_every_way
def test_a_resumed_request_computes_its_outputs_again(compiled: bool) -> None:
    driver = arrived(31, 31, output=3, num_blocks=5, caching=False, max_num_seqs=2, compiled=compiled)
    for _ in range(2):
        driver.schedule()
        driver.update()
    driver.schedule()
    assert (driver.preempted(), driver.sequence(2).num_tokens) == ([2], 33)
    driver.update()
    assert driver.running() == []
    driver.schedule()
    assert driver.batch() == {2: 33}


@in_every_way
def test_the_least_important_request_is_preempted(compiled: bool) -> None:
    driver = arrived(
        32, 32, 32, priorities=[0, 5, 1], num_blocks=7, caching=False, order=Order.PRIORITY, compiled=compiled
    )
    driver.schedule()
    driver.update()
    assert driver.running() == [1, 3, 2], "admitted in the order of importance: 0, 1, 5"
    driver.schedule()
    assert (driver.preempted(), list(driver.batch())) == ([2], [1, 3])


@in_every_way
def test_equal_priorities_are_served_in_order_of_arrival(compiled: bool) -> None:
    driver = arrived(10, 10, 10, 10, output=1, arrivals=[4.0, 1.0, 3.0, 2.0], order=Order.PRIORITY, compiled=compiled)
    driver.schedule()
    assert list(driver.batch()) == [2, 4, 3, 1]


@in_every_way
@pytest.mark.parametrize("output", [1, 2, 3, 5])
def test_a_stop_by_length_costs_no_extra_token(output: int, compiled: bool) -> None:
    driver = arrived(10, 20, 30, output=output, async_scheduling=True, compiled=compiled)
    total = 0
    while driver.has_work() or driver.engine.state.num_in_flight:
        if driver.next_moment() == SCHEDULED:
            total += sum(driver.batch().values())
    assert total == sum(prompt + output - 1 for prompt in (10, 20, 30))


@in_every_way
def test_a_twin_of_the_same_step_shares_what_is_not_computed_yet(compiled: bool) -> None:
    driver = arrived(100, 100, output=5, keys=[range(100 // 16)] * 2, compiled=compiled)
    driver.schedule()
    assert list(driver.batch().values()) == [100, 4]


@in_every_way
def test_the_last_block_of_a_prompt_is_always_computed(compiled: bool) -> None:
    driver = arrived(96, 96, output=5, keys=[range(6)] * 2, compiled=compiled)
    driver.schedule()
    assert list(driver.batch().values()) == [96, 16]


@in_every_way
def test_the_watermark_is_a_share_of_all_blocks(compiled: bool) -> None:
    driver = arrived(9 * 16, 16, output=1, num_blocks=20, watermark=0.5, compiled=compiled)
    driver.schedule()
    # 10 of 20 blocks stay free while anything runs, and 10 are: 0.5 of the 19 usable ones would let one more in.
    assert (driver.running(), driver.waiting()) == ([1], [2])
    driver.update()
    driver.schedule()
    assert (driver.running(), driver.sequence(2).status) == ([2], RUNNING)


@in_every_way
def test_the_watermark_does_not_hold_where_nothing_runs(compiled: bool) -> None:
    driver = arrived(15 * 16, output=1, num_blocks=20, watermark=0.5, compiled=compiled)
    driver.schedule()
    assert driver.running() == [1], "15 of 19 blocks, of which 10 should stay free while anything runs"
