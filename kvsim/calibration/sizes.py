"""What the kernels picked for a captured size take, read off the steps of that size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.calibration.observed import Observed
from kvsim.calibration.predict import machine_of, predict
from kvsim.recording.tables import FloatArray, IntArray
from kvsim.steptime import NUM_SIZES, Roofline, size_place

_FAR_S = 1e-3
"""A step this far off was held up by something else than its kernels."""
_ENOUGH_STEPS = 5
"""So many steps of a size count half."""
_ROUNDS = 10


def with_sizes(times: Roofline, observed: Sequence[Observed]) -> Roofline:
    """`times` with what steps of each captured size took longer than it says, in the median over all recordings.

    How fast a recording was as a whole, or its steps with prompt tokens, says nothing of sizes and is set aside.
    """
    sizes, groups, errors = map(np.concatenate, zip(*_errors_by_size(times, observed), strict=True))
    if not len(errors):
        return times
    by_size = [np.flatnonzero(sizes == size) for size in range(NUM_SIZES)]
    by_group = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    excess, level = np.zeros(NUM_SIZES), np.zeros(len(errors))
    for _ in range(_ROUNDS):
        for steps in by_group:
            level[steps] = np.median(errors[steps] - excess[sizes[steps]])
        for size, steps in enumerate(by_size):
            if len(steps):
                share = len(steps) / (len(steps) + _ENOUGH_STEPS)
                excess[size] = share * np.median(errors[steps] - level[steps])
    of_size = np.array(times.of_size_s) + excess
    least = float(of_size.min())  # no coefficient is negative: what all sizes have in common is the step's
    return replace(times, of_size_s=tuple((of_size - least).tolist()), step_s=max(times.step_s + least, 0.0))


def _errors_by_size(times: Roofline, observed: Sequence[Observed]) -> list[tuple[IntArray, IntArray, FloatArray]]:
    """For each recording the sizes of its captured steps, the group that each is of, and how much longer it took."""
    found: list[tuple[IntArray, IntArray, FloatArray]] = []
    for number, item in enumerate(observed):
        model = machine_of(times, item)
        end_s, waited_for = predict(model, item)
        error_s = item.end_s - end_s
        num_tokens = np.asarray(item.shape.num_tokens)
        usual = (num_tokens <= model.max_captured_tokens) & (waited_for < 0) & (np.abs(error_s) < _FAR_S)
        prefill = np.asarray(item.shape.num_prefill_tokens)[usual] > 0
        tokens: Any = num_tokens[usual].astype(np.int64)
        found.append((np.asarray(size_place(tokens)).astype(np.int64), 2 * number + prefill, error_s[usual]))
    return found
