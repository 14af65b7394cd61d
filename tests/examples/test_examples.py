"""The examples: short enough to read, and what they say is so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvsim
from kvsim.recording import MemoryKind

from ..conftest import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def policies_in(name: str) -> list[Any]:
    """The policies that an example defines."""
    kinds = [kind for kind in vars(loaded(name)).values() if isinstance(kind, type)]
    return [kind for kind in kinds if kvsim.CustomPolicy in kind.__mro__ and kind.__module__ == name]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_at_most_eighty_lines_and_says_what_it_does(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert text.startswith('"""')


def test_the_shortest_job_waits_less() -> None:
    found = loaded("shortest_job_first").main(60)
    paged, shortest = found["paged"].summary(), found["shortest-job-first"].summary()
    assert shortest.ttft_s.mean < 0.9 * paged.ttft_s.mean
    assert shortest.output_tokens == paged.output_tokens


def test_dropping_the_largest_preempts_less_often() -> None:
    found = loaded("drop_the_largest").main(60)
    assert 0 < found["drop-the-largest"].num_preemptions < found["paged"].num_preemptions


def test_the_longest_prefix_is_found_more_often_than_in_order_of_arrival() -> None:
    found = loaded("longest_prefix_first").main(100)
    hits = {name: run.requests.cached_tokens.sum() for name, run in found.items()}
    assert hits["longest-prefix-first"] > 1.5 * hits["paged"]


def test_rules_of_eviction_differ_in_what_they_keep() -> None:
    found = loaded("evict").main(80)
    hits = {name: run.requests.cached_tokens.sum() for name, run in found.items()}
    assert hits["least-often-hit"] > hits["paged"]
    assert hits["pinned-prompts"] > hits["paged"]
    assert len(set(hits.values())) >= 4
    assert len({run.summary().output_tokens for run in found.values()}) == 1


def test_two_block_sizes_share_a_pool_and_fragment_it() -> None:
    example = loaded("two_block_sizes")
    requests = kvsim.workload_of(kvsim.read("vllm-h200-llama-3-8b-sharegpt-pressure")).head(40)
    run = kvsim.simulate(requests, example.TwoSizes(), kvsim.machine("H200/Llama-3-8B", num_blocks=200), check=True)
    assert run.summary().num_finished == 40
    assert run.summary().waste.as_dict()["pool_percent"]["external"] > 0
    memory = run.memory
    begins = (memory.kind == MemoryKind.APPEND) & (memory.position == 0) & (memory.length >= example.SMALL_PER_LARGE)
    assert begins.sum() > 20
    assert ((memory.address[begins] - 1) % example.SMALL_PER_LARGE == 0).all()


def test_a_compiled_rule_finds_more_than_vllms_and_less_than_the_bound() -> None:
    found = loaded("hyperbolic").main(120)
    hits = {name: run.requests.cached_tokens.sum() for name, run in found.items()}
    assert hits["paged"] < hits["hyperbolic"] <= hits["optimal"]


def test_prompts_outlive_documents_that_come_once() -> None:
    found = loaded("scan_resistant").main(90)
    hits = {name: run.requests.cached_tokens.sum() for name, run in found.items()}
    assert hits["scan-resistant"] > 1.2 * hits["paged"]


def test_a_router_takes_the_longest_hit_where_there_is_room() -> None:
    class Seen(NamedTuple):
        number: int
        kv_usage: float
        hit_tokens: int = 0
        num_requests: int = 0

    route = loaded("fullest_last").route
    assert route(None, [Seen(0, 0.95, hit_tokens=64), Seen(1, 0.5, hit_tokens=32), Seen(2, 0.1)]) == 1
    assert route(None, [Seen(0, 0.95, hit_tokens=64), Seen(1, 0.92)]) == 1


def test_deadlines_are_met_more_often_and_tokens_follow_sooner() -> None:
    example = loaded("deadlines")
    found = example.main()
    assert example.num_late(found["deadlines"]) == 0 < example.num_late(found["paged"])
    tpot_s = {name: run.summary().tpot_s.p99 for name, run in found.items()}
    assert tpot_s["deadlines"] < example.LONGEST_STEP_S < tpot_s["paged"]


def test_deadlines_are_met_in_a_small_pool_by_preemption() -> None:
    example = loaded("deadlines")
    found = example.main(num_requests=40, num_blocks=1100)
    assert example.num_late(found["deadlines"]) == 0 < example.num_late(found["paged"])
    assert found["deadlines"].requests.preemptions.sum() > 0
    assert found["deadlines"].summary().num_finished == found["paged"].summary().num_finished


def test_a_tree_of_tokens_finds_what_sglangs_does_and_more_than_blocks() -> None:
    found = loaded("radix_tree").main()
    hits = {name: run.requests.cached_tokens.sum() for name, run in found.items()}
    assert hits["radix-tree"] > 1.2 * hits["paged"]
    assert hits["radix-tree"] == pytest.approx(hits["radix"], rel=0.1)


@pytest.mark.parametrize("name", [file.stem for file in EXAMPLES if "CustomPolicy" in file.read_text(encoding="utf-8")])
def test_every_example_is_checked_and_shown(name: str) -> None:
    """Every slot is accounted for at every step, and the run opens in the interface."""
    requests = kvsim.generate(
        20,
        arrivals=kvsim.Poisson(rate_per_s=40),
        prompt=60,
        output=20,
        prefixes=kvsim.SharedPrefixes(num_groups=4, tokens=40),
    )
    policies = policies_in(name)
    assert policies
    for policy in policies:
        run = kvsim.simulate(requests, policy(), kvsim.machine("H200/Llama-3-8B", num_blocks=40), check=True)
        assert run.summary().num_finished == 20
        assert run.meta.rules_name in str(run.picture())
