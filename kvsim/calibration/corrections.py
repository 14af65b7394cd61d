"""Corrections of fitted coefficients, because a robust fit follows medians and ignores rare events.

The corrected coefficients are set to means, to the costs of rare events, or to costs that the recorded times show
directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.calibration.observed import Observed
from kvsim.calibration.predict import machine_of, predict, step_errors
from kvsim.recording.tables import FloatArray, IntArray
from kvsim.steptime import NUM_SIZES, Roofline, size_place

_MANY = 16
"""Smallest number of sequences that join in a step from which the cost of a joining sequence is computed."""
_STALL_PERCENTILE = 99.5
"""Percentile of absolute errors. Steps with a larger error count as stalls and are left out of means."""
_FAR_S = 1e-3
"""Error in seconds above which a step counts as delayed by something other than its kernels."""
_SHRINKAGE_STEPS = 5
"""Shrinkage of the correction for a size: with n steps of this size, n / (n + 5) of their median excess is applied."""
_SIZE_ROUNDS = 10
"""Number of iterations of the fit by size, which alternates between the median error of each group of steps and the
excess of each size.
"""


def with_mean_excess(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """Return `times` with the mean error of each kind of step added to the coefficient of this kind.

    If steps of a kind waited for a slow launch, their mean error is added to the coefficient of the launch instead. No
    coefficient becomes negative.
    """
    names = ("step_s", "piecewise_s", "piecewise_launch_s", "masked_launch_s", "eager_launch_s", "uncompiled_launch_s")
    errors: dict[str, list[Any]] = {name: [] for name in names}
    for item in observed:
        model = machine_of(times, item)
        end_s, launch = predict(model, item)
        error = item.end_s - end_s
        # Three kinds of steps: decodes in a graph, other captured steps (with prompt tokens), and large steps.
        large = np.asarray(item.shape.num_tokens) > model.max_captured_tokens
        prefill = np.asarray(item.shape.num_prefill_tokens) > 0
        usual = (np.asarray(item.shape.new_shape) == 0) & (np.asarray(item.shape.new_kernels) == 0)
        # Steps that waited for the launch of a step of the second or third kind.
        slow_launch = (launch >= 0) & (large | prefill)[launch]
        masked = (np.asarray(item.shape.num_seqs) > 1) & (model.masked_launch_s > 0)
        large_launch = "uncompiled_launch_s" if item.eager else "eager_launch_s"
        errors[large_launch].append(error[usual & slow_launch & large[launch] & ~masked])
        errors["masked_launch_s"].append(error[usual & slow_launch & large[launch] & masked])
        errors["piecewise_launch_s"].append(error[usual & slow_launch & ~large[launch]])
        errors["piecewise_s"].append(error[usual & ~slow_launch & ~large & prefill])
        errors["step_s"].append(error[usual & ~slow_launch & ~prefill])
    excess = {name: _trimmed_mean(np.concatenate(parts)) for name, parts in errors.items() if parts}
    # A step with `piecewise_s` has `step_s`, too, and a launch with `masked_launch_s` has `eager_launch_s`.
    excess["piecewise_s"] -= excess["step_s"]
    excess["masked_launch_s"] -= excess["eager_launch_s"]
    corrected: dict[str, Any] = {name: max(getattr(times, name) + value, 0.0) for name, value in excess.items()}
    return replace(times, **corrected)


def _trimmed_mean(values: Any) -> float:
    if not len(values):
        return 0.0
    limit = np.percentile(np.abs(values), _STALL_PERCENTILE)
    return float(values[np.abs(values) <= limit].mean())


def is_first_use(observed: Observed, names: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    """Return bool[steps]: True for each step with a first use, such as a compilation.

    `names` maps coefficients to the fields of `StepShape` that count their first uses.
    """
    first = np.zeros(len(observed), bool)
    for field in names.values():
        first |= np.asarray(getattr(observed.shape, field)) > 0
    return first


def with_first_uses(times: Roofline, observed: Sequence[Observed], names: Mapping[str, str]) -> Roofline:
    """Return `times` with the costs of first uses (compiling, building kernels): means over the recorded ones.

    First uses are so long and so rare that a robust fit treats them as stalls. `names` maps each coefficient to the
    field of `StepShape` that counts its first uses.
    """
    costs: dict[str, Any] = {}
    for coefficient, field in names.items():
        num_uses = [np.asarray(getattr(item.shape, field)) for item in observed]
        without: dict[str, Any] = {coefficient: 0.0}
        free = replace(times, **without)
        missing_s = [-step_errors(free, item)[uses > 0] for item, uses in zip(observed, num_uses, strict=True)]
        if any(map(len, missing_s)):
            costs[coefficient] = max(float(np.concatenate(missing_s).sum() / sum(uses.sum() for uses in num_uses)), 0.0)
    return replace(times, **costs)


def with_new_sequences(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """Return `times` with the fitted host time per sequence that joins the batch; unchanged if no step shows it.

    A step shows it if many sequences join (such as when all requests arrive together) and the host launches the next
    step without waiting.
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
    """Return `times` with two host times fitted to `observed`: the time from an output to the next step, and the time
    to receive a request.

    Each is fitted as a line: the first over the number of sequences in the step, the second over the prompt's length in
    tokens.
    """
    gaps, sequences = [], []
    for item in observed:
        direct = item.next_step >= 0
        gaps.append(item.start_s[item.next_step[direct]] - item.end_s[direct])
        sequences.append(np.asarray(item.shape.num_seqs)[direct])
    step_s, sequence_s = _line(
        np.concatenate(sequences), np.concatenate(gaps), times.turnaround_step_s, times.turnaround_sequence_s
    )
    prompts = np.concatenate([item.entry_prompt_tokens for item in observed])
    entries = np.concatenate([item.entry_gap_s for item in observed])
    request_s, token_s = _line(prompts, entries, times.request_s, times.request_token_s)
    times = replace(times, turnaround_step_s=step_s, turnaround_sequence_s=sequence_s)
    return replace(times, request_s=request_s, request_token_s=token_s)


def _line(x: Any, y: Any, intercept: float, slope: float) -> tuple[float, float]:
    """Fit a line through the points without stalls. Return its intercept and its slope, neither of which is negative.

    If there are fewer than two different `x`, return the given `intercept` and `slope`.
    """
    if not len(x):
        return intercept, slope
    kept = y <= np.percentile(y, _STALL_PERCENTILE)
    if len(np.unique(x[kept])) < 2:
        return intercept, slope
    fitted_slope, fitted_intercept = np.polyfit(x[kept], y[kept], 1)
    return max(float(fitted_intercept), 0.0), max(float(fitted_slope), 0.0)


def with_sizes(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """Return `times` with the extra time of each captured graph size (`of_size_s`) corrected by the median error of its
    steps, over all recordings.

    The steps of a recording form two groups: those with prompt tokens and those without. The median error of the group
    is subtracted first, because it does not come from the size.
    """
    sizes, groups, errors = map(np.concatenate, zip(*_errors_by_size(times, observed), strict=True))
    if not len(errors):
        return times
    by_size = [np.flatnonzero(sizes == size) for size in range(NUM_SIZES)]
    by_group = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    excess, level = np.zeros(NUM_SIZES), np.zeros(len(errors))
    for _ in range(_SIZE_ROUNDS):
        for steps in by_group:
            level[steps] = np.median(errors[steps] - excess[sizes[steps]])
        for size, steps in enumerate(by_size):
            if len(steps):
                share = len(steps) / (len(steps) + _SHRINKAGE_STEPS)
                excess[size] = share * np.median(errors[steps] - level[steps])
    of_size = np.array(times.of_size_s) + excess
    least = float(of_size.min())  # no coefficient may be negative: the excess that all sizes share is part of step_s
    return replace(times, of_size_s=tuple((of_size - least).tolist()), step_s=max(times.step_s + least, 0.0))


def _errors_by_size(times: Roofline, observed: Sequence[Observed]) -> list[tuple[IntArray, IntArray, FloatArray]]:
    """Return three arrays for each recording, with one entry per step that ran as a CUDA graph: the index of the step's
    graph size in `of_size_s`, the number of its group, and its error in seconds.

    The steps of recording i without prompt tokens are group 2i, those with prompt tokens group 2i + 1. Steps that
    waited for the host, or were delayed, are left out.
    """
    errors: list[tuple[IntArray, IntArray, FloatArray]] = []
    for number, item in enumerate(observed):
        model = machine_of(times, item)
        end_s, waited_for = predict(model, item)
        error_s = item.end_s - end_s
        num_tokens = np.asarray(item.shape.num_tokens)
        usual = (num_tokens <= model.max_captured_tokens) & (waited_for < 0) & (np.abs(error_s) < _FAR_S)
        prefill = np.asarray(item.shape.num_prefill_tokens)[usual] > 0
        tokens: Any = num_tokens[usual].astype(np.int64)
        errors.append((np.asarray(size_place(tokens)).astype(np.int64), 2 * number + prefill, error_s[usual]))
    return errors
