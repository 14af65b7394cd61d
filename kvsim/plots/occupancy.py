"""Figure of the pool's occupancy, the batch size and the queue over time, in three panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from kvsim.metrics import Summary, summarize
from kvsim.plots.axes import stairs
from kvsim.plots.colors import MOST_LINES
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.sampling import TimeBins, counts_over_time, waste_of
from kvsim.plots.words import each_named, names_for, number, source_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.recording import Recording


def occupancy(*recordings: Recording, names: tuple[str, ...] = (), **look: Unpack[Look]) -> Picture:
    """Draw the occupancy of the pool, sequences per step and waiting requests over time, a line per recording."""
    names = names_for(recordings, names, MOST_LINES)
    summaries = []
    with drawn(aspect=0.85, **look) as picture:
        panels = picture.subplots(3, 1, sharex=True)
        for recording, name, line in zip(recordings, names, picture.colors.lines, strict=False):
            bins, slots = TimeBins.of(recording), waste_of(recording)
            summaries.append(summarize(recording, slots))
            over_time = slots.with_gaps()
            held = over_time.time_s, over_time.held
            counts = (counts_over_time(recording, name) for name in ("num_scheduled", "waiting"))
            for axes, values, scale in zip(panels, (held, *counts), (100 / slots.capacity, 1, 1), strict=True):
                means = scale * bins.mean(*values)
                stairs(axes, means, bins.edges_s, line=line, width_pt=picture.line_pt, label=name)
        end_s = max(recording.duration_s for recording in recordings)
        panels[0].set(ylabel="%", xlim=(0, end_s), ylim=(0, 105), yticks=(0, 50, 100))
        panels[1].set(ylabel="sequences", ylim=(0, None))
        panels[2].set(ylabel="requests", ylim=(0, max(1.0, panels[2].get_ylim()[1])), xlabel="time (s)")
        for axes, shown in zip(panels, ("KV pool in use", "batch: sequences that compute", "waiting"), strict=True):
            axes.set_title(shown, loc="left")
        picture.align_ylabels(panels)
        picture.headline(_title(summaries, names), source_line(recordings))
        picture.add_line_legend(panels[0])
    picture.alt_text = "Occupancy, batch size and queue over time. " + " ".join(
        f"{name}: {_sentence(summary)}" for name, summary in zip(names, summaries, strict=True)
    )
    return picture


def _title(summaries: list[Summary], names: Sequence[str]) -> str:
    if len(summaries) > 1:
        means = (number(summary.mean_batch) for summary in summaries)
        return f"Sequences in the batch, on average: {each_named(means, names)}"
    summary = summaries[0]
    used, batch = f"{100 * summary.mean_occupancy:.0f}%", number(summary.mean_batch)
    return f"On average, {used} of the pool is in use and the batch has {batch} sequences"


def _sentence(summary: Summary) -> str:
    return (
        f"{100 * summary.mean_occupancy:.1f}% of the pool is held on average and "
        f"{100 * summary.peak_occupancy:.1f}% at its peak, "
        f"{summary.mean_batch:.1f} sequences are in the batch (at most {summary.peak_batch}), "
        f"{summary.mean_waiting:.1f} requests wait, over {summary.duration_s:.3g} seconds."
    )
