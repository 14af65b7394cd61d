"""All kinds of figures, and the choice of those that suit given recordings, for `kvsim plot --all` and reports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvsim.display.text import file_stem
from kvsim.errors import UnknownNameError, UsageError
from kvsim.plots.agreement import agreement
from kvsim.plots.colors import MOST_LINES, Theme
from kvsim.plots.comparisons import RunPoint, hits_capacity, throughput_block_size, throughput_memory
from kvsim.plots.free_extents import free_extents
from kvsim.plots.ladder_gains import is_ladder, ladder
from kvsim.plots.latency import latency
from kvsim.plots.lifetimes import lifetimes
from kvsim.plots.memory_map import memory_map
from kvsim.plots.occupancy import occupancy
from kvsim.plots.queue import queue
from kvsim.plots.roofline_plot import roofline
from kvsim.plots.sessions_over_time import sessions
from kvsim.plots.waste_bars import waste_bars
from kvsim.plots.waste_over_time import waste_over_time
from kvsim.plots.words import distinct_names, policy_label
from kvsim.setting_fields import check_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.plots.picture import Picture
    from kvsim.plots.style import Purpose
    from kvsim.recording import Recording

OF_SEVERAL: dict[str, Callable[..., Picture]] = {
    "waste-bars": waste_bars,
    "occupancy": occupancy,
    "queue": queue,
    "latency": latency,
    "lifetimes": lifetimes,
    "free-runs": free_extents,
}
"""Figures that compare recordings, or show a single one."""

OF_ONE: dict[str, Callable[..., Picture]] = {
    "waste-over-time": waste_over_time,
    "memory-map": memory_map,
    "roofline": roofline,
}
"""Figures that show exactly one recording."""

OF_A_SWEEP: dict[str, Callable[..., Picture]] = {
    "throughput-memory": throughput_memory,
    "throughput-block-size": throughput_block_size,
    "hits-capacity": hits_capacity,
}
"""Figures in which each recording, or each row of a table, is one point."""

OF_SESSIONS: dict[str, Callable[..., Picture]] = {"sessions": sessions}
"""Figures that show one recording of multi-turn sessions."""

OF_A_PAIR: dict[str, Callable[..., Picture]] = {"agreement": agreement}
"""Figures that compare a measured run with its simulation."""

FIGURES = OF_SEVERAL | {"ladder": ladder} | OF_ONE | OF_SESSIONS | OF_A_SWEEP | OF_A_PAIR
"""Functions that draw figures, by name on the command line."""


def figure_of(kind: str, runs: Sequence[Recording], *, purpose: Purpose = "web", theme: Theme = "light") -> Picture:
    """Draw the figure of `kind` from `runs`.

    Raises:
        UnknownNameError: there is no such kind.
        UsageError: the kind does not fit the number of runs.
        RecordingError: a run lacks the data for it.
    """
    for name, value in (("kind", kind), ("purpose", purpose), ("theme", theme)):
        check_instance(f"the {name} of a figure", value, str, "a text")
    check_kind(kind, len(runs))
    points = [RunPoint.of(run) for run in runs] if kind in OF_A_SWEEP else runs
    return FIGURES[kind](*points, purpose=purpose, theme=theme)


def check_kind(kind: str, num_runs: int) -> None:
    """Check that `kind` exists and can show `num_runs` runs; otherwise raise UnknownNameError or UsageError."""
    if kind not in FIGURES:
        raise UnknownNameError("kind of figure", kind, FIGURES, listed_by="kvsim plot --help")
    if not num_runs:
        raise UsageError(
            f"a figure of {kind} needs at least one recording; kvsim info lists those that come with kvsim."
        )
    if kind in OF_ONE | OF_SESSIONS and num_runs > 1:
        raise UsageError(f"a figure of {kind} shows one recording, and {num_runs} were given.")
    if kind in OF_A_PAIR and num_runs != 2:
        raise UsageError(f"a figure of {kind} shows a measured run and its simulation, and {num_runs} were given.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A figure to be drawn, and the recordings that it shows."""

    kind: str
    """A key of `FIGURES`."""
    rows: tuple[int, ...]
    """Indices of the recordings that the figure shows, among those given to `plans`."""
    file_stem: str
    """Name of the figure's file: the kind, and the recording's name if the figure does not show all recordings."""
    draw: Callable[..., Picture]
    """Function that draws the figure; it takes `purpose`, `size` and `theme`."""


def plans(recordings: Sequence[Recording]) -> list[Plan]:
    """Choose the figures that suit `recordings`: comparisons of all, and figures of each.

    Further figures are chosen for recordings of multi-turn sessions, for runs of one policy with different pools or
    block sizes, for runs of `kvsim compare --ladder`, and for one measured run beside one simulation.
    """
    everyone = tuple(range(len(recordings)))
    compared = [everyone] if len(recordings) <= MOST_LINES else [(row,) for row in everyone]
    chosen = [(kind, rows) for kind in OF_SEVERAL for rows in ([everyone] if kind == "waste-bars" else compared)]
    chosen += [(kind, (row,)) for kind in OF_ONE for row in everyone]
    chosen += [("sessions", (row,)) for row in everyone if recordings[row].requests.turns is not None]
    pools = [recording.meta.pool for recording in recordings]
    if _varies(recordings, [(pool.num_units or 0) * pool.bytes_per_unit for pool in pools]):
        chosen.append(("throughput-memory", everyone))
        if any(recording.requests.cached_tokens.any() for recording in recordings):
            chosen.append(("hits-capacity", everyone))
    if _varies(recordings, [pool.unit_tokens for pool in pools]):
        chosen.append(("throughput-block-size", everyone))
    if is_ladder(recordings):
        chosen.append(("ladder", everyone))
    simulated = [recording.meta.source == "simulation" for recording in recordings]
    if sorted(simulated) == [False, True]:
        chosen.append(("agreement", (simulated.index(False), simulated.index(True))))

    names = distinct_names(recordings)
    stems = [file_stem(name) for name in names]
    return [
        Plan(
            kind=kind,
            rows=rows,
            file_stem=f"{kind}-{stems[rows[0]]}" if len(rows) < len(recordings) else kind,
            draw=partial(FIGURES[kind], *(recordings[row] for row in rows)),
        )
        for kind, rows in chosen
    ]


def _varies(recordings: Sequence[Recording], values: Sequence[int]) -> bool:
    """Tell whether runs with the same policy differ in `values`, as in a sweep."""
    labels = [policy_label(recording.meta.policy) for recording in recordings]
    return len(set(zip(labels, values, strict=True))) > len(set(labels))
