"""Figure of the pool by state, mean over time: one stacked bar per recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

import numpy as np

from kvsim.errors import UsageError
from kvsim.memory.waste import SlotState
from kvsim.metrics import time_mean, waste_shares
from kvsim.plots.colors import figure_colors
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.sampling import waste_of
from kvsim.plots.style import LEGEND_PERCENT, STATE_HATCHES, STATE_LABELS
from kvsim.plots.words import distinct_names, memory, percentages, source_line
from kvsim.replay.host_memory import host_memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

Denominator: TypeAlias = Literal["pool", "allocated"]
_LETTER_EM = 0.8
"""Width of a digit in multiples of the font size. It includes a part of the space around the number."""
_BAR_HEIGHT = 0.5


def _host_words(recording: Recording) -> str:
    """Describe the size of host memory and its mean occupancy; empty without host memory."""
    host, steps = host_memory(recording), recording.steps
    if host is None or not len(steps):
        return ""
    # Host memory keeps its contents until another step begins, so gaps between steps need no entry.
    kept = float(time_mean(np.append(steps.start_s, recording.duration_s), host.used)) / host.num_slots
    return f"; {memory(host.num_slots * host.slot_bytes)} of host memory, {100 * kept:.0f}% of it with copies"


def waste_bars(
    *recordings: Recording, of: Denominator = "pool", names: tuple[str, ...] = (), **look: Unpack[Look]
) -> Picture:
    """Draw the mean share of each state in the pool or in the allocated slots, as a bar for each recording."""
    names = names or distinct_names(recordings)
    if not recordings or len(names) != len(recordings):
        raise UsageError(f"{len(recordings)} recordings and {len(names)} names were given; a bar needs one of each.")
    shares, sizes = [], []
    for recording in recordings:
        slots = waste_of(recording)
        mean = waste_shares(slots)
        shares.append(mean.pool_percent if of == "pool" else mean.allocated_percent)
        pool = recording.meta.pool
        sizes.append(f"{memory(slots.capacity * pool.bytes_per_slot)}{_host_words(recording)}")
    percent = np.nan_to_num(np.array(shares))  # if nothing was allocated, the bar is empty
    with drawn(aspect=0.28 + 0.115 * len(recordings), **look) as picture:
        axes = picture.subplots()
        states = [state for state in SlotState if percent[:, state].max() > 0]
        _draw_bars(axes, percent, states, 100 * _LETTER_EM / picture.width_em)
        for row, (name, pool_size) in enumerate(zip(names, sizes, strict=True)):
            label = axes.text(0, row - 0.29, f"{name}, {pool_size}", ha="left", va="bottom")
            label.set_in_layout(False)  # a long name must not narrow the bars
        axes.set(xlim=(0, 100), ylim=(len(recordings) - 0.55, -0.68), yticks=[])
        whole = "the KV pool" if of == "pool" else "the allocated KV memory"
        hatched = "what is hatched is wasted" if STATE_HATCHES.keys() & set(states) else ""
        shown = (f"share of {whole}, mean over time (%)", hatched)
        axes.set_xlabel(("\n" if picture.is_narrow else "; ").join(filter(None, shown)))
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False)
        tokens = _range(percent[:, SlotState.TOKEN])
        picture.headline(f"On average, live tokens fill {tokens} of {whole}", source_line(recordings))
        picture.add_state_legend(state for state in states if percent[:, state].max() >= LEGEND_PERCENT)
    picture.alt_text = f"Stacked bars of {whole}, mean over time. " + " ".join(
        f"{name}: {percentages(row)}." for name, row in zip(names, percent, strict=True)
    )
    return picture


def _draw_bars(axes: Axes, percent: FloatArray, states: list[SlotState], letter_percent: float) -> None:
    """Draw a stacked bar for each row of `percent`, with a number on or below each part of at least `LEGEND_PERCENT`.

    `letter_percent` is the width of a letter in percent of the axis.
    """
    colors, left = figure_colors(axes), np.zeros(len(percent))
    below = np.full(len(percent), -np.inf)  # right end of the last number below each bar
    for state in states:
        width = percent[:, state]
        axes.barh(
            np.arange(len(percent)),
            width,
            height=_BAR_HEIGHT,
            left=left,
            color=colors.states[state],
            hatch=STATE_HATCHES.get(state),
            edgecolor=colors.ground,
            label=STATE_LABELS[state],
        )
        for row in np.flatnonzero(width >= LEGEND_PERCENT).tolist():
            number, middle = f"{width[row]:.1f}", left[row] + width[row] / 2
            needed = letter_percent * len(number)
            if width[row] >= needed:
                _write_inside(axes, middle, row, number, state)
                continue
            middle = max(middle, below[row] + needed / 2)
            below[row] = middle + needed / 2
            place = (middle, row + _BAR_HEIGHT / 2)
            axes.text(*place, number, ha="center", va="top", fontsize="small", color=colors.ink)
        left += width


def _write_inside(axes: Axes, middle: float, row: int, number: str, state: SlotState) -> None:
    colors = figure_colors(axes)
    color, background = colors.on(colors.states[state]), None
    if state in STATE_HATCHES:  # the number must be readable on a hatch
        background = {"facecolor": colors.states[state], "edgecolor": "none", "pad": 1}
    axes.text(middle, row, number, ha="center", va="center_baseline", color=color, bbox=background)


def _range(percent: FloatArray) -> str:
    low, high = percent.min(), percent.max()
    return f"{low:.0f}%" if round(low) == round(high) else f"{low:.0f}% to {high:.0f}%"
