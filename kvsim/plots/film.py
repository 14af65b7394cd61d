"""The pool as a film: at even moments, the state of every cell and what the run was doing. Nothing is drawn here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import RecordingError, UsageError
from kvsim.plots.memory_map import sampled_units
from kvsim.plots.shared import replay_of, waste_of
from kvsim.plots.words import memory, names_for, number, source_line
from kvsim.recording import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray
    from kvsim.replay import Replay

MAX_REELS = 3
"""Side by side on one clock; a fourth would be too small to see."""
_BEYOND_SHORTEST = 0.25
"""Share of the shortest run: long enough to see that it has ended and that others go on."""
_CELLS = {1: 3200, 2: 1800, 3: 1500}
"""Cells of each pool, by how many pools share the width; a pool of up to half as many units again is shown whole."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reel:
    """One recording's pool at every moment of a film."""

    name: str
    about: str
    """The pool in words: its size, and what a cell stands for."""
    states: npt.NDArray[np.uint8]
    """The state that most slots of each cell's unit are in, lowest address first: uint8[frames, cells]."""
    owners: npt.NDArray[np.int64]
    """The request that holds each cell's unit, by its row, -1 where none does: int64[frames, cells]."""
    by_owner: bool
    """Whether tokens have a hue for each request; a static batch, which is about padding, shows states alone."""
    shares_percent: FloatArray
    """Percent of the whole pool in each state, exactly, not of the cells shown: float64[frames, 8]."""
    batch: npt.NDArray[np.int64]
    """Sequences scheduled in the step in force: int64[frames]."""
    waiting: npt.NDArray[np.int64]
    finished: npt.NDArray[np.int64]
    """Requests that have finished by then: int64[frames]."""
    num_requests: int
    end_s: float
    """Time at which the run itself ends, in seconds; a shorter run stands still afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Film:
    """One to three pools on one clock."""

    times_s: FloatArray
    """float64[frames], evenly spaced."""
    reels: tuple[Reel, ...]
    source: str
    """The source of the film, as a sentence."""

    @property
    def alt_text(self) -> str:
        """What it shows, in words."""
        said = [
            f"{reel.name}: {reel.about}; on average {reel.shares_percent[:, 0].mean():.3g}% of it holds live tokens."
            for reel in self.reels
        ]
        return f"Film of {len(self.reels)} KV pool(s) over {self.times_s[-1]:.4g} seconds. {' '.join(said)}"


def film_of(recordings: Sequence[Recording], *, num_frames: int, until_s: float | None = None) -> Film:
    """The film of one to three recordings, from time 0 to `until_s`.

    By default it ends with the longest run, or, where that would leave the shortest a flicker at its beginning, a
    quarter beyond the shortest run's end.

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
    reels = tuple(
        _reel(recording, name, times_s, _CELLS[len(recordings)])
        for recording, name in zip(recordings, names, strict=True)
    )
    return Film(times_s=times_s, reels=reels, source=source_line(recordings))


def _reel(recording: Recording, name: str, times_s: FloatArray, max_cells: int) -> Reel:
    replay, slots = replay_of(recording), waste_of(recording)
    num_cells = replay.num_units if 2 * replay.num_units <= 3 * max_cells else max_cells
    units = sampled_units(replay.num_units, num_cells)
    frames = np.array([replay.frame_at(time_s) for time_s in times_s.tolist()])
    states, owners = replay.states_at(frames.tolist(), units)
    steps, requests = recording.steps, recording.requests
    finished_s = np.sort(requests.finished_s[requests.status == RequestStatus.FINISHED])
    return Reel(
        name=name,
        about=_about(replay, num_cells),
        states=states,
        owners=owners.astype(np.int64),
        by_owner=recording.meta.policy_name != "static",
        shares_percent=100 * slots.slots[frames] / slots.capacity,
        batch=np.append(steps.num_scheduled, 0)[frames].astype(np.int64),
        waiting=np.append(steps.waiting, 0)[frames].astype(np.int64),
        finished=np.searchsorted(finished_s, times_s, side="right"),
        num_requests=len(requests),
        end_s=recording.duration_s,
    )


def _about(replay: Replay, num_cells: int) -> str:
    pool = replay.recording.meta.pool
    unit = pool.units_in_words
    per_cell = replay.num_units / num_cells
    sampled = f", one of every {number(per_cell)} shown" if per_cell > 1 else ""
    return f"{memory(replay.num_units * pool.bytes_per_unit)}, {replay.num_units:,} {unit}{sampled}"
