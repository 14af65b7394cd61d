"""Allocators in Python that share prefixes: vLLM's cache written as one is vLLM's, and a wrong answer is a sentence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.cli import cli
from kvsim.errors import PolicyError, UsageError
from kvsim.policies.custom import ServedRequest, StepInMaking
from kvsim.policies.settings import ContinuousSettings

BLOCK = 16


class Blocks(kvsim.SharingAllocator):
    """vLLM's block pool and prefix cache: blocks with a prefix wait in order of their last use, behind empty ones."""

    def __init__(self, num_units: int, unit_tokens: int) -> None:
        self.unit_tokens = unit_tokens
        self.free_units = OrderedDict.fromkeys(range(num_units))
        self.key_of: dict[int, int] = {}
        self.holders: dict[int, list[int]] = {}

    def find_prefix(self, request: ServedRequest) -> Sequence[int]:
        units = []
        for key in request.prefix_keys:
            if not self.holders.get(key):
                break
            units.append(self.holders[key][0])
        return units

    def allocate(self, request: ServedRequest, num_tokens: int, found: Sequence[int] = ()) -> Iterable[int] | None:
        begun = request.num_units + len(found)
        missing = max(-(-num_tokens // self.unit_tokens) - begun, 0)
        whole = 0 if request.num_units else -(-request.known_tokens // self.unit_tokens) - begun
        if max(missing, whole) > len(self.free_units) - sum(unit in self.free_units for unit in found):
            return None
        for unit in found:
            self.free_units.pop(unit, None)
        units = [self.free_units.popitem(last=False)[0] for _ in range(missing)]
        for unit in units:
            if unit in self.key_of:
                self.holders[self.key_of.pop(unit)].remove(unit)
        return units

    def cache(self, request: ServedRequest, unit: int, key: int) -> None:
        self.key_of[unit] = key
        self.holders.setdefault(key, []).append(unit)

    def free(self, request: ServedRequest, units: Sequence[int]) -> Iterable[int]:
        kept = [unit for unit in units if unit in self.key_of]
        for unit in reversed(kept):
            self.free_units[unit] = None
        for unit in units:
            if unit not in self.key_of:
                self.free_units[unit] = None
                self.free_units.move_to_end(unit, last=False)
        return kept


class OwnBlocks(kvsim.CustomPolicy):
    """vLLM's schedule over vLLM's cache, written in Python."""

    name, allocator = "own-blocks", Blocks

    def __init__(self, scheduler: ContinuousSettings | None = None) -> None:
        self.scheduler = scheduler or ContinuousSettings()


def requests(seed: int, num_requests: int = 24) -> kvsim.Workload:
    return kvsim.generate(
        num_requests,
        arrivals=kvsim.Poisson(rate_per_s=200),
        prompt=kvsim.Uniform(low=1, high=150),
        output=kvsim.Uniform(low=1, high=120),
        prefixes=kvsim.SharedPrefixes(num_groups=3, tokens=40),
        seed=seed,
    )


def tables(run: kvsim.Run) -> list[Any]:
    return [getattr(run, name).to_arrow() for name in ("requests", "steps", "schedule", "memory")]


@settings(max_examples=8)
@given(seed=st.integers(0, 1000), ahead=st.booleans(), num_blocks=st.integers(22, 60))
def test_vllms_cache_written_as_an_allocator_is_vllms(seed: int, ahead: bool, num_blocks: int) -> None:
    """Every block of every table is the same, with the hits, the preemptions, the evictions and the times."""
    how, machine = ContinuousSettings(async_scheduling=ahead), kvsim.machine("H200/Llama-3-8B", num_blocks=num_blocks)
    own = kvsim.simulate(requests(seed), OwnBlocks(how), machine, check=True)
    paged = kvsim.simulate(requests(seed), kvsim.Paged(scheduler=how), machine, engine="interpreted")
    assert own.requests.cached_tokens.sum() > 0
    assert all(one.equals(other) for one, other in zip(tables(own), tables(paged), strict=True))


def test_turns_of_a_conversation_find_the_answers_before_them() -> None:
    talks = kvsim.converse(8, turns=4, prompt=60, output=40, arrivals=kvsim.Poisson(rate_per_s=4))
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=60)
    own = kvsim.simulate(talks, OwnBlocks(), machine, check=True)
    paged = kvsim.simulate(talks, kvsim.Paged(), machine, engine="interpreted")
    assert (own.turns.history_tokens - own.turns.lost_tokens).max() > 0
    assert all(one.equals(other) for one, other in zip(tables(own), tables(paged), strict=True))


class KeepsEveryOther(Blocks):
    """Forgets every second unit when it is freed."""

    def free(self, request: ServedRequest, units: Sequence[int]) -> Iterable[int]:
        for unit in units[1::2]:
            if (key := self.key_of.pop(unit, None)) is not None:
                self.holders[key].remove(unit)
        return super().free(request, units)


def test_what_an_allocator_forgets_is_free_and_the_recording_passes_its_check(tmp_path: Path) -> None:
    policy = OwnBlocks()
    policy.allocator = KeepsEveryOther
    run = kvsim.simulate(requests(1), policy, kvsim.machine("H200/Llama-3-8B", num_blocks=40), check=True)
    assert run.summary().num_finished == 24
    run.save(tmp_path / "run")
    result = CliRunner().invoke(cli, ["info", str(tmp_path / "run"), "--check"])
    assert result.exit_code == 0, result.output


def test_a_policy_sees_what_its_allocator_finds() -> None:
    seen = []

    class Looks(OwnBlocks):
        def admit(self, step: StepInMaking) -> ServedRequest | None:
            seen.append((step.waiting[0].hit_tokens, step.cost_s({step.waiting[0]: 1})))
            return step.waiting[0]

    run = kvsim.simulate(requests(2), Looks(), kvsim.machine("H200/Llama-3-8B", num_blocks=60), check=True)
    assert max(hit for hit, _ in seen) >= run.requests.cached_tokens.max() > 0
    assert min(cost_s for _, cost_s in seen) > 0


def test_a_router_sees_what_the_allocators_of_servers_find() -> None:
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=60)
    how: dict[str, Any] = {"replicas": 2, "route": "prefix", "engine": "interpreted"}
    own, paged = (kvsim.simulate(requests(3), policy, machine, **how) for policy in (OwnBlocks(), kvsim.Paged()))
    assert own.summary().output_tokens == paged.summary().output_tokens
    for mine, vllms in zip(own, paged, strict=True):
        assert all(one.equals(other) for one, other in zip(tables(mine), tables(vllms), strict=True))


def with_answer(hook: str, answer: Callable[..., Any]) -> OwnBlocks:
    policy = OwnBlocks()
    policy.allocator = type("Wrong", (Blocks,), {hook: lambda _, *arguments: answer(*arguments)})
    return policy


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (with_answer("find_prefix", lambda _: [0]), "found unit 0 for <request 0: .*, whose tokens it does not"),
        (with_answer("find_prefix", lambda _: [0] * 99), "found 99 units for <request 0: .* which may share"),
        (with_answer("free", lambda _, units: [*units, 99]), "keeps unit 99 for its prefix, which was not freed"),
        (with_answer("free", lambda _, units: units), r"keeps unit \d+ for its prefix, .* or is not full"),
    ],
)
def test_what_no_allocator_may_do_is_a_sentence(policy: OwnBlocks, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        kvsim.simulate(requests(1), policy, kvsim.machine("H200/Llama-3-8B", num_blocks=40))


def test_a_unit_that_is_shared_is_not_handed_out() -> None:
    class Again(Blocks):
        def allocate(self, request: ServedRequest, num_tokens: int, found: Sequence[int] = ()) -> Iterable[int] | None:
            units = super().allocate(request, num_tokens, found)
            return units if units is None or not found else [found[0], *units]

    policy = OwnBlocks()
    policy.allocator = Again
    with pytest.raises(PolicyError, match=r"allocated unit \d+, which is in a table"):
        kvsim.simulate(requests(1), policy, kvsim.machine("H200/Llama-3-8B", num_blocks=40))


def test_names_and_makers_that_would_share_nothing_are_refused() -> None:
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=40)
    misspelt, made = OwnBlocks(), OwnBlocks()
    misspelt.allocator = type("Misspelt", (kvsim.Allocator,), {"find_prefixes": lambda *_: []})
    with pytest.raises(UsageError, match=r"Misspelt.find_prefixes is never called; SharingAllocator has find_prefix"):
        kvsim.simulate(requests(1), misspelt, machine)

    def make(num_units: int, unit_tokens: int) -> Blocks:
        return Blocks(num_units, unit_tokens)

    made.allocator = make
    with pytest.raises(PolicyError, match="shares prefixes by an allocator of Blocks; let `allocator` be that class"):
        kvsim.simulate(requests(1), made, machine)
