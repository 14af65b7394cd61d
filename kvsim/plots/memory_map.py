"""Figure of the memory map: the pool by address and time, coloured by state and request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
from matplotlib.colors import ListedColormap, NoNorm

from kvsim.display.palette import NUM_HUES, channels_of
from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.metrics import waste_shares
from kvsim.metrics.names import tells_owners
from kvsim.plots.colors import Colors
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.sampling import TimeBins, replay_of, waste_of
from kvsim.plots.words import ByteUnit, memory, number, percentages, source_line
from kvsim.replay.unfolding import NO_OWNER

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording import Recording
    from kvsim.recording.tables import IntArray
    from kvsim.replay import Replay

MAX_COLUMNS, MAX_ROWS = 1500, 800


def color_table(colors: Colors) -> npt.NDArray[np.uint8]:
    """Return the colours (red, green, blue) of units, by the codes that `codes_of` returns: for each state the colour
    of units without an owner, then one colour for each hue of an owner: uint8[states * (1 + hues), 3].
    """
    table = np.empty((NUM_STATES, 1 + NUM_HUES, 3), np.uint8)
    table[:] = np.array([channels_of(colors.states[state]) for state in SlotState], np.uint8)[:, None]
    table[SlotState.TOKEN, 1:] = [channels_of(color) for color in colors.owners]
    return table.reshape(-1, 3)


_GOLDEN = (5**0.5 - 1) / 2
"""Fractional part of the golden ratio, whose multiples modulo 1 are even and aperiodic, which avoids aliasing."""


def memory_map(recording: Recording, **look: Unpack[Look]) -> Picture:
    """Draw every address of the pool over time, in the colour of the state of most slots of a unit.

    Tokens have the hue of the request that holds the unit. Static batches, and scattered units of more requests than
    there are hues, are drawn by state only.

    Each row of pixels follows one unit; in a larger pool, one unit is sampled from each group of neighbours. A column
    shows the moment at its beginning.
    """
    replay = replay_of(recording)
    states, owners, bins = pixel_states(replay)
    by_owner = shows_owners(recording)
    pool = recording.meta.pool
    num_bytes = replay.num_units * pool.bytes_per_unit
    unit = ByteUnit.for_size(num_bytes)
    shares = waste_shares(waste_of(recording)).pool_percent
    with drawn(aspect=0.68, **look) as picture:
        axes = picture.subplots()
        axes.imshow(
            codes_of(states, owners if by_owner else None),
            cmap=ListedColormap(color_table(picture.colors) / 255),
            norm=NoNorm(),
            interpolation_stage="data",  # interpolating colours would take four floats per pixel
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(bins.edges_s[0], bins.edges_s[-1], 0, num_bytes / unit.num_bytes),
        )
        axes.set(xlabel="time (s)", ylabel=f"address ({unit.name})")
        axes.grid(visible=False)
        picture.headline(_title(replay, len(states)), source_line([recording]))
        picture.add_state_legend(
            (state for state in SlotState if (states == state).any()), hatched=False, by_owner=by_owner
        )
    picture.alt_text = (
        f"Map of a KV pool of {memory(num_bytes)}, address upwards and {recording.duration_s:.3g} seconds to the "
        f"right. "
        f"On average {percentages(shares)}."
    )
    return picture


def shows_owners(recording: Recording) -> bool:
    """Tell whether a picture of the pool has a hue for each request. Static batches have none, to show padding."""
    return recording.meta.policy_name != "static" and tells_owners(recording)


def codes_of(states: npt.NDArray[np.uint8], owners: IntArray | None) -> npt.NDArray[np.uint8]:
    """Return the code of each unit's colour: by its state and, unless `owners` is None, its owner's hue."""
    first = states * np.uint8(1 + NUM_HUES)
    if owners is None:
        return first
    hues = np.where(owners == NO_OWNER, 0, 1 + owners % NUM_HUES)
    return first + hues.astype(np.uint8)


def pixel_states(replay: Replay) -> tuple[npt.NDArray[np.uint8], IntArray, TimeBins]:
    """Return the state and the owner of each pixel, and the times of the columns.

    Both arrays have the shape (rows, columns), with the lowest address first: states as uint8, and owners as rows of
    requests, `NO_OWNER` if no request holds the unit.
    """
    num_rows = min(MAX_ROWS, replay.num_units)
    units = sampled_units(replay.num_units, num_rows)
    bins = TimeBins.of(replay.recording, num_bins=MAX_COLUMNS)
    times_s = bins.edges_s[:-1]
    frames = np.searchsorted(replay.recording.steps.start_s, times_s, side="right") - 1
    after_output = replay.in_gap(frames, times_s)
    _, first, column_of = np.unique(2 * frames + after_output, return_index=True, return_inverse=True)
    states, owners = replay.states_at(frames[first].tolist(), units, after_output[first])
    mark_fragmentation(states, waste_of(replay.recording).at(times_s[first]))
    return states.T[:, column_of], owners.T[:, column_of], bins


def mark_fragmentation(states: npt.NDArray[np.uint8], slots: npt.NDArray[np.int64]) -> None:
    """Change `free` to `external` in the frames whose free slots are too scattered for the head of the queue.

    `states` has the shape (frames, units); `slots` counts the slots of the pool in each state: (frames, states).
    """
    fragmented = (slots[:, SlotState.FREE] == 0) & (slots[:, SlotState.EXTERNAL] > 0)
    states[(states == SlotState.FREE) & fragmented[:, None]] = SlotState.EXTERNAL


def sampled_units(num_units: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Sample one unit, at irregular distances, from each of `num_rows` equal parts of a pool."""
    row = np.arange(num_rows)
    return ((row + row * _GOLDEN % 1) * (num_units / num_rows)).astype(np.int64)


def _title(replay: Replay, num_rows: int) -> str:
    units = f"{replay.num_units:,} {replay.recording.meta.pool.units_in_words}"
    per_row = replay.num_units / num_rows
    return f"The KV pool over time: {units}" + (f", one of every {number(per_row)} shown" if per_row > 1 else "")
