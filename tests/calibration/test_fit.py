"""Calibration on recordings whose truth is known: simulations with a step-time model of our own, told to be
measurements.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kvsim.calibration import calibrate
from kvsim.calibration.corrections import _line, with_mean_excess, with_new_sequences, with_sizes
from kvsim.calibration.machines import pace_of, relative_to_median
from kvsim.calibration.observed import observe
from kvsim.calibration.predict import predict, scaled_errors, step_errors
from kvsim.calibration.prior import vllm_prior
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import Recording, find, read
from kvsim.simulation import Machine, simulate
from kvsim.steptime import NUM_SIZES, Pace, Roofline, at_pace
from kvsim.workload import AllAtOnce, Arrivals, LogNormal, Poisson, generate

pytestmark = pytest.mark.slow

H200, LLAMA = find_gpu("H200"), find_model("Meta-Llama-3-8B")
PRIOR = vllm_prior(H200, LLAMA)
TRUTH = replace(
    PRIOR,
    weights_s=PRIOR.weights_s * 1.2,
    active_weights_s=PRIOR.weights_s * 1.2,
    token_s=PRIOR.token_s * 0.8,
    context_token_s=PRIOR.context_token_s * 1.3,
    eager_launch_s=PRIOR.eager_launch_s * 0.7,
    turnaround_step_s=120e-6,
)


def measured(
    seed: int,
    *,
    asynchronous: bool = True,
    stalls: float = 0.0,
    times: Roofline = TRUTH,
    machine_name: str = "",
    arrivals: Arrivals = Poisson(rate_per_s=15),  # noqa: B008  a value, never changed
) -> Recording:
    """A run whose step times are `times`, with a share of steps during which the host stalls."""
    workload = generate(
        80,
        arrivals=arrivals,
        prompt=LogNormal(mean_tokens=250, sigma=1.0),
        output=LogNormal(mean_tokens=60, sigma=0.8),
        seed=seed,
    )
    policy = Paged(scheduler=ContinuousSettings(async_scheduling=asynchronous))
    machine = Machine(gpu=H200, model=LLAMA, kv_bytes=8 << 30, step_time=times)
    recording = simulate(workload, policy, machine, stamp_at_entry=True)
    steps = recording.steps
    delayed = np.random.default_rng(seed).random(len(steps)) < stalls
    late_s = np.maximum.accumulate(np.cumsum(delayed * 0.03))
    engine = {"name": "vllm", "max_model_len": 8192}
    return replace(
        recording,
        name=f"measured-{seed}",
        meta=replace(recording.meta, source="vllm", engine=engine, extra={"machine": machine_name or f"of {seed}"}),
        steps=replace(steps, start_s=steps.start_s + np.append(0.0, late_s[:-1]), end_s=steps.end_s + late_s),
    )


def mean_percent(times: Roofline, recording: Recording) -> float:
    observed = observe(recording)
    return 100 * float(step_errors(times, observed).mean() / np.diff(observed.end_s).mean())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_true_model_predicts_every_step_of_its_own_simulation(asynchronous: bool) -> None:
    observed = observe(measured(1, asynchronous=asynchronous))
    end_s, launch = predict(TRUTH, observed)
    assert np.abs(end_s - observed.end_s).max() < 1e-9
    assert (launch >= 0).any() == asynchronous, "only an engine that schedules ahead waits for a launch here"


def test_the_fit_finds_times_that_predict_a_run_it_has_not_seen() -> None:
    profile = calibrate([measured(1), measured(2)], held_out=False)
    unseen = measured(3)
    assert abs(mean_percent(PRIOR, unseen)) > 5, "the roofline it starts from is far off"
    assert abs(mean_percent(profile.times, unseen)) < 1
    assert profile.times.turnaround_step_s == pytest.approx(TRUTH.turnaround_step_s, rel=0.1)


def test_an_engine_that_was_never_seen_uncompiled_launches_as_it_does_large_steps() -> None:
    times = calibrate([measured(1)]).times
    assert times.uncompiled_launch_s == times.eager_launch_s == pytest.approx(TRUTH.eager_launch_s, rel=0.05)


def test_stalls_are_not_coefficients() -> None:
    profile = calibrate([measured(1, stalls=0.004), measured(2, stalls=0.004)], held_out=False)
    assert abs(mean_percent(profile.times, measured(3))) < 2


def test_each_recording_is_left_out_once() -> None:
    fits: list[tuple[int, int]] = []
    profile = calibrate([measured(1), measured(2)], progress=lambda done, total: fits.append((done, total)))
    assert fits == [(1, 3), (2, 3), (3, 3)]
    assert all(residual.held_out_percent is not None for residual in profile.residuals)
    assert all(abs(residual.held_out_percent or 0) < 2 for residual in profile.residuals)


def test_what_cannot_be_calibrated_on_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to calibrate on"):
        calibrate([])
    simulated = replace(measured(1), meta=replace(measured(1).meta, source="simulation"))
    with pytest.raises(UsageError, match="is a simulation"):
        calibrate([simulated])
    granite = read(find("vllm-h200-granite-350m-gsm8k"))
    with pytest.raises(UsageError, match="a profile is for one model"):
        calibrate([measured(1), granite])


def test_a_large_launch_is_paid_by_the_step_before_and_its_mean_is_found() -> None:
    """While a large step is launched, the output of the step before waits: that is where its launch shows."""
    observed = observe(measured(1))
    late = replace(TRUTH, eager_launch_s=TRUTH.eager_launch_s - 1e-3)
    found = with_mean_excess(late, [observed])
    assert found.eager_launch_s == pytest.approx(TRUTH.eager_launch_s, rel=0.02)
    assert found.step_s == pytest.approx(TRUTH.step_s, rel=0.01)


def test_kernels_picked_for_a_size_are_found_whatever_else_a_recording_is() -> None:
    """A bump of 0.3 ms at two sizes, on machines that differ by 2%, in the steps of all recordings together."""
    bump = [0.0] * NUM_SIZES
    bump[3] = bump[4] = 0.3e-3
    bumpy = replace(TRUTH, of_size_s=tuple(bump))
    observed = [
        observe(measured(seed, times=at_pace(Pace(gpu=gpu), bumpy), arrivals=Poisson(rate_per_s=60)))
        for seed, gpu in ((1, 1.0), (2, 1.02), (3, 0.98))
    ]
    of_size_s = np.array(with_sizes(TRUTH, observed).of_size_s)
    assert of_size_s[[3, 4]] - of_size_s[2] == pytest.approx([0.3e-3, 0.3e-3], abs=0.05e-3)
    assert abs(of_size_s[5] - of_size_s[2]) < 0.05e-3
    assert of_size_s.min() == 0.0


def test_what_joining_costs_is_read_off_where_many_join() -> None:
    together = observe(measured(1, arrivals=AllAtOnce()))
    seen = (~np.isnan(together.launch_s)) & (np.asarray(together.shape.num_new_seqs) >= 16)
    assert seen.any()
    found = with_new_sequences(replace(TRUTH, new_sequence_s=0.0), [together])
    assert found.new_sequence_s == pytest.approx(TRUTH.new_sequence_s, rel=0.02)
    assert with_new_sequences(TRUTH, [observe(measured(1))]) == TRUTH, "few join at a time, and tell nothing"


def test_a_profile_is_of_the_machine_in_the_middle() -> None:
    """Two recordings of a slow machine count as one machine: the middle of the three is the one of `TRUTH`."""
    slow, fast = Pace(host=1.3, gpu=1.03), Pace(host=0.9, gpu=0.98)
    recordings = [
        measured(1, machine_name="usual"),
        measured(2, times=at_pace(slow, TRUTH), machine_name="slow"),
        measured(3, times=at_pace(slow, TRUTH), machine_name="slow"),
        measured(4, times=at_pace(fast, TRUTH), machine_name="fast"),
    ]
    usual, first_slow, second_slow, quick = (
        item.mean_percent for item in calibrate(recordings, held_out=False).residuals
    )
    assert abs(usual) < 0.5
    assert max(first_slow, second_slow) < -2
    assert quick > 1


def test_how_fast_a_machine_is_follows_from_the_errors_of_its_steps() -> None:
    observed = observe(measured(5, times=at_pace(Pace(host=1.4, gpu=1.02), TRUTH)))
    found = pace_of([observed], partial(scaled_errors, TRUTH))
    assert found == pytest.approx((1.4, 1.02), rel=0.02)
    assert relative_to_median({"a": Pace(2.0, 1.0), "b": Pace(4.0, 1.1), "c": Pace(3.0, 1.05)})["b"] == pytest.approx(
        (4 / 3, 1.1 / 1.05)
    )


def test_kernels_that_are_built_now_and_then_are_read_off() -> None:
    """Stalls of `generate()` at the first use of a kernel are no outliers: they come whenever it is used first."""
    recording = read(find("hf-h200-llama-3-8b-sharegpt-batch16"))
    observed = observe(recording)
    slow = np.flatnonzero(observed.shape.new_kernels)
    widths = recording.steps.prefill_tokens[slow] // recording.steps.num_scheduled[slow]
    assert widths[widths > 0].tolist() == [867, 1016], "two of the three prefills"
    assert len(slow) == 5
    assert (observed.end_s - observed.start_s)[slow].min() > 0.3
    times = calibrate([recording]).times
    assert 0.25 < times.new_kernel_s < 0.45
    assert 0.02 < times.new_shape_s < 0.04, "cuDNN's plan of a new shape"


def test_a_shared_prefix_is_seen_in_the_free_blocks() -> None:
    shared = observe(read(find("vllm-h200-llama-3-8b-pressure-prefixes"))).shape
    alone = observe(read(find("vllm-h200-llama-3-8b-pressure"))).shape
    assert 0.3 < np.sum(shared.shared_tokens) / np.sum(shared.context_tokens) < 0.6
    assert np.sum(alone.shared_tokens) < 0.01 * np.sum(alone.context_tokens)


def test_points_that_differ_in_stalls_alone_tell_no_slope(recwarn: pytest.WarningsRecorder) -> None:
    """Where the one point that is elsewhere is a stall, what is left has no line."""
    where, took_s = np.array([1.0] * 999 + [2.0]), np.array([1e-3] * 999 + [5.0])
    assert _line(where, took_s, 3.0, 4.0) == (3.0, 4.0)
    assert not recwarn.list
