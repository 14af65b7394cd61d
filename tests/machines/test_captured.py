"""Steps that vLLM captures: up to twice as many tokens as sequences, as an engine with 64 sequences logged it."""

from __future__ import annotations

import pytest

from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.steptime import Roofline


@pytest.mark.parametrize(("max_num_seqs", "largest"), [(None, 512), (1024, 512), (256, 512), (64, 128), (1, 2)])
@pytest.mark.parametrize("model", ["Meta-Llama-3-8B", "Qwen3-8B"])
def test_the_largest_captured_step_follows_the_batch(max_num_seqs: int | None, largest: int, model: str) -> None:
    times = step_times(find_gpu("H200"), find_model(model), "vllm", max_num_seqs=max_num_seqs)
    coefficients = times.times if isinstance(times, WatchedProfile) else times
    assert isinstance(coefficients, Roofline)
    assert coefficients.max_captured_tokens == largest


def test_an_engine_that_captures_nothing_stays_so() -> None:
    times = step_times(find_gpu("H200"), find_model("Meta-Llama-3-8B"), "vllm", captured=False, max_num_seqs=64)
    assert isinstance(times, WatchedProfile)
    assert times.times.max_captured_tokens == 0
