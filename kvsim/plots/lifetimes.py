"""Figure of the hold times of memory units, and of the number of requests that use their content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import numpy as np
from matplotlib.ticker import MaxNLocator

from kvsim.plots.axes import log_axis
from kvsim.plots.colors import MOST_LINES, figure_colors
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.sampling import replay_of
from kvsim.plots.words import each_named, names_for, seconds, source_line
from kvsim.recording import MemoryKind
from kvsim.recording.order import expanded, is_new

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from kvsim.recording import Recording
    from kvsim.recording.holdings import Holdings
    from kvsim.recording.tables import FloatArray, IntArray
    from kvsim.replay import Replay

_QUANTILES = np.linspace(0, 1, 501)
_MAX_PIECES = 32
"""Most pieces into which an extent that grew step by step is divided; more would change no curve visibly."""
_MAX_USES = 32
"""Largest number of uses that is counted separately; units with more uses are counted with it."""
_MOST_ROWS = np.int64(1 << 32)
"""Exclusive upper bound on the rows of a recording."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lifetimes:
    """Hold times and uses of all memory units that a run allocated."""

    held_s: FloatArray
    """Seconds for which a request held each extent of units; extents that were never freed are left out."""
    num_units: IntArray
    """Number of units in each extent in `held_s`."""
    units_by_uses: npt.NDArray[np.int64]
    """Number of units whose content was used by 0, 1, 2, ..., and by 32 or more requests: int64[33]."""

    def quantiles_s(self) -> FloatArray:
        """Return 501 evenly spaced quantiles of the hold time over the units; NaN if there are none."""
        if not len(self.held_s):
            return np.full(len(_QUANTILES), np.nan)
        if self.num_units.min() == self.num_units.max():  # equal weights: `sort` is faster than `argsort`
            held_s = np.sort(self.held_s)
            share = np.arange(1, len(held_s) + 1) / len(held_s)
        else:
            order = np.argsort(self.held_s)
            held_s = self.held_s[order]
            share = np.cumsum(self.num_units[order]) / self.num_units.sum()
        return held_s[np.minimum(np.searchsorted(share, _QUANTILES - 1e-12), len(held_s) - 1)]

    def used_by_at_least(self) -> FloatArray:
        """Return the percent of used units whose content was used by at least 1, 2, ... 32 requests: float64[32]."""
        at_least = np.cumsum(self.units_by_uses[:0:-1])[::-1].astype(np.float64)
        return 100 * at_least / max(float(at_least[0]), 1.0)


def lifetimes_of(replay: Replay) -> Lifetimes:
    """Compute hold times and uses from the block tables of a recording; the replay may be at any frame."""
    tables, recording = replay.ledger.tables, replay.recording
    rows, steps_later, num_units = _pieces(tables, int(replay.frame_seq[-1]))
    steps = recording.steps
    seq = np.concatenate((steps.schedule_seq, steps.output_seq))
    time_s = np.concatenate((steps.start_s, steps.end_s))
    order = np.argsort(seq, kind="stable")
    seq, time_s = seq[order], time_s[order]

    def when(of: IntArray) -> FloatArray:
        return time_s[np.clip(np.searchsorted(seq, of, side="right") - 1, 0, len(seq) - 1)].astype(np.float64)

    extents = tables.at(rows)
    begin_s, grown = when(extents.birth_seq), np.flatnonzero(steps_later)
    born = np.searchsorted(replay.frame_seq, extents.birth_seq[grown]) + steps_later[grown]
    begin_s[grown] = steps.start_s[np.minimum(born, len(steps) - 1)]
    held_s = when(extents.death_seq) - begin_s
    return Lifetimes(held_s=np.maximum(held_s, 0.0), num_units=num_units, units_by_uses=_units_by_uses(replay))


def _pieces(tables: Holdings, end_seq: int) -> tuple[IntArray, IntArray, IntArray]:
    """Divide the extents that were freed up to `end_seq` into pieces whose units were held for about the same time.

    An extent that was allocated step by step has several pieces. Return three arrays with a value for each piece: the
    row of its extent in `tables`, the number of steps from the extent's first allocation to the middle of the piece's
    allocations, and the number of its units.
    """
    if not (tables.repeat > 1).any():
        rows = tables.first_of_series()
        num_units = np.add.reduceat(tables.length, rows, dtype=np.int64) if len(rows) else rows
        freed = tables.at(rows).death_seq <= end_seq
        return rows[freed], np.zeros(int(freed.sum()), np.int32), num_units[freed]
    rows = np.flatnonzero(tables.death_seq <= end_seq)
    repeat, length = tables.repeat[rows], tables.length[rows]
    count = np.minimum(repeat, _MAX_PIECES)
    extent, nth = expanded(count)
    begin, end = nth * repeat[extent] // count[extent], (nth + 1) * repeat[extent] // count[extent]
    return rows[extent], (begin + end - 1) // 2, (length // repeat)[extent] * (end - begin)


def _units_by_uses(replay: Replay) -> npt.NDArray[np.int64]:
    """Count units by the number of requests that used their content: 0, 1, 2, ..., and 32 or more."""
    memory, ledger = replay.recording.memory, replay.ledger
    num_units = np.zeros(_MAX_USES + 1, np.int64)
    written = memory.kind == MemoryKind.APPEND
    num_units[1] = memory.length.sum(where=written, dtype=np.int64)
    if memory.repeat is not None:
        num_units[1] = (memory.length.astype(np.int64) * memory.repeat).sum(where=written)
    if not ledger.is_shared:
        return num_units
    # Group the hits by content: the row that wrote it, and the unit. The writer itself is not a second user, even if it
    # was preempted and hits its own blocks.
    row, address, user = (np.concatenate(parts) for parts in zip(*_uses_of_others(replay), strict=True))
    by_content = np.lexsort((user, address, row))
    row, address, user = row[by_content], address[by_content], user[by_content]
    content = is_new(row) | is_new(address)
    number = np.cumsum(content) - 1
    writer = memory.request[row]
    others = np.bincount(number, weights=(content | is_new(user)) & (user != writer)).astype(np.int64)
    several = np.bincount(np.minimum(1 + others, _MAX_USES), minlength=_MAX_USES + 1)
    num_units += several
    num_units[1] -= several.sum()
    return num_units


def _uses_of_others(replay: Replay) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Yield the prefix hits on units in batches, as three arrays: the row of `memory.parquet` that wrote the content of
    the unit, the address of the unit, and the row of the request that hits it.
    """
    memory, ledger = replay.recording.memory, replay.ledger
    written_in = np.full(ledger.end_of_pool, -1, np.int64)
    is_found = np.zeros(ledger.end_of_pool, np.bool_)
    for part in ledger.allocations():
        kind = memory.kind.take(part.row)
        written = np.flatnonzero(kind == MemoryKind.APPEND)
        hits = np.flatnonzero(kind == MemoryKind.SHARE)
        # Only units that are hit in this batch need to be sorted.
        is_found[part.address[hits]] = True
        chosen = np.flatnonzero(is_found.take(part.address) & (kind != MemoryKind.EVICT))
        is_found[part.address[hits]] = False
        chosen = chosen[np.argsort(part.address[chosen], kind="stable")]
        address, is_here = part.address[chosen].astype(np.int64), kind[chosen] == MemoryKind.APPEND
        row = np.where(is_here, part.row[chosen], written_in[address])
        # The running maximum of each address gives every hit the last row that wrote the unit.
        row = np.maximum.accumulate(address * _MOST_ROWS + row + 1) - address * _MOST_ROWS - 1
        # A prefix from before the recording has no known writer.
        known = ~is_here & (row >= 0)
        yield row[known], address[known], memory.request[part.row[chosen[known]]]
        written_in[part.address[written]] = part.row[written]  # the last write of a unit wins


def lifetimes(*recordings: Recording, names: tuple[str, ...] = (), **look: Unpack[Look]) -> Picture:
    """Draw the cumulative distribution of how long memory is held, and the share of units that several requests use."""
    names = names_for(recordings, names, MOST_LINES)
    lives = [lifetimes_of(replay_of(recording)) for recording in recordings]
    curves_s = [life.quantiles_s() for life in lives]
    medians = [float(curve_s[len(_QUANTILES) // 2]) for curve_s in curves_s]
    shared = [float(life.used_by_at_least()[1]) for life in lives]
    reuse = any(shared)
    with drawn(aspect=0.8 if reuse else 0.55, **look) as picture:
        panels = picture.subplots(2 if reuse else 1, 1, squeeze=False)[:, 0]
        for held_s, name, line in zip(curves_s, names, picture.colors.lines, strict=False):
            panels[0].plot(np.where(held_s > 0, held_s, np.nan), 100 * _QUANTILES, **line, label=name)
        log_axis(panels[0], "x")
        panels[0].set(ylim=(0, 101), yticks=(0, 50, 100), ylabel="% of memory\nallocated")
        panels[0].set_xlabel("held for at most (s)")
        if reuse:
            panels[0].set_title("how long memory is held", loc="left")
            _draw_reuse(panels[1], lives, marker_pt=2 * picture.line_pt)
        picture.align_ylabels(panels)
        picture.headline(_title(names, medians, shared), source_line(recordings))
        picture.add_line_legend(panels[0])
    picture.alt_text = "How long memory is held, and how often its content is used. " + " ".join(
        f"{name}: half of the memory is held for at most {seconds(median)}, "
        f"and {share:.2g}% of it is used by at least two requests."
        for name, median, share in zip(names, medians, shared, strict=True)
    )
    return picture


def _draw_reuse(axes: Axes, lives: Sequence[Lifetimes], *, marker_pt: float) -> None:
    for life, line in zip(lives, figure_colors(axes).lines, strict=False):
        at_least = life.used_by_at_least()
        shown = np.flatnonzero(at_least)
        axes.plot(shown + 1, at_least[shown], **line, marker="o", markersize=marker_pt)
    axes.set(yscale="log", ylim=(None, 150), ylabel="% of memory\nallocated")
    axes.set_xlabel("used by at least this many requests")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.5, max(2, *(int(np.flatnonzero(life.units_by_uses).max(initial=1)) for life in lives)) + 0.5)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("how often its content is used", loc="left")


def _title(names: Sequence[str], medians_s: Sequence[float], shared_percent: Sequence[float]) -> str:
    if len(names) == 1:
        part = f"{shared_percent[0]:.2g}% of it serves" if shared_percent[0] else "none of it serves"
        return f"Half of the memory is freed within {seconds(medians_s[0])}; {part} several requests"
    return f"Half of the memory is freed within {each_named(map(seconds, medians_s), names)}"
