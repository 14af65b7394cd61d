"""The ladder: tokens a second from one by one to asynchronous scheduling, and what of every gain is memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Patch

from kvsim.errors import RecordingError
from kvsim.memory.waste import SlotState
from kvsim.plots.style import INK, MUTED, STATE_COLORS, Picture, Purpose, Size, log_axis, style
from kvsim.plots.words import source_line

if TYPE_CHECKING:
    from kvsim.recording import Recording

KEY = "ladder"


def is_ladder(recordings: tuple[Recording, ...] | list[Recording]) -> bool:
    """Whether every recording says which rung it is."""
    return len(recordings) > 1 and all(KEY in recording.meta.extra for recording in recordings)


def ladder(*recordings: Recording, purpose: Purpose = "web", size: Size | None = None) -> Picture:
    """Output tokens per second of every rung, solid, and with memory for everything, hollow.

    Args:
        recordings: what `kvsim compare --ladder -o FOLDER` wrote, in any order.
        purpose: the medium to draw for.
        size: inches; chosen for the medium and the number of rungs if left out.

    Raises:
        RecordingError: a recording is no rung of a ladder.
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
    with style(purpose):
        picture = Picture(purpose, size, aspect=0.22 + 0.085 * len(rungs))
        axes = picture.subplots()
        places = np.arange(len(rungs))
        axes.barh(places, ample, height=0.62, facecolor="none", edgecolor=MUTED, linestyle=":")
        axes.barh(places, here, height=0.62, color=STATE_COLORS[SlotState.TOKEN])
        log_axis(axes, "x")
        low = 10 ** np.floor(np.log10(here.min()))
        axes.set(xlim=(low, ample.max() * 1.5), ylim=(len(rungs) - 0.5, -0.5), yticks=places)
        axes.set_yticklabels([rung["name"] for rung in rungs])
        axes.set_xlabel("output tokens per second")
        axes.grid(visible=False, axis="y")
        for place, rung in enumerate(rungs):
            words = f"{rung['tokens_per_s']:,.0f} tokens/s, {rung['mean_batch']:.0f} at a time"
            if place:
                words += f"\n\u00d7{rung['gain']:.2f}"
            if place and abs(rung["memory_gain"] - 1) >= 0.005:
                words += f": memory \u00d7{rung['memory_gain']:.2f}, time \u00d7{rung['time_gain']:.2f}"
            axes.text(1.03, place, words, va="center", color=INK, transform=axes.get_yaxis_transform())
        factor = here[-1] / here[0]
        picture.headline(f"One change at a time: {factor:,.0f} times the tokens a second", source_line(order))
        picture.explain_with(
            [
                Patch(facecolor=STATE_COLORS[SlotState.TOKEN], label="with the memory that there is"),
                Patch(facecolor="none", edgecolor=MUTED, linestyle=":", label="with memory for everything"),
            ]
        )
    picture.alt_text = "Bars of output tokens per second. " + " ".join(
        f"{rung['name']}: {rung['tokens_per_s']:,.0f}, with memory for everything {rung['ample_tokens_per_s']:,.0f}."
        for rung in rungs
    )
    return picture
