"""Keys of prompt blocks: equal exactly where everything up to the block's end is equal, however the prompt is known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.paged.prefix_keys import PrefixKeys
from kvsim.errors import WorkloadError

PROMPTS = st.lists(st.integers(0, 1), max_size=14)


def chained(tokens: list[int], unit: int) -> list[int]:
    """One hash per full unit, each of the whole prefix; collisions are impossible here."""
    return [int("1" + "".join(map(str, tokens[:end])), 2) for end in range(unit, len(tokens) + 1, unit)]


@settings(max_examples=100)
@given(one=PROMPTS, other=PROMPTS, block_size=st.sampled_from([1, 2, 4]))
def test_keys_of_tokens_are_equal_exactly_where_prefixes_are(one: list[int], other: list[int], block_size: int) -> None:
    keys = PrefixKeys(block_size)
    ours, theirs = keys.from_tokens(one), keys.from_tokens(other)
    assert len(ours) == len(one) // block_size
    for index, key in enumerate(ours):
        for place, their_key in enumerate(theirs):
            end, their_end = (index + 1) * block_size, (place + 1) * block_size
            assert (key == their_key) == (one[:end] == other[:their_end])


@settings(max_examples=100)
@given(one=PROMPTS, other=PROMPTS, block_size=st.sampled_from([2, 4, 8]), unit=st.sampled_from([1, 2, 4]))
def test_keys_of_hashes_agree_with_keys_of_tokens(one: list[int], other: list[int], block_size: int, unit: int) -> None:
    """Blocks that are units or several units; every common block is found, and no other."""
    if block_size % unit:
        return
    by_hash, by_token = PrefixKeys(block_size), PrefixKeys(block_size)
    hashed = [by_hash.from_hashes(chained(prompt, unit), unit, len(prompt)) for prompt in (one, other)]
    told = [by_token.from_tokens(prompt) for prompt in (one, other)]
    assert [len(keys) for keys in hashed] == [len(keys) for keys in told]
    assert [a == b for a, b in zip(*hashed, strict=False)] == [a == b for a, b in zip(*told, strict=False)]


def test_blocks_inside_one_unit_share_its_hash_and_differ_by_their_place() -> None:
    keys = PrefixKeys(4)
    ours = keys.from_hashes([7, 8], 8, 19)
    assert len(ours) == len(set(ours)) == 4, "16 tokens have a hash; the three behind them have none"
    assert keys.from_hashes([7, 9], 8, 16)[:2] == ours[:2]
    assert not set(keys.from_hashes([7, 9], 8, 16)[2:]) & set(ours)


def test_a_partial_last_unit_counts_for_the_blocks_that_the_prompt_fills() -> None:
    """A trace may hash the last, partial unit too; only full blocks of the prompt get a key."""
    assert len(PrefixKeys(4).from_hashes([7, 8], 8, 12)) == 3
    assert len(PrefixKeys(4).from_hashes([7, 8], 8, 11)) == 2
    assert len(PrefixKeys(16).from_hashes([7, 8], 8, 16)) == 1
    assert len(PrefixKeys(16).from_hashes([7, 8], 8, 15)) == 0


def test_hashes_of_a_part_of_the_prompt_give_keys_for_that_part() -> None:
    assert len(PrefixKeys(4).from_hashes([7], 4, 40)) == 1
    assert PrefixKeys(4).from_hashes([], 4, 40) == []


@pytest.mark.parametrize(("block_size", "unit"), [(16, 24), (24, 16), (3, 2)])
def test_blocks_that_straddle_units_are_refused(block_size: int, unit: int) -> None:
    with pytest.raises(
        WorkloadError, match=f"one hash per {unit} tokens, so the block size should .* not {block_size}"
    ):
        PrefixKeys(block_size).from_hashes([1, 2], unit, 48)


def test_keys_of_different_accounts_never_meet() -> None:
    keys = PrefixKeys(1)
    accounts = keys.from_tokens([0, 1]), keys.from_hashes([0, 1], 1, 2)
    assert len(set().union(*accounts)) == 4
    assert all(key >= 0 for account in accounts for key in account), "negative keys are those of private blocks"
