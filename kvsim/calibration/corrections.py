"""What a robust fit does not see: means where it looks at medians, what is rare, and what can be read off directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.calibration.observed import Observed
from kvsim.calibration.predict import machine_of, predict, step_errors
from kvsim.steptime import Roofline

_MANY = 16
"""So many sequences in one step tell what one takes."""
_STALL_PERCENTILE = 99.5
"""Errors beyond this are stalls: they are left out of the mean excess too."""


def with_mean_excess(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """`times` with what each kind of step, or its launch, took longer on average than the robust fit says."""
    names = ("step_s", "piecewise_s", "piecewise_launch_s", "masked_launch_s", "eager_launch_s", "uncompiled_launch_s")
    errors: dict[str, list[Any]] = {name: [] for name in names}
    for item in observed:
        model = machine_of(times, item)
        end_s, launch = predict(model, item)
        error = item.end_s - end_s
        large = np.asarray(item.shape.num_tokens) > model.max_captured_tokens
        prefill = np.asarray(item.shape.num_prefill_tokens) > 0
        usual = (np.asarray(item.shape.new_shape) == 0) & (np.asarray(item.shape.new_kernels) == 0)
        slow_launch = (launch >= 0) & (large | prefill)[launch]
        masked = (np.asarray(item.shape.num_seqs) > 1) & (model.masked_launch_s > 0)
        large_launch = "uncompiled_launch_s" if item.eager else "eager_launch_s"
        errors[large_launch].append(error[usual & slow_launch & large[launch] & ~masked])
        errors["masked_launch_s"].append(error[usual & slow_launch & large[launch] & masked])
        errors["piecewise_launch_s"].append(error[usual & slow_launch & ~large[launch]])
        errors["piecewise_s"].append(error[usual & ~slow_launch & ~large & prefill])
        errors["step_s"].append(error[usual & ~slow_launch & ~prefill])
    excess = {name: _trimmed_mean(np.concatenate(parts)) for name, parts in errors.items() if parts}
    excess["piecewise_s"] -= excess["step_s"]  # such a step pays both
    excess["masked_launch_s"] -= excess["eager_launch_s"]  # such a step pays both
    found: dict[str, Any] = {name: max(getattr(times, name) + value, 0.0) for name, value in excess.items()}
    return replace(times, **found)


def _trimmed_mean(values: Any) -> float:
    if not len(values):
        return 0.0
    limit = np.percentile(np.abs(values), _STALL_PERCENTILE)
    return float(values[np.abs(values) <= limit].mean())


def is_first_use(observed: Observed, names: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    """The steps that pay for something that `with_first_uses` reads off, and tell little else: bool[steps]."""
    first = np.zeros(len(observed), bool)
    for field in names.values():
        first |= np.asarray(getattr(observed.shape, field)) > 0
    return first


def with_first_uses(times: Roofline, observed: Sequence[Observed], names: Mapping[str, str]) -> Roofline:
    """`times` with what compiling, or building a kernel, takes: so long and so seldom that a robust fit takes it for
    stalls. `names` are the coefficients and the fields of `StepShape` that count what they are paid for.
    """
    found: dict[str, Any] = {}
    for coefficient, field in names.items():
        num_uses = [np.asarray(getattr(item.shape, field)) for item in observed]
        nothing: dict[str, Any] = {coefficient: 0.0}
        free = replace(times, **nothing)
        missing_s = [-step_errors(free, item)[uses > 0] for item, uses in zip(observed, num_uses, strict=True)]
        if any(map(len, missing_s)):
            found[coefficient] = max(float(np.concatenate(missing_s).sum() / sum(uses.sum() for uses in num_uses)), 0.0)
    return replace(times, **found)


def with_new_sequences(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """`times` with what a sequence that joins the batch takes of the host: seen where many do at once, as when
    all requests arrive together, and the host goes on to the next step without waiting for anything.
    """
    longer_s, joined = [], []
    for item in observed:
        launch_s = np.broadcast_to(
            machine_of(replace(times, new_sequence_s=0.0), item).step_time(item.shape).launch_s, len(item)
        )
        num_new = np.asarray(item.shape.num_new_seqs)
        seen = ~np.isnan(item.launch_s) & (num_new >= _MANY)
        longer_s.append((item.launch_s - launch_s)[seen])
        joined.append(num_new[seen])
    num_joined = np.concatenate(joined)
    if not len(num_joined):
        return times
    return replace(times, new_sequence_s=max(float(np.concatenate(longer_s).sum() / num_joined.sum()), 0.0))


def with_host_overheads(times: Roofline, observed: Sequence[Observed]) -> Roofline:
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
    if not len(x):
        return intercept, slope
    kept = y <= np.percentile(y, _STALL_PERCENTILE)
    if len(np.unique(x[kept])) < 2:
        return intercept, slope
    fitted_slope, fitted_intercept = np.polyfit(x[kept], y[kept], 1)
    return max(float(fitted_intercept), 0.0), max(float(fitted_slope), 0.0)
