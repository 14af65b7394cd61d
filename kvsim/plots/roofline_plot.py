"""Roofline plot: arithmetic and memory traffic of each step against the limits in the GPU's data sheet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from kvsim.errors import RecordingError
from kvsim.hardware import find_gpu
from kvsim.plots.axes import log_axis
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.words import source_line
from kvsim.recording.order import ROWS_AT_ONCE, expanded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from kvsim.models import Model
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray, IntArray

_ABOVE = "A step above the roof began before the output of the step before it was processed."
_MARGIN = 1.5
"""Ratio by which the limits of an axis are beyond the outermost dots."""
_MAX_DOTS = 2000
"""Maximum number of dots for each kind of step; more would overlap."""
_DOTS: dict[bool, dict[str, Any]] = {
    True: {"marker": "^", "label": "step with prompt tokens", "rasterized": True},
    False: {"marker": "o", "label": "decoding step", "rasterized": True},
}
"""Properties of the dots of steps, by whether they computed prompt tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWork:
    """Work of each step of a recording, computed from the model's shape; only the duration is measured."""

    flops: FloatArray
    """Number of floating-point operations of each step."""
    streamed_bytes: FloatArray
    """Bytes that each step reads: weights, and the keys and values of every scheduled sequence."""
    duration_s: FloatArray
    """Seconds from the step's schedule, or from the previous output if that is later, to its output."""
    prefill: npt.NDArray[np.bool_]
    """True for each step that computed prompt tokens."""

    @classmethod
    def of(cls, recording: Recording, model: Model) -> StepWork:
        """Add up the work of the scheduled sequences of every step."""
        schedule, steps = recording.schedule, recording.steps
        # All terms are whole numbers, so that sums are exact in any order.
        num_tokens, num_seqs, pairs, read_tokens = np.zeros((4, len(steps)))
        for rows in _in_parts(schedule.repeats):
            row, nth = expanded(schedule.repeats[rows].astype(np.int64))
            step, tokens = schedule.step[rows][row] + nth, schedule.tokens[rows][row].astype(np.float64)
            before = schedule.computed_before[rows][row] + tokens * nth
            np.add.at(num_tokens, step, tokens)
            np.add.at(num_seqs, step, 1.0)
            np.add.at(pairs, step, tokens * before + tokens * (tokens + 1) / 2)
            np.add.at(read_tokens, step, before + tokens)
        begin = np.maximum(steps.start_s, np.concatenate(([-np.inf], np.maximum.accumulate(steps.end_s)[:-1])))
        return cls(
            flops=num_tokens * model.flops_per_token
            + num_seqs * model.flops_per_logits
            + pairs * model.flops_per_attention_pair,
            streamed_bytes=model.weight_bytes_on_gpu + read_tokens * model.kv_bytes_per_token,
            duration_s=steps.end_s - begin,
            prefill=steps.prefill_tokens > 0,
        )


def roofline(recording: Recording, **look: Unpack[Look]) -> Picture:
    """Draw every step as a dot: arithmetic per second over arithmetic per byte, with log axes.

    The slope of the roof is the GPU's memory bandwidth, and its flat part the dense arithmetic peak. The distance of a
    dot from the roof is overhead.
    """
    from kvsim.machines import served_model  # noqa: PLC0415  slow to import, and no other figure needs it

    gpu, model = find_gpu(recording.meta.gpu), served_model(recording.meta)
    work = StepWork.of(recording, model)
    timed = np.flatnonzero((work.duration_s > 0) & (work.flops > 0))
    if not len(timed):
        raise RecordingError(f"recording {recording.name!r} has no step that took time, so there is no speed to show.")
    shown = np.concatenate([_sample(timed[work.prefill[timed] == flag]) for flag in (False, True)])
    intensity, speed = work.flops / work.streamed_bytes, work.flops / np.maximum(work.duration_s, 1e-12) / 1e12
    ridge = gpu.dense_flops / gpu.bandwidth_bytes_per_s
    with drawn(aspect=0.66, **look) as picture:
        axes = picture.subplots()
        left, right = intensity[shown].min() / _MARGIN, _MARGIN * max(4 * ridge, intensity[shown].max())
        limits = f"{gpu.name}: {gpu.bandwidth_bytes_per_s / 1e12:.3g} TB/s, {gpu.dense_flops / 1e12:,.0f} TFLOP/s"
        heights = np.array([left * gpu.bandwidth_bytes_per_s, gpu.dense_flops, gpu.dense_flops]) / 1e12
        axes.plot([left, ridge, right], heights, color=picture.colors.ink, label=limits)
        axes.axvline(ridge, color=picture.colors.muted, linewidth=0.4 * picture.line_pt, linestyle=":")
        for flag in (True, False):
            dots = shown[work.prefill[shown] == flag]
            if len(dots):
                marks: dict[str, Any] = {"markersize": 2 * picture.line_pt, "color": picture.colors.hues[flag]} | _DOTS[
                    flag
                ]
                axes.plot(intensity[dots], speed[dots], linestyle="none", alpha=0.5, markeredgewidth=0, **marks)
        axes.set(xlim=(left, right), xlabel="arithmetic intensity (FLOP per byte)", ylabel="TFLOP/s")
        log_axis(axes, "x")
        log_axis(axes, "y")
        bound = 100 * float(np.average(intensity[timed] < ridge, weights=work.duration_s[timed]))
        title = f"{bound:.0f}% of the time goes to steps that memory bandwidth bounds"
        roof = np.minimum(intensity[timed] * gpu.bandwidth_bytes_per_s, gpu.dense_flops)
        share_of_roof = speed[timed] / roof * 1e12
        above = f" {_ABOVE}" if (share_of_roof > 1).any() else ""
        picture.headline(title, source_line([recording]) + above)
        picture.add_legend(axes.get_legend_handles_labels()[0], marker_scale=2)
    reached = 100 * float(np.median(share_of_roof))
    picture.alt_text = (
        f"Roofline of {len(timed):,} steps of {model.name} on {gpu.name}; {len(shown):,} are drawn. "
        f"{bound:.1f}% of the time goes to steps below the ridge of {ridge:.0f} FLOP per byte, "
        f"which the memory's bandwidth bounds. The median step reaches {reached:.0f}% of its roof.{above}"
    )
    return picture


def _in_parts(repeats: IntArray) -> Iterator[slice]:
    """Divide the rows of `Recording.schedule` into slices of at most `ROWS_AT_ONCE` steps, or of one row.

    `repeats` has the number of steps for which each row holds.
    """
    ends = np.cumsum(repeats, dtype=np.int64)
    begin = 0
    while begin < len(repeats):
        upto = (int(ends[begin - 1]) if begin else 0) + ROWS_AT_ONCE
        end = max(int(np.searchsorted(ends, upto, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


def _sample(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), _MAX_DOTS)).astype(np.int64)]
