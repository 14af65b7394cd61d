"""Fit the coefficients of a step-time model, within physical reach of what the data sheets say.

Every coefficient starts at its roofline value and may move by a limited factor; a stalled host is an outlier, not a
coefficient. Because throughput is a mean and the fit is robust, a last step gives each kind of step the mean excess
that robustness ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.calibration.observed import Observed, observe
from kvsim.calibration.predict import step_durations, step_errors
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.models import Model
from kvsim.profiles import Profile, Residual, listed_name
from kvsim.recording import Recording
from kvsim.steptime import Roofline, StepShape

_GPU_COEFFICIENTS = ("step_s", "weights_s", "token_s", "sequence_s", "context_token_s", "attention_pair_s")
_FITTED = {
    "vllm": (
        *("host_step_s", "host_sequence_s", "host_token_s", "piecewise_launch_s", "eager_launch_s"),
        *_GPU_COEFFICIENTS,
        *("lone_share", "piecewise_s", "exposed_share"),
    ),
    "hf-dynamic": ("eager_launch_s", "new_shape_s", *_GPU_COEFFICIENTS),
    "hf-static": _GPU_COEFFICIENTS,
}
"""What is fitted for which engine; the rest stays at its roofline value."""
_REACH = 6.0
"""The largest factor by which a coefficient may leave its roofline value."""
_SCALE_S, _SCALE_SHARE = 0.1e-3, 0.02
"""An error of so many seconds, and of this share of the step, counts as one; much larger ones count linearly."""
_PRIOR_WEIGHT = 0.3
"""How strongly a coefficient that the recordings do not determine is held at its roofline value."""
_STALL_PERCENTILE = 99.5
"""Errors beyond this are stalls: they are left out of the mean excess too."""
_MAX_EXPOSED = 0.5


def calibrate(
    recordings: Sequence[Recording], *, held_out: bool = True, progress: Callable[[int, int], None] | None = None
) -> Profile:
    """Fit one profile to recordings of one GPU, model and engine.

    Args:
        recordings: at least one.
        held_out: fit again without each recording in turn, to say how well the others predict it.
        progress: called with the fits done and all.

    Raises:
        UsageError: there is no recording, or they are of different machines, or one has no measured times.
    """
    if not recordings:
        raise UsageError("there is nothing to calibrate on; give at least one recording.")
    gpu_name, engine = (
        _same("GPU", [find_gpu(item.meta.gpu).name for item in recordings]),
        _same("engine", [engine_of(item) for item in recordings]),
    )
    model_name = _same("model", [listed_name(Model.from_shape(item.meta.model)) for item in recordings])
    for item in recordings:
        if item.meta.source == "simulation":
            raise UsageError(f"{item.name} is a simulation; calibrate on recordings of a real engine.")
    gpu, model = find_gpu(gpu_name), Model.from_shape(recordings[0].meta.model)
    prior = _prior(gpu_name, model, engine)
    observed = [observe(item) for item in recordings]
    captured = [_captured_tokens(item) for item in recordings]
    rounds = 1 + (len(observed) if held_out and len(observed) > 1 else 0)

    def fitted(chosen: Sequence[int], done: int) -> Roofline:
        times = _fit([observed[index] for index in chosen], [captured[index] for index in chosen], prior, engine)
        if progress is not None:
            progress(done, rounds)
        return times

    everything = range(len(observed))
    times = fitted(everything, 1)
    residuals = []
    for index in everything:
        without = fitted([other for other in everything if other != index], index + 2) if rounds > 1 else None
        residuals.append(_residual(observed[index], captured[index], times, without))
    shapes = [np.concatenate(columns) for columns in zip(*(item.shape for item in observed), strict=True)]
    return Profile(
        gpu=gpu.name,
        model=model_name,
        engine=engine,
        times=replace(times, label=f"calibrated on {gpu.name}", calibrated=True),
        ranges={
            name: (float(column.min()), float(column.max()))
            for name, column in zip(StepShape._fields, shapes, strict=True)
        },
        residuals=tuple(residuals),
    )


def engine_of(recording: Recording) -> str:
    """Which of `kvsim.profiles.ENGINES` made the recording."""
    if recording.meta.policy_name != "static":
        return "vllm"
    return f"hf-{recording.meta.policy.get('cache', 'dynamic')}"


def _same(what: str, values: Sequence[str]) -> str:
    distinct = sorted(set(values))
    if len(distinct) > 1:
        raise UsageError(f"a profile is for one {what}, and the recordings are of {' and '.join(distinct)}.")
    return distinct[0]


def _prior(gpu_name: str, model: Model, engine: str) -> Roofline:
    gpu = find_gpu(gpu_name)
    match engine:
        case "vllm":
            return Roofline.for_gpu(gpu, model)
        case "hf-static":
            return Roofline.for_hugging_face(gpu, model, cache="static")
        case _:
            return Roofline.for_hugging_face(gpu, model)


def _captured_tokens(recording: Recording) -> int | None:
    """The largest captured step, where a recording's engine captured none; None where it is the default."""
    return 0 if recording.meta.engine.get("enforce_eager") else None


def _with_capture(times: Roofline, captured: int | None) -> Roofline:
    return times if captured is None else replace(times, max_captured_tokens=captured)


def _fit(observed: Sequence[Observed], captured: Sequence[int | None], prior: Roofline, engine: str) -> Roofline:
    from scipy.optimize import least_squares  # noqa: PLC0415  costs a third of a second, and only a fit needs it

    names = _FITTED[engine]
    start = np.array([getattr(prior, name) for name in names])

    def model(logarithms: Any) -> Roofline:
        values: dict[str, Any] = dict(zip(names, (start * np.exp(logarithms)).tolist(), strict=True))
        if "exposed_share" in values:
            values["exposed_share"] = min(values["exposed_share"], _MAX_EXPOSED)
        if "weights_s" in values:  # a dense model streams the same weights for one token as for many
            values["active_weights_s"] = values["weights_s"] * prior.active_weights_s / prior.weights_s
        return replace(prior, **values)

    scales = [_SCALE_S + _SCALE_SHARE * step_durations(item) for item in observed]

    def residuals(logarithms: Any) -> Any:
        times = model(logarithms)
        errors = [
            step_errors(_with_capture(times, tokens), item) / scale
            for item, tokens, scale in zip(observed, captured, scales, strict=True)
        ]
        return np.concatenate([*errors, _PRIOR_WEIGHT * logarithms])

    reach = np.log(_REACH)
    solution = least_squares(
        residuals, np.zeros(len(names)), bounds=(-reach, reach), loss="soft_l1", diff_step=1e-3, max_nfev=30
    )
    times = _with_mean_excess(model(solution.x), observed, captured)
    if engine == "hf-static":
        return _with_compilation(times, observed)
    return _with_host_overheads(times, observed) if engine == "vllm" else times


def _with_mean_excess(times: Roofline, observed: Sequence[Observed], captured: Sequence[int | None]) -> Roofline:
    """`times` with what each kind of step took longer on average than the robust fit says."""
    errors: dict[str, list[Any]] = {"step_s": [], "piecewise_s": [], "eager_launch_s": []}
    for item, tokens in zip(observed, captured, strict=True):
        model = _with_capture(times, tokens)
        error = -step_errors(model, item)
        eager = item.shape.num_tokens > model.max_captured_tokens
        prefill = np.asarray(item.shape.num_prefill_tokens) > 0
        errors["eager_launch_s"].append(error[eager])
        errors["piecewise_s"].append(error[~eager & prefill])
        errors["step_s"].append(error[~eager & ~prefill])
    excess = {name: _trimmed_mean(np.concatenate(parts)) for name, parts in errors.items()}
    excess["piecewise_s"] -= excess["step_s"]  # such a step pays both
    return replace(
        times, **{name: max(getattr(times, name) + value, 0.0) for name, value in excess.items() if value == value}
    )


def _trimmed_mean(values: Any) -> float:
    if not len(values):
        return 0.0
    limit = np.percentile(np.abs(values), _STALL_PERCENTILE)
    return float(values[np.abs(values) <= limit].mean())


def _with_compilation(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """`times` with what compiling takes: a few steps of half a minute each, which a robust fit takes for stalls."""
    errors = [
        step_errors(replace(times, new_shape_s=0.0), item)[np.asarray(item.shape.new_shape) > 0] for item in observed
    ]
    compiling = np.concatenate(errors)
    return replace(times, new_shape_s=max(-float(compiling.mean()), 0.0)) if len(compiling) else times


def _with_host_overheads(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """`times` with what the host does between outputs and decisions, and for every request: both can be read off
    directly.
    """
    gaps, sequences = [], []
    for item in observed:
        direct = item.next_step >= 0
        gaps.append(item.start_s[item.next_step[direct]] - item.end_s[direct])
        sequences.append(np.asarray(item.shape.num_seqs)[direct])
    step_s, sequence_s = _line(
        np.concatenate(sequences), np.concatenate(gaps), times.turnaround_step_s, times.turnaround_sequence_s
    )
    request_s, token_s = _line(
        np.concatenate([item.entry_prompt_tokens for item in observed]),
        np.concatenate([item.entry_gap_s for item in observed]),
        times.request_s,
        times.request_token_s,
    )
    return replace(
        times,
        turnaround_step_s=step_s,
        turnaround_sequence_s=sequence_s,
        request_s=request_s,
        request_token_s=token_s,
    )


def _line(x: Any, y: Any, intercept: float, slope: float) -> tuple[float, float]:
    """Intercept and slope, neither negative, of a line through the points but for stalls; the given ones without
    points.
    """
    if len(np.unique(x)) < 2:
        return intercept, slope
    kept = y <= np.percentile(y, _STALL_PERCENTILE)
    fitted_slope, fitted_intercept = np.polyfit(x[kept], y[kept], 1)
    return max(float(fitted_intercept), 0.0), max(float(fitted_slope), 0.0)


def _residual(observed: Observed, captured: int | None, times: Roofline, without: Roofline | None) -> Residual:
    mean_s = float(step_durations(observed).mean())

    def percent(model: Roofline) -> float:
        return 100 * float(step_errors(_with_capture(model, captured), observed).mean()) / mean_s

    error = step_errors(_with_capture(times, captured), observed)
    return Residual(
        recording=observed.name,
        num_steps=len(observed),
        mean_percent=percent(times),
        median_abs_us=1e6 * float(np.median(np.abs(error))),
        held_out_percent=None if without is None else percent(without),
    )
