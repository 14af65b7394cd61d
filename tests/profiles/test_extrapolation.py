"""Runs beyond what a profile was fitted to say so: in the recording, in JSON and on standard error."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.calibration.prior import vllm_prior
from kvsim.cli.compare import command as compare
from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.profiles import find
from kvsim.profiles.extrapolation import KEY, WatchedProfile, provenance
from kvsim.simulation import Machine, simulate
from kvsim.steptime import StepShape
from kvsim.workload import Workload

PROFILE = find("vllm-h200-llama-3-8b")
MOST_SEQUENCES = int(PROFILE.ranges["num_seqs"][1])
H200, LLAMA = find_gpu("H200"), find_model("Meta-Llama-3-8B")


def requests(count: int) -> Workload:
    return Workload(arrival_s=np.zeros(count), prompt_tokens=np.full(count, 30), output_tokens=np.full(count, 4))


def test_the_largest_step_counts_field_by_field() -> None:
    watched = WatchedProfile(PROFILE)
    assert watched.step_time(StepShape(8, 8, 0, 800, 0)) == PROFILE.step_time(StepShape(8, 8, 0, 800, 0))
    assert watched.beyond() == []
    contexts: Any = np.array([900, 901])
    watched.step_time(StepShape(MOST_SEQUENCES + 1, MOST_SEQUENCES + 1, 0, contexts, 0))
    watched.saw(StepShape(1, 1, 0, 10**9, 0))
    assert [words.split(" up to ")[0] for words in watched.beyond()] == ["num_seqs", "context_tokens"]
    assert f"up to {MOST_SEQUENCES + 1:,}" in watched.beyond()[0]


def test_a_run_without_steps_is_beyond_nothing() -> None:
    assert WatchedProfile(PROFILE).beyond() == []


def test_steps_smaller_than_any_that_was_fitted_are_beyond_too() -> None:
    watched = WatchedProfile(find("hf-dynamic-h200-llama-3-8b"))
    watched.step_time(StepShape(1, 1, 0, 10_000, 0))
    assert any(words.startswith("num_seqs up to 1, fitted on 16") for words in watched.beyond())


def test_a_new_process_is_not_beyond_anything() -> None:
    profile = find("hf-dynamic-h200-llama-3-8b")
    watched = WatchedProfile(profile)
    watched.step_time(StepShape(16, 16 * 300, 16 * 300, 20_000, 10**6, new_shape=1, new_kernels=3))
    assert watched.beyond() == []


def test_a_model_that_was_fitted_to_nothing_has_no_range_to_leave() -> None:
    assert provenance(vllm_prior(H200, LLAMA)) == {}


@pytest.mark.parametrize(("count", "leaves"), [(40, False), (MOST_SEQUENCES + 12, True)])
def test_a_recording_says_where_its_times_extrapolate(count: int, leaves: bool) -> None:
    machine = Machine(gpu=H200, model=LLAMA, kv_bytes=8 << 30, step_time=WatchedProfile(PROFILE))
    meta = simulate(requests(count), Paged(), machine).meta
    assert (KEY in meta.extra) is leaves
    if leaves:
        assert meta.extra[KEY][0].startswith(f"num_seqs up to {count}, fitted on")


def test_a_run_says_nothing_of_the_run_before_it() -> None:
    machine = Machine(gpu=H200, model=LLAMA, kv_bytes=8 << 30, step_time=WatchedProfile(PROFILE))
    assert KEY in simulate(requests(MOST_SEQUENCES + 12), Paged(), machine).meta.extra
    assert KEY not in simulate(requests(40), Paged(), machine).meta.extra


def test_a_run_has_the_label_of_its_machines_times() -> None:
    times = step_times(H200, LLAMA, "vllm")
    assert isinstance(times, WatchedProfile)
    meta = simulate(requests(4), Paged(), Machine(gpu=H200, model=LLAMA, kv_bytes=8 << 30, step_time=times)).meta
    assert meta.engine["step_time"] == times.label != PROFILE.label


def test_compare_warns_on_standard_error_and_in_json() -> None:
    arguments = ["--arrivals", "at-once", "--num-requests", "6", "--prompt-tokens", "20", "--output-tokens", "3"]
    result = CliRunner().invoke(
        compare, [*arguments, "--batch-size", "6", "--times", "own", "--json"], catch_exceptions=False
    )
    document = json.loads(result.stdout)
    assert document["paged"][KEY] == []
    assert any("num_seqs up to 6" in words for words in document["static"][KEY])
    assert result.stderr.count("warning: static: the times extrapolate: num_seqs up to 6, fitted on 16 to 16") == 1
    table = CliRunner().invoke(compare, [*arguments, "--batch-size", "6", "--times", "own"], catch_exceptions=False)
    assert table.stderr == result.stderr
