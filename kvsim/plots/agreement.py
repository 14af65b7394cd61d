"""Measured against simulated, request by request: how well a calibrated simulation tells each one's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from kvsim.errors import UsageError
from kvsim.metrics import latencies
from kvsim.plots.style import INK, LINES, Picture, Purpose, Size, style
from kvsim.plots.words import source_line

if TYPE_CHECKING:
    from matplotlib.ticker import Locator

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

_PANELS = (("time to first token", "ttft_s"), ("time per later token", "tpot_s"), ("end to end", "e2e_s"))
_MAX_DOTS = 3000


def agreement(
    measured: Recording, simulated: Recording, *, purpose: Purpose = "web", size: Size | None = None
) -> Picture:
    """Every request that finished in both runs as a dot: its measured time to the right, its simulated time upwards.

    A dot on the diagonal is a request whose time the simulation told exactly. Requests are matched by their ids.

    Raises:
        UsageError: no request finished in both.
    """
    pairs = {field: _pairs(measured, simulated, field) for _, field in _PANELS}
    if not len(pairs["e2e_s"][0]):
        raise UsageError(
            f"{measured.name} and {simulated.name} have no finished request in common; give a run and its simulation."
        )
    column = purpose == "paper"
    errors = []
    with style(purpose):
        picture = Picture(purpose, size, aspect=1.5 if column else 0.58)
        panels = picture.subplots(*((3, 1) if column else (1, 3)))
        for axes, (title, field) in zip(panels, _PANELS, strict=True):
            real, told = pairs[field]
            error = 100 * (told.mean() / real.mean() - 1) if len(real) else np.nan
            errors.append((title, error))
            rows = np.linspace(0, len(real) - 1, min(len(real), _MAX_DOTS)).astype(np.int64)
            if len(real):
                ends = np.array([min(real.min(), told.min()), max(real.max(), told.max())]) * (0.8, 1.25)
                axes.plot(ends, ends, color=INK, linewidth=0.8)
                axes.set(xlim=ends, ylim=ends, xscale="log", yscale="log")
                for axis in (axes.xaxis, axes.yaxis):
                    axis.set_major_locator(_ticks(*ends))
                    axis.set_major_formatter("{x:,g}")
                    axis.set_minor_locator(NullLocator())
            axes.plot(
                real[rows], told[rows], linestyle="none", marker="o", markersize=1.7 * picture.line_pt,
                markeredgewidth=0, alpha=0.4, color=LINES[0][0], rasterized=True,
            )  # fmt: skip
            axes.set_title(f"{title}\nmean {error:+.1f}%", loc="left")
            axes.set(xlabel="measured (s)")
        for axes in panels if column else panels[:1]:
            axes.set_ylabel("simulated (s)")
        worst = max(errors, key=lambda item: abs(np.nan_to_num(item[1])))
        picture.headline(
            f"Simulated means lie within {abs(worst[1]):.1f}% of the measured ones", source_line([measured, simulated])
        )
    picture.alt_text = (
        f"Measured against simulated times of the {len(pairs['e2e_s'][0]):,} requests that finished in both. "
        + " ".join(f"The simulated mean of {title} is off by {error:+.1f}%." for title, error in errors)
    )
    return picture


def _ticks(low: float, high: float) -> Locator:
    """A few numbers on a logarithmic axis: round ones, or powers of ten where there are several."""
    return MaxNLocator(3, steps=[1, 2, 5, 10]) if high < 30 * low else LogLocator(numticks=4)


def _pairs(measured: Recording, simulated: Recording, field: str) -> tuple[FloatArray, FloatArray]:
    """Times above 0 of the requests that both have, in one order."""
    columns = []
    for recording in (measured, simulated):
        times = latencies(recording)
        columns.append((recording.requests.id[times.request], getattr(times, field)))
    (ids, real), (other_ids, told) = columns
    _, rows, other_rows = np.intersect1d(ids, other_ids, return_indices=True)
    real, told = real[rows], told[other_rows]
    known = (real > 0) & (told > 0)
    return real[known], told[known]
