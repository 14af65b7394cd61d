from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.calibration.prior import vllm_prior
from kvsim.hardware import GPUS, Gpu, find_gpu
from kvsim.machines import card_of, sheet_card, step_times
from kvsim.models import Model, all_models, find_model
from kvsim.steptime import (
    ALL_ALIKE,
    UNTHROTTLED,
    Roofline,
    StepShape,
    StepTimeModel,
    generate_times,
    reduce,
    size_place,
    throttled_gpu_s,
)
from kvsim.steptime.shapes import THROTTLE_S, StepTime

H200 = find_gpu("H200")
LLAMA = find_model("llama-3-8b")
GRANITE = find_model("granite-4.0-350m")
EXPERTS = find_model("granite-4.0-h-tiny")
VLLM = reduce(card_of(H200), LLAMA)
MODELS: list[StepTimeModel] = [
    VLLM,
    VLLM.uncaptured(),
    vllm_prior(H200, LLAMA),
    reduce(sheet_card(find_gpu("A4000")), EXPERTS),
    generate_times(H200, GRANITE),
    generate_times(H200, GRANITE, "static"),
]


COSTLY = tuple(field for field in StepShape._fields if field != "shared_tokens")


@st.composite
def shapes(draw: st.DrawFn) -> StepShape:
    num_prefill = draw(st.integers(0, 16384) | st.integers(0, 600))
    num_decode = draw(st.integers(0 if num_prefill else 1, 1024))
    num_seqs = num_decode + draw(st.integers(1, min(64, num_prefill))) if num_prefill else num_decode
    return StepShape(
        num_seqs=num_seqs,
        num_tokens=num_decode + num_prefill,
        num_prefill_tokens=num_prefill,
        context_tokens=draw(st.integers(0, 2_000_000)),
        attention_pairs=draw(st.integers(0, 10**12)) if num_prefill else 0,
    )


def decode(num_seqs: int, context_tokens: int = 0) -> StepShape:
    return StepShape(num_seqs, num_seqs, 0, context_tokens, 0)


def prefill(num_tokens: int) -> StepShape:
    return StepShape(1, num_tokens, num_tokens, 0, num_tokens * (num_tokens + 1) // 2)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.label)
@given(shape=shapes(), field=st.sampled_from(COSTLY), more=st.integers(1, 1000))
@settings(max_examples=40)
def test_more_of_anything_is_never_faster(model: StepTimeModel, shape: StepShape, field: str, more: int) -> None:
    larger = shape._replace(**{field: getattr(shape, field) + more})
    if field == "num_seqs":  # with a context of their own: the same context read by more sequences is read faster
        larger = larger._replace(context_tokens=-(-shape.context_tokens * larger.num_seqs // shape.num_seqs))
    if field == "num_prefill_tokens":
        larger = larger._replace(num_tokens=shape.num_tokens + more)
    before, after = model.step_time(shape), model.step_time(larger)
    assert after.launch_s >= before.launch_s
    assert after.gpu_s >= before.gpu_s


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.label)
@given(st.lists(shapes(), min_size=1, max_size=20))
@settings(max_examples=30)
def test_arrays_of_steps_take_exactly_what_each_step_takes(model: StepTimeModel, steps: list[StepShape]) -> None:
    together = model.step_time(StepShape._make(np.array(steps).T))
    one_by_one = [model.step_time(step) for step in steps]
    assert np.asarray(together.launch_s).tolist() == [time.launch_s for time in one_by_one]
    assert np.asarray(together.gpu_s).tolist() == [time.gpu_s for time in one_by_one]


def test_a_single_step_takes_plain_numbers() -> None:
    time = VLLM.step_time(decode(8))
    assert (type(time.launch_s), type(time.gpu_s)) == (float, float)


# Medians of pure decode steps in the recording vllm-h200-llama-3-8b-sharegpt-pressure: sequences, their context, ms.
@pytest.mark.parametrize(
    ("num_seqs", "context_tokens", "measured_ms"),
    [(1, 1116, 4.98), (5, 3785, 5.10), (12, 8951, 5.50), (40, 16829, 6.15), (71, 24186, 6.53), (85, 24483, 6.73)],
)
def test_decode_on_an_h200_is_near_the_recording(num_seqs: int, context_tokens: int, measured_ms: float) -> None:
    time = VLLM.step_time(decode(num_seqs, context_tokens))
    assert time.gpu_s * 1e3 == pytest.approx(measured_ms, rel=0.1)
    assert time.launch_s < time.gpu_s


def test_prefill_on_an_h200_takes_about_0_0215_ms_a_token() -> None:
    marginal_s = (VLLM.step_time(prefill(2000)).gpu_s - VLLM.step_time(prefill(1000)).gpu_s) / 1000
    assert marginal_s * 1e3 == pytest.approx(0.0215, rel=0.15)


def test_a_large_step_occupies_the_host_longer_than_the_gpu_and_a_captured_one_hardly() -> None:
    large, mixed, decoding = VLLM.step_time(prefill(513)), VLLM.step_time(prefill(8)), VLLM.step_time(decode(8))
    assert large.launch_s > large.gpu_s
    assert decoding.launch_s < 0.6 * decoding.gpu_s
    assert decoding.launch_s < mixed.launch_s < large.launch_s


def test_an_engine_that_captures_nothing_launches_every_step_kernel_by_kernel_and_pads_none() -> None:
    eager = VLLM.uncaptured()
    for tokens in (8, 385):
        time = eager.step_time(decode(tokens))
        host_s = eager.host_step_s + tokens * eager.host_sequence_s
        assert time.launch_s - host_s == pytest.approx(VLLM.uncompiled_launch_s)
    prior = vllm_prior(H200, LLAMA)  # whose sizes are all alike
    assert prior.uncaptured().step_time(decode(385)).gpu_s < prior.step_time(decode(385)).gpu_s
    assert prior.uncaptured().step_time(decode(400)).gpu_s == prior.step_time(decode(400)).gpu_s


def test_captured_steps_are_padded_to_the_sizes_that_vllm_captures() -> None:
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    assert len(sizes) == 51
    nothing: dict[str, Any] = dict.fromkeys(Roofline.__dataclass_fields__, 0.0) | {"of_size_s": ALL_ALIKE}
    per_token = Roofline(**nothing | {"token_s": 1.0, "max_captured_tokens": 512, "full_seqs": 1.0})
    for num_tokens in range(1, 513):
        shape = StepShape(0, num_tokens, 0, 0, 0)
        assert per_token.step_time(shape).gpu_s == min(size for size in sizes if size >= num_tokens)
    assert per_token.step_time(StepShape(0, 513, 0, 0, 0)).gpu_s == 513


def test_few_sequences_read_more_slowly_until_every_processor_has_two_heads_to_read_for() -> None:
    def context_ms(num_seqs: int) -> float:
        return 1e3 * (VLLM.step_time(decode(num_seqs, 100_000)).gpu_s - VLLM.step_time(decode(num_seqs)).gpu_s)

    assert VLLM.full_seqs == 132 / 8
    assert context_ms(1) == pytest.approx(context_ms(16))
    assert context_ms(16) > context_ms(24) > context_ms(33)
    assert context_ms(33) == pytest.approx(context_ms(300))


def test_what_sequences_share_is_read_again_at_a_discount_and_never_for_nothing() -> None:
    alone = decode(50, 40_000)
    shared = VLLM.step_time(alone._replace(shared_tokens=30_000)).gpu_s
    assert VLLM.step_time(decode(50, 10_000)).gpu_s < shared < VLLM.step_time(alone).gpu_s


def test_prefill_upon_prefill_slows_down_and_a_rest_cures_it() -> None:
    cost = VLLM.step_time(prefill(4000))
    first_s, throttle = throttled_gpu_s(cost, 1.0, UNTHROTTLED)
    second_s, throttle = throttled_gpu_s(cost, 1.0 + first_s, throttle)
    third_s, throttle = throttled_gpu_s(cost, 1.0 + first_s + second_s, throttle)
    assert cost.gpu_s < first_s < second_s < third_s < cost.gpu_s * (1 + VLLM.power_share)
    rested_s, _ = throttled_gpu_s(cost, throttle.at_s + 20 * THROTTLE_S, throttle)
    assert rested_s == pytest.approx(first_s, rel=1e-6)


def test_few_sequences_leave_the_clock_alone_and_many_slow_it_down_as_a_prefill_does() -> None:
    """The clock of an H200 fell from 1.98 to 1.6 GHz with 400 sequences of Llama-3-8B, and stayed with 64."""
    _, throttle = throttled_gpu_s(VLLM.step_time(prefill(4000)), 0.0, UNTHROTTLED)
    for step in (decode(8, 1000), decode(64, 40_000)):
        cost = VLLM.step_time(step)
        assert throttled_gpu_s(cost, 1.0, throttle) == (cost.gpu_s, throttle)
    slower = [VLLM.step_time(decode(seqs, 450 * seqs)).throttle_s for seqs in (160, 208, 256, 320, 400, 480)]
    assert slower == sorted(slower)
    many = VLLM.step_time(decode(400, 180_000))
    assert 0.03 < many.throttle_s / many.gpu_s < VLLM.power_share
    fitted = replace(VLLM, throttle_share=0.1, power_share=0.0)
    assert fitted.step_time(decode(400, 180_000)).throttle_s == 0 < fitted.step_time(prefill(4000)).throttle_s


# Seconds of one step in an engine with Llama-3-8B on an H200 that no card is of, by sequences and context of each.
ENGINE_MS = {(32, 998): 6.23, (64, 949): 7.39, (128, 690): 9.03, (160, 641): 9.77, (208, 592): 11.59, (256, 543): 13.05,
             (320, 494): 15.34, (400, 445): 19.95, (480, 246): 18.50}  # fmt: skip


@pytest.mark.parametrize(("seqs", "context"), ENGINE_MS)
def test_decoding_takes_what_an_engine_took_from_32_to_480_sequences(seqs: int, context: int) -> None:
    cost = VLLM.step_time(decode(seqs, seqs * context))
    assert 1e3 * (cost.gpu_s + cost.throttle_s) == pytest.approx(ENGINE_MS[seqs, context], rel=0.05)


def test_a_mixture_of_experts_streams_what_its_tokens_pass_through() -> None:
    roofline = vllm_prior(H200, EXPERTS)
    one, many = roofline.step_time(decode(1)).gpu_s, roofline.step_time(decode(64)).gpu_s
    assert many - one > 0.5 * (roofline.weights_s - roofline.active_weights_s) > 0


# Recorded on an H200: 14.6 ms a token one by one; medians of steps 6 to 16 and of the last ten in the recording
# hf-h200-granite-350m-batch500, whose rectangle is then 198 and 310 tokens long.
def test_hugging_face_dynamic_cache_is_near_the_recordings() -> None:
    model = generate_times(H200, GRANITE)
    alone = model.step_time(decode(1, 200))
    assert alone.launch_s * 1e3 == pytest.approx(14.6, rel=0.05)
    assert alone.gpu_s < alone.launch_s
    for length, measured_ms in [(198, 51.7), (310, 60.4)]:
        assert model.step_time(decode(500, 500 * length)).gpu_s * 1e3 == pytest.approx(measured_ms, rel=0.1)


def test_hugging_face_static_cache_is_near_4_3_ms_at_batch_64() -> None:
    time = generate_times(H200, GRANITE, "static").step_time(decode(64, 64 * 315))
    assert time.launch_s < time.gpu_s
    assert time.gpu_s * 1e3 == pytest.approx(4.3, rel=0.1)


def test_hugging_face_copies_repeated_heads_only_where_heads_share_keys() -> None:
    shared, own = find_model("llama-3-8b"), find_model("llama-2-7b")
    per_byte = [generate_times(H200, model).context_token_s / model.kv_bytes_per_token for model in (shared, own)]
    assert per_byte[0] == pytest.approx(11 / 3 * per_byte[1])


PAIRS = [(gpu, LLAMA) for gpu in GPUS] + [(H200, model) for model in all_models()]


@pytest.mark.parametrize(("gpu", "model"), PAIRS, ids=lambda item: item.name)
def test_every_gpu_and_every_model_has_a_labelled_positive_time(gpu: Gpu, model: Model) -> None:
    for engine in ("vllm", "hf-dynamic"):
        times = step_times(gpu, model, engine, source="none")
        time = times.step_time(decode(1, 100))
        assert 0 < time.launch_s < 1
        assert 0 < time.gpu_s < 10
        assert not times.calibrated
        assert all(words in times.label for words in ("uncalibrated", gpu.name, model.name))


def test_what_kernels_of_a_size_take_is_paid_by_steps_of_that_size_captured_or_not() -> None:
    """Sizes up to 512 stand in the table one by one; larger ones lie between two entries."""
    places = {1: 0, 4: 0, 5: 1, 8: 1, 9: 2, 16: 2, 256: 32, 257: 34, 512: 64, 576: 65.5, 640: 66, 1024: 69, 1536: 69.5}
    assert {tokens: size_place(tokens) for tokens in places} == places
    assert size_place(16384) == size_place(20_000) == len(ALL_ALIKE) - 1
    assert np.array_equal(size_place(np.array([*places])), [*places.values()])
    table = np.zeros(len(ALL_ALIKE))
    table[[6, 65, 66]] = 1.0, 2.0, 4.0
    alike = replace(VLLM, of_size_s=ALL_ALIKE)
    slow = replace(alike, of_size_s=tuple(table.tolist()))
    expected = {40: 0, 41: 1, 48: 1, 49: 0, 512: 0, 513: 2, 576: 3, 640: 4, 704: 2, 768: 0}
    for times, plain in ((slow, alike), (slow.uncaptured(), alike.uncaptured())):
        more_s = {
            tokens: times.step_time(decode(tokens)).gpu_s - plain.step_time(decode(tokens)).gpu_s for tokens in expected
        }
        assert more_s == pytest.approx(expected, abs=0.02)


def test_sequences_that_join_cost_the_host_and_leave_the_gpu_alone() -> None:
    none, many = VLLM.step_time(decode(100)), VLLM.step_time(decode(100)._replace(num_new_seqs=100))
    assert many.launch_s - none.launch_s == pytest.approx(100 * VLLM.new_sequence_s)
    assert many.prepare_s - none.prepare_s == pytest.approx(100 * VLLM.new_sequence_s)
    assert many.gpu_s == none.gpu_s


def test_a_step_that_takes_the_gpu_no_time_does_not_throttle_it() -> None:
    cost = StepTime(prepare_s=0.001, launch_s=0.02, gpu_s=0.0, turnaround_s=0.0, throttle_s=0.0002)
    assert throttled_gpu_s(cost, 1.0, UNTHROTTLED) == (0.0, UNTHROTTLED)
