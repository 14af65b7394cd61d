"""Adaptation of a profile to another host with the same GPU, by one factor on all its host times.

Small models and Hugging Face's `generate()` wait mostly for the host, and hosts with the same GPU differ by a third. A
single factor can be fitted to one short recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kvsim.calibration.coefficient_fit import RARE_EVENTS, engine_of, residual_of
from kvsim.calibration.corrections import is_first_use
from kvsim.calibration.machines import pace_of
from kvsim.calibration.observed import Observed, check_distinct, observe_on
from kvsim.calibration.predict import machine_of, predict, scaled_errors
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import card_of, served_model
from kvsim.profiles import Profile, listed_name
from kvsim.recording import Recording
from kvsim.steptime import TYPICAL, Pace, Roofline, at_pace


def calibrate_host(profile: Profile, recordings: Sequence[Recording]) -> Profile:
    """Return `profile` with its host times scaled to the host of `recordings`, and with the errors that remain on them.

    The recordings must be of the profile's GPU, model and engine.

    Raises:
        UsageError: there is no recording, or one is a simulation or of another GPU, model or engine.
    """
    if not recordings:
        raise UsageError("there is nothing to calibrate the host on; give at least one recording.")
    check_distinct(recordings)
    for item in recordings:
        shape = served_model(item.meta)
        of = (find_gpu(item.meta.gpu).name, listed_name(shape), engine_of(item))
        if item.meta.source == "simulation" or of != (profile.gpu, profile.model, profile.engine):
            raise UsageError(
                f"{item.name} is of {of[2]} with {of[1]} on {of[0]}, and the profile is for {profile.engine} with "
                f"{profile.model} on {profile.gpu}; only the host may differ."
            )
    observed = [observe_on(card_of(find_gpu(item.meta.gpu)), item) for item in recordings]
    if profile.engine == "hf-static":
        pace = _compiling_pace(profile.times, observed)
    else:
        pace = pace_of(observed, partial(scaled_errors, profile.times), gpu=False)
    times = at_pace(pace, profile.times)
    return replace(profile, times=times, residuals=tuple(residual_of(item, times) for item in observed))


def _compiling_pace(times: Roofline, observed: Sequence[Observed]) -> Pace:
    """Return the host's pace from compilations, the only host times in a recording with a static cache."""
    recorded_s = predicted_s = 0.0
    for item in observed:
        first = is_first_use(item, RARE_EVENTS["hf-static"])
        recorded_s += float((item.end_s - item.start_s)[first].sum())
        predicted_s += float((predict(machine_of(times, item), item).end_s - item.start_s)[first].sum())
    return Pace(host=recorded_s / predicted_s) if predicted_s else TYPICAL
