"""The accuracy that the project promises, on recordings that no fit has seen (`docs/accuracy.md` has all figures)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli.calibrate import command as calibrate_command
from kvsim.cli.validate import command as validate_command
from kvsim.errors import UsageError
from kvsim.experiments.recorded_run import as_sent, policy_of, users_of
from kvsim.experiments.validation import Validation, ValidationRow, matching_profile, validate
from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.profiles import find as find_profile
from kvsim.recording import find, read
from kvsim.simulation import Machine, simulate
from kvsim.workload import Poisson, Uniform, generate

HELD_OUT = (
    "vllm-h200-llama-3-8b-heldout-35",
    "vllm-h200-llama-3-8b-heldout-closed-64",
    "vllm-h200-llama-3-8b-heldout-long",
)


@pytest.fixture(scope="module", params=HELD_OUT)
def held_out(request: pytest.FixtureRequest) -> Validation:
    recording = read(find(request.param))
    return validate(matching_profile(recording), recording)


def error(validation: Validation, name: str) -> float:
    return abs(next(row.error for row in validation.rows if row.name == name))


def test_the_promised_accuracy_on_held_out_recordings(held_out: Validation) -> None:
    assert held_out.held_out
    assert error(held_out, "throughput") < 2
    for name in ("TTFT, mean", "TPOT, mean", "end to end, mean"):
        assert error(held_out, name) < 5, name
    assert error(held_out, "end to end, p99") < 10
    assert error(held_out, "KV occupancy, mean absolute error over time") < 2


def test_the_simulation_serves_the_same_requests(held_out: Validation) -> None:
    measured, simulated = held_out.measured.requests, held_out.simulated.requests
    assert simulated.prompt_tokens.tolist() == measured.prompt_tokens.tolist()
    assert simulated.output_tokens.tolist() == measured.output_tokens.tolist()


def test_a_closed_loop_is_simulated_as_one() -> None:
    recording = read(find("vllm-h200-llama-3-8b-heldout-closed-64"))
    assert users_of(recording) == 64
    result = validate(matching_profile(recording), recording)
    assert result.simulated.steps.running.max() == 64


@pytest.mark.parametrize("rate_per_s", [20, 80])
def test_requests_found_in_one_look_had_come_since_the_look_before(rate_per_s: float) -> None:
    """Recorders stamp requests when the engine finds them, on average half a step late."""
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    machine = Machine(gpu=gpu, model=model, kv_bytes=4 << 30, step_time=step_times(gpu, model, "vllm"))
    lengths = {"prompt": Uniform(low=20, high=900), "output": Uniform(low=5, high=40)}
    sent = generate(120, arrivals=Poisson(rate_per_s=rate_per_s), **lengths, seed=7)
    simulated = simulate(sent, Paged(), machine, stamp_at_entry=True)
    found = replace(simulated, meta=replace(simulated.meta, source="vllm"))
    stamped_s = found.requests.arrival_s - found.requests.arrival_s[0]
    told_s, true_s = as_sent(found).arrival_s, sent.arrival_s - sent.arrival_s[0]
    assert (np.diff(told_s) >= 0).all()
    late_s = (stamped_s - true_s).mean()
    assert abs((told_s - true_s).mean()) < 0.3 * late_s
    assert np.abs(told_s - true_s).mean() < 0.7 * late_s
    assert as_sent(simulated).arrival_s.tolist() == stamped_s.tolist(), "a simulation is believed"


def test_requests_whose_sending_was_recorded_are_sent_again_then() -> None:
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    times = step_times(gpu, model, "vllm")
    machine = Machine(gpu=gpu, model=model, kv_bytes=4 << 30, step_time=times)
    sent = generate(
        60, arrivals=Poisson(rate_per_s=20), prompt=Uniform(low=20, high=900), output=Uniform(low=5, high=40), seed=7
    )
    in_the_engine = simulate(sent, Paged(), machine, stamp_at_entry=True)
    requests = replace(in_the_engine.requests, sent_s=sent.arrival_s - sent.arrival_s[0] - 0.002)
    meta = replace(in_the_engine.meta, source="vllm")
    with_sending, without = (
        replace(in_the_engine, meta=meta, requests=each) for each in (requests, in_the_engine.requests)
    )
    assert as_sent(with_sending).arrival_s == pytest.approx(sent.arrival_s - sent.arrival_s[0])
    knows, estimates = validate(times, with_sending), validate(times, without)
    ttft = {
        name: next(row for row in each.rows if row.name == "TTFT, mean")
        for name, each in (("knows", knows), ("estimates", estimates))
    }
    assert ttft["knows"].measured == pytest.approx(requests.ttft_s.mean())
    assert ttft["knows"].measured - ttft["knows"].simulated == pytest.approx(0.002), "all that is on its way"
    assert "when the server got a request" in knows.counts_from
    served = replace(with_sending, meta=replace(meta, engine={**meta.engine, "in_process": False}))
    fast_ms = 1e3 * np.sort(served.requests.arrival_s - served.requests.sent_s)[6]
    assert f"the fastest tenth reached the engine after {fast_ms:.1f} ms" in validate(times, served).counts_from
    assert "was not recorded" in estimates.counts_from


def test_the_settings_are_the_recorded_engines() -> None:
    policy, kv_bytes = policy_of(read(find("vllm-h200-llama-3-8b-heldout-bursty")))
    assert (policy.scheduler.max_num_batched_tokens, policy.cache.watermark) == (16384, 0.05)  # type: ignore[union-attr]
    assert kv_bytes == 1200 * 2 << 20


def test_an_error_of_nothing_is_nothing() -> None:
    row = ValidationRow(name="preemptions", unit="", measured=0, simulated=0)
    assert row.error == 0
    assert math.isnan(ValidationRow(name="preemptions", unit="", measured=0, simulated=3).error)
    assert ValidationRow(name="occupancy", unit="points", measured=50, simulated=48, relative=False).error == -2


def test_a_rank_that_waits_for_others_is_refused() -> None:
    recording = read(find("vllm-h200-llama-3-8b-heldout-35"))
    engine = recording.meta.engine | {"data_parallel_size": 2, "data_parallel_rank": 0}
    of_a_rank = replace(recording, meta=replace(recording.meta, engine=engine))
    with pytest.raises(UsageError, match="one of 2 data-parallel ranks, whose steps wait"):
        validate(matching_profile(recording), of_a_rank)


def test_a_simulation_cannot_be_validated_against() -> None:
    result = read(find("vllm-h200-llama-3-8b-heldout-35"))
    simulated = validate(matching_profile(result), result).simulated
    with pytest.raises(UsageError, match="is a simulation"):
        validate(matching_profile(result), simulated)


def test_a_profile_is_never_applied_to_another_machine_without_a_word() -> None:
    recording = read(find("vllm-h200-granite-350m-gsm8k"))
    there = replace(recording, meta=replace(recording.meta, gpu="NVIDIA H100 80GB HBM3"))
    profile = matching_profile(recording)
    here, carried = validate(profile, recording), validate(profile, there)
    assert here.times_from == profile.label
    assert "transferred from H200 to H100 SXM" in carried.times_from
    assert carried.simulated.duration_s > here.simulated.duration_s
    with pytest.raises(UsageError, match="the profile is of meta-llama"):
        validate(find_profile("vllm-h200-llama-3-8b"), recording)
    split = read(find("vllm-2xh200-llama-3-8b-light"))
    with pytest.raises(UsageError, match="of tensor-parallel size 1, not of 2"):
        validate(find_profile("vllm-h200-llama-3-8b"), split)


def test_commands(tmp_path: Path) -> None:
    runner, profile = CliRunner(), str(tmp_path / "mine.toml")
    arguments = ["vllm-h200-granite-350m-gsm8k", "-o", profile, "--no-held-out", "--json"]
    made = runner.invoke(calibrate_command, arguments, catch_exceptions=False)
    assert json.loads(made.stdout)["residuals"][0]["recording"] == "vllm-h200-granite-350m-gsm8k"
    arguments = [profile, "vllm-h200-granite-350m-gsm8k", "--json"]
    document = json.loads(runner.invoke(validate_command, arguments, catch_exceptions=False).stdout)
    assert document["validations"][0]["held_out"] is False
    assert document["validations"][0]["rows"]["throughput"]["measured"] > 60_000
    table = runner.invoke(validate_command, arguments[:2], catch_exceptions=False).stdout
    assert "in sample: the times were fitted to it" in table


def test_batches_of_several_sizes_are_refused() -> None:
    name = "hf-h200-llama-3-8b-first-prefills"
    with pytest.raises(UsageError, match=f"{name} has batches of 12, 24, 48 rows"):
        policy_of(read(find(name)))


def test_the_rules_are_those_of_the_recorded_release_or_of_the_one_that_is_named() -> None:
    recording = read(find("vllm-h200-granite-350m-gsm8k"))
    times = matching_profile(recording)
    followed = [validate(times, recording, vllm=release).simulated.meta.policy["vllm"] for release in (None, "0.22.1")]
    assert followed == ["0.25.1", "0.22.1"]
    with pytest.raises(UsageError, match=r"0\.40\.0 are not known"):
        validate(times, recording, vllm="0.40.0")
    static = read(find("hf-h200-granite-350m-batch64-static"))
    with pytest.raises(UsageError, match="follows no release of vLLM; leave --vllm out"):
        validate(matching_profile(static), static, vllm="0.33.0")


def test_drafts_of_a_recorded_server_are_right_as_often_as_recorded() -> None:
    machine = Machine(
        gpu=find_gpu("H200"),
        model=find_model("Llama-3.2-3B"),
        kv_bytes=8 << 30,
        step_time=step_times(find_gpu("H200"), find_model("Llama-3.2-3B"), "vllm"),
    )
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    served = Paged(scheduler=ContinuousSettings(speculative_config=config, acceptance="0.95", async_scheduling=False))
    simulated = simulate(generate(20, prompt=100, output=80, arrivals=Poisson(20), seed=3), served, machine)
    engine = dict(simulated.meta.engine) | {"name": "vllm", "version": "0.25.1"}
    recorded = replace(simulated, meta=replace(simulated.meta, source="vllm", engine=engine))
    found = validate(machine.step_time, recorded)
    assert len(found.simulated.steps) == pytest.approx(len(recorded.steps), rel=0.02)
    assert error(found, "TPOT, mean") < 2
    assert "vLLM with drafts" in found.times_from
    assert all(abs(clock.error_percent) < 3 for clock in found.clocks)
