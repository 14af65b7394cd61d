"""Which times a model on a machine gets, what their label says, and how near they come on recordings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.calibration import calibrate_card
from kvsim.errors import UsageError
from kvsim.experiments.recorded_run import policy_of
from kvsim.experiments.validation import times_of, validate
from kvsim.hardware import find_gpu
from kvsim.machines import (
    Basis,
    card_of,
    class_in,
    is_in_process,
    served_model,
    sheet_card,
    step_times,
)
from kvsim.models import find_model
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.recording import find, read
from kvsim.steptime import Roofline, StepShape
from kvsim.steptime.card import load_card, save_card

H200, H100 = find_gpu("H200"), find_gpu("H100")
LLAMA, QWEN = find_model("Meta-Llama-3-8B"), find_model("Qwen3-8B")


def test_the_best_times_are_those_of_a_profile_then_of_a_card_then_of_a_data_sheet() -> None:
    profile, card, sheet = (
        step_times(gpu, model, "vllm") for gpu, model in ((H200, LLAMA), (H100, QWEN), (find_gpu("L40S"), QWEN))
    )
    assert isinstance(profile, WatchedProfile)
    assert isinstance(card, Roofline)
    for times, basis in ((profile, Basis.MODEL), (card, Basis.GPU), (sheet, Basis.SHEET)):
        assert basis.value in times.label
    assert (card.calibrated, sheet.calibrated) == (True, False)
    assert "machine card of H100 SXM (measured 2026" in card.label
    assert "the data sheet of L40S" in sheet.label


def test_another_type_of_cache_or_weights_or_another_split_never_gets_a_profile() -> None:
    for model in (LLAMA.served(kv_cache_dtype="fp8"), LLAMA.served(tensor_parallel_size=2)):
        assert isinstance(step_times(H200, model, "vllm"), Roofline)
    with pytest.raises(UsageError, match="other types"):
        step_times(H200, LLAMA.served(kv_cache_dtype="fp8"), "vllm", source="vllm-h200-llama-3-8b")


def test_a_card_of_ones_own_is_used_with_its_factors_and_for_its_gpu_alone(tmp_path: Path) -> None:
    file = save_card(replace(card_of(H100), factors={"gpu": 1.1, "host": 1.5}), tmp_path / "mine.toml")
    shape = StepShape(32, 32, 0, 16_000, 0)
    mine, shipped = (step_times(H100, QWEN, "vllm", source=name) for name in (str(file), None))
    assert mine.step_time(shape).gpu_s == pytest.approx(1.1 * shipped.step_time(shape).gpu_s, rel=1e-3)
    assert mine.step_time(shape).launch_s == pytest.approx(1.5 * shipped.step_time(shape).launch_s, rel=1e-3)
    assert Basis.FITTED.value in mine.label
    with pytest.raises(UsageError, match="the machine card is of H100 SXM, not of H200"):
        step_times(H200, QWEN, "vllm", source=str(file))


def test_a_fitted_card_says_whether_this_model_told_its_factors(tmp_path: Path) -> None:
    """The model as it was served: a cache of another type makes it another."""
    qwen, llama = read(find("vllm-h100-qwen3-8b-light")), read(find("vllm-h100-llama-3-8b-light"))
    card, _ = calibrate_card(card_of(H100), [qwen])
    file = str(save_card(card, tmp_path / "mine.toml"))
    assert load_card(file).fitted_to == {"Qwen/Qwen3-8B": (qwen.name,)}
    told, other = (times_of(recording, file) for recording in (qwen, llama))
    assert Basis.FITTED_THERE.value in told.label
    assert Basis.FITTED.value in other.label
    assert Basis.FITTED.value in step_times(H100, QWEN.served(kv_cache_dtype="fp8"), "vllm", source=file).label
    assert Basis.FITTED.value in step_times(H100, QWEN, "hf-dynamic", source=file).label, "recordings of vLLM told it"
    assert [validate(times, item).held_out for times, item in ((told, qwen), (other, llama))] == [False, True]


def test_a_card_of_a_gpu_that_is_not_listed_is_refused_as_one_of_another(tmp_path: Path) -> None:
    file = save_card(replace(card_of(H100), gpu="H300"), tmp_path / "mine.toml")
    with pytest.raises(UsageError, match="the machine card is of H300, not of H200"):
        step_times(H200, QWEN, "vllm", source=str(file))


def test_a_fitted_card_of_which_nobody_knows_the_recordings_says_so(tmp_path: Path) -> None:
    file = save_card(replace(card_of(H100), factors={"host": 1.5}), tmp_path / "mine.toml")
    assert "fitted to recordings that the card does not name" in step_times(H100, QWEN, "vllm", source=str(file)).label


def test_a_fitted_data_sheet_is_no_longer_uncalibrated(tmp_path: Path) -> None:
    sheet, _ = calibrate_card(sheet_card(H100), [read(find("vllm-h100-qwen3-8b-light"))])
    times = step_times(H100, QWEN, "vllm", source=str(save_card(sheet, tmp_path / "mine.toml")))
    kind = class_in(times.label)
    assert kind is not None
    assert kind.basis is Basis.SHEET_FITTED
    assert times.calibrated
    assert "uncalibrated" not in times.label


def test_names_of_any_characters_come_back_from_a_card(tmp_path: Path) -> None:
    card = replace(
        card_of(H100), factors={"gpu": 1.0}, fitted_to={'a "b" \\ c\n\x7f': ("ä", ""), "": ("m",)}, source='"'
    )
    found = load_card(save_card(card, tmp_path / "mine.toml"))
    assert (found.fitted_to, found.source) == (card.fitted_to, card.source)


def test_without_graphs_nothing_is_captured() -> None:
    assert step_times(H100, QWEN, "vllm", captured=False).max_captured_tokens == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "vllm-h100-llama-3-8b-closed",
        "vllm-h100-qwen3-8b-light",
        "vllm-h200-qwen3-8b-closed",
        "vllm-2xh200-llama-3-8b-closed128",
        "vllm-h200-llama-3-8b-fp8-light",
    ],
)
def test_a_model_that_no_profile_knows_is_predicted_from_the_card(name: str) -> None:
    """The bars for a measured machine and a model that was not recorded there, without pressure on memory."""
    recording = read(find(name))
    result = validate(times_of(recording), recording)
    error = {row.name: abs(row.error) for row in result.rows}
    assert Basis.GPU.value in result.times_from
    assert error["throughput"] < 3
    assert error["TPOT, mean"] < 6
    assert error["end to end, mean"] < 6


def test_a_recording_tells_how_its_model_was_served() -> None:
    two = served_model(read(find("vllm-2xh200-llama-3-8b-light")).meta)
    assert (two.tensor_parallel_size, two.kv_bytes_per_token) == (2, 65536)
    assert served_model(read(find("vllm-h200-llama-3-8b-fp8-light")).meta).kv_cache_dtype == "fp8"


def test_bytes_stated_for_the_whole_model_are_understood() -> None:
    """A recorder that knew of neither wrote the bytes of a cache in bf16 on one GPU beside the engine's settings."""
    recording = read(find("vllm-2xh200-llama-3-8b-light"))
    meta = recording.meta
    whole = replace(
        recording,
        meta=replace(
            meta,
            model=dict(meta.model) | {"kv_bytes_per_token": 131072},
            pool=replace(meta.pool, bytes_per_unit=2 * meta.pool.bytes_per_unit),
        ),
    )
    assert served_model(whole.meta) == served_model(meta)
    assert policy_of(whole) == policy_of(recording)


def test_a_fresh_server_is_told_of_where_its_first_second_was_seen_to_differ() -> None:
    gemma, words = find_model("gemma-3-4b-it"), "a fresh server's first second"
    labels = [step_times(H200, gemma.served(tensor_parallel_size=size), "vllm").label for size in (1, 2)]
    assert [words in label for label in labels] == [False, True]
    assert words not in step_times(H200, QWEN.served(tensor_parallel_size=2), "vllm").label


def test_a_gpu_of_the_users_own_has_step_times_of_its_data_sheet() -> None:
    """No list has its name, and no profile is of it."""
    own = replace(find_gpu("H100"), name="Mine")
    times = step_times(own, find_model("Meta-Llama-3-8B"), "vllm")
    assert "machine card of Mine" in times.label
    assert Basis.SHEET.value in times.label


def test_recordings_say_whether_the_engine_had_a_process_of_its_own() -> None:
    """Those of servers did, and step times of their cards have a faster host."""
    served, driven = (read(find(f"vllm-h200-llama-3-8b-{name}")).meta for name in ("served-again", "other-25"))
    assert (is_in_process(served), is_in_process(driven)) == (False, True)
    assert not is_in_process(replace(driven, engine={**driven.engine, "in_process": False}))
    own, shared = (step_times(H200, QWEN, "vllm", in_process=value) for value in (False, True))
    prompt = StepShape(8, 200, 193, 1000, 20_000)
    assert own.step_time(prompt).launch_s < shared.step_time(prompt).launch_s
    assert own.step_time(prompt).gpu_s == shared.step_time(prompt).gpu_s
