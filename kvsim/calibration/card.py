"""Fit a machine: how much longer its GPU and its host take than a machine card says, from recordings of any model.

Two factors, not thirty coefficients: what was learnt with one model serves every model on that machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvsim.calibration.fit import engine_of, residual_of
from kvsim.calibration.machines import pace_of
from kvsim.calibration.observed import Observed, observe
from kvsim.calibration.predict import counted_errors
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import linked, served_model
from kvsim.profiles import Residual
from kvsim.recording import Recording
from kvsim.steptime import at_pace, reduce
from kvsim.steptime.card import Card
from kvsim.steptime.roofline import Roofline


def calibrate_card(card: Card, recordings: Sequence[Recording]) -> tuple[Card, tuple[Residual, ...]]:
    """`card` with the factors of the machine of `recordings`, and how far it is from each of those afterwards.

    Raises:
        UsageError: there is no recording, or one is a simulation, of another GPU than the card, or not of vLLM.
    """
    if not recordings:
        raise UsageError("there is nothing to calibrate the card on; give at least one recording.")
    plain = replace(card, factors={})
    times = {item.name: _times(plain, item) for item in recordings}
    observed = [observe(item) for item in recordings]

    def errors(item: Observed) -> object:
        return counted_errors(times[item.name], item)

    pace = pace_of(observed, errors)
    residuals = tuple(residual_of(item, at_pace(pace, times[item.name])) for item in observed)
    return replace(card, factors={**card.factors, "gpu": pace.gpu, "host": pace.host}), residuals


def _times(card: Card, recording: Recording) -> Roofline:
    gpu = find_gpu(recording.meta.gpu)
    if recording.meta.source == "simulation" or engine_of(recording) != "vllm":
        raise UsageError(
            f"{recording.name} is not a recording of vLLM, which alone tells how fast a machine is; leave it out."
        )
    if gpu.name != find_gpu(card.gpu).name:
        raise UsageError(f"{recording.name} is of {gpu.name}, and the card of {card.gpu}; calibrate one machine.")
    model = served_model(recording.meta)
    return reduce(linked(card, gpu, model.tensor_parallel_size), model, num_processors=gpu.num_processors)
