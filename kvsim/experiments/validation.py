"""Validation of step times: a simulation of a recording's requests, compared with the measured figures.

Only the requests and the engine's settings come from the recording. The schedule and the times are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvsim.calibration.clocks import ClockError, clock_errors
from kvsim.calibration.coefficient_fit import engine_of
from kvsim.calibration.observed import observe_on, refuse_rank
from kvsim.display.text import html_text
from kvsim.errors import UsageError
from kvsim.experiments.recorded_run import as_sent, is_stamped_at_entry, policy_of, users_of, with_recorded_drafts
from kvsim.hardware import find_gpu
from kvsim.hf_memory import assumptions_of, earlier_batches, memory_of
from kvsim.machines import card_of, is_in_process, served_model, step_times
from kvsim.metrics import Summary, latency_origin, summarize, waste
from kvsim.policies import Paged, Policy
from kvsim.policies.releases import check_known
from kvsim.profiles import Profile, carried, match
from kvsim.profiles.extrapolation import KEY, WatchedProfile
from kvsim.recording import Recording
from kvsim.recording.tables import FloatArray
from kvsim.simulation import Machine, ProgressCallback, simulate
from kvsim.simulation.feature_times import feature_times
from kvsim.steptime import Roofline, StepTimeModel

_TIMELINE_POINTS = 2000
"""Number of moments at which two occupancies are compared."""
_SHOWN = ("throughput", "TTFT, mean", "TPOT, mean", "end to end, mean", "preemptions")
"""Figures that `repr` of a `Validation` lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRow:
    """One figure, measured and simulated."""

    name: str
    unit: str
    measured: float
    simulated: float
    relative: bool = True
    """True if the error is in percent of the measured value; False if it is a difference in the figure's unit."""

    @property
    def error(self) -> float:
        """Error of the simulated value: in percent if `relative`, otherwise as a difference.

        In percent, it is NaN if only the measured value is 0, and 0 if both are.
        """
        if not self.relative:
            return self.simulated - self.measured
        if not self.measured:
            return 0.0 if not self.simulated else float("nan")
        return 100 * (self.simulated - self.measured) / self.measured

    @property
    def error_text(self) -> str:
        """Error with its unit as text; a dash if it is undefined."""
        unit = "%" if self.relative else self.unit
        return "–" if self.error != self.error else f"{self.error:+.3g} {unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """Recording, the simulation of its requests, and the differences between the two."""

    measured: Recording
    simulated: Recording
    times_from: str
    """Source of the step times, in words."""
    held_out: bool
    """True if the times were not fitted to this recording, or not fitted at all."""
    extrapolates: tuple[str, ...]
    """Phrases that say how far simulated steps lie outside the range in which the times were fitted."""
    assumes: tuple[str, ...]
    """Phrases that name what was assumed because the recording lacks it."""
    rows: tuple[ValidationRow, ...]
    counts_from: str
    """Phrase that says from when TTFT and end-to-end time count, in the recording and in the simulation."""
    clocks: tuple[ClockError, ...] = ()
    """Errors of the times predicted for the recorded steps, separately for steps whose duration the GPU determined and
    steps whose duration the host determined.

    It is empty if the step times are of pipeline stages or of a custom model.
    """

    def __repr__(self) -> str:
        shown = ", ".join(f"{row.name} {row.error_text}" for row in self.rows if row.name in _SHOWN)
        return f"<Validation of {self.measured.name!r}: {shown}>"

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<tr><td>{html_text(row.name)}</td><td>{row.measured:,.4g}</td><td>{row.simulated:,.4g}</td>"
            f"<td>{html_text(row.unit)}</td><td>{row.error_text}</td></tr>"
            for row in self.rows
        )
        head = "".join(f"<th>{name}</th>" for name in ("", "measured", "simulated", "unit", "error"))
        return f"<p>{html_text(repr(self))}</p><table><tr>{head}</tr>{lines}</table>"

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""

        def plain(value: float) -> float | None:
            return None if value != value else value

        return {
            "recording": self.measured.name,
            "profile": self.times_from,
            "held_out": self.held_out,
            KEY: list(self.extrapolates),
            "assumes": list(self.assumes),
            "counts_from": self.counts_from,
            "clocks": [item._asdict() for item in self.clocks],
            "rows": {
                row.name: {
                    "unit": row.unit,
                    "measured": plain(row.measured),
                    "simulated": plain(row.simulated),
                    "error": plain(row.error),
                    "error_unit": "%" if row.relative else row.unit,
                }
                for row in self.rows
            },
        }


def times_of(recording: Recording, source: str | None = None) -> StepTimeModel:
    """Return the step times for the engine, model and machine of `recording`.

    `source` is a profile or a machine card, by file or name; None for the best one that comes with kvsim.
    """
    captured = not recording.meta.engine.get("enforce_eager")
    gpu, model = find_gpu(recording.meta.gpu), served_model(recording.meta)
    num_seqs = recording.meta.engine.get("max_num_seqs")
    return step_times(
        gpu,
        model,
        engine_of(recording),
        source=source,
        captured=captured,
        max_num_seqs=num_seqs,
        in_process=is_in_process(recording.meta),
        recording=recording.name,
    )


def validate(
    times: StepTimeModel, recording: Recording, progress: ProgressCallback | None = None, vllm: str | None = None
) -> Validation:
    """Simulate the requests of `recording` with `times`, and compare the figures.

    If `times` is a profile of another GPU, its times are scaled to the GPU of the recording, and
    `Validation.times_from` says so. The scheduler has the rules of release `vllm`, or of the recorded release if this
    is None. `progress` is the callback of `kvsim.simulation.simulate`.

    Raises:
        UsageError: the recording is itself a simulation, is of one rank of a server, or is of `generate()` with batches
            of several sizes or together with `vllm`.
    """
    if recording.meta.source == "simulation":
        raise UsageError(f"{recording.name} is a simulation; validate against a recording of a real engine.")
    refuse_rank(recording)
    gpu, model = find_gpu(recording.meta.gpu), served_model(recording.meta)
    if isinstance(times, Profile):
        size = model.tensor_parallel_size
        profile = carried(times, gpu, model, engine_of(recording), tensor_parallel_size=size)
        is_eager = recording.meta.engine.get("enforce_eager")
        times = WatchedProfile(profile, profile.times.uncaptured() if is_eager else profile.times)
    policy, kv_bytes = policy_of(recording)
    if vllm is not None:
        policy = _of_release(policy, vllm, recording.name)
    machine = Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=times)
    workload = as_sent(recording)
    with with_recorded_drafts(policy, recording) as drafting:
        simulated = simulate(
            workload,
            drafting,
            machine,
            users=users_of(recording),
            stamp_at_entry=is_stamped_at_entry(recording),
            earlier=earlier_batches(recording),
            progress=progress,
        )
    used = feature_times(machine, policy, workload)
    return Validation(
        measured=recording,
        simulated=simulated,
        times_from=used.label,
        held_out=not isinstance(times, WatchedProfile | Roofline) or recording.name not in times.fitted_to,
        extrapolates=tuple(simulated.meta.extra.get(KEY, ())),
        counts_from=latency_origin(recording.requests) + _front_end_words(recording),
        assumes=assumptions_of(recording),
        rows=(*_rows(recording, simulated), *_memory_rows(recording)),
        clocks=_clocks(used.step_time, recording),
    )


def _of_release(policy: Policy, release: str, name: str) -> Policy:
    """Return `policy` with the rules of another release of vLLM. `name` is the recording's, for errors."""
    if not isinstance(policy, Paged):
        raise UsageError(f"{name} is of generate(), which follows no release of vLLM; leave --vllm out.")
    check_known(release, offloads=policy.cache.kv_offloading_size > 0)
    return replace(policy, scheduler=replace(policy.scheduler, vllm=release))


def _clocks(times: StepTimeModel, recording: Recording) -> tuple[ClockError, ...]:
    """Return the errors of `times` with the recorded schedule; see `Validation.clocks`. Empty for a custom model."""
    coefficients = times.times if isinstance(times, WatchedProfile) else times
    if not isinstance(coefficients, Roofline):
        return ()
    return clock_errors(coefficients, observe_on(card_of(find_gpu(recording.meta.gpu)), recording))


def matching_profile(recording: Recording) -> Profile:
    """Return the profile of the recording's GPU, model and engine among those that come with kvsim.

    Raises:
        UsageError: no such profile comes with kvsim.
    """
    gpu, model, engine = find_gpu(recording.meta.gpu), served_model(recording.meta), engine_of(recording)
    size = model.tensor_parallel_size
    profile = match(gpu, model, engine, tensor_parallel_size=size)
    if profile is None:
        split = f" split among {size}" if size > 1 else ""
        raise UsageError(
            f"no profile ships for {engine} with {model.name} on {gpu.name}{split}; make one with kvsim calibrate."
        )
    return profile


def _front_end_words(recording: Recording) -> str:
    """Describe how long requests took from being sent to reaching the engine, a time that is not simulated.

    The text is empty if this time is unknown, or if no HTTP server was between the client and the engine.
    """
    requests = recording.requests
    if requests.sent_s is None or is_in_process(recording.meta) or not len(requests):
        return ""
    fast_s = np.percentile(requests.arrival_s - requests.sent_s, 10)
    return f"; the fastest tenth reached the engine after {1e3 * fast_s:.1f} ms, which is not simulated"


def _rows(measured: Recording, simulated: Recording) -> Iterator[ValidationRow]:
    """Yield the figures that every recording has, measured and simulated."""
    before, after = summarize(measured), summarize(simulated)
    yield ValidationRow(name="duration", unit="s", measured=before.duration_s, simulated=after.duration_s)
    yield ValidationRow(
        name="throughput", unit="tok/s", measured=before.output_tokens_per_s, simulated=after.output_tokens_per_s
    )
    for label, name in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("end to end", "e2e_s")):
        for statistic in ("mean", "p50", "p90", "p99"):
            yield ValidationRow(
                name=f"{label}, {statistic}",
                unit="s",
                measured=_statistic(before, name, statistic),
                simulated=_statistic(after, name, statistic),
            )
    yield ValidationRow(name="mean batch", unit="sequences", measured=before.mean_batch, simulated=after.mean_batch)
    yield ValidationRow(name="preemptions", unit="", measured=before.num_preemptions, simulated=after.num_preemptions)
    yield ValidationRow(
        name="KV occupancy, mean absolute error over time",
        unit="points",
        measured=0.0,
        simulated=_occupancy_error(measured, simulated),
        relative=False,
    )
    yield ValidationRow(
        name="peak occupancy",
        unit="points",
        measured=100 * before.peak_occupancy,
        simulated=100 * after.peak_occupancy,
        relative=False,
    )


def _memory_rows(measured: Recording) -> Iterator[ValidationRow]:
    """Yield the peak memory that PyTorch allocated and the peak that it reserved. The simulated values are those of a
    simulated PyTorch allocator.

    Nothing is yielded if the recording is not of `generate()`, or lacks these columns.
    """
    steps = measured.steps
    if measured.meta.policy_name != "static" or steps.peak_allocated_bytes is None or steps.reserved_bytes is None:
        return
    simulated = memory_of(measured)
    for name, before, after in (
        ("peak allocated, GB", steps.peak_allocated_bytes, simulated.peak_allocated_bytes),
        ("peak reserved, GB", steps.reserved_bytes, simulated.reserved_bytes),
    ):
        yield ValidationRow(
            name=name, unit="GB", measured=float(before.max()) / 1e9, simulated=float(after.max()) / 1e9
        )


def _statistic(summary: Summary, name: str, statistic: str) -> float:
    return float(getattr(getattr(summary, name), statistic))


def _occupancy_error(measured: Recording, simulated: Recording) -> float:
    """Return the mean absolute difference of two recordings' pool occupancies over time, in percentage points."""
    end_s = max(measured.duration_s, simulated.duration_s)
    moments = np.linspace(0.0, end_s, _TIMELINE_POINTS)
    return 100 * float(np.mean(np.abs(_occupancy(measured, moments) - _occupancy(simulated, moments))))


def _occupancy(recording: Recording, moments: FloatArray) -> FloatArray:
    slots = waste(recording).with_gaps()
    frame = np.searchsorted(slots.time_s, moments, side="right") - 1
    return np.where(frame < 0, 0.0, slots.occupancy[np.maximum(frame, 0)])
