"""Tokens of images: what the processors of Qwen2.5-VL and Qwen3-VL make of their sides."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import RecordingError, UsageError
from kvsim.models import Model, find_model
from kvsim.models.huggingface import from_fields
from kvsim.models.image_rules import RULES, ImageRule, image_rule

QWEN2_5, QWEN3 = RULES["Qwen2_5_VLForConditionalGeneration"], RULES["Qwen3VLForConditionalGeneration"]
SIDE = st.integers(1, 20_000)


@pytest.mark.parametrize(
    ("rule", "width", "height", "num_tokens"),
    [
        (QWEN2_5, 1920, 1080, 69 * 39),
        (QWEN2_5, 224, 224, 8 * 8),
        (QWEN2_5, 10, 10, 2 * 2),
        (QWEN2_5, 42, 70, 2 * 2),  # half of a square goes to the even number of them
        (QWEN2_5, 8000, 8000, 128 * 128),
        (QWEN3, 1920, 1080, 60 * 34),
        (QWEN3, 224, 224, 8 * 8),
        (QWEN3, 8000, 8000, 128 * 128),
    ],
)
def test_tokens_of_an_image(rule: ImageRule, width: int, height: int, num_tokens: int) -> None:
    assert rule.num_tokens(width, height) == num_tokens


@given(width=SIDE, height=SIDE, rule=st.sampled_from([QWEN2_5, QWEN3]))
def test_an_image_is_scaled_into_its_limits(width: int, height: int, rule: ImageRule) -> None:
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(UsageError, match="one side may be at most 200 times as long"):
            rule.scaled(width, height)
        return
    wide, high = rule.scaled(width, height)
    assert wide % rule.side_pixels == high % rule.side_pixels == 0
    assert min(wide, high) >= rule.side_pixels
    assert rule.num_tokens(width, height) == wide * high // rule.side_pixels**2
    assert rule.num_tokens(width, height) == rule.num_tokens(height, width)
    if rule.side_pixels < min(wide, high):  # a very long image keeps one square on its short side
        assert rule.least_pixels <= wide * high <= rule.most_pixels


def test_a_model_for_images_says_which_it_is() -> None:
    tower = {"depth": 27, "hidden_size": 1152, "deepstack_visual_indexes": [8, 16, 24], "patch_size": 16}
    text = {
        "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    fields = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text, "vision_config": tower}
    model = from_fields(fields, name="qwen", where="config.json")
    assert (model.image_class, model.num_image_levels) == ("Qwen3VLForConditionalGeneration", 4)
    assert model.image_token_bytes == 4096 * 2 * 4
    assert image_rule(model.image_class) is QWEN3
    plain = from_fields(text | {"architectures": ["Qwen3ForCausalLM"]}, name="text", where="config.json")
    assert (plain.image_class, plain.num_image_levels) == ("", 1)
    with pytest.raises(UsageError, match="an image of Gemma3ForConditionalGeneration are not known"):
        image_rule("Gemma3ForConditionalGeneration")


def test_listed_models_have_a_tower_with_windows_and_recordings_keep_it() -> None:
    model = find_model("Qwen/Qwen2.5-VL-3B-Instruct")
    assert model.vision is not None
    assert (model.vision.num_layers, model.vision.num_full_layers, model.vision.window_patches) == (32, 4, 64)
    shape = {key: value for key, value in asdict(model).items() if value not in (None, (), "")}
    assert Model.from_shape(shape) == model
    assert find_model("Meta-Llama-3-8B").vision is None


@pytest.mark.parametrize("damage", [{"num_layers": -1}, {"has_gate": 3}, {"patches_per_token": None}, {"more": 1}])
def test_a_damaged_tower_of_a_recording_is_refused(damage: dict[str, object]) -> None:
    shape = {
        key: value for key, value in asdict(find_model("Qwen/Qwen2.5-VL-3B-Instruct")).items() if value is not None
    }
    with pytest.raises(RecordingError, match=r"says vision = .* it must be an object with every figure"):
        Model.from_shape(shape | {"vision": shape["vision"] | damage})
