"""What vLLM's own tests expect of full attention, in numbers: the pool, the cache manager, the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.memory.blocks import BlockPool
from kvsim.scheduling.continuous import ContinuousScheduler
from kvsim.scheduling.engine import Call, Scheduled, engine_moments
from kvsim.scheduling.journal import NoJournal
from kvsim.scheduling.keys import PrefixKeys
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Sequence, Status
from kvsim.scheduling.settings import ContinuousSettings, Order, PagedSettings

if TYPE_CHECKING:
    from collections.abc import Sequence as Row


class Cache:
    """A cache manager and requests by hand: `begin` admits a whole prompt."""

    def __init__(self, num_blocks: int, *, block_size: int = 16, caching: bool = True) -> None:
        self.pool = BlockPool(num_blocks)
        settings = PagedSettings(block_size=block_size, enable_prefix_caching=caching)
        self.manager = PagedManager(self.pool, settings, NoJournal(), max_model_len=8192)
        self._keys = PrefixKeys(block_size)
        self._num_requests = 0

    def request(self, tokens: Row[int]) -> Sequence:
        self._num_requests += 1
        return Sequence(self._num_requests, len(tokens), 100, 100, prompt_keys=self._keys.from_tokens(tokens))

    def begin(self, tokens: Row[int]) -> tuple[Sequence, list[int]]:
        """Admit a prompt; return it and the blocks it hit."""
        sequence = self.request(tokens)
        hits = list(self.manager.lookup(sequence))
        num_new = len(tokens) - self.manager.tokens_in(hits)
        assert self.manager.admit(sequence, num_new, hits, others_running=False)
        sequence.computed = len(tokens)
        return sequence, hits


def full(*values: int, size: int = 16) -> list[int]:
    """One full block of equal tokens for each value."""
    return [value for value in values for _ in range(size)]


def test_freed_blocks_are_reused_tail_first_and_prefixes_last() -> None:
    cache = Cache(11)
    first, _ = cache.begin(full(0, 1, 2) + [3] * 7)
    assert first.blocks == [1, 2, 3, 4]
    sharer, hits = cache.begin(full(0, 1, 2) + [4] * 5)
    assert (hits, sharer.blocks) == ([1, 2, 3], [1, 2, 3, 5])
    cache.manager.free(first)
    cache.manager.free(sharer)
    order = [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert cache.pool.free_queue() == order
    stranger, hits = cache.begin(list(range(1000, 1160)))
    assert (hits, stranger.blocks) == ([], order)


def test_prefixes_are_evicted_in_the_order_in_which_they_were_freed() -> None:
    cache = Cache(11)
    first, _ = cache.begin(full(0, 1, 2, 3, 4) + [5] * 7)
    second, _ = cache.begin(full(6, 7, 8))
    cache.manager.free(first)
    assert cache.pool.free_queue() == [6, 10, 5, 4, 3, 2, 1]
    cache.manager.free(second)
    assert cache.pool.free_queue() == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    again, hits = cache.begin([*full(0, 1), 9, 9, 9])
    assert (hits, again.blocks, cache.pool.num_free) == ([1, 2], [1, 2, 6], 7)


def test_a_block_is_registered_when_it_is_full() -> None:
    cache = Cache(11)
    sequence, _ = cache.begin(full(0, 1, 2) + [3] * 7)
    for num_tokens, num_blocks in ((4, 4), (19, 5)):
        sequence.num_tokens += num_tokens
        assert cache.manager.grow(sequence, num_tokens)
        sequence.computed += num_tokens
        assert len(sequence.blocks) == num_blocks
    assert cache.pool.key(sequence.blocks[-2]) is not None
    assert cache.pool.key(sequence.blocks[-1]) is None


def test_a_reused_block_loses_its_key() -> None:
    cache = Cache(2)
    first, _ = cache.begin(full(0))
    key = cache.pool.key(1)
    cache.manager.free(first)
    second, _ = cache.begin([7] * 15)
    assert second.blocks == [1]
    assert cache.pool.key(1) is None
    assert key is not None
    assert cache.pool.find(key) is None


def test_a_hit_is_not_evicted_for_its_own_request() -> None:
    cache = Cache(3)
    first, _ = cache.begin(full(0))
    second, _ = cache.begin(full(1))
    cache.manager.free(first)
    cache.manager.free(second)
    assert cache.pool.free_queue() == [1, 2]
    again, hits = cache.begin([*full(0), 5, 5])
    assert (hits, again.blocks) == ([1], [1, 2])


def test_without_prefix_caching_nothing_is_kept() -> None:
    cache = Cache(5, block_size=4, caching=False)
    first, _ = cache.begin(list(range(10)))
    assert len(first.blocks) == 3
    cache.manager.free(first)
    second, hits = cache.begin(list(range(16)))
    assert (hits, len(second.blocks), cache.pool.num_keys) == ([], 4, 0)
    assert not cache.manager.admit(cache.request([1] * 4), 4, [], others_running=True)


def test_a_failed_admission_leaves_no_trace() -> None:
    cache = Cache(11)
    first, _ = cache.begin(full(0, 1, 2))
    second, _ = cache.begin(full(0, 1, 2, 3, 4, 5))
    cache.manager.free(second)  # its own three wait in the queue, the three it shared are held
    third, _ = cache.begin(full(10, 11))
    wanting = cache.request(full(0, 1, 2, 3, 4, 5, 6, 7, 8))
    hits = cache.manager.lookup(wanting)
    refs = [cache.pool.refs(block) for block in range(11)]
    queue = cache.pool.free_queue()
    assert (len(hits), len(queue)) == (6, 5)
    assert not cache.manager.admit(wanting, 48, hits, others_running=True)
    assert [cache.pool.refs(block) for block in range(11)] == refs
    assert cache.pool.free_queue() == queue
    assert (wanting.blocks, len(first.blocks), len(third.blocks)) == ([], 3, 2)


def test_the_prefix_cache_is_reset_only_when_nothing_is_in_use() -> None:
    cache = Cache(11)
    first, _ = cache.begin([*full(0, 1, 2), 3, 3])
    sharer, hits = cache.begin([*full(0, 1, 2), 4, 4])
    assert (first.blocks, sharer.blocks[len(hits) :]) == ([1, 2, 3, 4], [5])
    cache.manager.free(first)
    assert not cache.pool.reset_prefix_cache()
    cache.manager.free(sharer)
    queue = cache.pool.free_queue()
    assert cache.pool.reset_prefix_cache()
    assert (cache.pool.free_queue(), cache.pool.num_keys, cache.pool.num_cached) == (queue, 0, 0)
    assert cache.begin([*full(0, 1, 2), 4, 4])[1] == []


def test_equal_blocks_are_both_kept_and_the_first_is_found() -> None:
    pool = BlockPool(4)
    (first, second, third), _ = pool.take(3)
    for block in (second, first, third):
        pool.register(block, 77)
    assert pool.find(77) == second
    pool.give([second, first])
    assert pool.take(1) == ([second], [second])
    assert (pool.find(77), pool.num_keys) == (first, 1)
    pool.take(1)
    assert pool.find(77) == third


def test_free_blocks_without_a_prefix_go_to_the_front_in_the_given_order() -> None:
    pool = BlockPool(7)
    pool.take(5)
    pool.give([1, 2])
    pool.give([4, 5, 3])
    assert pool.free_queue() == [4, 5, 3, 1, 2, 6]


def test_a_table_is_freed_from_its_end_with_prefixes_behind() -> None:
    pool = BlockPool(7)
    pool.take(4)
    for block in (1, 2, 3):
        pool.register(block, block)
    pool.give([4, 3, 2, 1])
    assert pool.free_queue() == [4, 5, 6, 3, 2, 1]


def test_a_free_hit_counts_against_the_free_blocks() -> None:
    cache = Cache(4)
    first, _ = cache.begin(full(0))
    other, _ = cache.begin([7] * 20)
    cache.manager.free(first)
    wanting = cache.request([*full(0), 1])
    hits = cache.manager.lookup(wanting)
    assert (hits, cache.pool.num_free) == ([1], 1)
    # Two blocks are needed and one of them is the hit, which is free now and will not be.
    assert not cache.manager.admit(wanting, 1, hits, others_running=True)
    cache.manager.free(other)
    assert cache.manager.admit(wanting, 1, hits, others_running=True)
    assert (len(wanting.blocks), cache.pool.num_free) == (2, 1)


def scheduler(
    num_blocks: int = 10_000, *, block_size: int = 16, caching: bool = True, **settings: object
) -> ContinuousScheduler:
    chosen = ContinuousSettings(**{"max_model_len": 8192, "async_scheduling": False} | settings)  # type: ignore[arg-type]
    cache = PagedSettings(block_size=block_size, enable_prefix_caching=caching)
    memory = PagedManager(
        BlockPool(num_blocks),
        cache,
        NoJournal(),
        max_model_len=chosen.max_model_len,
        reserve_full_prompt=chosen.reserve_full_prompt,
    )
    return ContinuousScheduler(chosen, memory)


def arrive(engine: ContinuousScheduler, *prompts: int, output: int = 16, priorities: Row[int] = ()) -> list[Sequence]:
    sequences = [Sequence(row, prompt, output, output, arrival=float(row)) for row, prompt in enumerate(prompts)]
    for sequence, priority in zip(sequences, priorities, strict=False):
        sequence.priority = priority
    for sequence in sequences:
        engine.add(sequence)
    return sequences


def test_long_prompts_take_turns_below_the_threshold() -> None:
    engine = scheduler(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    arrive(engine, 800, 800, 800)
    steps = []
    for _ in range(3):
        batch = engine.schedule()
        steps.append(list(batch.tokens.values()))
        engine.update(batch)
    assert steps == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


@pytest.mark.parametrize(("chunked", "expected"), [(True, [800, 224]), (False, [800])])
def test_nobody_overtakes_the_head_of_the_queue(chunked: bool, expected: list[int]) -> None:
    engine = scheduler(max_num_batched_tokens=1024, enable_chunked_prefill=chunked)
    arrive(engine, 800, 800, 10, 10)
    assert list(engine.schedule().tokens.values()) == expected


def test_a_preempted_request_still_gets_the_output_under_way() -> None:
    engine = scheduler(11, caching=False, async_scheduling=True, max_num_seqs=2)
    first, second = arrive(engine, 80, 80)
    batch = engine.schedule()
    assert engine.schedule().preempted == [second]
    engine.update(batch)
    assert (first.num_outputs, second.num_outputs) == (1, 1)
    assert (second.status, second.computed, second.blocks) == (Status.PREEMPTED, 0, [])


def test_a_resumed_request_computes_its_outputs_again() -> None:
    engine = scheduler(5, caching=False, max_num_seqs=2)
    first, second = arrive(engine, 31, 31, output=3)
    engine.update(engine.schedule())
    engine.update(engine.schedule())
    batch = engine.schedule()
    assert (batch.preempted, second.num_outputs) == ([second], 2)
    assert engine.update(batch) == [first]
    assert engine.schedule().tokens == {second: 33}


def test_the_least_important_request_is_preempted() -> None:
    engine = scheduler(7, caching=False, order=Order.PRIORITY)
    # Admitted in the order of importance: 0, 1, 5.
    important, unimportant, middle = arrive(engine, 32, 32, 32, priorities=[0, 5, 1])
    engine.update(engine.schedule())
    assert engine.running == [important, middle, unimportant]
    batch = engine.schedule()
    assert (batch.preempted, list(batch.tokens)) == ([unimportant], [important, middle])


def test_equal_priorities_are_served_in_order_of_arrival() -> None:
    engine = scheduler(order=Order.PRIORITY)
    sequences = [Sequence(row, 10, 1, 1, arrival=arrival) for row, arrival in enumerate((4.0, 1.0, 3.0, 2.0))]
    for sequence in sequences:
        engine.add(sequence)
    assert [sequence.row for sequence in engine.schedule().tokens] == [1, 3, 2, 0]


@pytest.mark.parametrize("output", [1, 2, 3, 5])
def test_a_stop_by_length_costs_no_extra_token(output: int) -> None:
    engine = scheduler(async_scheduling=True)
    sequences = arrive(engine, 10, 20, 30, output=output)
    total = 0
    for moment in engine_moments(engine):
        if isinstance(moment, Scheduled):
            total += sum(moment.batch.tokens.values())
        elif isinstance(moment, Call) and moment.idle:
            break
    assert total == sum(sequence.prompt_tokens + output - 1 for sequence in sequences)


def test_a_twin_of_the_same_step_shares_what_is_not_computed_yet() -> None:
    engine = scheduler()
    keys = list(range(100 // 16))
    for row in range(2):
        engine.add(Sequence(row, 100, 5, 5, prompt_keys=keys))
    assert list(engine.schedule().tokens.values()) == [100, 4]


def test_the_last_block_of_a_prompt_is_always_computed() -> None:
    engine = scheduler()
    for row in range(2):
        engine.add(Sequence(row, 96, 5, 5, prompt_keys=range(6)))
    assert list(engine.schedule().tokens.values()) == [96, 16]


def test_the_watermark_is_a_share_of_all_blocks() -> None:
    pool = BlockPool(20)
    manager = PagedManager(pool, PagedSettings(watermark=0.5), NoJournal(), max_model_len=8192)
    pool.take(9)
    # 10 of 20 blocks stay free while anything runs, and 10 are: 0.5 of the 19 usable ones would let one more in.
    newcomer = Sequence(0, 16, 1, 1)
    assert not manager.admit(newcomer, 16, [], others_running=True)
    assert manager.admit(newcomer, 16, [], others_running=False)
