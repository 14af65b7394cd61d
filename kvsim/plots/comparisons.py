"""Figures of runs that differ in one setting: throughput over memory and block size, prefix hits over capacity.

Each run is a point: a recording, or a row of a sweep's table.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from matplotlib.ticker import NullLocator

from kvsim.errors import UsageError
from kvsim.files.arrow_table import read_table
from kvsim.memory.waste import SlotState
from kvsim.metrics import summarize
from kvsim.plots.axes import from_zero
from kvsim.plots.colors import MOST_LINES, figure_colors
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.words import ByteUnit, is_bound, memory, policy_label, source_line

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from kvsim.recording import Recording

_ALIKE = 0.98
"""Share of the best throughput above which block sizes count as equally good."""
_BOUND_DASHES = (0, (1, 1))
_NEVER_USED = (SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED, SlotState.EXTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPoint:
    """One run as a point of a figure. The names of the fields are the columns of a table of points."""

    series: str
    """Label of the line that joins this point with others, usually the policy."""
    kv_bytes: float
    """Size of the pool in bytes."""
    unit_tokens: int
    """Block size in tokens; 1 for policies without blocks."""
    output_tokens_per_s: float
    unused_percent: float
    """Percent of the pool that is wasted, mean over time: the states internal, padding, expired and external."""
    hit_percent: float
    """Percent of the prompt tokens that were prefix-cache hits."""
    source: str = ""

    @classmethod
    def of(cls, recording: Recording) -> RunPoint:
        """Summarize a recording; its policy names the series."""
        summary, pool = summarize(recording), recording.meta.pool
        return cls(
            series=policy_label(recording.meta.policy),
            kv_bytes=float((pool.num_units or 0) * pool.bytes_per_unit),
            unit_tokens=pool.unit_tokens,
            output_tokens_per_s=summary.output_tokens_per_s,
            unused_percent=float(summary.waste.pool_percent[list(_NEVER_USED)].sum()),
            hit_percent=100 * summary.prefix_hit_rate,
            source=source_line([recording]),
        )


def points_of_table(path: str | os.PathLike[str]) -> list[RunPoint]:
    """Read points from a CSV or Parquet table whose columns are the fields of `RunPoint`; ignore other columns.

    Raises:
        UsageError: it cannot be read, or lacks a column.
    """
    file = Path(path)
    try:
        table = read_table(file)
    except ValueError as error:
        raise UsageError(f"{file} is no table of runs: {error}.") from error
    wanted = [field.name for field in fields(RunPoint)]
    missing = [name for name in wanted if name not in table.column_names and name != "source"]
    if missing or not len(table):
        raise UsageError(
            f"{file} should have the columns {', '.join(wanted)} and a row per run; "
            f"{(missing or ['a row'])[0]} is missing."
        )
    rows: list[dict[str, Any]] = table.select([name for name in wanted if name in table.column_names]).to_pylist()
    try:
        return [RunPoint(**{key: _typed(key, value) for key, value in row.items()}) for row in rows]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{file}: a cell is empty or no number: {error}.") from error


def _typed(name: str, value: Any) -> Any:
    if name in ("series", "source"):
        return str(value)
    return int(value) if name == "unit_tokens" else float(value)


def throughput_memory(*runs: Recording | RunPoint, **look: Unpack[Look]) -> Picture:
    """Draw output tokens per second over the size of the KV pool, with a line per policy."""
    points = _points(runs)
    label = "output tokens per second"
    picture = _against_capacity(points, "output_tokens_per_s", label, _best(points), look)
    picture.alt_text = "Throughput against the size of the KV pool. " + _sentences(
        points, lambda point: f"{memory(point.kv_bytes)}: {point.output_tokens_per_s:,.0f} tokens per second"
    )
    return picture


def throughput_block_size(*runs: Recording | RunPoint, **look: Unpack[Look]) -> Picture:
    """Draw output tokens per second and the wasted share of the pool over the block size."""
    points = _points(runs)
    with drawn(aspect=0.75, **look) as picture:
        above, below = picture.subplots(2, 1, sharex=True)
        _draw(above, points, "unit_tokens", "output_tokens_per_s")
        _draw(below, points, "unit_tokens", "unused_percent", color=picture.colors.states[SlotState.INTERNAL])
        above.set_ylabel("tokens per second")
        below.set(ylabel="% of the pool", xlabel="block size (tokens)")
        for axes in (above, below):
            from_zero(axes)
        sizes = sorted({point.unit_tokens for point in points})
        below.set_xscale("log", base=2)
        below.set_xticks(sizes, [f"{tokens:,}" for tokens in sizes])
        below.xaxis.set_minor_locator(NullLocator())
        above.set_title("output", loc="left")
        below.set_title("waste: never written, padding, or in useless pieces", loc="left")
        picture.align_ylabels([above, below])
        _finish(picture, above, points, _best_size(points))
    picture.alt_text = "Throughput and waste against the block size. " + _sentences(
        points,
        lambda point: (
            f"blocks of {point.unit_tokens}: {point.output_tokens_per_s:,.0f} tokens per second, "
            f"{point.unused_percent:.2g}% of the pool wasted"
        ),
    )
    return picture


def hits_capacity(*runs: Recording | RunPoint, **look: Unpack[Look]) -> Picture:
    """Draw the share of prompt tokens that are prefix hits over the size of the pool.

    Runs with optimal eviction are drawn as a bound for the others.
    """
    points = _points(runs)
    label = "prompt tokens hit (%)"
    picture = _against_capacity(points, "hit_percent", label, _most_hits(points), look)
    picture.alt_text = "Prefix hits against the size of the pool. " + _sentences(
        points, lambda point: f"{memory(point.kv_bytes)}: {point.hit_percent:.3g}% of the prompt tokens"
    )
    return picture


def _points(runs: Sequence[Recording | RunPoint]) -> list[RunPoint]:
    points = [run if isinstance(run, RunPoint) else RunPoint.of(run) for run in runs]
    series = list(dict.fromkeys(point.series for point in points))
    if not 1 <= len(series) <= MOST_LINES:
        raise UsageError(f"there are runs of {len(series)} policies; a figure can tell 1 to {MOST_LINES} apart.")
    return points


def _against_capacity(points: Sequence[RunPoint], field: str, label: str, title: str, look: Look) -> Picture:
    unit = ByteUnit.for_size(max(point.kv_bytes for point in points))
    with drawn(aspect=0.7, **look) as picture:
        axes = picture.subplots()
        _draw(axes, points, "kv_bytes", field, scale=unit.num_bytes)
        axes.set(xlabel=f"KV pool ({unit.name})", ylabel=label, xlim=(0, None))
        from_zero(axes)
        _finish(picture, axes, points, title)
    return picture


def _draw(
    axes: Axes, points: Sequence[RunPoint], x: str, y: str, *, scale: float = 1.0, color: str | None = None
) -> None:
    names = sorted(dict.fromkeys(point.series for point in points), key=is_bound)
    one_color = {"color": color} if color and len(names) == 1 else {}
    for series, line in zip(names, figure_colors(axes).lines, strict=False):
        row = sorted((getattr(point, x) / scale, getattr(point, y)) for point in points if point.series == series)
        bound = {"color": figure_colors(axes).muted, "linestyle": _BOUND_DASHES}
        drawn = bound if is_bound(series) and len(names) > 1 else line | one_color
        axes.plot(*zip(*row, strict=True), **drawn, marker="o", clip_on=False, label=series)


def _finish(picture: Picture, axes: Axes, points: Sequence[RunPoint], title: str) -> None:
    picture.headline(title, " ".join(dict.fromkeys(point.source for point in points if point.source)))
    picture.add_line_legend(axes)


def _best(points: Sequence[RunPoint]) -> str:
    best = max(points, key=lambda point: point.output_tokens_per_s)
    speed = f"{best.output_tokens_per_s:,.0f} tokens per second"
    return f"At best {speed}, with {best.series} and {memory(best.kv_bytes)}"


def _most_hits(points: Sequence[RunPoint]) -> str:
    """Describe the largest gap between a policy and the bound of optimal eviction; without a bound, the best point."""
    bounds = {point.kv_bytes: point.hit_percent for point in points if is_bound(point.series)}
    below = [point for point in points if not is_bound(point.series) and point.kv_bytes in bounds]
    if below:
        most = max(below, key=lambda point: bounds[point.kv_bytes] - point.hit_percent)
        gap = f"With {memory(most.kv_bytes)}, {most.series} finds {most.hit_percent:.3g}% of the prompt tokens"
        return f"{gap}, and the bound is {bounds[most.kv_bytes]:.3g}%"
    best = max(points, key=lambda point: np.nan_to_num(point.hit_percent, nan=-1.0))
    if not best.hit_percent > 0:
        return "No prompt finds its beginning in the prefix cache"
    return f"Of the prompt tokens, {best.hit_percent:.3g}% are cache hits with a pool of {memory(best.kv_bytes)}"


def _best_size(points: Sequence[RunPoint]) -> str:
    speeds = [point.output_tokens_per_s for point in points]
    alike = [point.unit_tokens for point in points if point.output_tokens_per_s > _ALIKE * max(speeds)]
    if len(alike) == len(points) > 1:
        return f"The block size hardly matters: about {np.mean(speeds):,.0f} output tokens per second with any"
    sizes = f"{min(alike)} to {max(alike)}" if max(alike) > min(alike) else f"{alike[0]}"
    return f"Blocks of {sizes} tokens give the most output: {max(speeds):,.0f} tokens per second"


def _sentences(points: Sequence[RunPoint], say: Any) -> str:
    return " ".join(f"{point.series}, {say(point)}." for point in points)
