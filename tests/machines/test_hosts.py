"""Whose host step times have where the machine is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.experiments.validation import times_of
from kvsim.hardware import find_gpu
from kvsim.machines import middle_host, step_times
from kvsim.machines.hosts import HOSTS
from kvsim.models import find_model
from kvsim.profiles import find as find_profile
from kvsim.profiles import save
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.recording import find, read

NAME = "vllm-h200-llama-3-8b"
H200, LLAMA = find_gpu("H200"), find_model("Meta-Llama-3-8B")


def host_step_s(source: str | None) -> float:
    times = step_times(H200, LLAMA, "vllm", source=source)
    assert isinstance(times, WatchedProfile)
    return times.times.host_step_s


def test_the_middle_lies_between_the_machines_and_can_leave_one_out() -> None:
    assert min(HOSTS.values()) < middle_host() < max(HOSTS.values())
    slowest, fastest = max(HOSTS, key=HOSTS.__getitem__), min(HOSTS, key=HOSTS.__getitem__)
    assert middle_host(without=slowest) <= middle_host() <= middle_host(without=fastest)


@pytest.mark.parametrize("source", [None, NAME])
def test_a_profile_that_ships_is_given_the_host_in_the_middle_and_says_so(source: str | None) -> None:
    fitted = find_profile(NAME).times
    assert host_step_s(source) == pytest.approx(middle_host() * fitted.host_step_s)
    times = step_times(H200, LLAMA, "vllm", source=source)
    assert isinstance(times, WatchedProfile)
    assert times.times.weights_s == fitted.weights_s
    assert f"{middle_host():.2f} times the host time" in times.label


def test_a_profile_of_ones_own_keeps_its_host(tmp_path: Path) -> None:
    fitted = find_profile(NAME)
    assert host_step_s(str(save(fitted, tmp_path / "mine.toml"))) == pytest.approx(fitted.times.host_step_s)


def test_the_host_of_a_recording_that_a_profile_was_fitted_to_is_known() -> None:
    fitted, other = (
        times_of(read(find(f"vllm-h200-llama-3-8b-{name}"))) for name in ("sharegpt-5", "heldout-closed-64")
    )
    assert isinstance(fitted, WatchedProfile)
    assert isinstance(other, WatchedProfile)
    assert fitted.times.host_step_s == find_profile(NAME).times.host_step_s
    assert other.times.host_step_s == pytest.approx(middle_host() * fitted.times.host_step_s)


def test_every_machine_with_a_profile_is_among_the_hosts() -> None:
    fitted_to = {residual.recording for residual in find_profile(NAME).residuals}
    assert {read(find(name)).meta.extra["machine"] for name in fitted_to} <= HOSTS.keys()
