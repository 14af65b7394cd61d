"""Figure of published numbers and their reproductions: a panel for each published row, with tolerances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kvsim.errors import UsageError
from kvsim.plots.colors import figure_colors
from kvsim.plots.picture import Look, Picture, drawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from kvsim.published import Reproduction

_BAND_HEIGHT = 0.62
_ROW_IN, _PANEL_IN, _FRAME_IN = 0.24, 0.95, 1.35
"""Height in inches, on the web, of a row, of a panel's title and axis, and of the figure's title and legend."""


def beside_published(outcomes: Sequence[Reproduction], **look: Unpack[Look]) -> Picture:
    """Draw published numbers as ticks in their tolerances, and kvsim's as dots, or as crosses outside a tolerance.

    Raises:
        UsageError: there is no outcome.
    """
    if not outcomes:
        raise UsageError("no published figure was reproduced, so there is nothing to draw; name at least one.")
    counts = [len(outcome.ours) for outcome in outcomes]
    height_in = _FRAME_IN + _PANEL_IN * len(outcomes) + _ROW_IN * sum(counts)
    with drawn(aspect=height_in / 7.5, **look) as picture:
        colors = picture.colors
        panels = picture.subplots(len(outcomes), 1, squeeze=False, height_ratios=[count + 1.5 for count in counts])
        for axes, outcome in zip(panels[:, 0], outcomes, strict=True):
            _draw(axes, outcome)
        misses = sum(
            not figure.holds(ours)
            for outcome in outcomes
            for figure, ours in zip(outcome.row.figures, outcome.ours, strict=True)
        )
        verdict = f"{misses} outside the band" if misses else "all inside their bands"
        picture.headline(
            f"{sum(counts)} published figures and ours: {verdict}",
            "Published: " + "; ".join(dict.fromkeys(outcome.row.source for outcome in outcomes)) + ". Ours: kvsim.",
        )
        picture.add_legend(
            [
                Patch(facecolor=colors.grid, label="band"),
                Line2D([], [], color=colors.ink, linestyle="", marker="|", markersize=11, label="published"),
                Line2D([], [], color=colors.hues[0], linestyle="", marker="o", label="ours"),
                Line2D([], [], color=colors.hues[1], linestyle="", marker="X", label="ours, outside the band"),
            ],
            num_columns=2 if picture.is_narrow else 4,
        )
    picture.alt_text = "Published figures and ours. " + " ".join(map(_sentence, outcomes))
    return picture


def _draw(axes: Axes, outcome: Reproduction) -> None:
    """Draw the panel of one reproduced row: the published numbers, their tolerances, and kvsim's numbers."""
    row, colors = outcome.row, figure_colors(axes)
    rows = range(len(row.figures))
    low, width = ([figure.low for figure in row.figures], [figure.high - figure.low for figure in row.figures])
    axes.barh(rows, width, left=low, height=_BAND_HEIGHT, color=colors.grid, linewidth=0)
    size = 0.55 * float(axes.yaxis.label.get_fontsize())
    for place, figure, ours in zip(rows, row.figures, outcome.ours, strict=True):
        axes.plot(figure.published, place, color=colors.ink, marker="|", markersize=2 * size, linestyle="")
        color, marker = (colors.hues[0], "o") if figure.holds(ours) else (colors.hues[1], "X")
        axes.plot(ours, place, color=color, marker=marker, markersize=size, linestyle="")
    left, right = axes.get_xlim()
    units = dict.fromkeys(figure.unit for figure in row.figures if figure.unit)
    axes.set(
        yticks=list(rows),
        yticklabels=[figure.label for figure in row.figures],
        ylim=(len(rows) - 0.5, -0.5),
        xlim=(min(0.0, left), right + 0.02 * (right - min(0.0, left))),  # bars leave no margin for the markers
        xlabel=", ".join(units),
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_color(colors.muted)
    axes.set_title(f"{row.name}: {row.title}", loc="left", x=0, fontweight="bold", wrap=True)


def _sentence(outcome: Reproduction) -> str:
    figures = "; ".join(
        f"{figure.label}: published {figure.published:,.5g} {figure.unit}, ours {ours:,.5g}"
        for figure, ours in zip(outcome.row.figures, outcome.ours, strict=True)
    )
    return f"{outcome.row.title}: {figures}."
