"""Data of a film: the state of every cell and the progress of the run at evenly spaced times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import RecordingError, UsageError
from kvsim.plots.memory_map import mark_fragmentation, sampled_units, shows_owners
from kvsim.plots.sampling import counts_over_time, replay_of, waste_of
from kvsim.plots.words import memory, names_for, number, source_line
from kvsim.recording import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray
    from kvsim.replay import Replay

MAX_REELS = 4
"""Maximum number of recordings in a film; with more, the pools would be too small to see."""
_BEYOND_SHORTEST = 0.25
"""Time that a film continues after the end of the shortest run, as a share of the duration of that run."""
_CELLS = {1: 3200, 2: 1800, 3: 1500, 4: 1200}
"""Cells of a pool, by the number of pools. A pool with up to 1.5 times as many units has a cell for each unit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reel:
    """One recording's pool in every frame of a film."""

    name: str
    about: str
    """Description of the pool: its size, and the number of units per cell."""
    states: npt.NDArray[np.uint8]
    """State of most slots of the unit in each cell, lowest address first: uint8[frames, cells]."""
    owners: npt.NDArray[np.int64]
    """Row of the request that holds the unit in each cell, -1 if none does: int64[frames, cells]."""
    shares_percent: FloatArray
    """Percent of the whole pool in each state, not of the sampled cells: float64[frames, 8]."""
    batch: npt.NDArray[np.int64]
    """Number of sequences scheduled in the current step: int64[frames]."""
    waiting: npt.NDArray[np.int64]
    finished: npt.NDArray[np.int64]
    """Number of requests that have finished: int64[frames]."""
    num_requests: int
    end_s: float
    """End of the run in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Film:
    """One to four pools on one clock."""

    times_s: FloatArray
    """Evenly spaced times of the frames in seconds: float64[frames]."""
    reels: tuple[Reel, ...]
    by_owner: bool
    """True if cells with tokens have the hue of their request. All pools have one value, as they share a legend."""
    preempted: npt.NDArray[np.int64]
    """Indices of the frames at which a request has been preempted since the previous frame; ascending."""
    source: str
    """Origin of the film's recordings, as a sentence."""

    @property
    def alt_text(self) -> str:
        """Description of the film for readers who cannot see it."""
        pools = [
            f"{reel.name}: {reel.about}; on average {reel.shares_percent[:, 0].mean():.3g}% of it holds live tokens."
            for reel in self.reels
        ]
        return f"Film of {len(self.reels)} KV pool(s) over {self.times_s[-1]:.4g} seconds. {' '.join(pools)}"


def film_of(recordings: Sequence[Recording], *, num_frames: int, until_s: float | None = None) -> Film:
    """Sample one to four recordings from time 0 to `until_s`.

    By default, the film ends with the longest run, but at most 25 % of the shortest run's duration after the
    end of that run.

    Raises:
        UsageError: there are none or too many recordings, fewer than 2 frames, or no time to show.
        RecordingError: a recording has no steps, or no time passes in it.
    """
    names = names_for(recordings, (), MAX_REELS)
    if num_frames < 2:
        raise UsageError(f"a film of {num_frames} frames was asked for; it needs at least 2.")
    ends_s = [recording.duration_s for recording in recordings]
    if until_s is None:
        until_s = min(max(ends_s), (1 + _BEYOND_SHORTEST) * min(ends_s))
    if not 0 < until_s < float("inf"):
        if not min(ends_s):
            still = recordings[ends_s.index(min(ends_s))].name
            raise RecordingError(f"recording {still!r} lasts no time, so nothing moves in it.")
        raise UsageError(f"the film should end at a time above 0 s, not at {until_s} s.")
    times_s = np.linspace(0.0, until_s, num_frames)
    num_cells = _num_cells(recordings)
    reels = tuple(
        _reel(recording, name, times_s, min(num_cells, replay_of(recording).num_units))
        for recording, name in zip(recordings, names, strict=True)
    )
    preempted_s = np.concatenate([each.steps.start_s[each.steps.preempted > 0] for each in recordings])
    preempted = np.unique(np.searchsorted(times_s, preempted_s))
    return Film(
        times_s=times_s,
        reels=reels,
        by_owner=all(map(shows_owners, recordings)),
        preempted=preempted[preempted < num_frames],
        source=source_line(recordings),
    )


def _num_cells(recordings: Sequence[Recording]) -> int:
    """Return the number of cells of each pool. It is the same for all pools, so that equal pools look equally large.

    It is the number in `_CELLS`. Pools with up to 1.5 times as many units increase it to their number of units.
    """
    most = _CELLS[len(recordings)]
    sizes = [replay_of(recording).num_units for recording in recordings]
    return max([most, *(num_units for num_units in sizes if 2 * num_units <= 3 * most)])


def _reel(recording: Recording, name: str, times_s: FloatArray, num_cells: int) -> Reel:
    """Sample the pool of a recording, and the progress of its requests, at the times of the frames."""
    replay, slots = replay_of(recording), waste_of(recording)
    units = sampled_units(replay.num_units, num_cells)
    frames = np.array([replay.frame_at(time_s) for time_s in times_s.tolist()])
    states, owners = replay.states_at(frames.tolist(), units, replay.in_gap(frames, times_s))
    slots_then = slots.at(times_s)
    mark_fragmentation(states, slots_then)
    batch, waiting = (_count_at(recording, name, times_s) for name in ("num_scheduled", "waiting"))
    requests = recording.requests
    finished_s = np.sort(requests.finished_s[requests.status == RequestStatus.FINISHED])
    return Reel(
        name=name,
        about=_about(replay, num_cells),
        states=states,
        owners=owners.astype(np.int64),
        shares_percent=100 * slots_then / slots.capacity,
        batch=batch,
        waiting=waiting,
        finished=np.searchsorted(finished_s, times_s, side="right"),
        num_requests=len(requests),
        end_s=recording.duration_s,
    )


def _count_at(recording: Recording, name: str, times_s: FloatArray) -> npt.NDArray[np.int64]:
    """Return `num_scheduled` or `waiting` at each of `times_s`."""
    since_s, counts = counts_over_time(recording, name)
    return np.asarray(counts[np.maximum(np.searchsorted(since_s, times_s, side="right") - 1, 0)], np.int64)


def _about(replay: Replay, num_cells: int) -> str:
    pool = replay.recording.meta.pool
    per_cell = replay.num_units / num_cells
    sampled = f", one of every {number(per_cell)} shown" if per_cell > 1 else ""
    return f"{memory(pool.num_bytes)}, {replay.num_units:,} {pool.units_in_words}{sampled}"
