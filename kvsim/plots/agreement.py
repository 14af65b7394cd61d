"""Figure of simulated against measured latencies, request by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from kvsim.errors import UsageError
from kvsim.metrics import latencies
from kvsim.plots.latency import PANELS
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.words import source_line

if TYPE_CHECKING:
    from matplotlib.ticker import Locator

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

_MAX_DOTS = 3000


def agreement(measured: Recording, simulated: Recording, **look: Unpack[Look]) -> Picture:
    """Draw simulated over measured TTFT, TPOT and end-to-end latency, a dot for each request that finished in both.

    Dots on the diagonal were predicted exactly. Requests are matched by their ids.
    """
    pairs = {field: _pairs(measured, simulated, field) for _, field in PANELS}
    if not len(pairs["e2e_s"][0]):
        raise UsageError(
            f"{measured.name} and {simulated.name} have no finished request in common; give a run and its simulation."
        )
    errors = []
    with drawn(aspect=0.58, narrow_aspect=1.5, **look) as picture:
        column = picture.is_narrow
        panels = picture.subplots(*((3, 1) if column else (1, 3)))
        for axes, (title, field) in zip(panels, PANELS, strict=True):
            real, predicted = pairs[field]
            error = 100 * (predicted.mean() / real.mean() - 1) if len(real) else np.nan
            errors.append((title, error))
            rows = np.linspace(0, len(real) - 1, min(len(real), _MAX_DOTS)).astype(np.int64)
            if len(real):
                ends = np.array([min(real.min(), predicted.min()), max(real.max(), predicted.max())]) * (0.8, 1.25)
                axes.plot(ends, ends, color=picture.colors.ink, linewidth=0.5 * picture.line_pt)
                axes.set(xlim=ends, ylim=ends, xscale="log", yscale="log")
                for axis in (axes.xaxis, axes.yaxis):
                    axis.set_major_locator(_ticks(*ends))
                    axis.set_major_formatter("{x:,g}")
                    axis.set_minor_locator(NullLocator())
            axes.plot(
                real[rows], predicted[rows], linestyle="none", marker="o", markersize=1.7 * picture.line_pt,
                markeredgewidth=0, alpha=0.4, color=picture.colors.hues[0], rasterized=True,
            )  # fmt: skip
            axes.set_title(f"{title}\nsimulated mean {_signed(error)}", loc="left")
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


def _signed(percent: float) -> str:
    return f"{percent:+.1f}%".replace("-", "\N{MINUS SIGN}")


def _ticks(low: float, high: float) -> Locator:
    return MaxNLocator(3, steps=[1, 2, 5, 10]) if high < 30 * low else LogLocator(numticks=4)


def _pairs(measured: Recording, simulated: Recording, field: str) -> tuple[FloatArray, FloatArray]:
    columns = []
    for recording in (measured, simulated):
        times = latencies(recording)
        columns.append((recording.requests.id[times.request], getattr(times, field)))
    (ids, real), (other_ids, predicted) = columns
    _, rows, other_rows = np.intersect1d(ids, other_ids, return_indices=True)
    real, predicted = real[rows], predicted[other_rows]
    known = (real > 0) & (predicted > 0)
    return real[known], predicted[known]
