"""Generated workloads against vLLM's own scheduler, which runs beside the tests."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvsim.conformance import parse_workload, read_records, verify_oracle
from kvsim.conformance.generated import small

from ..vllm_engine.recordings import GENERATED, Live, in_main
from .shrink import shrink


@in_main
@pytest.mark.parametrize("name", GENERATED)
def test_generated_workloads_are_decided_as_vllm_does(name: str, live: Live) -> None:
    verdict = verify_oracle(parse_workload(GENERATED[name], name), read_records(live.told(name)))
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
