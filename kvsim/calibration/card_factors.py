"""Factors by which the GPU and the host of a machine are slower than its machine card (file with their speeds)
predicts.

Only three factors are fitted, not the thirty coefficients of step times: "gpu", "host", and "woken" for the cost of a
host that sleeps between steps. So a fit to recordings of one model is valid for every model on the machine. The fit
matches the total time of each kind of step, because throughput depends on means. A robust fit would match medians, and
so predict too little time for a host with occasional stalls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kvsim.calibration.coefficient_fit import engine_of, residual_of
from kvsim.calibration.observed import Observed, check_distinct, observe_on
from kvsim.calibration.predict import predict, step_durations
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import in_batches_of, is_in_process, linked, served_model
from kvsim.profiles import Residual, served_name
from kvsim.recording import Recording
from kvsim.steptime.card import Card
from kvsim.steptime.reduction import never_asleep, on_machine
from kvsim.steptime.roofline import Roofline

_USUAL = {"gpu": 0.03, "host": 0.2, "woken": 0.2}
"""Standard deviation of each factor around 1. It keeps a factor near 1 if the recordings do not determine it.

On seven machines with an H200, hosts that never sleep took 0.7 to 1.1 times the time that the machine card predicts,
and the cost of sleeping was 0.75 to 1.1 times the cost that `kvsim.steptime.reduction` assumes.
"""
_ERROR_SCALE = 0.025
"""Relative error of a kind of step. In the fit, it counts as much as a factor that is one standard deviation away from
1.
"""
_LARGEST_LOGARITHM = float(np.log(4.0))
"""Natural logarithm of the largest factor that is tried. The smallest factor is the inverse of the largest."""
_STALL_PERCENTILE = 99.8
"""Percentile of absolute errors. Steps with a larger error count as stalls and are ignored."""


def calibrate_card(card: Card, recordings: Sequence[Recording]) -> tuple[Card, tuple[Residual, ...]]:
    """Return `card` with the fitted factors of the machine of `recordings`, and the errors of the fitted step times on
    each recording.

    Raises:
        UsageError: there is no recording; or one is given twice, is a simulation, is not of vLLM, or is of another GPU
            than the card.
    """
    if not recordings:
        raise UsageError("there is nothing to calibrate the card on; give at least one recording.")
    check_distinct(recordings)
    plain = replace(card, factors={})
    observed = [
        (
            partial(on_machine, awake_times(plain, item), card.launch_s, in_process=is_in_process(item.meta)),
            observe_on(plain, item),
        )
        for item in recordings
    ]
    factors = factors_of(observed)
    residuals = tuple(residual_of(item, times_with(factors)) for times_with, item in observed)
    models: dict[str, tuple[str, ...]] = {}
    for item in recordings:
        model = served_name(served_model(item.meta))
        models[model] = (*models.get(model, ()), item.name)
    return replace(card, factors={**card.factors, **factors}, fitted_to=models), residuals


def factors_of(observed: Sequence[tuple[Callable[[Mapping[str, float]], Roofline], Observed]]) -> dict[str, float]:
    """Return the factors by which a machine is slower than its card ("gpu", "host", "woken"), fitted to its recordings.

    `observed` has a pair for each recording: a function that returns the step times for given factors, and the recorded
    steps.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  costs a third of a second, and only a fit needs it

    def factors(logarithms: Any) -> dict[str, float]:
        return dict(zip(_USUAL, np.exp(logarithms).tolist(), strict=True))

    def residuals(logarithms: Any) -> Any:
        trial = factors(logarithms)
        missed = [
            share
            for times_with, item in observed
            for share in _weighted_errors(times_with(trial), replace(item, offload_s=trial["host"] * item.offload_s))
        ]
        unusual = np.asarray(logarithms) / list(_USUAL.values())
        return np.concatenate([np.array(missed) / _ERROR_SCALE, unusual])

    start = np.zeros(len(_USUAL))
    bounds = (-_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)
    return factors(least_squares(residuals, start, bounds=bounds, diff_step=1e-2).x)


def _weighted_errors(times: Roofline, item: Observed) -> list[float]:
    """Return the error of each kind of step as a share of the recorded time of this kind, weighted.

    The kinds are decode steps that run as a CUDA graph, steps with prompt tokens that run as CUDA graphs, and steps
    that are too large for a graph. Each is split into steps that waited for the host and steps that waited for the GPU,
    so that errors of the two do not cancel. The weight is the square root of the kind's share of the total time.
    """
    predicted, duration = predict(times, item), step_durations(item)
    error, by_host = predicted.end_s - item.end_s, predicted.awaited_launch >= 0
    usual = np.abs(error) <= np.percentile(np.abs(error), _STALL_PERCENTILE)
    tokens, prompt = np.asarray(item.shape.num_tokens), np.asarray(item.shape.num_prefill_tokens) > 0
    captured = tokens <= times.max_captured_tokens
    errors = []
    for kind in (captured & ~prompt, captured & prompt, ~captured):
        for waited_for in (by_host, ~by_host):
            steps = kind & waited_for & usual
            share = float(duration[steps].sum() / duration.sum())
            errors.append(float(error[steps].sum() / duration[steps].sum()) * share**0.5 if share else 0.0)
    return errors


def awake_times(card: Card, recording: Recording) -> Roofline:
    """Return the step times that follow from `card` without its factors, for the recorded model, as if the host never
    slept.

    Raises UsageError if the recording is not of vLLM, or of another GPU than the card's.
    """
    gpu = find_gpu(recording.meta.gpu)
    if recording.meta.source == "simulation" or engine_of(recording) != "vllm":
        raise UsageError(
            f"{recording.name} is not a recording of vLLM, and only those show how fast a machine is; leave it out."
        )
    if gpu.name != find_gpu(card.gpu).name:
        raise UsageError(
            f"{recording.name} is of {gpu.name}, and the card is for {card.gpu}; give recordings of {card.gpu}."
        )
    model = served_model(recording.meta)
    times = never_asleep(linked(card, gpu, model.tensor_parallel_size), model, num_processors=gpu.num_processors)
    num_seqs = recording.meta.engine.get("max_num_seqs")
    return times if num_seqs is None else in_batches_of(num_seqs, times)
