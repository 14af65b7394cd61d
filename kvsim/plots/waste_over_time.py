"""Figure of the pool by state over time: stacked areas, with preemptions above them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.metrics import waste_shares
from kvsim.plots.colors import figure_colors
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.sampling import TimeBins, waste_of
from kvsim.plots.style import LEGEND_PERCENT, STATE_HATCHES, STATE_LABELS
from kvsim.plots.words import ByteUnit, memory, percentages, source_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray


def waste_over_time(recording: Recording, **look: Unpack[Look]) -> Picture:
    """Draw the pool by state over time, in bytes; above it, if there are preemptions, a panel of their number."""
    bins, slots = TimeBins.of(recording), waste_of(recording).with_gaps()
    pool = recording.meta.pool
    bytes_per_slot = pool.bytes_per_slot
    unit = ByteUnit.for_size(slots.capacity * bytes_per_slot)
    total = slots.capacity * bytes_per_slot / unit.num_bytes
    held = bins.mean(slots.time_s, slots.slots) * bytes_per_slot / unit.num_bytes
    shares = waste_shares(slots).pool_percent
    with drawn(aspect=0.72, **look) as picture:
        axes = _draw_preemptions(picture, recording) if recording.num_preemptions else picture.subplots()
        states = [state for state in SlotState if shares[state] > 0]
        _draw_areas(axes, bins, held, states)
        axes.set(xlim=bins.edges_s[[0, -1]], ylim=(0, total))
        axes.set(xlabel="time (s)", ylabel=f"KV pool ({unit.name})")
        axes.grid(visible=False)
        percent = axes.twinx()
        percent.set(ylim=(0, 100), yticks=(0, 25, 50, 75, 100), ylabel="% of the pool")
        percent.spines["right"].set_visible(True)
        percent.grid(visible=False)
        mean = f"{shares[SlotState.TOKEN]:.0f}% of the KV pool holds live tokens, {shares[SlotState.FREE]:.0f}% is free"
        picture.headline(f"On average, {mean}", source_line([recording]))
        picture.add_state_legend(state for state in states if 100 * held[:, state].max() / total >= LEGEND_PERCENT)
    peak_s = slots.time_s[int(np.argmax(slots.held))]
    picture.alt_text = (
        f"Stacked areas over {recording.duration_s:.3g} seconds of a KV pool of "
        f"{memory(slots.capacity * bytes_per_slot)}. "
        f"On average {percentages(shares)}. "
        f"Occupancy peaks at {100 * slots.occupancy.max():.1f}% after {peak_s:.3g} seconds. "
        f"There are {recording.num_preemptions} preemptions."
    )
    return picture


def _draw_areas(axes: Axes, bins: TimeBins, held: FloatArray, states: list[SlotState]) -> None:
    layers = np.vstack((held, held[-1:]))[:, states].T  # step lines need the last value twice
    areas = axes.stackplot(
        bins.edges_s,
        layers,
        step="post",
        colors=[figure_colors(axes).states[state] for state in states],
        labels=[STATE_LABELS[state] for state in states],
        edgecolor=figure_colors(axes).ground,
        linewidth=0,
    )
    for state, area in zip(states, areas, strict=True):
        area.set_hatch(STATE_HATCHES.get(state, ""))


def _draw_preemptions(picture: Picture, recording: Recording) -> Axes:
    """Draw bars of preemptions in a narrow panel; return the panel below it."""
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=(1, 4))
    bins = TimeBins.of(recording, num_bins=100)
    counts = bins.count(recording.steps.start_s, recording.steps.preempted)
    above.bar(bins.edges_s[:-1], counts, width=bins.width_s, align="edge", color=picture.colors.ink, linewidth=0)
    above.set_title(f"preemptions per {bins.width_s:.2g} s, {recording.num_preemptions} in all", loc="left")
    above.tick_params(labelbottom=False)
    return below  # type: ignore[no-any-return]
