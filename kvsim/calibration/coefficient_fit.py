"""Fit of the coefficients of a profile to recordings, within physical limits that follow from data sheets.

Every coefficient starts at a value from the data sheet, and the fit changes it by a limited factor. The fit is robust:
stalls of the host count as outliers. `kvsim.calibration.corrections` then corrects what a robust fit ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from kvsim.calibration.corrections import (
    is_first_use,
    with_first_uses,
    with_host_overheads,
    with_mean_excess,
    with_new_sequences,
    with_sizes,
)
from kvsim.calibration.machines import pace_of, relative_to_median
from kvsim.calibration.observed import Observed, check_distinct, observe_on
from kvsim.calibration.predict import error_scale_s, machine_of, step_durations, step_errors
from kvsim.calibration.prior import vllm_prior
from kvsim.errors import UsageError
from kvsim.hardware import Gpu, find_gpu
from kvsim.machines import card_of, served_model
from kvsim.models import Model
from kvsim.profiles import Profile, Residual, listed_name
from kvsim.recording import Recording
from kvsim.recording.tables import FloatArray
from kvsim.steptime import Pace, Roofline, StepShape, generate_times
from kvsim.steptime.overheads import ARITHMETIC_EFFICIENCY, ATTENTION_EFFICIENCY, MEMORY_EFFICIENCY

_GPU_COEFFICIENTS = ("step_s", "weights_s", "token_s", "sequence_s", "context_token_s", "attention_pair_s")
_FITTED = {
    "vllm": (
        *("host_step_s", "host_sequence_s", "host_token_s"),
        *("piecewise_launch_s", "eager_launch_s", "uncompiled_launch_s"),
        *_GPU_COEFFICIENTS,
        *("lone_share", "shared_saving", "throttle_share", "piecewise_s", "exposed_share"),
    ),
    "hf-dynamic": ("eager_launch_s", "masked_launch_s", "new_shape_s", *_GPU_COEFFICIENTS),
    "hf-static": _GPU_COEFFICIENTS,
}
"""Names of the fitted coefficients, by engine. All others keep their initial values."""
RARE_EVENTS = {
    "hf-dynamic": {"new_kernel_s": "new_kernels"},
    "hf-static": {"new_shape_s": "new_shape", "new_kernel_s": "new_kernels"},
}
"""Coefficients for events that are too rare for a fit, by engine. Each coefficient has the name of the field of
`StepShape` that counts its events.
"""
_REACH = 6.0
"""Largest ratio of a fitted coefficient to its initial value. The smallest ratio is 1 / `_REACH`, except for
`_FASTEST`.
"""
_FASTEST = {
    "weights_s": MEMORY_EFFICIENCY / 0.95,
    "context_token_s": MEMORY_EFFICIENCY / 0.95,
    "token_s": ARITHMETIC_EFFICIENCY / 0.8,
    "attention_pair_s": ATTENTION_EFFICIENCY / 0.75,
}
"""Smallest ratio of a fitted coefficient to its initial value, with vLLM.

The divisors are the largest shares of the data sheet's peak that kernels reach. A smaller coefficient would only
compensate an error in another one.
"""
_ROUNDS = 3
"""Number of iterations of one fit. Each fits the coefficients, then the pace of each machine (factors on its host and
GPU times), and with vLLM the extra time of each captured graph size (`of_size_s`).
"""
_EVALUATIONS = 15
"""Largest number of evaluations of the model in one iteration of the fit."""
_PRIOR_WEIGHT = 0.3
"""Weight in the fit that keeps a coefficient near its initial value if the recordings do not determine it."""
_LIMITS = {"exposed_share": 0.5, "lone_share": 0.5, "shared_saving": 1.0}
"""Largest values of the coefficients that are shares of a time. Above them, a step with more work could take less time.
"""


def calibrate(
    recordings: Sequence[Recording], *, held_out: bool = True, progress: Callable[[int, int], None] | None = None
) -> Profile:
    """Fit one profile to recordings of one GPU, model and engine.

    Args:
        recordings: at least one.
        held_out: True to fit again without each recording in turn, to measure how well the others predict it.
        progress: function that is called after each fit, with the number of finished fits and that of all fits.

    Raises:
        UsageError: there is no recording, one is there twice, they are of different machines, or one has no measured
            times.
    """
    gpu, engine, model = _subject(recordings)
    if engine == "vllm":
        prior = vllm_prior(gpu, model)
    else:
        prior = generate_times(gpu, model, "static" if engine == "hf-static" else "dynamic")
    observed = [observe_on(card_of(gpu), item) for item in recordings]
    num_fits = 1 + (len(observed) if held_out and len(observed) > 1 else 0)
    num_done = count(1)

    def fitted(chosen: Sequence[Observed]) -> Roofline:
        times = _fitted_times(chosen, prior, engine)
        if progress is not None:
            progress(next(num_done), num_fits)
        return times

    times = fitted(observed)
    residuals = []
    for index, item in enumerate(observed):
        without = fitted(observed[:index] + observed[index + 1 :]) if num_fits > 1 else None
        residuals.append(residual_of(item, times, without))
    shapes = [np.concatenate(columns) for columns in zip(*(item.shape for item in observed), strict=True)]
    return Profile(
        gpu=gpu.name,
        model=listed_name(model),
        engine=engine,
        tensor_parallel_size=model.tensor_parallel_size,
        times=replace(times, label=f"calibrated on {gpu.name}", calibrated=True),
        ranges={
            name: (float(column.min()), float(column.max()))
            for name, column in zip(StepShape._fields, shapes, strict=True)
        },
        residuals=tuple(residuals),
    )


def _subject(recordings: Sequence[Recording]) -> tuple[Gpu, str, Model]:
    if not recordings:
        raise UsageError("there is nothing to calibrate on; give at least one recording.")
    check_distinct(recordings)
    gpu = find_gpu(_same("GPU", [find_gpu(item.meta.gpu).name for item in recordings]))
    engine = _same("engine", [engine_of(item) for item in recordings])
    models = [served_model(item.meta) for item in recordings]
    _same("tensor-parallel size", [str(model.tensor_parallel_size) for model in models])
    _same("model", [listed_name(model) for model in models])
    for item in recordings:
        if item.meta.source == "simulation":
            raise UsageError(f"{item.name} is a simulation; calibrate on recordings of a real engine.")
    return gpu, engine, models[0]


def engine_of(recording: Recording) -> str:
    """Return the engine that made the recording, as named in `kvsim.profiles.ENGINES`."""
    if recording.meta.policy_name != "static":
        return "vllm"
    return f"hf-{recording.meta.policy.get('cache', 'dynamic')}"


def _same(what: str, values: Sequence[str]) -> str:
    distinct = sorted(set(values))
    if len(distinct) > 1:
        raise UsageError(f"a profile is for one {what}, and the recordings are of {' and '.join(distinct)}.")
    return distinct[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """Fit of the coefficients of an engine, as logarithms of their ratios to `prior`, so that they stay positive."""

    prior: Roofline
    engine: str

    @property
    def names(self) -> tuple[str, ...]:
        return _FITTED[self.engine]

    @property
    def rare_events(self) -> dict[str, str]:
        return RARE_EVENTS.get(self.engine, {})

    def bounds(self) -> tuple[list[float], float]:
        """Return the lower bound of the logarithm of each coefficient's ratio to `prior`, and the upper bound of all
        these logarithms.
        """
        reach, fastest = float(np.log(_REACH)), _FASTEST if self.engine == "vllm" else {}
        return [float(np.log(fastest[name])) if name in fastest else -reach for name in self.names], reach

    def times_at(self, logarithms: FloatArray, before: Roofline) -> Roofline:
        """Return `before` with the coefficients `prior * exp(logarithms)`. Coefficients above their limits in `_LIMITS`
        are lowered to these limits.
        """
        prior = self.prior
        start = np.array([getattr(prior, name) for name in self.names])
        values: dict[str, Any] = dict(zip(self.names, (start * np.exp(logarithms)).tolist(), strict=True))
        values |= {name: min(values[name], most) for name, most in _LIMITS.items() if name in values}
        if "weights_s" in values:  # the weights of one token keep their share: which is 1 in a dense model
            values["active_weights_s"] = values["weights_s"] * prior.active_weights_s / prior.weights_s
        return replace(before, **values)

    def errors(self, times: Roofline, item: Observed) -> FloatArray:
        """Return the error of each step, divided by its `error_scale_s`. It is 0 for a step with a first use, such as a
        compilation, whose cost is not fitted.
        """
        scale_s = np.where(is_first_use(item, self.rare_events), np.inf, error_scale_s(item))
        return step_errors(machine_of(times, item), item) / scale_s

    def residuals(self, logarithms: FloatArray, observed: Sequence[Observed], before: Roofline) -> FloatArray:
        times = self.times_at(logarithms, before)
        return np.concatenate([*(self.errors(times, item) for item in observed), _PRIOR_WEIGHT * logarithms])


def _fitted_times(observed: Sequence[Observed], prior: Roofline, engine: str) -> Roofline:
    """Return the step times fitted to `observed`, starting from `prior`."""
    from scipy.optimize import least_squares  # noqa: PLC0415  costs a third of a second, and only a fit needs it

    fit = _Fit(prior, engine)
    times, logarithms = prior, np.zeros(len(fit.names))
    search = partial(
        least_squares, fit.residuals, bounds=fit.bounds(), loss="soft_l1", diff_step=1e-3, max_nfev=_EVALUATIONS
    )
    for _ in range(_ROUNDS):
        logarithms = search(logarithms, args=(observed, times)).x
        times = fit.times_at(logarithms, times)
        observed = _at_their_paces(times, observed, fit.errors)
        if engine == "vllm":
            times = with_sizes(with_new_sequences(times, observed), observed)
    # Means are corrected last: what the loop fits changes them.
    times = with_mean_excess(times, observed)
    if engine != "vllm":
        return with_first_uses(times, observed, fit.rare_events)
    if not any(item.eager for item in observed):  # no recording shows launches without a compiled model
        times = replace(times, uncompiled_launch_s=times.eager_launch_s)
    return with_host_overheads(times, observed)


def _at_their_paces(
    times: Roofline, observed: Sequence[Observed], errors: Callable[[Roofline, Observed], Any]
) -> list[Observed]:
    """Return `observed` with the fitted pace of each machine, scaled so that the median pace is 1; unchanged if there
    is only one machine.
    """
    machines = sorted({item.machine for item in observed})
    if len(machines) == 1:
        return list(observed)

    def pace(machine: str) -> Pace:
        return pace_of([item for item in observed if item.machine == machine], partial(errors, times))

    paces = relative_to_median({machine: pace(machine) for machine in machines})
    return [replace(item, pace=paces[item.machine]) for item in observed]


def residual_of(observed: Observed, times: Roofline, without: Roofline | None = None) -> Residual:
    """Return the errors of `times` for the recording `observed`.

    `without` has times that were fitted without this recording. Their mean error becomes `held_out_percent`, which is
    None if `without` is None.
    """
    mean_s = float(step_durations(observed).mean())

    def errors_of(fitted: Roofline) -> FloatArray:
        return step_errors(machine_of(fitted, observed), observed)

    def percent(error_s: FloatArray) -> float:
        return 100 * float(error_s.mean()) / mean_s

    error_s = errors_of(times)
    return Residual(
        recording=observed.name,
        num_steps=len(observed),
        mean_percent=percent(error_s),
        median_abs_us=1e6 * float(np.median(np.abs(error_s))),
        held_out_percent=None if without is None else percent(errors_of(without)),
    )
