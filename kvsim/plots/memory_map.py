"""The pool as a picture: address against time, coloured by what the memory there is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import ListedColormap, NoNorm

from kvsim.display.palette import NUM_HUES, channels_of
from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.metrics import waste_shares
from kvsim.plots.sampling import TimeBins
from kvsim.plots.shared import replay_of, waste_of
from kvsim.plots.style import OWNER_COLORS, OWNER_TINTS, STATE_COLORS, Picture, Purpose, Size, style
from kvsim.plots.words import ByteUnit, memory, number, percentages, source_line
from kvsim.replay.unfolding import NO_OWNER

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording import Recording
    from kvsim.recording.tables import IntArray
    from kvsim.replay import Replay

MAX_COLUMNS, MAX_ROWS = 1500, 800


def _colors() -> npt.NDArray[np.uint8]:
    table = np.empty((NUM_STATES, 1 + NUM_HUES, 3), np.uint8)
    table[:] = np.array([channels_of(STATE_COLORS[state]) for state in SlotState], np.uint8)[:, None]
    for state, of_owners in ((SlotState.TOKEN, OWNER_COLORS), (SlotState.RESERVED, OWNER_TINTS)):
        table[state, 1:] = [channels_of(color) for color in of_owners]
    return table.reshape(-1, 3)


COLORS = _colors()
"""Colours of units: for each state that of all such units, then those of units that some request holds, by its hue."""
_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples fill [0, 1) evenly and follow no period, so that no pattern of the pool is mistaken for another."""


def memory_map(recording: Recording, *, purpose: Purpose = "web", size: Size | None = None) -> Picture:
    """Every address of the pool over time; a pixel has the colour of the state that most slots of its unit are in.

    Where that is a token, it has the hue of the request that holds the unit, the same as on the screen, and where it is
    reserved, that hue's tint; in a static batch, whose rows are about padding, states alone.

    A row of pixels follows one unit. Where the pool has more units than the picture has rows, it is one of the units
    that the row stands for, so that each state covers about the area that it should. A column shows the frame in force
    when it begins. Free slots are free here even where no request in the queue could use them.

    Raises:
        RecordingError: the recording has no steps, or no time passes in it.
    """
    replay = replay_of(recording)
    states, owners, bins = pixel_states(replay)
    by_owner = recording.meta.policy_name != "static"
    pool = recording.meta.pool
    num_bytes = replay.num_units * pool.bytes_per_unit
    unit = ByteUnit.for_size(num_bytes)
    shares = waste_shares(waste_of(recording)).pool_percent
    with style(purpose):
        picture = Picture(purpose, size, aspect=0.68)
        axes = picture.subplots()
        axes.imshow(
            codes_of(states, owners if by_owner else None),
            cmap=ListedColormap(COLORS / 255),
            norm=NoNorm(),
            interpolation_stage="data",  # of colours, matplotlib makes four large numbers for each pixel
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(bins.edges_s[0], bins.edges_s[-1], 0, num_bytes / unit.num_bytes),
        )
        axes.set(xlabel="time (s)", ylabel=f"address ({unit.name})")
        axes.grid(visible=False)
        picture.headline(_title(replay, len(states)), source_line([recording]))
        picture.explain((state for state in SlotState if (states == state).any()), hatched=False, by_owner=by_owner)
    picture.alt_text = (
        f"Map of a KV pool of {memory(num_bytes)}, address upwards and {recording.duration_s:.3g} seconds to the "
        f"right. "
        f"On average {percentages(shares)}."
    )
    return picture


def codes_of(states: npt.NDArray[np.uint8], owners: IntArray | None) -> npt.NDArray[np.uint8]:
    """The row of `COLORS` for each unit by its state, and of what a request holds by the request, if it is told."""
    first = states * np.uint8(1 + NUM_HUES)
    if owners is None:
        return first
    hues = np.where(owners == NO_OWNER, 0, 1 + owners % NUM_HUES)
    return first + hues.astype(np.uint8)


def colors_of(states: npt.NDArray[np.uint8], owners: IntArray | None) -> npt.NDArray[np.uint8]:
    """The colour of each unit by its state, and of what a request holds by the request, if told: uint8[..., 3]."""
    return COLORS[codes_of(states, owners)]


def pixel_states(replay: Replay) -> tuple[npt.NDArray[np.uint8], IntArray, TimeBins]:
    """The state and the owner of each pixel, at most 800 rows (the lowest address first) by 1,500 columns, and the
    columns' times.
    """
    num_rows = min(MAX_ROWS, replay.num_units)
    units = sampled_units(replay.num_units, num_rows)
    bins = TimeBins.of(replay.recording, num_bins=MAX_COLUMNS)
    frames, column_of = np.unique(
        np.searchsorted(replay.recording.steps.start_s, bins.edges_s[:-1], side="right") - 1, return_inverse=True
    )
    states, owners = replay.states_at(frames.tolist(), units)
    return states.T[:, column_of], owners.T[:, column_of], bins


def sampled_units(num_units: int, num_rows: int) -> npt.NDArray[np.int64]:
    """One unit of each of `num_rows` equal parts of a pool, at no regular distance; all, where that is as many."""
    row = np.arange(num_rows)
    return ((row + row * _GOLDEN % 1) * (num_units / num_rows)).astype(np.int64)


def _title(replay: Replay, num_rows: int) -> str:
    units = f"{replay.num_units:,} {replay.recording.meta.pool.units_in_words}"
    per_row = replay.num_units / num_rows
    return f"The KV pool over time: {units}" + (f", one of every {number(per_row)} shown" if per_row > 1 else "")
