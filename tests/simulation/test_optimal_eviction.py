"""Belady's rule: a bound by proof where requests are served one at a time, and never below a rule that was tried."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.errors import BudgetError, UsageError
from kvsim.policies.settings import ContinuousSettings, PagedSettings, PrefixEviction
from kvsim.workload import Ragged

from ..examples.test_examples import loaded

BLOCK = 16


def drawn(seed: int) -> tuple[kvsim.Workload, int]:
    """Requests that share prompts, and blocks for the largest of them and some more."""
    draw = random.Random(seed)
    requests = kvsim.generate(
        draw.randint(5, 40),
        arrivals=kvsim.Poisson(rate_per_s=draw.choice([1, 50, 1000])),
        prompt=kvsim.Uniform(low=1, high=draw.randint(2, 100)),
        output=kvsim.Uniform(low=1, high=draw.randint(2, 60)),
        prefixes=kvsim.SharedPrefixes(
            num_groups=draw.randint(1, 12), tokens=draw.randint(16, 160), skew=draw.choice([0.0, 1.0])
        ),
        seed=seed,
    )
    largest = int((requests.prompt_tokens + requests.output_tokens).max())
    return requests, largest // BLOCK + 2 + draw.randint(0, 60)


def machine_with(num_blocks: int) -> kvsim.Machine:
    return kvsim.machine("H200/Llama-3-8B", num_blocks=num_blocks + 1)


def hits(requests: kvsim.Workload, policy: Any, num_blocks: int) -> list[int]:
    run = kvsim.simulate(requests, policy, machine_with(num_blocks), engine="interpreted")
    found: list[int] = run.requests.cached_tokens.tolist()
    return found


def paged(eviction: str, max_num_seqs: int, *, ahead: bool = True) -> kvsim.Paged:
    return kvsim.Paged(
        scheduler=ContinuousSettings(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=512, async_scheduling=ahead
        ),
        cache=PagedSettings(eviction=PrefixEviction(eviction)),
    )  # fmt: skip


def rules(max_num_seqs: int) -> Iterator[kvsim.CustomPolicy]:
    for rule in loaded("evict").RULES:
        policy = rule()
        policy.scheduler = ContinuousSettings(max_num_seqs=max_num_seqs, max_num_batched_tokens=512)
        yield policy


@pytest.mark.parametrize("eviction", ["lru", "optimal"])
@pytest.mark.parametrize("ahead", [True, False])
def test_one_at_a_time_the_engine_finds_what_the_fixed_order_finds(eviction: str, ahead: bool) -> None:
    for seed in range(12):
        requests, num_blocks = drawn(seed)
        engine = hits(requests, paged(eviction, 1, ahead=ahead), num_blocks)
        assert engine == kvsim.hits_in_order(requests, num_blocks, eviction=eviction).tolist()


def most_hits(requests: list[tuple[tuple[int, ...], int]], num_blocks: int) -> int:
    """The most blocks that any rule finds, by trying all: prefixes as tuples of keys, and blocks beside them."""
    kept: dict[frozenset[int], int] = {frozenset(): 0}
    for keys, num_others in requests:
        after: dict[frozenset[int], int] = {}
        for cached, found in kept.items():
            num_hits = next((place for place, key in enumerate(keys) if key not in cached), len(keys))
            room = num_blocks - len(keys) - num_others
            for beside in subsets(sorted(cached - set(keys)), room):
                now = frozenset(keys) | beside
                after[now] = max(after.get(now, 0), found + num_hits)
        kept = after
    return max(kept.values())


def subsets(items: list[int], most: int) -> Iterator[frozenset[int]]:
    for chosen in range(1 << len(items)):
        if chosen.bit_count() <= most:
            yield frozenset(item for place, item in enumerate(items) if chosen >> place & 1)


def test_no_rule_whatever_finds_more_one_at_a_time() -> None:
    """All rules that there are, on 60 small workloads: what each may keep beside a request is tried."""
    gains = 0
    for seed in range(60):
        draw = random.Random(seed)
        prompts = [(0, 2), (0, 3, 4), (0, 3, 5), (1, 6), (1, 7, 8)]
        keys, outputs = draw.choices(prompts, k=9), [draw.randint(1, 2 * BLOCK) for _ in range(9)]
        lengths = np.array([len(each) for each in keys])
        requests = kvsim.Workload(
            arrival_s=np.arange(9.0),
            prompt_tokens=lengths * BLOCK + 1,
            output_tokens=outputs,
            prompt_hashes=Ragged.from_rows([list(each) for each in keys], np.int64),
        )
        num_others = -(-(lengths * BLOCK + outputs) // BLOCK) - lengths
        num_blocks = draw.randint(5, 8)
        best = kvsim.hits_in_order(requests, num_blocks).sum() // BLOCK
        assert best == most_hits(list(zip(keys, num_others.tolist(), strict=True)), num_blocks)
        gains += best > kvsim.hits_in_order(requests, num_blocks, eviction="lru").sum() // BLOCK
    assert gains > 10


def check_bound(seed: int, max_num_seqs: int) -> bool:
    """Compare the bound with vLLM's rule and every rule of the examples; tell whether it is above all."""
    requests, num_blocks = drawn(seed)
    bound = sum(hits(requests, paged("optimal", max_num_seqs), num_blocks))
    others = [sum(hits(requests, policy, num_blocks)) for policy in (paged("lru", max_num_seqs), *rules(max_num_seqs))]
    assert bound >= max(others), f"seed {seed}, {max_num_seqs} at once: {bound} and {others}"
    return bound > max(others)


def test_the_bound_is_never_below_a_rule() -> None:
    assert sum(check_bound(seed, (1, 2, 64)[seed % 3]) for seed in range(12)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_the_bound_is_never_below_a_rule_on_many_workloads(first: int) -> None:
    above = sum(check_bound(seed, (1, 2, 4, 64)[seed % 4]) for seed in range(first, first + 100))
    assert above > 10


def test_sessions_and_priorities_are_expected_in_the_order_of_vllms_eviction() -> None:
    talks = kvsim.converse(12, turns=4, prompt=150, output=60, arrivals=kvsim.Poisson(rate_per_s=4), seed=2)
    lru, bound = (sum(hits(talks, paged(eviction, 4), 130)) for eviction in ("lru", "optimal"))
    assert bound > lru > 0


def test_preempted_requests_find_their_blocks() -> None:
    requests = kvsim.workload_of(kvsim.read("vllm-h200-llama-3-8b-sharegpt-pressure")).head(60)
    run = kvsim.simulate(requests, paged("optimal", 64), machine_with(250), engine="interpreted", check=True)
    assert run.num_preemptions > 0
    assert run.summary().num_finished == 60


def test_the_words_of_the_command_line_are_taken() -> None:
    settings: Any = PagedSettings
    assert settings(eviction="optimal").eviction is PrefixEviction.OPTIMAL
    with pytest.raises(UsageError, match=r"eviction should be one of lru, optimal, not 'best'\."):
        settings(eviction="best")


def test_what_cannot_be_bounded_is_refused_in_a_sentence() -> None:
    requests, num_blocks = drawn(1)
    machine = machine_with(num_blocks)
    with pytest.raises(UsageError, match="eviction that knows all requests is in Python, which is not compiled"):
        kvsim.simulate(requests, paged("optimal", 4), machine, engine="compiled")
    with pytest.raises(UsageError, match="take --replicas 1"):
        kvsim.simulate(requests, paged("optimal", 4), machine, replicas=2)
    host = PagedSettings(eviction=PrefixEviction.OPTIMAL, kv_offloading_size=1)
    with pytest.raises(UsageError, match="take --kv-offloading-size 0"):
        kvsim.simulate(requests, kvsim.Paged(cache=host, scheduler=ContinuousSettings(vllm="0.25.1")), machine)
    rule = next(rules(4))
    rule.cache = PagedSettings(eviction=PrefixEviction.OPTIMAL)
    with pytest.raises(UsageError, match="has a rule of its own, so take eviction lru"):
        kvsim.simulate(requests, rule, machine)
    with pytest.raises(BudgetError, match="a request needs"):
        kvsim.hits_in_order(requests, 1)
    with pytest.raises(UsageError, match="eviction should be optimal or lru, not 'arc'"):
        kvsim.hits_in_order(requests, num_blocks, eviction="arc")
