"""What a second tier of host memory is worth: prefix hits and time to first token against its size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.plots.style import LINES, Picture, Purpose, Size, style
from kvsim.plots.sweep import rows_of

if TYPE_CHECKING:
    import os

AXIS = "kv_offloading_size"
_PANELS = (
    ("hit_percent", "hits, % of tokens"),
    ("ttft_s.mean", "mean TTFT, s"),
    ("num_preemptions", "preemptions"),
)


def draw_host_memory(table: str | os.PathLike[str], *, purpose: Purpose = "web", size: Size | None = None) -> Picture:
    """Draw a sweep over the size of host memory: hits on the GPU and on the host, time to first token, preemptions.

    Raises:
        UsageError: the table cannot be read, or has no such runs, or runs that differ in more than that.
    """
    rows = sorted(rows_of(Path(table), [AXIS]), key=lambda row: float(row[AXIS]))
    sizes = [float(row[AXIS]) for row in rows]
    if len(set(sizes)) < len(sizes):
        raise UsageError(f"{table} has several runs with the same {AXIS.replace('_', '-')}; vary that alone.")
    with style(purpose):
        picture = Picture(purpose, size, aspect=0.8)
        axes = picture.subplots(len(_PANELS), 1, sharex=True)
        for axis, (column, label), (color, dashes) in zip(axes, _PANELS, LINES, strict=False):
            axis.plot(range(len(rows)), [row[column] for row in rows], color=color, linestyle=dashes, marker="o")
            axis.set(ylabel=label, ylim=(0, None))
            axis.yaxis.set_major_formatter("{x:,.6g}")
        axes[-1].set(xlabel="host memory, GiB")
        axes[-1].set_xticks(range(len(rows)), [f"{size:g}" for size in sizes])
        first, best = rows[0], min(rows, key=lambda row: float(row["ttft_s.mean"]))
        picture.headline(_verdict(first["ttft_s.mean"], best["ttft_s.mean"], float(best[AXIS])), best["source"])
    picture.alt_text = (
        f"Share of prompt tokens hit, mean time to first token and preemptions of {len(rows)} runs with "
        f"{sizes[0]:g} to {sizes[-1]:g} GiB of host memory."
    )
    return picture


def _verdict(without_s: float, best_s: float, size_gib: float) -> str:
    if best_s >= 0.98 * without_s:
        return "Host memory of no size makes the first token come sooner"
    return (
        f"With {size_gib:,g} GiB of host memory the first token comes after {best_s:.3g} s instead of {without_s:.3g} s"
    )
