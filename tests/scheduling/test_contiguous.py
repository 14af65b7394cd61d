"""Contiguous reservations as a memory manager: who gets how much, and where every slot goes meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UnknownNameError
from kvsim.memory.waste import SlotState
from kvsim.scheduling.contiguous import ContiguousManager
from kvsim.scheduling.journal import NoJournal
from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import ContiguousSettings, Growth, Reserve

CAPACITY = 64
MAX_LEN = 24


class Log(NoJournal):
    """Which slots each request holds, and how many of them it asked for."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}
        self.requested: dict[int, int] = {}

    def append_extent(self, request: int, position: int, address: int, length: int, requested: int) -> None:
        assert 0 < requested <= length
        assert position == len(self.held.get(request, ()))
        self.held.setdefault(request, []).extend(range(address, address + length))
        self.requested[request] = position + requested

    def release(self, request: int, num_units: int, num_cached: int) -> None:
        assert num_units == len(self.held.pop(request))
        assert num_cached == 0
        del self.requested[request]

    def vacate(self, request: int, num_units: int) -> None:
        self.release(request, num_units, 0)


def manager(
    reserve: Reserve = Reserve.MAX,
    fit: str = "first",
    capacity: int = CAPACITY,
    journal: NoJournal | None = None,
    **options: Any,
) -> ContiguousManager:
    settings = ContiguousSettings(reserve=reserve, fit=fit, **options)
    return ContiguousManager(capacity, settings, journal or NoJournal(), max_model_len=MAX_LEN)


def sequence(row: int, prompt: int, output: int, limit: int | None = None) -> Sequence:
    return Sequence(row, prompt, output, output if limit is None else limit)


def admit(memory: ContiguousManager, request: Sequence) -> bool:
    return memory.admit(request, request.prompt_tokens, (), others_running=False)


@pytest.mark.parametrize(
    ("reserve", "prompt", "output", "limit", "slots"),
    [
        (Reserve.MAX, 3, 2, 9, MAX_LEN),
        (Reserve.LIMIT, 3, 2, 9, 12),
        (Reserve.LIMIT, 20, 2, 9, MAX_LEN),
        (Reserve.POW2, 3, 1, 9, 4),
        (Reserve.POW2, 3, 2, 9, 5),
        (Reserve.POW2, 3, 5, 9, 11),
        (Reserve.POW2, 3, 8, 9, 11),
        (Reserve.POW2, 17, 6, 9, MAX_LEN),
        (Reserve.ORACLE, 3, 5, 5, 7),
        (Reserve.ORACLE, 3, 1, 1, 3),
        (Reserve.DOUBLING, 3, 5, 9, 4),
        (Reserve.DOUBLING, 4, 5, 9, 8),
        (Reserve.DOUBLING, 17, 5, 9, MAX_LEN),
    ],
)
def test_what_each_kind_of_reservation_asks_for(
    reserve: Reserve, prompt: int, output: int, limit: int, slots: int
) -> None:
    memory = manager(reserve)
    request = sequence(0, prompt, output, limit)
    assert memory.reservation(request) == slots
    assert admit(memory, request)
    assert memory.num_free_units == CAPACITY - slots


def test_an_oracle_has_room_for_the_step_in_which_a_surprise_is_noticed() -> None:
    """A stop that only the output reveals comes when the next token is scheduled already, and written."""
    assert manager(Reserve.ORACLE).reservation(sequence(0, 3, 5, 9)) == 3 + 5


@pytest.mark.parametrize("fit", ["first", "best", "next", "buddy"])
def test_what_fits_into_an_empty_pool_fits(fit: str) -> None:
    """`fits` promises exactly what an empty pool can do, rounding included."""
    for capacity in (15, 16, 17, 24, 31):
        memory = manager(Reserve.LIMIT, fit, capacity)
        for prompt in range(1, MAX_LEN):
            request = sequence(0, prompt, 1)
            assert memory.fits(request) == admit(memory, request)
            memory.free(request)


def test_an_unknown_fit_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="there is no fit 'worst'"):
        manager(fit="worst")


def test_a_failed_admission_leaves_no_trace() -> None:
    log = Log()
    memory = manager(capacity=40, journal=log)
    assert admit(memory, sequence(0, 3, 4))
    assert not admit(memory, sequence(1, 3, 4))
    assert log.held == {0: list(range(MAX_LEN))}
    assert memory.num_free_units == 40 - MAX_LEN


def test_freeing_what_holds_nothing_does_nothing() -> None:
    memory = manager()
    memory.free(sequence(0, 3, 4))
    assert memory.num_free_units == CAPACITY


def test_free_slots_in_pieces_are_unusable_only_for_a_head_that_they_would_serve_together() -> None:
    memory = manager(Reserve.LIMIT, capacity=24)
    requests = [sequence(row, 4, 4) for row in range(3)]
    assert all(admit(memory, request) for request in requests)
    memory.free(requests[0])
    memory.free(requests[2])
    assert memory.unusable_units(None) == 0
    assert memory.unusable_units(sequence(3, 4, 4)) == 0, "it fits"
    assert memory.unusable_units(sequence(3, 12, 4)) == 16, "16 slots are free, in two holes of 8"
    assert memory.unusable_units(sequence(3, 12, 5)) == 0, "17 would not fit even in one piece"
    live = [requests[1]]
    assert memory.breakdown(live, sequence(3, 12, 4))[SlotState.EXTERNAL] == 16
    assert memory.breakdown(live, sequence(3, 12, 5))[SlotState.FREE] == 16


def test_the_rounding_of_buddies_is_external() -> None:
    memory = manager(Reserve.LIMIT, "buddy")
    request = sequence(0, 6, 5)
    admit(memory, request)
    request.computed = 7
    slots = memory.breakdown([request], None)
    assert [slots[state] for state in SlotState] == [7, 3, 1, 0, 0, 5, CAPACITY - 16]


ACTIONS = st.tuples(
    st.sampled_from(["admit", "admit", "write", "free"]),
    st.integers(0, 9),
    st.integers(1, MAX_LEN - 1),
    st.integers(1, MAX_LEN),
    st.integers(0, 8),
)


@settings(max_examples=100, deadline=None)
@given(
    reserve=st.sampled_from(Reserve),
    fit=st.sampled_from(["first", "best", "next", "buddy"]),
    growth=st.sampled_from(Growth),
    compaction=st.booleans(),
    request_level=st.booleans(),
    capacity=st.integers(1, 80),
    actions=st.lists(ACTIONS, max_size=40),
)
def test_every_slot_is_somewhere_after_every_operation(
    reserve: Reserve,
    fit: str,
    growth: Growth,
    compaction: bool,
    request_level: bool,
    capacity: int,
    actions: list[tuple[str, int, int, int, int]],
) -> None:
    log = Log()
    memory = manager(reserve, fit, capacity, log, growth=growth, compaction=compaction, request_level=request_level)
    live: dict[int, Sequence] = {}
    for row, (verb, pick, prompt, output, more) in enumerate(actions):
        head = sequence(row, prompt, min(output, MAX_LEN - prompt), output + more)
        if verb == "admit":
            if admit(memory, head):
                live[row] = head
        elif live:
            chosen = sorted(live)[pick % len(live)]
            if verb == "free":
                memory.free(live.pop(chosen))
            else:
                running = live[chosen]
                step = min(output, running.prompt_tokens + running.output_tokens - 1 - running.computed)
                grown = memory.grow(running, step)
                assert grown or reserve is Reserve.DOUBLING, "nobody else grows"
                running.computed += step * grown
        assert set(log.held) == set(live)
        slots = [slot for extent in log.held.values() for slot in extent]
        assert len(slots) == len(set(slots)) == capacity - memory.num_free_units
        assert all(0 <= slot < capacity for slot in slots)
        for waiting in (None, head):
            breakdown = memory.breakdown(list(live.values()), waiting)
            breakdown.check(capacity)
            assert breakdown[SlotState.TOKEN] == sum(request.computed for request in live.values())
            assert breakdown[SlotState.PADDING] == breakdown[SlotState.CACHED] == 0
            full = {row: request.prompt_tokens + request.output_tokens - 1 for row, request in live.items()}
            reserved = [min(full[row], log.requested[row]) - request.computed for row, request in live.items()]
            assert breakdown[SlotState.RESERVED] == sum(reserved)
            if reserve is Reserve.ORACLE:
                surprises = sum(r.output_tokens < r.max_tokens for r in live.values())
                assert breakdown[SlotState.INTERNAL] <= surprises


@pytest.mark.parametrize("fit", ["first", "best", "next", "buddy"])
@pytest.mark.parametrize("reserve", Reserve)
def test_what_fits_can_be_admitted_to_an_empty_pool(reserve: Reserve, fit: str) -> None:
    for capacity in (5, 16, 23):
        for prompt in (1, 4, 7, 15):
            request = sequence(0, prompt, 3)
            if manager(reserve, fit, capacity).fits(request):
                assert admit(manager(reserve, fit, capacity), request)


def test_doubling_grows_in_place_where_there_is_room() -> None:
    log = Log()
    memory = manager(Reserve.DOUBLING, journal=log)
    request = sequence(0, 3, 9)
    assert admit(memory, request)
    request.computed = 4
    assert memory.grow(request, 1)
    assert log.held == {0: list(range(8))}
    assert memory.take_copied_slots() == 0


def test_doubling_moves_what_is_hemmed_in_and_counts_the_copy_once() -> None:
    log = Log()
    memory = manager(Reserve.DOUBLING, journal=log)
    first, second = sequence(0, 3, 9), sequence(1, 3, 9)
    assert admit(memory, first)
    assert admit(memory, second)
    first.computed = 4
    assert memory.grow(first, 1)
    assert log.held == {0: list(range(8, 16)), 1: list(range(4, 8))}
    assert (memory.take_copied_slots(), memory.take_copied_slots()) == (4, 0)


def test_doubling_that_must_not_move_fails_where_it_is_hemmed_in() -> None:
    log = Log()
    memory = manager(Reserve.DOUBLING, journal=log, growth=Growth.FAIL)
    first, second = sequence(0, 3, 9), sequence(1, 3, 9)
    assert admit(memory, first)
    assert admit(memory, second)
    first.computed = second.computed = 4
    assert not memory.grow(first, 1)
    assert memory.grow(second, 1), "there is room behind it"
    assert log.held == {0: list(range(4)), 1: list(range(4, 12))}


def test_doubling_ends_at_the_longest_sequence() -> None:
    memory = manager(Reserve.DOUBLING)
    request = sequence(0, 15, 9)
    assert admit(memory, request)
    request.computed = 16
    assert memory.grow(request, 1)
    assert CAPACITY - memory.num_free_units == MAX_LEN


@pytest.mark.parametrize("fit", ["first", "best", "next"])
def test_compaction_serves_the_head_that_fragmentation_kept_waiting(fit: str) -> None:
    log = Log()
    memory = manager(Reserve.LIMIT, fit, 24, log, compaction=True)
    requests = [sequence(row, 4, 4) for row in range(3)]
    assert all(admit(memory, request) for request in requests)
    requests[1].computed = 5
    memory.free(requests[0])
    memory.free(requests[2])
    assert admit(memory, sequence(3, 12, 4))
    assert log.held == {1: list(range(8)), 3: list(range(8, 24))}
    assert memory.take_copied_slots() == 5, "only what was written has to be copied"


def test_compaction_is_not_done_in_vain() -> None:
    log = Log()
    memory = manager(Reserve.LIMIT, "first", 24, log, compaction=True)
    requests = [sequence(row, 4, 4) for row in range(3)]
    assert all(admit(memory, request) for request in requests)
    memory.free(requests[0])
    before = dict(log.held)
    assert not admit(memory, sequence(3, 12, 4)), "8 slots are free, however they lie"
    assert log.held == before


def test_at_request_level_a_batch_is_closed_from_its_first_token_to_its_last() -> None:
    memory = manager(Reserve.LIMIT, request_level=True)
    first, second, late = (sequence(row, 4, 4) for row in range(3))
    assert admit(memory, first)
    assert admit(memory, second), "the batch is being put together"
    first.computed = second.computed = 4
    assert memory.grow(first, 1)
    assert not admit(memory, late)
    memory.free(first)
    assert not admit(memory, late)
    memory.free(second)
    assert admit(memory, late)


def test_nothing_is_shared() -> None:
    memory = manager()
    request = sequence(0, 3, 4)
    assert memory.lookup(request) == ()
    assert memory.tokens_in(()) == 0
    memory.commit(request, 3)
    assert np.array_equal(memory.breakdown([], None).slots, [0, 0, 0, 0, 0, 0, CAPACITY])
