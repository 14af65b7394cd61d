"""Step times from a card and a shape: what follows from the shape, whatever the machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.calibration.observed import observe
from kvsim.calibration.predict import step_durations, step_errors
from kvsim.hardware import find_gpu
from kvsim.machines import card_of, in_batches_of
from kvsim.models import find_model, find_quantization
from kvsim.models.weights import Quantization
from kvsim.recording import find, read
from kvsim.steptime import Roofline, StepShape, reduce
from kvsim.steptime.curves import product_curve
from kvsim.steptime.host_constants import (
    DIVIDED_EXPERT_LAUNCHES,
    EAGER_LAUNCHES,
    MXFP4_EXPERT_LAUNCHES,
    SAMPLING_SHARE,
    WOKEN,
)
from kvsim.steptime.kernel_constants import FOUR_BIT_SHARE, FP8_QUERY_S
from kvsim.steptime.reduction import _product_curve, never_asleep, on_machine
from kvsim.steptime.work import Weights, work_of

H200 = find_gpu("H200")
CARD, LINKED = card_of(H200), card_of(H200, 2)
LLAMA = find_model("Meta-Llama-3-8B")
TIMES = {
    name: reduce(CARD, find_model(name))
    for name in (
        "Meta-Llama-3-8B",
        "Qwen3-8B",
        "gemma-3-4b-it",
        "granite-4.0-h-micro",
        "DeepSeek-V2-Lite",
        "gpt-oss-20b",
    )
}


def decode(seqs: int, context: int) -> StepShape:
    return StepShape(seqs, seqs, 0, seqs * context, 0)


def prefill(tokens: int) -> StepShape:
    return StepShape(1, tokens, tokens, tokens, tokens * (tokens + 1) // 2)


def test_a_gated_delta_net_takes_its_own_launches_and_the_states_of_mamba_2_theirs() -> None:
    qwen, mamba = find_model("Qwen3-Next-80B-A3B"), find_model("granite-4.0-h-micro")
    layers = len(qwen.recurrent_layers)
    others = len(qwen.attention_layers) * EAGER_LAUNCHES["attention"] + qwen.num_layers * EAGER_LAUNCHES["experts"]
    times = never_asleep(CARD, qwen)
    launches = layers * EAGER_LAUNCHES["delta net"] + others
    assert times.eager_launch_s == pytest.approx(launches * CARD.launch_s)
    of_mamba = len(mamba.recurrent_layers) * EAGER_LAUNCHES["recurrent"]
    of_mamba += len(mamba.attention_layers) * EAGER_LAUNCHES["attention"]
    assert never_asleep(CARD, mamba).eager_launch_s == pytest.approx(of_mamba * CARD.launch_s)


@pytest.mark.parametrize(
    ("quantization", "taken"),
    [
        (None, "bfloat16"),
        (find_quantization("fp8"), "fp8"),
        (find_quantization("int8"), "fp8"),
        (find_quantization("nvfp4"), "nvfp4"),
        (find_quantization("awq"), None),
        (find_quantization("gptq"), None),
        (Quantization(method="gptq", linear_bits=8 + 24 / 128, expert_bits=8 + 24 / 128), None),
        (Quantization(method="compressed-tensors", linear_bits=4 + 20 / 128, expert_bits=4 + 20 / 128), None),
        (Quantization(method="compressed-tensors", linear_bits=4.5, expert_bits=4.5), "nvfp4"),
        (Quantization(method="compressed-tensors", linear_bits=8, expert_bits=8), "fp8"),
    ],
)
def test_products_take_the_times_of_the_type_they_are_computed_in(
    quantization: Quantization | None, taken: str | None
) -> None:
    """Integers of 4 bits, and of 8 bits in groups, are converted and multiplied in bf16, whatever else the card has."""
    work, measured = work_of(replace(LLAMA, quantization=quantization)), CARD.products["bfloat16"]
    speed = {"bfloat16": 1.0, "fp8": 0.5, "nvfp4": 0.25}
    products = {
        name: replace(measured, seconds=tuple(tuple(share * second for second in row) for row in measured.seconds))
        for name, share in speed.items()
    }
    for weights in work.products:
        curve = _product_curve(replace(CARD, products=products), work, weights)
        plain = product_curve(measured, weights.n, weights.k)
        if taken is not None:
            assert curve(4096) == pytest.approx(speed[taken] * plain(4096))
        else:
            assert curve(1) == pytest.approx(plain(1) * work.weight_bits / 16 / FOUR_BIT_SHARE)
            assert curve(4096) == pytest.approx(plain(4096), rel=0.1)


def test_the_work_of_a_llama_is_its_four_matrices() -> None:
    work = work_of(LLAMA)
    assert dict(work.products) == {
        Weights(6144, 4096): 32,
        Weights(4096, 4096): 32,
        Weights(2 * 14336, 4096): 32,
        Weights(4096, 14336): 32,
    }
    assert work.output == Weights(128256, 4096)
    assert [(reading.num_layers, reading.window) for reading in work.readings] == [(32, 0)]
    halved = work_of(LLAMA.served(tensor_parallel_size=2))
    assert sum(n * k * count for (n, k), count in halved.products.items()) * 2 == sum(
        n * k * count for (n, k), count in work.products.items()
    )
    assert (work.num_reduces, halved.num_reduces) == (0, 64)


def test_layers_are_counted_by_kind() -> None:
    gemma, hybrid, latent = (
        work_of(find_model(name)) for name in ("gemma-3-4b-it", "granite-4.0-h-micro", "DeepSeek-V2-Lite")
    )
    assert sorted((reading.num_layers, reading.window) for reading in gemma.readings) == [(5, 0), (29, 1024)]
    assert (hybrid.num_recurrent_layers, hybrid.readings[0].num_layers) == (36, 4)
    assert latent.num_latent_layers == 27
    assert latent.readings[0].bytes_per_token == 1152
    assert (latent.num_experts, latent.num_experts_per_token, latent.expert_layers) == (64, 6, 26)


@pytest.mark.parametrize("name", TIMES)
@settings(max_examples=25, deadline=None)
@given(seqs=st.integers(1, 256), context=st.integers(1, 8000), more=st.integers(1, 2000))
def test_more_context_never_takes_less(name: str, seqs: int, context: int, more: int) -> None:
    times = TIMES[name]
    before, after = (times.step_time(decode(seqs, length)) for length in (context, context + more))
    assert 0 < before.gpu_s <= after.gpu_s


@pytest.mark.parametrize("name", TIMES)
def test_a_longer_prefill_takes_longer(name: str) -> None:
    seconds = [TIMES[name].step_time(prefill(tokens)).gpu_s for tokens in (600, 1200, 2400, 4800, 9600)]
    assert seconds == sorted(seconds)


def test_the_first_kernel_does_not_wait_for_the_launch_of_sampling() -> None:
    """A worker process of several GPUs was not measured, so its kernels wait for all of its time."""
    one, two = reduce(CARD, LLAMA), reduce(LINKED, LLAMA.served(tensor_parallel_size=2))
    cost = one.step_time(decode(16, 200))
    assert cost.launch_s == pytest.approx(one.host_step_s + 16 * one.host_sequence_s)
    assert cost.prepare_s == pytest.approx((1 - SAMPLING_SHARE) * cost.launch_s)
    prepare_s = two.host_step_s + two.worker_step_s + 16 * two.worker_sequence_s
    assert two.step_time(decode(16, 200)).prepare_s == pytest.approx(prepare_s)


def test_decodes_of_a_server_that_waits_for_outputs_take_as_long_as_measured() -> None:
    """With the launch of sampling before the first kernel, these steps were 21 % too long."""
    observed = observe(read(find("vllm-h200-llama-3-8b-sync")))
    times = reduce(CARD, LLAMA, in_process=True)
    errors = step_errors(times, observed) / step_durations(observed)
    assert abs(np.median(errors[observed.shape.num_prefill_tokens == 0])) < 0.05


def test_a_window_bounds_what_is_read() -> None:
    """Beyond its window a sliding layer reads no more: 29 of 34 layers of Gemma stop at 1,024 tokens."""
    gemma = TIMES["gemma-3-4b-it"]

    def growth(times: Roofline, low: int, high: int) -> float:
        return times.step_time(decode(64, high)).gpu_s - times.step_time(decode(64, low)).gpu_s

    assert growth(gemma, 2000, 3000) == pytest.approx(growth(gemma, 0, 1000) * 5 / 34, rel=0.01)
    assert growth(TIMES["Qwen3-8B"], 2000, 3000) == pytest.approx(growth(TIMES["Qwen3-8B"], 0, 1000), rel=0.01)


def test_a_recurrent_state_is_read_and_written_at_the_rate_of_a_copy() -> None:
    hybrid, card = find_model("ibm-granite/granite-4.0-h-micro"), card_of(find_gpu("H200"))
    stateless = replace(card, copy_bytes_per_s=1e18)
    one_more, without = (reduce(item, hybrid).sequence_s for item in (card, stateless))
    assert one_more - without == pytest.approx(2 * hybrid.state_bytes_per_sequence / card.copy_bytes_per_s, rel=1e-5)


def test_tables_of_states_take_the_host_longer_and_those_of_windows_do_not() -> None:
    card = card_of(find_gpu("H200"))
    of_states, of_windows, plain = (
        never_asleep(card, find_model(name)) for name in ("granite-4.0-h-micro", "gemma-3-4b-it", "Qwen3-8B")
    )
    assert work_of(find_model("ibm-granite/granite-4.0-h-micro")).num_state_tables == 9
    assert of_states.host_step_s > plain.host_step_s == of_windows.host_step_s
    assert of_states.host_sequence_s > plain.host_sequence_s == of_windows.host_sequence_s


def test_two_gpus_take_more_than_half_as_long_as_one() -> None:
    one, two = reduce(CARD, LLAMA), reduce(LINKED, LLAMA.served(tensor_parallel_size=2))
    for shape in (decode(1, 500), decode(64, 500), prefill(4096)):
        assert 0.5 < two.step_time(shape).gpu_s / one.step_time(shape).gpu_s < 0.85
    assert two.step_time(prefill(200)).launch_s < one.step_time(prefill(200)).launch_s, "workers launch"


@pytest.mark.parametrize("shape", [decode(8, 500), prefill(200), prefill(4096)], ids=["decode", "captured", "large"])
def test_a_worker_prepares_a_step_while_the_scheduler_goes_on(shape: StepShape) -> None:
    """Its GPU waits for that as one's would whose host launched sampling first; the scheduler is free at once."""
    one = replace(reduce(CARD, LLAMA), sampling_share=0.0)
    two = reduce(LINKED, LLAMA.served(tensor_parallel_size=2))
    alone, dealt_out = one.step_time(shape), two.step_time(shape)
    assert dealt_out.launch_s < alone.prepare_s <= alone.launch_s
    assert 0.9 * alone.prepare_s < dealt_out.prepare_s < 1.5 * alone.prepare_s


def test_smaller_types_take_less_where_they_are_streamed() -> None:
    plain = reduce(CARD, LLAMA)
    for bits, kinds in ((8, "fp8"), (4, "awq")):
        smaller = reduce(CARD, LLAMA.served(quantization=find_quantization(kinds)))
        saved = 1 - smaller.step_time(decode(1, 100)).gpu_s / plain.step_time(decode(1, 100)).gpu_s
        assert 0.2 < saved < 1 - bits / 16
    cached = reduce(CARD, LLAMA.served(kv_cache_dtype="fp8"))
    assert cached.step_time(decode(64, 4000)).gpu_s < plain.step_time(decode(64, 4000)).gpu_s
    assert cached.step_time(decode(1, 1)).gpu_s > plain.step_time(decode(1, 1)).gpu_s, "queries are brought to fp8"


FP8_KERNELS = (
    (128, 128, 43.3, 45.8),
    (128, 512, 86.4, 83.4),
    (128, 2048, 262.1, 217.0),
    (256, 512, 156.9, 150.7),
    (160, 560, 116.4, 99.7),
    (96, 640, 79.7, 71.5),
    (48, 640, 45.1, 38.2),
    (32, 2048, 76.3, 61.7),
)
"""Sequences, the context of each, and what one layer's attention took with a cache in bf16 and in fp8, in microseconds:
vLLM's kernels on an H200, called as its engine calls them."""


@pytest.mark.parametrize(("seqs", "context", "plain_us", "fp8_us"), FP8_KERNELS)
def test_a_cache_in_fp8_saves_what_its_kernels_do(seqs: int, context: int, plain_us: float, fp8_us: float) -> None:
    """Half the bytes save a quarter of the reading, and nothing where contexts are short."""
    plain, cached = TIMES["Meta-Llama-3-8B"], reduce(CARD, LLAMA.served(kv_cache_dtype="fp8"))
    saved_s = [times.step_time(decode(seqs, context)).gpu_s for times in (plain, cached)]
    saved_us = (saved_s[0] - saved_s[1]) / 32 * 1e6 + FP8_QUERY_S * 1e6
    assert saved_us == pytest.approx(plain_us - fp8_us, abs=0.1 * plain_us)


def test_a_token_reaches_few_experts_and_many_reach_all() -> None:
    mixture = find_model("Qwen3-30B-A3B")
    times = reduce(CARD, mixture)
    all_s = mixture.num_expert_parameters * 2 / CARD.read_bytes_per_s
    few, many = times.step_time(decode(1, 1)).gpu_s, times.step_time(decode(256, 1)).gpu_s
    assert many > all_s
    assert many - few > 0.8 * all_s


EXPERT_MS = {1: 4.29, 9: 12.1, 16: 12.6, 32: 16.1, 64: 18.1, 128: 19.1}
"""Milliseconds of a decode step of Qwen3-30B-A3B by its sequences, recorded on an H200 with random weights."""


@pytest.mark.parametrize("seqs", EXPERT_MS)
def test_decodes_of_experts_take_what_an_engine_took(seqs: int) -> None:
    times = reduce(CARD, find_model("Qwen3-30B-A3B"))
    assert 1e3 * times.step_time(decode(seqs, 300)).gpu_s == pytest.approx(EXPERT_MS[seqs], rel=0.1)


def test_a_slower_host_shows_in_launches_alone() -> None:
    slow = reduce(replace(CARD, launch_s=1.2 * CARD.launch_s), LLAMA)
    usual = TIMES["Meta-Llama-3-8B"]
    for shape in (decode(32, 500), prefill(200), prefill(4000)):
        before, after = usual.step_time(shape), slow.step_time(shape)
        assert after.gpu_s == before.gpu_s
        assert after.launch_s == pytest.approx(1.2 * before.launch_s)


def test_experts_that_gpus_divide_take_longer_to_launch_kernel_by_kernel() -> None:
    """In steps that no graph holds; those of a dense model take workers as long as a scheduler."""
    mixture = find_model("Mixtral-8x7B-v0.1")
    one, two = never_asleep(CARD, mixture), never_asleep(LINKED, mixture.served(tensor_parallel_size=2))
    more_s = LINKED.launch_s * mixture.num_layers * (DIVIDED_EXPERT_LAUNCHES - EAGER_LAUNCHES["experts"])
    alone_s = one.eager_launch_s * LINKED.launch_s / CARD.launch_s
    assert two.eager_floor_s == pytest.approx(alone_s + more_s + two.worker_step_s)
    assert two.piecewise_floor_s == pytest.approx(
        one.piecewise_launch_s * LINKED.launch_s / CARD.launch_s + two.worker_step_s
    )


def test_gpt_oss_has_graphs_of_1024_tokens_whatever_its_batches_are() -> None:
    """Larger steps take the host longer than those of other experts, which are launched without Python's kernels."""
    gpt_oss, other = find_model("gpt-oss-20b"), find_model("Qwen3-30B-A3B")
    for max_num_seqs in (16, 256, 1024):
        limited = (in_batches_of(max_num_seqs, reduce(CARD, each)) for each in (gpt_oss, other))
        assert [times.max_captured_tokens for times in limited] == [1024, min(2 * max_num_seqs, 512)]
    of_layer = [never_asleep(CARD, each).eager_launch_s / each.num_layers / CARD.launch_s for each in (gpt_oss, other)]
    assert of_layer[0] - of_layer[1] == pytest.approx(MXFP4_EXPERT_LAUNCHES - EAGER_LAUNCHES["experts"])


def host_share(times: Roofline, awake: Roofline) -> float:
    return times.eager_launch_s / awake.eager_launch_s


def test_a_host_that_sleeps_takes_longer_and_one_that_never_does_not() -> None:
    small = find_model("granite-4.0-350m")
    assert host_share(reduce(CARD, LLAMA), never_asleep(CARD, LLAMA)) == pytest.approx(WOKEN)
    assert reduce(CARD, small) == never_asleep(CARD, small)


def test_workers_have_processes_of_their_own_whatever_the_scheduler_has() -> None:
    two = LLAMA.served(tensor_parallel_size=2)
    card = card_of(find_gpu("H200"), 2)
    with_driver, alone = reduce(card, two, in_process=True), reduce(card, two)
    assert with_driver.turnaround_step_s > alone.turnaround_step_s
    assert with_driver.eager_floor_s == alone.eager_floor_s
    assert with_driver.worker_step_s == alone.worker_step_s


@pytest.mark.parametrize("model", ["granite-4.0-350m", "Qwen3-0.6B", "Gemma-3-4B", "Meta-Llama-3-8B"])
def test_however_slow_a_host_is_sleeping_never_makes_it_the_slower_clock(model: str) -> None:
    """One that would be slower than its GPU, were it as slow as after a sleep, sleeps less."""
    shape = find_model(model)
    before = 0.0
    for factor in (0.5, 0.8, 1.0, 1.3, 1.7, 2.5, 4.0):
        card = replace(CARD, factors={"host": factor})
        awake = on_machine(never_asleep(card, shape), card.launch_s, {"host": factor, "woken": 1 / WOKEN})
        times = reduce(card, shape)
        longer = host_share(times, awake)
        assert 1.0 <= longer <= WOKEN * (1 + 1e-12)
        step = times.step_time(decode(16, 0))
        assert longer == 1.0 or step.prepare_s + step.turnaround_s <= step.gpu_s * (1 + 1e-9)
        assert times.eager_launch_s >= before, "a slower host is never faster"
        before = times.eager_launch_s
