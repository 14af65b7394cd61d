"""Generated workloads against the oracle itself, where it is installed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from .fuzz import compare
from .oracle import Oracle
from .shrink import shrink
from .workloads import offloaded, realistic, small

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    found = Oracle.from_environment()
    if found is None:
        pytest.skip("KVSIM_ORACLE and KVSIM_ORACLE_SCRIPT name no oracle")
    with found as running:
        yield running


@pytest.fixture(scope="module")
def oracle_with_offload() -> Iterator[Oracle]:
    found = Oracle.from_environment("vllm_oracle_offload.py")
    if found is None:
        pytest.skip("KVSIM_ORACLE and KVSIM_ORACLE_SCRIPT name no oracle with an offload beside its script")
    with found as running:
        yield running


@pytest.mark.parametrize("number", range(20))
def test_generated_workloads_with_an_offload_are_decided_as_the_oracle_does(
    oracle_with_offload: Oracle, number: int
) -> None:
    verdict, _ = compare(oracle_with_offload, offloaded(Random(f"suite/{number}")))
    assert verdict.equal, verdict
    assert verdict.num_steps > 0


@pytest.mark.parametrize(
    ("generate", "number"), [*((small, number) for number in range(40)), *((realistic, number) for number in range(4))]
)
def test_generated_workloads_are_decided_as_the_oracle_does(oracle: Oracle, generate: Any, number: int) -> None:
    document = generate(Random(f"suite/{number}"))
    verdict, _ = compare(oracle, document)
    assert verdict.equal, verdict
    assert verdict.num_steps > 0


def test_shrinking_keeps_what_is_needed_and_nothing_else() -> None:
    document = small(Random(3))
    document["watermark"] = 0.3
    document["requests"][0]["priority"] = 2

    def needs_a_long_prompt_and_a_watermark(candidate: dict[str, Any]) -> bool:
        return candidate["watermark"] > 0 and any(request["prompt_len"] >= 3 for request in candidate["requests"])

    smallest = shrink(document, needs_a_long_prompt_and_a_watermark)
    assert smallest["watermark"] == 0.3
    assert [request["prompt_len"] for request in smallest["requests"]] == [3]
    assert (smallest["requests"][0]["priority"], smallest["requests"][0]["output_len"], smallest["policy"]) == (
        0,
        1,
        "fcfs",
    )
