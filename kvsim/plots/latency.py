"""Figure of the latencies of requests: distributions of TTFT, TPOT and end-to-end latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from kvsim.metrics import Distribution, latencies
from kvsim.plots.axes import log_axis
from kvsim.plots.colors import MOST_LINES
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.words import each_named, names_for, seconds, source_line

if TYPE_CHECKING:
    from kvsim.metrics import Latencies
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

_QUANTILES = np.linspace(0, 1, 501)
"""Quantiles through which a curve is drawn; more would not change the curve visibly."""
_NO_LATENCY_S = (1e-3, 1.0)
"""Axis limits in seconds if every latency is 0, which a log axis cannot show."""
PANELS = (("time to first token", "ttft_s"), ("time per later token", "tpot_s"), ("end to end", "e2e_s"))


def latency(*recordings: Recording, names: tuple[str, ...] = (), **look: Unpack[Look]) -> Picture:
    """Draw cumulative distributions of TTFT, TPOT and end-to-end latency of finished requests, with log time axes."""
    names = names_for(recordings, names, MOST_LINES)
    times = [latencies(recording) for recording in recordings]
    with drawn(aspect=0.62, narrow_aspect=1.1, **look) as picture:
        column = picture.is_narrow
        panels = picture.subplots(*((3, 1) if column else (1, 3)), sharey=not column, squeeze=True)
        for axes, (title, field) in zip(panels, PANELS, strict=True):
            for of_run, name, line in zip(times, names, picture.colors.lines, strict=False):
                known = getattr(of_run, field)
                known = known[known > 0]  # neither NaN nor 0, which a log axis cannot show
                curve = np.quantile(known, _QUANTILES) if len(known) else np.full(len(_QUANTILES), np.nan)
                axes.plot(curve, 100 * _QUANTILES, **line, label=name)
            axes.axhline(50, color=picture.colors.muted, linewidth=0.4 * picture.line_pt, zorder=0)
            if not any((getattr(of_run, field) > 0).any() for of_run in times):
                axes.set_xlim(*_NO_LATENCY_S)
            log_axis(axes, "x", max_ticks=6 if column else 4)
            axes.set(ylim=(0, 101), yticks=(0, 25, 50, 75, 100), xlabel="seconds")
            axes.set_title(title, loc="left")
        for axes in panels if column else panels[:1]:
            axes.set_ylabel("% of requests")
        picture.headline(_title(times, names), source_line(recordings))
        picture.add_line_legend(panels[0])
    picture.alt_text = "Distributions of the latencies of finished requests. " + " ".join(
        f"{name}, {len(of_run.request):,} requests: "
        + ", ".join(f"{title} {_sentence(getattr(of_run, field))}" for title, field in PANELS)
        + "."
        for name, of_run in zip(names, times, strict=True)
    )
    return picture


def _title(times: list[Latencies], names: tuple[str, ...]) -> str:
    medians = [np.nanmedian(of_run.ttft_s) if len(of_run.request) else np.nan for of_run in times]
    if len(times) == 1:
        return f"Half of the requests wait at most {seconds(medians[0])} for their first token"
    return f"Median wait for the first token: {each_named(map(seconds, medians), names)}"


def _sentence(values_s: FloatArray) -> str:
    of_all = Distribution.of(values_s)
    return f"median {seconds(of_all.p50)}, 99th percentile {seconds(of_all.p99)}"
