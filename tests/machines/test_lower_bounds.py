"""No step takes less of a GPU than moving its bytes and doing its arithmetic at the peaks of the data sheet."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvsim.hardware import GPUS, Gpu, find_gpu
from kvsim.machines import card_of, step_times
from kvsim.models import Model, all_models, find_model
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.steptime import Roofline, StepShape, reduce
from kvsim.steptime.sizes import LARGE_SIZES
from kvsim.steptime.work import streamed_bytes, work_of

MODELS = {model.name: model for model in all_models()}
BATCHES = (1, 16, 64, 256)
"""The largest batch decides up to which size steps are captured."""
MIXTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1"
LLAMA, H200 = find_model("llama-3-8b"), find_gpu("H200")
KERNELS = {(32, 512, 512): 39.8, (128, 512, 512): 97.8, (128, 1024, 2048): 217.9, (32, 2048, 2048): 147.6,
           (96, 640, 256): 95.6, (160, 560, 256): 142.2, (64, 640, 1024): 81.4}  # fmt: skip
"""Microseconds of one launch of FlashAttention 3 with 32 query and 8 key heads of 128 elements on an H200 that no card
is of: so many decodes, the context of each, and the tokens of one prompt beside them."""


@cache
def times_of(gpu: Gpu, name: str, max_num_seqs: int, *, captured: bool) -> Roofline:
    found = step_times(gpu, MODELS[name], "vllm", max_num_seqs=max_num_seqs, captured=captured)
    times = found.times if isinstance(found, WatchedProfile) else found
    assert isinstance(times, Roofline)
    return times


def prompt(tokens: int) -> StepShape:
    return StepShape(1, tokens, tokens, tokens, tokens * (tokens + 1) // 2)


def least_s(gpu: Gpu, model: Model, shape: StepShape) -> float:
    """What the weights that one token passes through, keys, values and products take at the peaks."""
    work, tokens = work_of(model), shape.num_tokens
    read_bytes = sum(
        reading.num_layers * reading.bytes_per_token * min(shape.context_tokens, reading.window * shape.num_seqs)
        if reading.window
        else reading.num_layers * reading.bytes_per_token * shape.context_tokens
        for reading in work.readings
    )
    multiplied = sum(weights.n * weights.k * count for weights, count in work.products.items())
    peak = gpu.dense_flops if work.weight_bits >= 16 else max(gpu.fp8_dense_flops or 0, gpu.dense_flops)
    weights_bytes = streamed_bytes(model, model.num_active_parameters)
    return max((weights_bytes + read_bytes) / gpu.bandwidth_bytes_per_s, 2 * tokens * multiplied / peak)


@settings(max_examples=300, deadline=None)
@given(
    gpu=st.sampled_from(GPUS),
    name=st.sampled_from(sorted(MODELS)),
    max_num_seqs=st.sampled_from(BATCHES),
    captured=st.booleans(),
    seqs=st.integers(0, 256),
    prompt_tokens=st.integers(0, 16384) | st.integers(0, 600),
    context=st.integers(1, 4000),
)
@example(find_gpu("RTX 3090"), "facebook/opt-66b", 16, True, 0, 100, 1)
@example(H200, MIXTRAL, 16, True, 0, 520, 1)
def test_no_step_is_faster_than_the_peaks_of_its_gpu(
    gpu: Gpu, name: str, max_num_seqs: int, captured: bool, seqs: int, prompt_tokens: int, context: int
) -> None:
    times = times_of(gpu, name, max_num_seqs, captured=captured)
    num_seqs = seqs + (prompt_tokens > 0)
    if num_seqs == 0:
        return
    pairs = prompt_tokens * (prompt_tokens + 1) // 2
    shape = StepShape(num_seqs, seqs + prompt_tokens, prompt_tokens, seqs * context + prompt_tokens, pairs)
    assert times.step_time(shape).gpu_s >= least_s(gpu, MODELS[name], shape)


@settings(max_examples=150, deadline=None)
@given(
    gpu=st.sampled_from(GPUS),
    name=st.sampled_from(sorted(MODELS)),
    max_num_seqs=st.sampled_from(BATCHES),
    tokens=st.lists(st.integers(513, 20_000), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_above_what_is_captured_a_longer_prompt_takes_longer(
    gpu: Gpu, name: str, max_num_seqs: int, tokens: list[int]
) -> None:
    times = times_of(gpu, name, max_num_seqs, captured=True)
    shorter, longer = (times.step_time(prompt(count)).gpu_s for count in tokens)
    assert shorter <= longer


@pytest.mark.parametrize("name", ["meta-llama/Meta-Llama-3-8B", "google/gemma-3-4b-it", MIXTRAL])
def test_a_step_takes_as_long_captured_or_not_but_for_what_stands_between_captured_pieces(name: str) -> None:
    times = reduce(card_of(H200), MODELS[name])
    for tokens in (8, 40, 104, 256, 400, 512):
        captured_s = times.step_time(prompt(tokens)).gpu_s
        assert times.uncaptured().step_time(prompt(tokens)).gpu_s == pytest.approx(captured_s - times.piecewise_s)


def test_sizes_that_were_measured_take_what_was_measured() -> None:
    """Between two sizes lies a straight line, and none of the entries leaves a jump."""
    times = reduce(card_of(H200), LLAMA)
    for size in LARGE_SIZES[:-1]:
        below_s, at_s, above_s = (times.step_time(prompt(size + more)).gpu_s for more in (-1, 0, 1))
        assert below_s < at_s + times.piecewise_s
        assert above_s - at_s == pytest.approx(0, abs=times.piecewise_s + 50e-6)


@pytest.mark.parametrize("launch", KERNELS)
def test_decodes_beside_a_prompt_take_what_their_kernel_does(launch: tuple[int, int, int]) -> None:
    """Reading is slower beside a prompt; a card says by how much from launches of its own."""
    decodes, context, tokens = launch
    times, layers = reduce(card_of(H200), LLAMA), LLAMA.num_layers
    read = StepShape(decodes + 1, 0, 1, decodes * context + tokens, tokens * (tokens + 1) // 2)
    nothing = StepShape(1, 0, 1, 0, 0)
    more_s = (times.step_time(read).gpu_s - times.step_time(nothing).gpu_s) / layers
    start_us = 8.0
    assert more_s * 1e6 + start_us == pytest.approx(KERNELS[launch], rel=0.15)
