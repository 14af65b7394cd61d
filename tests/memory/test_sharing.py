"""Branches that share blocks: nobody reads what another wrote, and every block is given back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvsim.errors import BudgetError, UsageError
from kvsim.memory.copy_on_write import Branch, BranchingCache, CountedBlocks, beam_search
from kvsim.memory.waste import SlotState

BLOCK = 4


class Branching(RuleBasedStateMachine):
    """Beside every branch goes the list of tokens that it should read back."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BranchingCache(CountedBlocks(19), BLOCK)
        self.memory: dict[tuple[int, int], int] = {}
        self.tokens: dict[Branch, list[int]] = {}
        self.next_token = 0

    def write(self, branch: Branch) -> None:
        place = self.tokens[branch]
        index = len(place)
        self.memory[branch.blocks[index // BLOCK], index % BLOCK] = self.next_token
        place.append(self.next_token)
        self.next_token += 1

    @rule(prompt_tokens=st.integers(1, 9))
    def start(self, prompt_tokens: int) -> None:
        try:
            branch = self.cache.start(prompt_tokens)
        except BudgetError:
            assert self.cache.pool.num_free < -(-prompt_tokens // BLOCK)
            return
        self.tokens[branch] = []
        for _ in range(prompt_tokens):
            self.write(branch)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(list(self.tokens)))
        free = self.cache.pool.num_free
        self.tokens[self.cache.fork(parent)] = list(self.tokens[parent])
        assert self.cache.pool.num_free == free, "a fork takes no memory"

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(list(self.tokens)))
        last = branch.blocks[-1]
        try:
            self.cache.append(branch)
        except BudgetError:
            assert self.cache.pool.num_free == 0
            return
        if branch.blocks[-1] != last and len(self.tokens[branch]) % BLOCK:  # a copy carries what was written
            for offset in range(len(self.tokens[branch]) % BLOCK):
                self.memory[branch.blocks[-1], offset] = self.memory[last, offset]
        self.write(branch)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(list(self.tokens)))
        del self.tokens[branch]
        self.cache.free(branch)

    @invariant()
    def everybody_reads_what_he_wrote(self) -> None:
        for branch, tokens in self.tokens.items():
            read = [self.memory[branch.blocks[index // BLOCK], index % BLOCK] for index in range(len(tokens))]
            assert read == tokens
            assert branch.num_tokens == len(tokens)

    @invariant()
    def every_slot_is_in_one_state(self) -> None:
        self.cache.check_integrity()
        distinct = {token for tokens in self.tokens.values() for token in tokens}
        assert self.cache.breakdown()[SlotState.TOKEN] >= len(distinct)
        assert self.cache.num_held <= self.cache.num_without_sharing


TestBranching = Branching.TestCase
TestBranching.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_only_a_partial_block_that_others_hold_is_copied() -> None:
    cache = BranchingCache(CountedBlocks(19), BLOCK)
    first = cache.start(6)
    second = cache.fork(first)
    cache.append(first)
    assert (cache.num_copies, cache.num_held, cache.num_without_sharing) == (1, 3, 4)
    cache.append(second)
    assert cache.num_copies == 1, "the second is alone in its block now"
    full = cache.start(8)
    cache.append(cache.fork(full))
    assert cache.num_copies == 1, "full blocks stay shared"


def test_answers_to_one_prompt_share_its_full_blocks() -> None:
    cache = BranchingCache(CountedBlocks(99), BLOCK)
    sharing = beam_search(cache, 8, 5, 3, reshuffle=0.0, rng=np.random.default_rng(0))
    # Four steps: two blocks of prompt held once instead of three times, and one block of each answer.
    assert (sharing.held_block_steps, sharing.unshared_block_steps) == (4 * (2 + 3), 4 * (6 + 3))
    assert sharing.saved_percent == pytest.approx(100 * 4 / 9)
    assert cache.num_held == 0


def test_beams_that_change_places_share_more() -> None:
    saved = []
    for reshuffle in (0.0, 0.1, 1.0):
        cache = BranchingCache(CountedBlocks(999), BLOCK)
        sharing = beam_search(cache, 20, 200, 4, reshuffle=reshuffle, rng=np.random.default_rng(0))
        assert cache.num_held == 0
        cache.check_integrity()
        saved.append(sharing.saved_percent)
    assert saved == sorted(saved)
    assert saved[-1] < 75, "four beams never need less than one"


def test_one_beam_saves_nothing() -> None:
    sharing = beam_search(
        BranchingCache(CountedBlocks(99), BLOCK), 5, 9, 1, reshuffle=1.0, rng=np.random.default_rng(0)
    )
    assert (sharing.saved_percent, sharing.num_copies) == (0, 0)


@pytest.mark.parametrize(("width", "reshuffle"), [(0, 0.5), (2, 1.5)])
def test_a_search_that_cannot_be_is_refused(width: int, reshuffle: float) -> None:
    with pytest.raises(UsageError):
        beam_search(
            BranchingCache(CountedBlocks(99), BLOCK), 5, 9, width, reshuffle=reshuffle, rng=np.random.default_rng(0)
        )
