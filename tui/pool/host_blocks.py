"""Map of host memory for KV offloading: the owner of the block in each slot, and blocks in transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.display.palette import NUM_HUES
from kvsim.memory.waste import SlotState
from kvsim.replay.unfolding import NO_OWNER

from .brush import GLYPH, half_keys, keys_of
from .paint import EMPTY, KEPT, UnitChange

if TYPE_CHECKING:
    from kvsim.replay.host_memory import HostMemory, HostSlots

    from ..playback.session import Session
    from .array_types import KeyArray, PaintArray

GOING: Final = int(UnitChange.TAKEN)
"""Paint of a slot to which a block is being copied."""
COMING: Final = int(UnitChange.HIT)
"""Paint of a slot whose block is being copied back."""
OVERWRITTEN: Final = int(UnitChange.EVICTED)
"""Paint of a slot whose block has just been overwritten."""


_TRANSFERS: Final = ((GOING, "going there"), (COMING, "coming back"), (OVERWRITTEN, "gave way"))
"""Paints, and their meanings."""
_KEPT_SHOWN: Final = 6
"""Largest number of colours of kept copies in the legend of host memory."""


def title_of(host: HostMemory, frame: int) -> str:
    """Return the title: the used slots of host memory, and the blocks in transfer."""
    return titles_of(host, frame)[0]


def titles_of(host: HostMemory, frame: int) -> tuple[str, ...]:
    """Return the title, and then shorter titles for narrow places. The transfers are in every title."""
    going, coming = int(host.going[frame]), int(host.coming[frame])
    crossing = f", {going:,} going there" * (going > 0) + f", {coming:,} coming back" * (coming > 0)
    full = f"{int(host.used[frame]):,} of {host.num_slots:,}"
    return f"host memory: {full} blocks{crossing}", f"host memory: {full}{crossing}", f"host: {full}{crossing}"


def slots_per_cell(num_slots: int, num_cells: int) -> int:
    """Return the smallest number of slots per cell with which all slots fit into `num_cells` cells."""
    return max(-(-num_slots // max(num_cells, 1)), 1)


def map_keys(host: HostMemory, frame: int, width: int, height: int, *, half_blocks: bool) -> KeyArray:
    """Return the keys of `height` lines of `width` characters: the slots in order, the same number in each cell.

    With `half_blocks`, a character shows two cells, one above the other. A cell of several slots has the colour of its
    most important slot: a block that is loaded, then one that was overwritten, one that is stored, one that is kept.
    """
    rows = height * (2 if half_blocks else 1)
    paints = _cells(_paints(host.slots_at(frame)), rows * width).reshape(rows, width)
    return half_keys(paints) if half_blocks else keys_of(GLYPH, paints, EMPTY)


def legend_now(session: Session) -> list[tuple[list[int], str]]:
    """Return the paints that the map shows at the current frame, and their meanings; empty without host memory.

    Owners of kept copies are named if they are few and have different hues.
    """
    if session.host is None:
        return []
    slots = session.host.slots_at(session.replay.frame)
    paints = _paints(slots)
    present = set(paints.tolist())
    found = [([paint], words) for paint, words in _TRANSFERS if paint in present]
    kept, owners = sorted(paint for paint in present if paint >= KEPT), np.unique(slots.owner[paints >= KEPT]).tolist()
    if not kept:
        return found
    if len(owners) > min(len(kept), _KEPT_SHOWN):
        return [*found, (kept[:_KEPT_SHOWN], "kept, by owner")]
    named = [([KEPT + owner % NUM_HUES], session.request_name(owner)) for owner in owners]
    return [*found, *named[:-1], (named[-1][0], f"{named[-1][1]} kept")]


def _paints(slots: HostSlots) -> PaintArray:
    paints = np.where(slots.owner == NO_OWNER, int(SlotState.FREE), KEPT + slots.owner % NUM_HUES)
    for mask, paint in ((slots.is_going, GOING), (slots.is_overwritten, OVERWRITTEN), (slots.is_coming, COMING)):
        paints[mask] = paint
    return paints.astype(np.uint8)


def _cells(paints: PaintArray, num_cells: int) -> PaintArray:
    """Return the paint of each cell: that of its most important slot, the last one if several are equal."""
    together = slots_per_cell(len(paints), num_cells)
    rank = np.full(256, 0, np.uint16)
    for order, paint in enumerate((EMPTY, int(SlotState.FREE))):
        rank[paint] = order
    rank[KEPT : KEPT + NUM_HUES] = 2
    for order, paint in enumerate((GOING, OVERWRITTEN, COMING), start=3):
        rank[paint] = order
    padded = np.full(num_cells * together, EMPTY, np.uint8)
    padded[: len(paints)] = paints
    grouped = padded.reshape(num_cells, together)
    # `argmax` finds the first maximum, so the reversed slots give the last.
    chosen = together - 1 - rank[grouped][:, ::-1].argmax(axis=1)
    return np.asarray(grouped[np.arange(num_cells), chosen])
