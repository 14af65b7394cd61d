"""Figure of `kvsim compare --ladder`: tokens per second with each optimization added, and how much is due to memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np
from matplotlib.patches import Patch

from kvsim.errors import RecordingError
from kvsim.memory.waste import SlotState
from kvsim.plots.colors import figure_colors
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.words import source_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from kvsim.recording import Recording

KEY = "ladder"
"""Key in the metadata of a recording, for the results of its run by `kvsim compare --ladder`."""
_WORSE_GAIN: Final = 0.995
"""Gain, as a factor on the throughput of the previous run, below which an optimization counts as a slowdown."""
_BAR_HEIGHT: Final = 0.5


def _gain(rung: dict[str, Any]) -> str:
    """Format the gain of a run over the previous one, and its two factors: `×0.57: speed ×9.76, memory ×0.06`."""
    gain = f"\u00d7{rung['gain']:.2f}"
    if abs(rung["gain"] - 1) < 1 - _WORSE_GAIN:
        return f"{gain}: no difference here"
    if abs(rung["memory_gain"] - 1) < 1 - _WORSE_GAIN:
        return f"{gain}: all of it speed"
    if abs(rung["time_gain"] - 1) < 1 - _WORSE_GAIN:
        return f"{gain}: all of it memory"
    return f"{gain}: speed \u00d7{rung['time_gain']:.2f}, memory \u00d7{rung['memory_gain']:.2f}"


def is_ladder(recordings: Sequence[Recording]) -> bool:
    """Tell whether there are several recordings, all made by `kvsim compare --ladder`."""
    return len(recordings) > 1 and all(KEY in recording.meta.extra for recording in recordings)


def ladder(*recordings: Recording, **look: Unpack[Look]) -> Picture:
    """Draw output tokens per second of every run as bars: solid with the given memory, hollow with ample memory.

    The recordings are those that `kvsim compare --ladder -o FOLDER` wrote, in any order.
    """
    for recording in recordings:
        if KEY not in recording.meta.extra:
            raise RecordingError(
                f"{recording.name} is no rung of a ladder; kvsim compare --ladder -o FOLDER writes some."
            )
    order = sorted(recordings, key=lambda recording: int(recording.meta.extra[KEY]["rung"]))
    rungs: list[dict[str, Any]] = [recording.meta.extra[KEY] for recording in order]
    here = np.array([rung["tokens_per_s"] for rung in rungs])
    ample = np.array([rung["ample_tokens_per_s"] for rung in rungs])
    aspect, narrow_aspect = 0.24 + 0.09 * len(rungs), 0.24 + 0.12 * len(rungs)
    with drawn(aspect=aspect, narrow_aspect=narrow_aspect, **look) as picture:
        column = picture.is_narrow
        axes = picture.subplots()
        places = np.arange(len(rungs))
        height = _BAR_HEIGHT / 2 if column else _BAR_HEIGHT
        axes.barh(places, ample, height=height, facecolor="none", edgecolor=picture.colors.muted, linestyle=":")
        axes.barh(places, here, height=height, color=picture.colors.states[SlotState.TOKEN])
        axes.set(xlim=(0, ample.max() * 1.02), ylim=(len(rungs) - 0.6, -0.6), yticks=places)
        axes.set_yticklabels([] if column else [rung["name"] for rung in rungs])
        axes.set_xlabel("output tokens per second, whole run")
        axes.grid(visible=False, axis="y")
        (_label_bars_above if column else _label_bars)(axes, rungs)
        factor = here[-1] / here[0]
        picture.headline(
            f"One change at a time: {factor:,.0f} times the tokens a second",
            "\u00d7 is the gain over the bar above it: speed is what the change brings with memory for everything, "
            f"memory is what the memory that there is adds or takes. {len(order[0].requests):,} requests, all there at "
            f"once. {source_line(order)}",
        )
        picture.add_legend(
            [
                Patch(facecolor=picture.colors.states[SlotState.TOKEN], label="with the memory that there is"),
                Patch(
                    facecolor="none", edgecolor=picture.colors.muted, linestyle=":", label="with memory for everything"
                ),
            ]
        )
    picture.alt_text = "Bars of output tokens per second. " + " ".join(
        f"{rung['name']}: {rung['tokens_per_s']:,.0f}, with memory for everything {rung['ample_tokens_per_s']:,.0f}."
        for rung in rungs
    )
    return picture


def _label_bars_above(axes: Axes, rungs: list[dict[str, Any]]) -> None:
    """Write setting, throughput and gain of each run above its bars, because a column has no room beside them."""
    axes.set_ylim(len(rungs) - 0.6, -1.0)
    colors = figure_colors(axes)
    for place, rung in enumerate(rungs):
        result = f"{rung['tokens_per_s']:,.0f} tokens/s, {rung['mean_batch']:.0f} at a time"
        text = f" {rung['name']}: {rung['change']}\n {result}" + (f", {_gain(rung)}" if place else "")
        color = colors.hues[1] if place and rung["gain"] < _WORSE_GAIN else colors.ink
        axes.text(0, place - _BAR_HEIGHT / 4, text, va="bottom", fontsize="small", color=color)


def _label_bars(axes: Axes, rungs: list[dict[str, Any]]) -> None:
    """Write the throughput and the gain of each run beside its bars, and the changed setting above them."""
    colors = figure_colors(axes)
    for place, rung in enumerate(rungs):
        text = f"{rung['tokens_per_s']:,.0f} tokens/s, {rung['mean_batch']:.0f} at a time"
        if place:
            text += f"\n{_gain(rung)}"
        color = colors.hues[1] if place and rung["gain"] < _WORSE_GAIN else colors.ink
        axes.text(1.03, place, text, va="center", color=color, transform=axes.get_yaxis_transform())
        above = axes.annotate(
            rung["change"], (0, place - _BAR_HEIGHT / 2), (2, 1), textcoords="offset points", va="bottom",
            fontsize="small", color=colors.muted,
        )  # fmt: skip
        above.set_in_layout(False)
