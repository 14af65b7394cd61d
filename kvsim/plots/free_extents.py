"""Figure of external fragmentation: a histogram of the free memory by the length of free extents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import numpy as np

from kvsim.plots.axes import stairs
from kvsim.plots.colors import MOST_LINES
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.sampling import replay_of
from kvsim.plots.words import names_for, source_line
from kvsim.replay.free_memory import free_extent_lengths_at

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray
    from kvsim.replay import Replay

_NUM_MOMENTS = 200
"""Number of evenly spaced moments at which the pool is sampled; more would not change the histogram visibly."""
_HEADROOM = 1.1
"""Height of the axis divided by that of the highest bar, which leaves room for annotations."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeMemory:
    """Free extents of a recording, averaged over time. An extent is a series of adjacent free slots."""

    percent_by_length: FloatArray
    """Percent of the free slots in extents of 1, 2 to 3, 4 to 7, ... slots."""
    num_extents: float
    """Number of free extents, mean over time."""
    asked_slots: float
    """Median number of slots of a contiguous reservation; 0 for policies that allocate blocks."""
    too_short_percent: float
    """Percent of the free slots in extents shorter than `asked_slots`."""

    @classmethod
    def of(cls, replay: Replay) -> FreeMemory:
        """Sample the pool at `_NUM_MOMENTS` evenly spaced moments."""
        capacity, asked_slots = replay.num_units * replay.unit_tokens, _asked_slots(replay)
        slots_by_power = np.zeros(capacity.bit_length())
        num_extents = num_short_slots = 0
        begin_s, end_s = replay.time_of(0), replay.time_of(replay.num_frames - 1)
        moments_s = np.linspace(begin_s, end_s, _NUM_MOMENTS, endpoint=False).tolist()
        frames = np.array([replay.frame_at(time_s) for time_s in moments_s])
        in_gap = replay.in_gap(frames, np.array(moments_s))
        # A frame shows the pool during its step; in the gap after the step, its output has freed memory.
        for num_units in (
            *free_extent_lengths_at(replay, frames[~in_gap].tolist()),
            *free_extent_lengths_at(replay.after_outputs(), frames[in_gap].tolist()),
        ):
            lengths = num_units * replay.unit_tokens
            num_extents += len(lengths)
            num_short_slots += int(lengths[lengths < asked_slots].sum())
            power = np.frexp(lengths.astype(np.float64))[1] - 1
            slots_by_power += np.bincount(power, weights=lengths, minlength=len(slots_by_power))
        num_slots = max(float(slots_by_power.sum()), 1.0)
        return cls(
            percent_by_length=100 * slots_by_power / num_slots,
            num_extents=num_extents / _NUM_MOMENTS,
            asked_slots=asked_slots,
            too_short_percent=100 * num_short_slots / num_slots,
        )


def free_extents(*recordings: Recording, names: tuple[str, ...] = (), **look: Unpack[Look]) -> Picture:
    """Draw a histogram of the free memory, mean over time, by the length of the free extent to which it belongs.

    Paged policies can use extents of any length. Contiguous policies need extents at least as long as a reservation; a
    vertical line marks the median reservation.
    """
    names = names_for(recordings, names, MOST_LINES)
    free = [FreeMemory.of(replay_of(recording)) for recording in recordings]
    with drawn(aspect=0.6, **look) as picture:
        axes = picture.subplots()
        for one, name, line in zip(free, names, picture.colors.lines, strict=False):
            percent, asked_slots = one.percent_by_length, one.asked_slots
            edges = np.exp2(np.arange(len(percent) + 1, dtype=np.float64))
            stairs(axes, percent, edges, line=line, width_pt=picture.line_pt, label=name, baseline=0.0)
            if asked_slots:
                axes.axvline(asked_slots, **line, linewidth=0.5 * picture.line_pt)
                axes.annotate(
                    f" one request: {asked_slots:,.0f} ",
                    (asked_slots, 1),
                    xycoords=("data", "axes fraction"),
                    ha="right" if asked_slots**2 > edges[-1] else "left",  # on the side with more room
                    va="top",
                    color=picture.colors.muted,
                    fontsize="small",
                )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: _power_of_two(value))
        axes.set(xlabel="length of a free range (tokens)", ylabel="% of the free memory")
        axes.set_ylim(0, _HEADROOM * axes.get_ylim()[1])
        picture.headline(_title(free, names), source_line(recordings))
        picture.add_line_legend(axes)
    picture.alt_text = "Free memory by the length of the free extent it is part of, mean over time. " + " ".join(
        f"{name}: free memory lies in {one.num_extents:.3g} pieces on average"
        + (f", {one.too_short_percent:.3g}% of it too short for one request." if one.asked_slots else ".")
        for one, name in zip(free, names, strict=True)
    )
    return picture


def _power_of_two(slots: float) -> str:
    """Format a number of slots: "512", "64K", "2M"."""
    for unit in ("", "K"):
        if slots < 1024:
            return f"{slots:,.0f}{unit}"
        slots /= 1024
    return f"{slots:,.0f}M"


def _asked_slots(replay: Replay) -> float:
    """Return `FreeMemory.asked_slots`."""
    if replay.ledger.unit_by_unit or replay.recording.meta.policy_name != "contiguous":
        return 0.0
    tables = replay.ledger.tables
    first = tables.requested[tables.position == 0]
    return float(np.median(first)) * replay.unit_tokens if len(first) else 0.0


def _title(free: list[FreeMemory], names: tuple[str, ...]) -> str:
    for one, name in zip(free, names, strict=True):
        if one.asked_slots:
            return f"{name}: {one.too_short_percent:.0f}% of the free memory is in pieces too short for one request"
    return "Free memory by the length of the pieces it is in"
