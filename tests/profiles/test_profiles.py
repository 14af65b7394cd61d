from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import UnknownNameError, UsageError
from kvsim.hardware import find_gpu
from kvsim.models import Model, find_model
from kvsim.models.layers import SlidingWindow
from kvsim.profiles import ENGINES, EXPLANATIONS, carried, find, listed_name, load, match, save, shipped
from kvsim.recording import find as find_recording
from kvsim.recording import read
from kvsim.steptime import COEFFICIENTS, StepShape

DECODE = StepShape(32, 32, 0, 12_000, 0)


def test_every_shipped_profile_says_where_it_comes_from() -> None:
    assert len(shipped()) >= 6
    for profile in shipped():
        assert profile.engine in ENGINES
        assert profile.calibrated
        assert profile.gpu in profile.label
        for residual in profile.residuals:
            assert find_recording(residual.recording).is_dir(), "the recordings that it was fitted to ship too"


def test_no_shipped_profile_was_fitted_to_a_held_out_recording() -> None:
    fitted = {residual.recording for profile in shipped() for residual in profile.residuals}
    assert not [name for name in fitted if "heldout" in name]


def test_no_coefficient_is_negative_and_each_is_explained() -> None:
    names = set(COEFFICIENTS)
    assert set(EXPLANATIONS) == names
    for profile in shipped():
        assert all(np.min(getattr(profile.times, name)) >= 0 for name in names)


@pytest.mark.parametrize("profile", shipped(), ids=lambda profile: f"{profile.engine}-{profile.model}")
def test_a_profile_comes_back_from_its_file(profile: object, tmp_path: Path) -> None:
    again = load(save(profile, tmp_path / "again.toml", "made by a test"))  # type: ignore[arg-type]
    assert again.step_time(DECODE) == pytest.approx(profile.step_time(DECODE), rel=1e-5)  # type: ignore[attr-defined]
    assert (again.residuals, again.ranges.keys()) == (profile.residuals, profile.ranges.keys())  # type: ignore[attr-defined]
    assert [file.name for file in tmp_path.iterdir()] == ["again.toml"]


def test_the_matching_profile_is_found_whatever_the_recording_calls_its_model() -> None:
    model = Model.from_shape(read(find_recording("vllm-h200-llama-3-8b-sharegpt-pressure")).meta.model)
    assert model.name == "llama-3-8b"
    assert listed_name(model) == "meta-llama/Meta-Llama-3-8B"
    profile = match(find_gpu("H200"), model, "vllm")
    assert profile is not None
    assert profile.model == "meta-llama/Meta-Llama-3-8B"


def test_a_profile_is_found_in_bf16_and_fp16_and_under_any_name() -> None:
    llama = find_model("Llama-2-7b-hf")
    assert llama.dtype == "float16"
    mine = replace(llama, name="mine", dtype="bfloat16")
    found = match(find_gpu("H200"), mine, "vllm")
    assert found == match(find_gpu("H200"), llama, "vllm")
    assert found is not None
    assert match(find_gpu("H200"), replace(mine, dtype="float32"), "vllm") is None
    window = SlidingWindow(num_kv_heads=32, head_dim=128, value_head_dim=128, window=1024)
    windowed = replace(mine, layer_kinds=(window,), layer_caches=((0,),) * 32)
    assert match(find_gpu("H200"), windowed, "vllm") is None
    assert match(find_gpu("H200"), mine, "vllm", tensor_parallel_size=2) is None


def test_a_profile_is_carried_over_to_another_gpu_and_to_nothing_else() -> None:
    profile, llama = find("vllm-h200-llama-3-8b"), find_model("Meta-Llama-3-8B")
    assert carried(profile, find_gpu("H200"), llama, "vllm") is profile
    assert "transferred from H200 to A100-80G" in carried(profile, find_gpu("A100-80G"), llama, "vllm").label
    with pytest.raises(UsageError, match="not of facebook/opt-13b"):
        carried(profile, find_gpu("H200"), find_model("opt-13b"), "vllm")
    with pytest.raises(UsageError, match="of the engine vllm, not of hf-static"):
        carried(profile, find_gpu("H200"), llama, "hf-static")
    with pytest.raises(UsageError, match="of tensor-parallel size 1, not of 2"):
        carried(profile, find_gpu("H200"), llama, "vllm", tensor_parallel_size=2)


def test_the_kernels_picked_for_a_size_carry_over_between_cards_with_one_chip() -> None:
    profile, h200 = find("vllm-h200-llama-3-8b"), find_gpu("H200")
    assert profile.transfer(h200, find_gpu("H100 SXM")).times.of_size_s == profile.times.of_size_s
    assert not any(profile.transfer(h200, find_gpu("A100-80G")).times.of_size_s)


def test_nothing_matches_another_gpu_or_engine() -> None:
    llama = find_model("Meta-Llama-3-8B")
    assert match(find_gpu("T4"), llama, "vllm") is None
    assert match(find_gpu("H200"), llama, "hf-static") is None


def test_a_transferred_profile_says_so_and_scales_with_the_hardware() -> None:
    h200, t4 = find_gpu("H200"), find_gpu("T4")
    profile = find("vllm-h200-llama-3-8b")
    moved = profile.transfer(h200, t4)
    assert not moved.calibrated
    assert "transferred from H200 to T4" in moved.label
    bandwidth = 0.9 * h200.bandwidth_bytes_per_s / (0.73 * t4.bandwidth_bytes_per_s)
    assert moved.times.weights_s == pytest.approx(profile.times.weights_s * bandwidth)
    assert moved.times.host_step_s == profile.times.host_step_s, "the host stays"
    assert moved.step_time(DECODE).gpu_s > 5 * profile.step_time(DECODE).gpu_s


def test_a_step_beyond_the_fitted_range_is_named() -> None:
    profile = find("vllm-h200-llama-3-8b")
    assert profile.outside(DECODE) == []
    beyond = profile.outside(DECODE._replace(num_seqs=5000, context_tokens=10**9))
    assert [words.split()[0] for words in beyond] == ["num_seqs", "context_tokens"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read"),
        ("gpu = ", "is not TOML"),
        ("gpu = 'H200'", "is incomplete or wrong: model is missing"),
        ("", "is incomplete or wrong: gpu is missing"),
    ],
)
def test_a_bad_profile_is_one_sentence(text: str | None, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        load(file)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ('weights_s = "fast"', "weights_s should be a number from 0 on, not 'fast'"),
        ("weights_s = -1.0", "weights_s should be a number from 0 on, not -1.0"),
        ("weights_s = nan", "weights_s should be a number from 0 on, not nan"),
        ("of_size_s = 3.0", "of_size_s should be a list of 66 to 85 numbers"),
        ("of_size_s = [1.0, 2.0]", "of_size_s should be a list of 66 to 85 numbers"),
        (f"of_size_s = {['slow'] * 66}", "of_size_s should be a number from 0 on, not 'slow'"),
    ],
)
def test_a_coefficient_that_is_none_is_one_sentence(wrong: str, sentence: str, tmp_path: Path) -> None:
    text = save(find("hf-static-h200-granite-350m"), tmp_path / "good.toml").read_text()
    name = wrong.partition(" ")[0]
    lines = [line for line in text.splitlines() if not line.startswith(f"{name} ")]
    lines.insert(lines.index("[coefficients]") + 1, wrong)
    (tmp_path / "bad.toml").write_text("\n".join(lines))
    with pytest.raises(UsageError, match=re.escape(sentence)):
        load(tmp_path / "bad.toml")


def test_an_unknown_profile_suggests_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean vllm-h200-llama-3-8b"):
        find("vllm-h100-llama-3-8b")
