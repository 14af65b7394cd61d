"""What external fragmentation is: how much of the free memory lies in pieces of which length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.plots.axes import stairs
from kvsim.plots.shared import replay_of
from kvsim.plots.style import LINES, MUTED, Picture, Purpose, Size, style
from kvsim.plots.words import names_for, source_line
from kvsim.replay.free_memory import free_run_lengths_at

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray
    from kvsim.replay import Replay

_NUM_MOMENTS = 200
"""Even moments at which the pool is looked at; a histogram's bars do not change visibly with more."""

_HEADROOM = 1.1
"""Height of the axis over that of the bars, for what is written above them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeMemory:
    """The free memory of a run, in pieces, mean over time."""

    percent_by_length: FloatArray
    """Percent of the free slots in runs of 1, 2-3, 4-7, ... slots."""
    num_runs: float
    """Pieces at a moment."""
    asked_slots: float
    """Slots that a request's contiguous reservation asks for, at the median; 0 where memory is handed out in blocks."""
    too_short_percent: float
    """Percent of the free slots in runs shorter than `asked_slots`."""

    @classmethod
    def of(cls, replay: Replay) -> FreeMemory:
        """Look at the pool at 200 even moments."""
        capacity = replay.num_units * replay.unit_tokens
        slots, num_runs, short, asked = np.zeros(capacity.bit_length()), 0, 0, _asked_slots(replay)
        begin_s, end_s = replay.time_of(0), replay.time_of(replay.num_frames - 1)
        moments_s = np.linspace(begin_s, end_s, _NUM_MOMENTS, endpoint=False).tolist()
        for found in free_run_lengths_at(replay, [replay.frame_at(time_s) for time_s in moments_s]):
            lengths = found * replay.unit_tokens
            num_runs += len(lengths)
            short += int(lengths[lengths < asked].sum())
            power = np.frexp(lengths.astype(np.float64))[1] - 1
            slots += np.bincount(power, weights=lengths, minlength=len(slots))
        total = max(float(slots.sum()), 1.0)
        return cls(
            percent_by_length=100 * slots / total,
            num_runs=num_runs / _NUM_MOMENTS,
            asked_slots=asked,
            too_short_percent=100 * short / total,
        )


def free_runs(
    *recordings: Recording, purpose: Purpose = "web", size: Size | None = None, names: tuple[str, ...] = ()
) -> Picture:
    """Histogram of the free memory by the length of the free run that it is part of, mean over time.

    A policy that hands out single blocks can use a run of any length; one that reserves contiguous memory only runs at
    least as long as what a request asks for, which a vertical line marks (the median over all requests).

    Args:
        recordings: at most four, told apart by colour and dashes.
        purpose: the medium to draw for.
        size: inches; chosen for the medium if left out.
        names: what to call the recordings; their own names, or their policies, if left out.

    Raises:
        UsageError: there is no recording or more than four, or not one name for each.
        RecordingError: a recording has no steps.
    """
    names = names_for(recordings, names, len(LINES))
    free = [FreeMemory.of(replay_of(recording)) for recording in recordings]
    with style(purpose):
        picture = Picture(purpose, size, aspect=0.6)
        axes = picture.subplots()
        for of_run, name, (color, dashes) in zip(free, names, LINES, strict=False):
            share, slots = of_run.percent_by_length, of_run.asked_slots
            edges = np.exp2(np.arange(len(share) + 1, dtype=np.float64))
            line, width_pt = (color, dashes), picture.line_pt
            stairs(axes, share, edges, line=line, width_pt=width_pt, label=name, baseline=0.0)
            if slots:
                axes.axvline(slots, color=color, linestyle=dashes, linewidth=0.8)
                axes.annotate(
                    f" one request: {slots:,.0f} ",
                    (slots, 1),
                    xycoords=("data", "axes fraction"),
                    ha="right" if slots**2 > edges[-1] else "left",  # towards the middle of a logarithmic axis
                    va="top",
                    color=MUTED,
                    fontsize="small",
                )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: _power_of_two(value))
        axes.set(
            ylim=(0, _HEADROOM * axes.get_ylim()[1]),
            xlabel="length of a free run (tokens)",
            ylabel="% of the free memory",
        )
        picture.headline(_title(free, names), source_line(recordings))
        if len(recordings) > 1:
            picture.explain_with(axes.get_legend_handles_labels()[0])
    picture.alt_text = "Free memory by the length of the free run it is part of, mean over time. " + " ".join(
        f"{name}: free memory lies in {of_run.num_runs:.3g} pieces on average"
        + (f", {of_run.too_short_percent:.3g}% of it too short for one request." if of_run.asked_slots else ".")
        for of_run, name in zip(free, names, strict=True)
    )
    return picture


def _power_of_two(slots: float) -> str:
    """Slots as a person says them: "512", "64K", "2M"."""
    for unit in ("", "K"):
        if slots < 1024:
            return f"{slots:,.0f}{unit}"
        slots /= 1024
    return f"{slots:,.0f}M"


def _asked_slots(replay: Replay) -> float:
    if replay.ledger.unit_by_unit or replay.recording.meta.policy_name != "contiguous":
        return 0.0
    tables = replay.ledger.tables
    first = tables.requested[tables.position == 0]
    return float(np.median(first)) * replay.unit_tokens if len(first) else 0.0


def _title(free: list[FreeMemory], names: tuple[str, ...]) -> str:
    for of_run, name in zip(free, names, strict=True):
        if of_run.asked_slots:
            return f"{name}: {of_run.too_short_percent:.0f}% of the free memory is in pieces too short for one request"
    return "Free memory by the length of the pieces it is in"
