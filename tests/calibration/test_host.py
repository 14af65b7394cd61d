"""The same GPU in another machine: one factor on what the host does."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.calibration import calibrate_host
from kvsim.cli.calibrate import command
from kvsim.errors import UsageError
from kvsim.experiments.validation import validate
from kvsim.profiles import find as find_profile
from kvsim.profiles import save
from kvsim.recording import find, read
from kvsim.steptime.pace import HOST_COEFFICIENTS

GRANITE = "hf-dynamic-h200-granite-350m"


def total_error(profile_name: str, recording_name: str, *host: str) -> float:
    profile, recording = find_profile(profile_name), read(find(recording_name))
    if host:
        profile = calibrate_host(profile, [read(find(name)) for name in host])
    return next(row.error for row in validate(profile, recording).rows if row.name == "duration")


def test_another_host_is_told_by_one_recording() -> None:
    """What Hugging Face takes on a machine that no fit has seen, once another recording says how fast its host is."""
    unseen = "hf-h200-granite-350m-heldout-sharegpt-batch8"
    assert total_error(GRANITE, unseen) < -15
    assert abs(total_error(GRANITE, unseen, "hf-h200-granite-350m-first-prefills")) < 5


def test_only_the_host_changes_and_by_one_factor() -> None:
    profile = find_profile(GRANITE)
    times = calibrate_host(profile, [read(find("hf-h200-granite-350m-first-prefills"))]).times
    factor = times.eager_launch_s / profile.times.eager_launch_s
    assert 1.1 < factor < 1.4
    scaled = replace(profile.times, **{name: factor * getattr(profile.times, name) for name in HOST_COEFFICIENTS})
    for name in ("new_shape_s", "masked_launch_s", "host_step_s", "step_s", "token_s", "sequence_s"):
        assert getattr(times, name) == pytest.approx(getattr(scaled, name))


def test_the_host_of_its_own_recordings_is_as_fast_as_it_was() -> None:
    profile = find_profile("vllm-h200-granite-350m")
    again = calibrate_host(profile, [read(find("vllm-h200-granite-350m-sharegpt-60"))])
    assert again.times.host_step_s == pytest.approx(profile.times.host_step_s, rel=0.05)


@pytest.mark.parametrize("name", ["vllm-h200-granite-350m-gsm8k", "hf-h200-llama-3-8b-first-prefills"])
def test_anything_but_another_host_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="only the host may differ"):
        calibrate_host(find_profile(GRANITE), [read(find(name))])


def test_the_command_says_where_the_gpu_comes_from(tmp_path: Path) -> None:
    output, source = tmp_path / "mine.toml", tmp_path / "with {braces}.toml"
    save(find_profile(GRANITE), source, "a copy", made_by="calibrate")
    arguments = ["hf-h200-granite-350m-first-prefills", "--gpu-from", str(source), "-o", str(output)]
    CliRunner().invoke(command, arguments, catch_exceptions=False)
    text = output.read_text()
    assert f"# Made by: kvsim calibrate --gpu-from {source} hf-h200-granite-350m-first-prefills" in text
    assert tomllib.loads(text)["residuals"][0]["recording"] == "hf-h200-granite-350m-first-prefills"


def test_the_profile_that_ships_is_found_and_the_host_told(tmp_path: Path) -> None:
    output = tmp_path / "mine.toml"
    arguments = ["vllm-h200-granite-350m-heldout-35", "--gpu-from", "auto", "-o", str(output), "--json"]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert json.loads(done.output)["factors"]["host"] == pytest.approx(1.28, abs=0.1), "see kvsim.machines.hosts"
    nothing_ships = ["vllm-h200-qwen3-8b-light", "--gpu-from", "auto", "-o", str(tmp_path / "other.toml")]
    with pytest.raises(UsageError, match="no profile ships for vllm with qwen3-8b"):
        CliRunner().invoke(command, nothing_ships, catch_exceptions=False)


def test_with_a_static_cache_the_host_is_seen_compiling() -> None:
    """Its two compilations are nearly all of a run, and too few for a fit that takes what is rare for a stall."""
    unseen = "hf-h200-granite-350m-heldout-batch32-static"
    profile, recording = find_profile("hf-static-h200-granite-350m"), read(find(unseen))
    own = calibrate_host(profile, [recording])
    assert 1.1 < own.times.new_shape_s / profile.times.new_shape_s < 1.4
    before, after = (
        next(row.error for row in validate(item, recording).rows if row.name == "duration") for item in (profile, own)
    )
    assert before < -15
    assert abs(after) < 3
