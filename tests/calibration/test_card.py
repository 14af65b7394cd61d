"""Three factors of a machine from recordings of any model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.calibration import calibrate, calibrate_card
from kvsim.cli.calibrate import command
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import card_of
from kvsim.profiles import find as find_profile
from kvsim.profiles import save
from kvsim.recording import Recording, find, read
from kvsim.steptime.card import load_card

H100 = card_of(find_gpu("H100"))


def slower(recording: Recording, factor: float) -> Recording:
    """The recording of a machine on which everything takes `factor` times as long."""
    steps, requests = recording.steps, recording.requests
    return replace(
        recording,
        steps=replace(steps, start_s=steps.start_s * factor, end_s=steps.end_s * factor),
        requests=replace(requests, arrival_s=requests.arrival_s * factor),
    )


def test_a_slower_machine_has_larger_factors() -> None:
    recording = read(find("vllm-h100-qwen3-8b-closed"))
    usual, _ = calibrate_card(H100, [recording])
    slow, _ = calibrate_card(H100, [slower(recording, 1.1)])
    assert 0.95 < usual.factors["gpu"] < 1.05
    assert 0.7 < usual.factors["host"] < 1.3
    assert slow.factors["gpu"] > usual.factors["gpu"] + 0.03
    assert slow.products == usual.products, "what was measured stays"


def test_what_one_model_tells_serves_another() -> None:
    """Factors from Qwen3-8B leave the steps of Llama-3-8B within 4 % on the mean."""
    fitted, residuals = calibrate_card(H100, [read(find("vllm-h100-qwen3-8b-light"))])
    assert [item.recording for item in residuals] == ["vllm-h100-qwen3-8b-light"]
    _, (other,) = calibrate_card(replace(H100, factors=fitted.factors), [read(find("vllm-h100-llama-3-8b-light"))])
    assert abs(other.mean_percent) < 4


def test_what_tells_nothing_of_the_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to calibrate the card on"):
        calibrate_card(H100, [])
    with pytest.raises(UsageError, match="is of H200, and the card is for H100 SXM"):
        calibrate_card(H100, [read(find("vllm-h200-qwen3-8b-light"))])
    with pytest.raises(UsageError, match="is not a recording of vLLM"):
        calibrate_card(card_of(find_gpu("H200")), [read(find("hf-h200-granite-350m-batch500"))])


def test_recordings_of_one_name_are_told_apart() -> None:
    """A folder's name says little: `with` and `without` a remedy lie in the folders of several models."""
    qwen, llama = (read(find(f"vllm-h100-{name}-light")) for name in ("qwen3-8b", "llama-3-8b"))
    usual, _ = calibrate_card(H100, [qwen, llama])
    named, _ = calibrate_card(H100, [replace(qwen, name="light"), replace(llama, name="light")])
    assert named.factors == usual.factors
    assert named.fitted_to == {"Qwen/Qwen3-8B": ("light",), "meta-llama/Meta-Llama-3-8B": ("light",)}


@pytest.mark.parametrize("fit", [lambda items: calibrate_card(H100, items), calibrate])
def test_a_recording_that_is_there_twice_is_refused(fit: Callable[[list[Recording]], object]) -> None:
    """Left out once, it would still be fitted to."""
    recording = read(find("vllm-h100-qwen3-8b-light"))
    with pytest.raises(UsageError, match=r"vllm-h100-qwen3-8b-light is given twice; give each recording once\."):
        fit([recording, recording])
    with pytest.raises(UsageError, match="is given once more as copy"):
        fit([recording, replace(recording, name="copy")])


def test_what_an_offload_costs_the_host_is_not_its_pace() -> None:
    """The copies of the same run, left out of the account, would make its host seem slower."""
    card, recording = card_of(find_gpu("H200")), read(find("vllm-h200-llama-3-8b-offload"))
    told, _ = calibrate_card(card, [recording])
    untold, _ = calibrate_card(card, [replace(recording, copies=None)])
    paces = [found.factors["host"] * found.factors["woken"] for found in (told, untold)]
    assert 0.7 < paces[0] < paces[1] - 0.05


def test_the_command_writes_a_card_that_runs_take(tmp_path: object) -> None:
    file = f"{tmp_path}/mine.toml"
    arguments = ["vllm-2xh200-llama-3-8b-light", "--card", "auto", "-o", file]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert "machine card of H200" in done.output
    assert "Times longer than before: gpu" in done.output
    assert f"--profile {file}" in done.output.replace("\n", "")
    card = load_card(file)
    assert card.num_gpus == 2
    assert np.all([0.5 < value < 2 for value in card.factors.values()])
    told = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert json.loads(told.output)["factors"] == pytest.approx(card.factors, abs=1e-3)


def test_where_nothing_can_be_written_nothing_is_fitted(tmp_path: Path) -> None:
    """A fit takes minutes; a name without a folder is known before."""
    done = CliRunner().invoke(command, ["vllm-h100-qwen3-8b-light", "-o", f"{tmp_path}/none/mine.toml"])
    assert isinstance(done.exception, UsageError)
    assert "choose a folder that exists" in str(done.exception)
    assert not any(tmp_path.iterdir())


def test_a_profile_is_no_card(tmp_path: Path) -> None:
    file = save(find_profile("vllm-h200-granite-350m"), tmp_path / "profile.toml")
    with pytest.raises(UsageError, match="is a profile, not a machine card"):
        load_card(file)
