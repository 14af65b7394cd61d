"""Faster replacements for parts of matplotlib: step lines, log axes, minor ticks."""

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
    line: dict[str, Any],
    width_pt: float,
    label: str,
    baseline: float | None = None,
) -> None:
    """Draw steps as `axes.stairs` does, but without its slow search for the extremes of every edge.

    The steps have the heights `values` between consecutive `edges`. The first step rises from `baseline` and the last
    one falls to it; None: neither is drawn. `line` has the keys "color" and "linestyle".
    """
    foot: Any = baseline  # the type stubs do not allow None
    style = {"edgecolor": line["color"], "linestyle": line["linestyle"], "linewidth": width_pt, "label": label}
    patch = StepPatch(values, edges, baseline=foot, fill=False, **style)
    axes.add_artist(patch)
    axes.update_datalim(np.concatenate((np.column_stack((edges[:-1], values)), np.column_stack((edges[1:], values)))))
    if baseline is not None:
        patch.sticky_edges.y.append(baseline)
        axes.update_datalim([(edges[0], baseline)])
    axes.autoscale_view()


def from_zero(axes: Axes) -> None:
    """Let the y axis begin at 0 and end above all lines, with plain numbers."""
    top = max((float(np.nanmax(np.asarray(line.get_ydata()), initial=0.0)) for line in axes.get_lines()), default=0.0)
    axes.set_ylim(0, 1.1 * top or 1.0)
    axes.yaxis.set_major_formatter("{x:,.6g}")


def log_axis(axes: Axes, which: Literal["x", "y"], *, max_ticks: int = 9) -> None:
    """Make an axis logarithmic, with 2 to `max_ticks` ticks and plain numbers ("0.01" instead of a power of ten)."""
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    axis.set_major_locator(LogLocator(numticks=max_ticks))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())
    low, high = sorted(axis.get_view_interval())
    if high < 10 * low:
        axes.set(**{f"{which}lim": (10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))})


def marked(axis: Axis, locator: Locator) -> Artist:
    """Draw the minor ticks of an axis at the values that `locator` chooses, as a single artist."""
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
