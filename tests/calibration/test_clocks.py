"""A recording tells, step by step, whether its GPU or its host is not what step times say."""

from __future__ import annotations

from functools import cache

import pytest

from kvsim.calibration.clocks import ClockError, clock_errors, in_words
from kvsim.calibration.observed import Observed, observe_on
from kvsim.experiments.validation import times_of
from kvsim.hardware import find_gpu
from kvsim.machines import card_of
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.recording import find, read
from kvsim.steptime import Pace, Roofline, at_pace

ONE, TWO = "vllm-h200-llama-3-8b-sharegpt-20", "vllm-2xh200-gemma-3-4b-windows"


@cache
def case(name: str) -> tuple[Roofline, Observed]:
    recording = read(find(name))
    times = times_of(recording)
    coefficients = times.times if isinstance(times, WatchedProfile) else times
    assert isinstance(coefficients, Roofline)
    return coefficients, observe_on(card_of(find_gpu(recording.meta.gpu)), recording)


def by_clock(times: Roofline, observed: Observed) -> dict[str, ClockError]:
    return {item.clock: item for item in clock_errors(times, observed)}


@pytest.mark.parametrize(("clock", "pace"), [("GPU", Pace(gpu=1.2)), ("host", Pace(host=1.5))])
def test_the_clock_that_is_too_slow_is_named(clock: str, pace: Pace) -> None:
    times, observed = case(ONE)
    before, after = by_clock(times, observed), by_clock(at_pace(pace, times), observed)
    assert abs(before["GPU"].error_percent) < 3
    assert after[clock].error_percent - before[clock].error_percent > 10
    (other,) = {"GPU", "host"} - {clock}
    of_all = [errors[other].time_share * errors[other].error_percent for errors in (before, after)]
    assert of_all[1] == pytest.approx(of_all[0], abs=2), "steps may wait for the other clock now, but add little"
    assert sum(item.time_share for item in after.values()) == pytest.approx(1)


def test_a_worker_that_launches_for_two_gpus_is_a_host_whose_first_seconds_were_its_slowest() -> None:
    host = by_clock(*case(TWO))["host"]
    assert 0.1 < host.time_share < 0.9
    assert host.error_percent < -10
    assert host.host_paces[0] == max(host.host_paces) > 1.5
    assert "changed its pace" in in_words([host])


def test_a_host_that_keeps_its_pace_is_not_said_to_change_it() -> None:
    assert in_words([ClockError("GPU", 1.0, -0.4)]).endswith("-0.4 % where the GPU was waited for (100% of the time)")
    assert "pace" not in in_words([ClockError("host", 0.2, 3.0, (1.0, 1.2))])
