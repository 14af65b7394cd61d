"""Figure of the waiting requests over time, and of the mean wait by time of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np

from kvsim.metrics import latencies, time_mean
from kvsim.plots.axes import stairs
from kvsim.plots.colors import MOST_LINES
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.sampling import TimeBins, counts_over_time
from kvsim.plots.words import each_named, names_for, number, seconds, source_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

_LOG_BELOW = 0.05
"""If the smallest mean queue of the runs, divided by the largest, is below this, the axes are logarithmic."""
_NUM_WAIT_BINS = 120
"""Number of bins of arrival times; each should hold several arrivals, so that the line shows a trend."""


class _Queue(NamedTuple):
    name: str
    mean: float
    most: int
    waits_s: FloatArray
    """Wait of each finished request in seconds; NaN if unknown."""


def queue(*recordings: Recording, names: tuple[str, ...] = (), **look: Unpack[Look]) -> Picture:
    """Draw the waiting requests over time, and the mean time from arrival to first schedule by time of arrival."""
    names = names_for(recordings, names, MOST_LINES)
    rows = []
    with drawn(aspect=0.8, **look) as picture:
        panels = picture.subplots(2, 1)
        for recording, name, line in zip(recordings, names, picture.colors.lines, strict=False):
            bins, (time_s, waiting) = TimeBins.of(recording), counts_over_time(recording, "waiting")
            means = bins.mean(time_s, waiting)
            stairs(panels[0], means, bins.edges_s, line=line, width_pt=picture.line_pt, label=name)
            panels[1].plot(*_waits(recording), **line)
            waits_s = latencies(recording).wait_s
            rows.append(_Queue(name, float(time_mean(time_s, waiting)), int(waiting.max()), waits_s))
        last_arrival_s = max(float(recording.requests.arrival_s.max(initial=0.0)) for recording in recordings)
        panels[0].set(ylabel="requests", xlim=(0, None), xlabel="time (s)")
        panels[1].set(ylabel="seconds", xlabel="time of arrival (s)")
        # If all requests arrive at once, the axis has the limits of the one above.
        panels[1].set_xlim(0, last_arrival_s if last_arrival_s > 1e-6 else panels[0].get_xlim()[1])
        for axes, least in zip(panels, (1.0, 1e-3), strict=True):
            axes.set_ylim(0, max(axes.get_ylim()[1], least))
        mean_queues = [row.mean for row in rows]
        if min(mean_queues) < _LOG_BELOW * max(mean_queues):
            for axes in panels:
                axes.set_yscale("symlog", linthresh=1, linscale=0.3)
                axes.set_ylim(0, None)
                axes.yaxis.set_major_formatter("{x:,g}")
        for axes, title in zip(panels, ("requests waiting", "mean wait until first scheduled"), strict=True):
            axes.set_title(title, loc="left")
        picture.align_ylabels(panels)
        picture.headline(_title(rows), source_line(recordings))
        picture.add_line_legend(panels[0])
    picture.alt_text = "Requests in the queue over time, and how long they wait. " + " ".join(
        f"{row.name}: {number(row.mean)} wait on average and {row.most:,} at most; "
        f"the mean wait is {_mean(row.waits_s)}."
        for row in rows
    )
    return picture


def _title(rows: Sequence[_Queue]) -> str:
    if len(rows) > 1:
        means = [number(row.mean) for row in rows]
        return f"Requests waiting on average: {each_named(means, [row.name for row in rows])}"
    if not rows[0].most:
        return "No request waits"
    return f"{number(rows[0].mean)} requests wait on average, {rows[0].most:,} at worst"


def _waits(recording: Recording) -> tuple[FloatArray, FloatArray]:
    """Return the middle of each bin of arrival times, and the mean of the known waits in the bin, both in seconds.

    Bins without a known wait are left out.
    """
    finished = latencies(recording)
    arrival_s = recording.requests.arrival_s[finished.request]
    is_known = ~np.isnan(finished.wait_s)
    edges = np.linspace(0.0, max(arrival_s.max(initial=0.0), 1e-9), _NUM_WAIT_BINS + 1)
    index = np.clip(np.searchsorted(edges, arrival_s, side="right") - 1, 0, _NUM_WAIT_BINS - 1)
    count = np.bincount(index[is_known], minlength=_NUM_WAIT_BINS)
    total = np.bincount(index[is_known], weights=finished.wait_s[is_known], minlength=_NUM_WAIT_BINS)
    has_waits = count > 0
    return ((edges[:-1] + edges[1:]) / 2)[has_waits], total[has_waits] / count[has_waits]


def _mean(waits_s: FloatArray) -> str:
    known = waits_s[~np.isnan(waits_s)]
    return seconds(float(known.mean())) if len(known) else "unknown"
