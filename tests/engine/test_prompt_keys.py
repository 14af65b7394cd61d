"""The keys of a whole workload at once."""

from __future__ import annotations

import numpy as np

from kvsim.engine.paged.prefix_keys import PrefixKeys, prompt_keys
from kvsim.workload import Ragged, Workload


def test_keys_of_all_prompts_are_those_of_one_after_the_other() -> None:
    random = np.random.default_rng(1)
    prompt = random.integers(1, 80, 50)
    hashes = [random.integers(0, 4, random.integers(0, tokens // 4 + 1)).tolist() for tokens in prompt]
    ids = [random.integers(0, 2, tokens).tolist() if row % 3 == 0 else [] for row, tokens in enumerate(prompt)]
    group = random.integers(-1, 2, 50)
    workload = Workload(
        arrival_s=np.zeros(50), prompt_tokens=prompt, output_tokens=np.ones(50, int),
        prompt_hashes=Ragged.from_rows(hashes, np.int64), hash_unit_tokens=4,
        prompt_token_ids=Ragged.from_rows(ids, np.int32), prefix_group=group,
        prefix_tokens=np.where(group < 0, 0, np.minimum(prompt, 33)), prefix_names=("a", "b"),
    )  # fmt: skip
    for block_size in (1, 2, 4, 8, 16):
        keys, one_by_one = PrefixKeys(block_size), prompt_keys(workload, block_size)
        for row in range(50):
            if ids[row]:
                expected = keys.from_tokens(ids[row])
            elif hashes[row]:
                expected = keys.from_hashes(hashes[row], 4, int(prompt[row]))
            else:
                places = range(workload.prefix_tokens[row] // block_size) if group[row] >= 0 else ()
                expected = [keys._intern(("prefix", int(group[row]), place)) for place in places]
            assert one_by_one[row].tolist() == expected


def test_a_named_prefix_is_shared_by_its_group_alone() -> None:
    workload = Workload(
        arrival_s=np.zeros(4), prompt_tokens=np.full(4, 20), output_tokens=np.ones(4, int),
        prefix_group=np.array([1, 1, 0, 1]), prefix_tokens=np.array([11, 8, 8, 3]), prefix_names=("a", "b"),
    )  # fmt: skip
    keys = prompt_keys(workload, 4)
    ours = keys[0].tolist()
    assert len(ours) == len(set(ours)) == 2, "the third block is not the group's to its end"
    assert keys[1].tolist() == ours
    assert not set(keys[2].tolist()) & set(ours)
    assert keys[3].tolist() == []
