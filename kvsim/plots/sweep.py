"""A sweep at a glance: output per second against the first setting that varies, a line for each value of the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import UsageError
from kvsim.experiments import sweeps
from kvsim.plots.style import LINES, Picture, Purpose, Size, style

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

_REPEATS = "seed"
"""Runs that differ in this alone are one point: their mean."""


def draw_sweep(
    table: str | os.PathLike[str], axes: Sequence[str], *, purpose: Purpose = "web", size: Size | None = None
) -> Picture:
    """Draw the runs of a sweep's `table` that could be served, by the settings named in `axes`.

    Raises:
        UsageError: the table cannot be read, has no such runs, or too many lines to tell apart.
    """
    rows = rows_of(Path(table), axes)
    shown = [name for name in axes if name != _REPEATS] or [_REPEATS]
    x_name, line_names = shown[0], shown[1:]
    lines: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
    for row in rows:
        line = lines.setdefault(tuple(row[name] for name in line_names), {})
        line.setdefault(row[x_name], []).append(row["output_tokens_per_s"])
    if len(lines) > len(LINES):
        raise UsageError(
            f"the sweep has {len(lines)} lines and a figure can tell {len(LINES)} apart; vary fewer flags."
        )
    with style(purpose):
        picture = Picture(purpose, size, aspect=0.6)
        axis = picture.subplots()
        names = []
        # Runs end in any order, and a figure of the same table is the same figure.
        in_order = sorted(lines.items(), key=lambda item: [_order(value) for value in item[0]])
        for (values, line), (color, dashes) in zip(in_order, LINES, strict=False):
            names.append(", ".join(map(_words, line_names, values)))
            numbers = all(isinstance(value, int | float) for value in line)
            x = sorted(line, key=_order)
            y = [float(np.mean(line[value])) for value in x]
            axis.plot(
                x if numbers else [str(value) for value in x],
                y,
                color=color,
                linestyle=dashes,
                marker="o",
                label=names[-1],
            )
        axis.set(xlabel=x_name.replace("_", " "), ylabel="output tokens per second", ylim=(0, None))
        axis.yaxis.set_major_formatter("{x:,.6g}")
        best = max(rows, key=lambda row: row["output_tokens_per_s"])
        at = ", ".join(_words(name, best[name]) for name in shown)
        picture.headline(
            f"At best {best['output_tokens_per_s']:,.0f} output tokens per second, with {at}",
            " ".join(dict.fromkeys(row["source"] for row in rows)),
        )
        if len(lines) > 1:
            picture.explain_with(axis.get_legend_handles_labels()[0])
    picture.alt_text = f"Output tokens per second of {len(rows)} runs against {x_name}; at best with {at}."
    return picture


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then words by the alphabet."""
    number = isinstance(value, int | float)
    return (not number, value if number else 0.0, "" if number else str(value))


def _words(name: str, value: Any) -> str:
    return str(value) if name == "policy" else f"{name.replace('_', ' ')} {value}"


def rows_of(file: Path, axes: Sequence[str]) -> list[dict[str, Any]]:
    """The runs in the table of a sweep that could be served and have the settings named in `axes`.

    Raises:
        UsageError: the table cannot be read, or has no such runs.
    """
    rows = sweeps.rows_of(Path(file)).values()
    served = [row for row in rows if not row["error"] and all(row.get(name) is not None for name in axes)]
    if not served:
        raise UsageError(f"{file} has no run that could be served with {', '.join(axes) or 'these settings'}.")
    return served
