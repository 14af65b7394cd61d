"""How long a piece of memory stays in one request's hands, and how many requests use what stands in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from kvsim.plots.axes import log_axis
from kvsim.plots.shared import replay_of
from kvsim.plots.style import LINES, Picture, Purpose, Size, style
from kvsim.plots.words import each_named, names_for, seconds, source_line
from kvsim.recording import MemoryKind
from kvsim.recording.order import is_new, stable_order, units_of_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from kvsim.recording import Recording
    from kvsim.recording.holdings import Holdings
    from kvsim.recording.tables import FloatArray, IntArray
    from kvsim.replay import Replay

_QUANTILES = np.linspace(0, 1, 501)
_MAX_PIECES = 32
"""Pieces of a run that grew for thousands of steps: a curve through more looks no different."""
_MAX_USES = 32
"""The largest number of uses that is told apart: beyond it a curve has nothing to add."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lifetimes:
    """The life of every unit of memory that a run handed out."""

    held_s: FloatArray
    """Seconds that each run of units was in one request's hands; those never given back are left out."""
    num_units: IntArray
    """Units in each of those runs."""
    uses: IntArray
    """Requests that used each content ever written, at most 32; as long as `content_units`."""
    content_units: IntArray
    """Units of each content."""

    def quantiles_s(self) -> FloatArray:
        """Lifetimes at 501 even shares of the units, from the shortest to the longest; NaN where there is none."""
        if not len(self.held_s):
            return np.full(len(_QUANTILES), np.nan)
        if self.num_units.min() == self.num_units.max():  # millions of single blocks: sorting is fast, an order is not
            held_s = np.sort(self.held_s)
            share = np.arange(1, len(held_s) + 1) / len(held_s)
        else:
            order = np.argsort(self.held_s)
            held_s = self.held_s[order]
            share = np.cumsum(self.num_units[order]) / self.num_units.sum()
        return held_s[np.minimum(np.searchsorted(share, _QUANTILES - 1e-12), len(held_s) - 1)]

    def used_by_at_least(self) -> FloatArray:
        """Percent of units whose content was used by at least 1, 2, ... 32 requests: float64[32]."""
        counts = np.bincount(self.uses, weights=self.content_units, minlength=_MAX_USES + 1)[1:]
        at_least = np.cumsum(counts[::-1])[::-1].astype(np.float64)
        return 100 * at_least / max(float(at_least[0]), 1.0)


def lifetimes_of(replay: Replay) -> Lifetimes:
    """The lives of the units of a recording."""
    tables, recording = replay.ledger.tables, replay.recording
    rows, steps_later, num_units = _pieces(tables, np.flatnonzero(tables.death_seq <= replay.frame_seq[-1]))
    steps = recording.steps
    seq = np.concatenate((steps.schedule_seq, steps.output_seq))
    time_s = np.concatenate((steps.start_s, steps.end_s))
    order = np.argsort(seq, kind="stable")
    seq, time_s = seq[order], time_s[order]

    def when(of: IntArray) -> FloatArray:
        return time_s[np.clip(np.searchsorted(seq, of, side="right") - 1, 0, len(seq) - 1)].astype(np.float64)

    begin_s, grown = when(tables.birth_seq[rows]), np.flatnonzero(steps_later)
    born = np.searchsorted(replay.frame_seq, tables.birth_seq[rows[grown]]) + steps_later[grown]
    begin_s[grown] = steps.start_s[np.minimum(born, len(steps) - 1)]
    held_s = when(tables.death_seq[rows]) - begin_s
    in_time = stable_order(tables.birth_row, len(recording.memory))
    by_place = in_time[stable_order(tables.address[in_time], int(tables.address.max(initial=0)) + 1)]
    fresh = recording.memory.kind[tables.birth_row[by_place]] == MemoryKind.APPEND
    uses = np.ones(int(fresh.sum()), np.int64)
    if not fresh.all():
        content: npt.NDArray[np.int64] = np.cumsum(fresh) - 1
        # A request that was preempted and finds its own blocks again is no second user. A prefix that was there before
        # the recording began has no first writer.
        num_requests = len(recording.requests)
        again = np.zeros(len(uses), np.bool_)
        again[content[~fresh & (content >= 0)]] = True
        rows = np.flatnonzero((content >= 0) & again[content])
        users = np.sort(content[rows] * num_requests + tables.request[by_place][rows])
        uses = np.where(again, np.bincount(users[is_new(users)] // num_requests, minlength=len(uses)), 1)
    return Lifetimes(
        held_s=np.maximum(held_s, 0.0),
        num_units=num_units,
        uses=np.minimum(uses, _MAX_USES),
        content_units=tables.length[by_place][fresh],
    )


def _pieces(tables: Holdings, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Runs that came at once as they are, and those that grew by the step in pieces: run, steps later, units."""
    repeat, length = tables.repeat[rows], tables.length[rows]
    if not (repeat > 1).any():
        return rows, np.zeros(len(rows), np.int32), length
    count = np.minimum(repeat, _MAX_PIECES)
    run, nth = units_of_runs(count)
    begin, end = nth * repeat[run] // count[run], (nth + 1) * repeat[run] // count[run]
    return rows[run], (begin + end - 1) // 2, (length // repeat)[run] * (end - begin)


def lifetimes(
    *recordings: Recording, purpose: Purpose = "web", size: Size | None = None, names: tuple[str, ...] = ()
) -> Picture:
    """How long units are held (cumulative, log time), and what share of them is used by several requests.

    Args:
        recordings: at most four, told apart by colour and dashes.
        purpose: the medium to draw for.
        size: inches; chosen for the medium if left out.
        names: what to call the recordings; their own names, or their policies, if left out.

    Raises:
        UsageError: there is no recording or more than four, or not one name for each.
        RecordingError: a recording has no steps.
    """
    names = names_for(recordings, names, len(LINES))
    lives = [lifetimes_of(replay_of(recording)) for recording in recordings]
    curves_s = [life.quantiles_s() for life in lives]
    medians = [float(curve_s[len(_QUANTILES) // 2]) for curve_s in curves_s]
    shared = [float(life.used_by_at_least()[1]) for life in lives]
    reuse = any(shared)
    with style(purpose):
        picture = Picture(purpose, size, aspect=0.8 if reuse else 0.55)
        panels = picture.subplots(2 if reuse else 1, 1, squeeze=False)[:, 0]
        for held_s, name, (color, dashes) in zip(curves_s, names, LINES, strict=False):
            panels[0].plot(
                np.where(held_s > 0, held_s, np.nan), 100 * _QUANTILES, color=color, linestyle=dashes, label=name
            )
        log_axis(panels[0], "x")
        panels[0].set(ylim=(0, 101), yticks=(0, 50, 100), ylabel="% of memory\nhanded out")
        panels[0].set_xlabel("held for at most (s)")
        if reuse:
            panels[0].set_title("how long memory is held", loc="left")
            _draw_reuse(panels[1], lives, marker_pt=2 * picture.line_pt)
        picture.align_ylabels(panels)
        picture.headline(_title(names, medians, shared), source_line(recordings))
        if len(recordings) > 1:
            picture.explain_with(panels[0].get_lines())
    picture.alt_text = "How long memory is held, and how often its content is used. " + " ".join(
        f"{name}: half of the memory is held for at most {seconds(median)}, "
        f"and {share:.2g}% of it is used by at least two requests."
        for name, median, share in zip(names, medians, shared, strict=True)
    )
    return picture


def _draw_reuse(axes: Axes, lives: Sequence[Lifetimes], *, marker_pt: float) -> None:
    for life, (color, dashes) in zip(lives, LINES, strict=False):
        at_least = life.used_by_at_least()
        shown = at_least > 0
        axes.plot(
            np.arange(1, _MAX_USES + 1)[shown],
            at_least[shown],
            color=color,
            linestyle=dashes,
            marker="o",
            markersize=marker_pt,
        )
    axes.set(yscale="log", ylim=(None, 150), ylabel="% of memory\nhanded out")
    axes.set_xlabel("used by at least so many requests")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.5, max(2, *(int(life.uses.max(initial=1)) for life in lives)) + 0.5)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("how often what it holds is used", loc="left")


def _title(names: Sequence[str], medians_s: Sequence[float], shared_percent: Sequence[float]) -> str:
    if len(names) == 1:
        part = f"{shared_percent[0]:.2g}% of it serves" if shared_percent[0] else "none of it serves"
        return f"Half of the memory is given back within {seconds(medians_s[0])}; {part} several requests"
    return f"Half of the memory is given back within {each_named(map(seconds, medians_s), names)}"
