"""Speed: what we measured ourselves, and what others printed. Not every prediction holds; those that do must go on."""

from __future__ import annotations

import pytest

from kvsim.metrics import summarize
from kvsim.published import ROWS, reproduce
from kvsim.published.figures import Reproduction
from kvsim.published.posts import REPRODUCE
from kvsim.recording import find, read

MEASURED = ("hf-h200-granite-350m-one-by-one", "hf-h200-granite-350m-batch500", "vllm-h200-granite-350m-gsm8k")
BY_NAME = {row.name: row for row in ROWS if row.name in REPRODUCE}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Reproduction]:
    return {name: reproduce(row) for name, row in BY_NAME.items()}


def test_the_three_ways_are_those_of_the_recordings() -> None:
    for figure, name in zip(BY_NAME["three-way"].figures, MEASURED, strict=True):
        assert figure.published == pytest.approx(summarize(read(find(name))).output_tokens_per_s, rel=0.001)


@pytest.mark.parametrize("row", ["three-way", "a4000-speed", "t4-one-prompt"])
def test_what_the_model_explains(outcomes: dict[str, Reproduction], row: str) -> None:
    assert outcomes[row].passed
    assert not outcomes[row].is_refuted


def test_what_it_does_not_explain_is_a_failure_and_says_what_is_missing(outcomes: dict[str, Reproduction]) -> None:
    for outcome in outcomes.values():
        assert outcome.passed or "Missing" in outcome.row.note


def test_what_no_engine_can_reach_on_that_gpu_is_told_from_what_ours_misses(outcomes: dict[str, Reproduction]) -> None:
    refuted = outcomes["a100-answers"]
    assert refuted.is_refuted
    assert refuted.beyond == ("Transformers, one at a time", "vLLM, 256 at a time, AWQ in 4 bits")
    assert all(ours < most for ours, most in zip(refuted.ours, refuted.ceilings, strict=True)), "nor can ours"
    assert [name for name, outcome in outcomes.items() if outcome.is_refuted] == ["a100-answers"]


def test_vllm_is_faster_than_a_batch_and_a_batch_faster_than_one_by_one(outcomes: dict[str, Reproduction]) -> None:
    for name in ("three-way", "a4000-speed", "a100-answers"):
        alone, batch, vllm, *_ = outcomes[name].ours
        assert alone < batch < vllm
