"""Axes and what is drawn on them where matplotlib's own way takes long: steps, logarithmic axes, minor ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axis import XAxis
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.ticker import Locator

    from kvsim.recording.tables import FloatArray


def stairs(
    axes: Axes,
    values: FloatArray,
    edges: FloatArray,
    *,
    line: tuple[str, Any],
    width_pt: float,
    label: str,
    baseline: float | None = None,
) -> None:
    """What `axes.stairs` draws. Of a patch, that one looks for the extremes of every edge as if it were a curve.

    Args:
        axes: where it is drawn.
        values: heights of the steps.
        edges: where they begin and end, one more than steps.
        line: colour and dashes.
        width_pt: width of the line in points.
        label: name in a legend.
        baseline: height from which the first step rises and to which the last one falls; None to begin and end there.
    """
    color, dashes = line
    foot: Any = baseline  # the stubs do not know that there need be none
    patch = StepPatch(
        values, edges, baseline=foot, edgecolor=color, fill=False, linestyle=dashes, linewidth=width_pt, label=label
    )
    axes.add_artist(patch)
    axes.update_datalim(np.concatenate((np.column_stack((edges[:-1], values)), np.column_stack((edges[1:], values)))))
    if baseline is not None:
        patch.sticky_edges.y.append(baseline)
        axes.update_datalim([(edges[0], baseline)])
    axes.autoscale_view()


def log_axis(axes: Axes, which: Literal["x", "y"], *, max_ticks: int = 9) -> None:
    """Make an axis logarithmic, with its numbers written out: 0.01, 1 and 100, at two ticks or more."""
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    axis.set_major_locator(LogLocator(numticks=max_ticks))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())
    low, high = sorted(axis.get_view_interval())
    if high < 10 * low:
        axes.set(**{f"{which}lim": (10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))})


def marked(axis: Axis, locator: Locator) -> Artist:
    """Draw the minor ticks of an axis at the places of `locator`, as one line of marks."""
    axis.set_minor_locator(locator)
    low, high = sorted(axis.get_view_interval())
    places = np.asarray(axis.get_minorticklocs())
    places = places[(places >= low) & (places <= high)]
    mark, foot = axis.get_minor_ticks(1)[0].tick1line, np.zeros(len(places))
    axis.set_minor_locator(NullLocator())
    joined = Line2D(
        *((places, foot) if isinstance(axis, XAxis) else (foot, places)), linestyle="none", marker=mark.get_marker(),
        markersize=mark.get_markersize(), markeredgewidth=mark.get_markeredgewidth(), color=mark.get_color(),
        zorder=axis.get_zorder(), clip_on=False, transform=mark.get_transform(),
    )  # fmt: skip
    return axis.axes.add_artist(joined)
