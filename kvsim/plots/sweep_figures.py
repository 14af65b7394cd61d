"""Figures of a sweep's table: throughput over any settings, and latency over the size of host memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from kvsim.errors import UsageError
from kvsim.experiments import sweeps
from kvsim.plots.axes import from_zero
from kvsim.plots.colors import MOST_LINES
from kvsim.plots.picture import Look, Picture, drawn

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

HOST_MEMORY = "kv_offloading_size"
"""Setting over which `draw_host_memory` draws: the size of host memory in GiB."""
_REPEATS = "seed"
"""Setting that only repeats a run: runs that differ in nothing else are drawn as one point, their mean."""
_HOST_PANELS = (
    ("hit_percent", "hits, % of tokens"),
    ("ttft_s.mean", "mean TTFT, s"),
    ("num_preemptions", "preemptions"),
)


def draw_sweep(table: str | os.PathLike[str], axes: Sequence[str], **look: Unpack[Look]) -> Picture:
    """Draw output tokens per second over the first setting in `axes`, with a line for each value of the other settings.

    Runs that could not be served are left out.

    Raises:
        UsageError: the table cannot be read, has no run with the settings in `axes`, or too many lines to tell apart.
    """
    rows = _rows(table, axes)
    shown = [name for name in axes if name != _REPEATS] or [_REPEATS]
    x_name, line_names = shown[0], shown[1:]
    lines: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
    for row in rows:
        runs = lines.setdefault(tuple(row[name] for name in line_names), {})
        runs.setdefault(row[x_name], []).append(row["output_tokens_per_s"])
    if len(lines) > MOST_LINES:
        raise UsageError(
            f"the sweep has {len(lines)} lines and a figure can tell {MOST_LINES} apart; vary fewer flags."
        )
    with drawn(aspect=0.6, **look) as picture:
        axis = picture.subplots()
        # The rows may be in any order; the figure must not depend on it.
        in_order = sorted(lines.items(), key=lambda item: [_order(value) for value in item[0]])
        for (values, runs), line in zip(in_order, picture.colors.lines, strict=False):
            x = sorted(runs, key=_order)
            y = [float(np.mean(runs[value])) for value in x]
            places = x if all(isinstance(value, int | float) for value in x) else [str(value) for value in x]
            axis.plot(places, y, **line, marker="o", label=", ".join(map(_words, line_names, values)))
        axis.set(xlabel=x_name.replace("_", " "), ylabel="output tokens per second")
        from_zero(axis)
        best = max(rows, key=lambda row: row["output_tokens_per_s"])
        at = ", ".join(_words(name, best[name]) for name in shown)
        picture.headline(
            f"At best {best['output_tokens_per_s']:,.0f} output tokens per second, with {at}",
            " ".join(dict.fromkeys(row["source"] for row in rows)),
        )
        picture.add_line_legend(axis)
    picture.alt_text = f"Output tokens per second of {len(rows)} runs against {x_name}; at best with {at}."
    return picture


def draw_host_memory(table: str | os.PathLike[str], **look: Unpack[Look]) -> Picture:
    """Draw prefix hits, mean time to first token and preemptions over the size of host memory.

    Raises:
        UsageError: the table cannot be read, has no run with a size of host memory, or several runs with the same size.
    """
    rows = sorted(_rows(table, [HOST_MEMORY]), key=lambda row: float(row[HOST_MEMORY]))
    sizes = [float(row[HOST_MEMORY]) for row in rows]
    if len(set(sizes)) < len(sizes):
        raise UsageError(f"{table} has several runs with the same {HOST_MEMORY.replace('_', '-')}; vary that alone.")
    with drawn(aspect=0.8, **look) as picture:
        axes = picture.subplots(len(_HOST_PANELS), 1, sharex=True)
        for axis, (column, label), line in zip(axes, _HOST_PANELS, picture.colors.lines, strict=False):
            axis.plot(range(len(rows)), [row[column] for row in rows], **line, marker="o")
            axis.set_ylabel(label)
            from_zero(axis)
        axes[-1].set(xlabel="host memory, GiB")
        axes[-1].set_xticks(range(len(rows)), [f"{size:g}" for size in sizes])
        first, best = rows[0], min(rows, key=lambda row: float(row["ttft_s.mean"]))
        picture.headline(
            _host_verdict(first["ttft_s.mean"], best["ttft_s.mean"], float(best[HOST_MEMORY])), best["source"]
        )
    picture.alt_text = (
        f"Share of prompt tokens hit, mean time to first token and preemptions of {len(rows)} runs with "
        f"{sizes[0]:g} to {sizes[-1]:g} GiB of host memory."
    )
    return picture


def _host_verdict(without_s: float, best_s: float, size_gib: float) -> str:
    if best_s >= 0.98 * without_s:
        return "Host memory of no size makes the first token come sooner"
    return (
        f"With {size_gib:,g} GiB of host memory the first token comes after {best_s:.3g} s instead of {without_s:.3g} s"
    )


def _order(value: Any) -> tuple[bool, float, str]:
    """Return a sort key: numbers by size, then texts in alphabetical order."""
    number = isinstance(value, int | float)
    return (not number, value if number else 0.0, "" if number else str(value))


def _words(name: str, value: Any) -> str:
    return str(value) if name == "policy" else f"{name.replace('_', ' ')} {value}"


def _rows(table: str | os.PathLike[str], axes: Sequence[str]) -> list[dict[str, Any]]:
    """Read the runs of a sweep's `table` that could be served and have the settings in `axes`."""
    rows = sweeps.rows_of(Path(table)).values()
    served = [row for row in rows if not row["error"] and all(row.get(name) is not None for name in axes)]
    if not served:
        raise UsageError(f"{table} has no run that could be served with {', '.join(axes) or 'these settings'}.")
    return served
