"""Times of the image encoder: who is slower, its host or its GPU, and what a tower and a card make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.hardware import find_gpu
from kvsim.machines import card_of
from kvsim.models import find_model
from kvsim.models.huggingface import from_fields
from kvsim.models.vision import VisionTower
from kvsim.steptime import Pace, StepShape, at_pace, reduce, reduce_stages
from kvsim.steptime.encoder import encoder_coefficients

CARD = card_of(find_gpu("H100 SXM"))
TOWER = VisionTower(
    num_layers=32,
    num_full_layers=4,
    hidden_size=1280,
    intermediate_size=3420,
    has_gate=True,
    patches_per_token=4,
    window_patches=64,
)
MODEL = replace(find_model("Qwen/Qwen2.5-VL-7B-Instruct"), vision=TOWER)
TIMES = reduce(CARD, MODEL)
DECODE = StepShape(4, 4, 0, 2000, 0)
NUMBERS = st.integers(1, 8)


def with_images(*tokens: int) -> StepShape:
    """A step with a prompt that has images of these numbers of tokens."""
    total = sum(tokens) + 20
    return StepShape(
        1, total, total, total, total * (total + 1) // 2, num_new_seqs=1, num_images=len(tokens),
        image_tokens=sum(tokens), image_pairs=sum(each**2 for each in tokens),
    )  # fmt: skip


def without(shape: StepShape) -> StepShape:
    """The same step if the encoder's outputs are in its cache."""
    return shape._replace(num_images=0, image_tokens=0, image_pairs=0)


def test_a_small_image_waits_for_the_host_and_a_large_one_for_the_gpu() -> None:
    small, large = with_images(64), with_images(16_384)
    for shape in (small, large):
        alone, cached = TIMES.step_time(shape), TIMES.step_time(without(shape))
        assert alone.launch_s - cached.launch_s > TIMES.encoder_step_s
        assert alone.gpu_s > cached.gpu_s
    encoder_s = TIMES.step_time(small).gpu_s - TIMES.step_time(without(small)).gpu_s
    assert encoder_s < 0.1 * TIMES.encoder_step_s
    encoder_s = TIMES.step_time(large).gpu_s - TIMES.step_time(without(large)).gpu_s
    assert encoder_s > 3 * TIMES.encoder_step_s


def test_the_gpu_idles_before_the_text_model_only_as_long_as_the_host_is_behind() -> None:
    small, large = with_images(64), with_images(16_384)
    inputs_s = {
        shape: TIMES.encoder_image_s + TIMES.encoder_image_token_s * shape.image_tokens for shape in (small, large)
    }
    prepared_s = {
        shape: TIMES.step_time(shape).prepare_s - TIMES.step_time(without(shape)).prepare_s for shape in (small, large)
    }
    assert prepared_s[large] == pytest.approx(inputs_s[large])
    encoder_s = TIMES.step_time(small).gpu_s - TIMES.step_time(without(small)).gpu_s
    assert prepared_s[small] == pytest.approx(inputs_s[small] + TIMES.encoder_step_s - encoder_s)


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=6), st.integers(1, 4096))
def test_one_more_image_is_never_faster(tokens: list[int], more: int) -> None:
    assert TIMES.step_time(with_images(*tokens, more)).alone_s >= TIMES.step_time(with_images(*tokens)).alone_s


def test_steps_without_images_take_what_they_took() -> None:
    text = reduce(CARD, replace(MODEL, vision=None))
    for shape in (DECODE, without(with_images(500, 500))):
        assert TIMES.step_time(shape) == text.step_time(shape)


def test_a_slower_host_launches_the_encoder_more_slowly_and_a_slower_gpu_computes_it_more_slowly() -> None:
    slow = at_pace(Pace(host=2, gpu=3), TIMES)
    assert (slow.encoder_step_s, slow.encoder_image_s) == (2 * TIMES.encoder_step_s, 2 * TIMES.encoder_image_s)
    assert (slow.encoder_token_s, slow.encoder_pair_s) == (3 * TIMES.encoder_token_s, 3 * TIMES.encoder_pair_s)


def test_several_gpus_split_the_arithmetic_of_the_encoder() -> None:
    one, two = (encoder_coefficients(CARD, TOWER, size) for size in (1, 2))
    assert two["encoder_pair_s"] == one["encoder_pair_s"] / 2
    assert one["encoder_token_s"] / 2 < two["encoder_token_s"] < one["encoder_token_s"]
    assert two["encoder_step_s"] == one["encoder_step_s"]


@pytest.mark.parametrize("change", [{"intermediate_size": 3424}, {"has_gate": False}, {"window_patches": 0}])
def test_a_width_of_whole_vectors_no_gate_and_no_windows_are_faster(change: dict[str, int]) -> None:
    faster = encoder_coefficients(CARD, replace(TOWER, **change), 1)
    assert faster["encoder_token_s"] < encoder_coefficients(CARD, TOWER, 1)["encoder_token_s"]


def test_only_the_first_stage_of_a_pipeline_has_the_encoder() -> None:
    first, last = reduce_stages(card_of(find_gpu("H200"), 2), replace(MODEL, pipeline_parallel_size=2), (0.5, 0.5))
    assert first.encoder_step_s > 0
    assert last.encoder_step_s == last.encoder_token_s == 0


@given(NUMBERS, NUMBERS)
def test_qwen2_vl_states_the_width_of_its_tower_beside_that_of_the_text_model(depth: int, scale: int) -> None:
    text = {
        "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
    }  # fmt: skip
    tower = {"embed_dim": 80 * scale, "hidden_size": 1536, "depth": depth, "mlp_ratio": 4, "spatial_merge_size": 2}
    fields = text | {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": tower}
    vision = from_fields(fields, name="small", where="a test").vision
    assert vision is not None
    assert (vision.num_layers, vision.num_full_layers) == (depth, depth)
    assert (vision.hidden_size, vision.intermediate_size) == (80 * scale, 320 * scale)
    assert (vision.patches_per_token, vision.has_gate) == (4, False)
