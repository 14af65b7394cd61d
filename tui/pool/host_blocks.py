"""Map of host memory for KV offloading: the owner of each host block, and the blocks that are being copied."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.display.palette import NUM_HUES
from kvsim.memory.waste import SlotState
from kvsim.replay.unfolding import NO_OWNER

from .brush import GLYPH, half_keys, keys_of
from .paint import EMPTY, KEPT, LOADING_HUED, OWNER, UnitChange

if TYPE_CHECKING:
    from kvsim.replay.host_memory import BoolArray, HostSlots

    from ..playback.session import Session
    from .array_types import KeyArray, PaintArray

STORING: Final = int(UnitChange.TAKEN)
"""Paint of a host block that GPU blocks are being copied to, for maps without colours."""
LOADING: Final = int(UnitChange.HIT)
"""Paint of a host block that is being copied back to the GPU, for maps without colours."""
OVERWRITTEN: Final = int(UnitChange.EVICTED)
"""Paint of a host block whose previous content was evicted in this step."""
_MOST_OWNERS_NAMED: Final = 6


class HostBlockState(Enum):
    """Conditions of a host block. The legend shows the value after the name of the block's owner."""

    KEPT = "kept"
    STORING = "going there"
    LOADING = "coming back"
    OVERWRITTEN = "gave way"


def title_of(session: Session) -> str:
    """Return the title of the map: the number of blocks in host memory, and of those being copied in each direction."""
    return titles_of(session)[0]


def titles_of(session: Session) -> tuple[str, ...]:
    """Return the title of the map, then shorter forms for narrow places."""
    host, replay = session.host, session.replay
    assert host is not None
    going, coming = host.copying_at(replay.frame, after_output=replay.after_output)
    crossing = f", {going:,} going there" * (going > 0) + f", {coming:,} coming back" * (coming > 0)
    there = f"{int(host.used[replay.frame]) - going:,} of {host.num_slots:,}"
    return (
        f"host memory: {there} blocks are there{crossing}",
        f"host memory: {there} there{crossing}",
        f"host: {there} there{crossing}",
        f"host: {there}{crossing}",
    )


def slots_now(session: Session) -> HostSlots | None:
    """Return the contents of host memory at the current frame, after its output if the replay is in the gap after it;
    None without host memory.
    """
    host, replay = session.host, session.replay
    return None if host is None else host.slots_at(replay.frame, after_output=replay.after_output)


def slots_per_cell(num_slots: int, num_cells: int) -> int:
    """Return the smallest number of host blocks per cell with which `num_slots` blocks fit into `num_cells` cells."""
    return max(-(-num_slots // max(num_cells, 1)), 1)


def map_keys(slots: HostSlots, width: int, height: int, *, half_blocks: bool) -> KeyArray:
    """Return the character keys of a map of `height` lines of `width` characters, with the host blocks in order.

    With `half_blocks`, a character shows two cells in colours, one above the other. A cell of several host blocks shows
    the most important condition among its blocks: loaded, then overwritten, stored, kept.
    """
    rows = height * (2 if half_blocks else 1)
    paints = _cells(_paints(slots, hued=half_blocks), rows * width).reshape(rows, width)
    return half_keys(paints) if half_blocks else keys_of(GLYPH, paints, EMPTY)


def owners_of(session: Session, which: HostBlockState) -> list[str]:
    """Return the ids of the requests with host blocks in condition `which` at the current frame."""
    slots = slots_now(session)
    if slots is None:
        return []
    owners = np.unique(slots.owner[_masks(slots)[which]]).tolist()
    return [session.request_name(owner) for owner in owners]


def legend_now(session: Session, *, hued: bool) -> list[tuple[list[int], str]]:
    """Return the paints in the map at the current frame, each with its meaning. Empty without host memory.

    Up to 6 owners are named. `hued` is true for maps in colours.
    """
    slots = slots_now(session)
    if slots is None:
        return []
    paints, found = _paints(slots, hued=hued), list[tuple[list[int], str]]()
    for which, mask in _masks(slots).items():
        owners = np.unique(slots.owner[mask]).tolist()
        if not owners:
            continue
        shown = dict(zip(slots.owner[mask].tolist(), paints[mask].tolist(), strict=True))
        if len(owners) > _MOST_OWNERS_NAMED:
            found.append((sorted(set(shown.values()))[:_MOST_OWNERS_NAMED], f"{which.value}, by owner"))
        elif len(set(shown.values())) < len(owners):
            found.append((sorted(set(shown.values())), which.value))
        else:
            found += [([shown[owner]], f"{session.request_name(owner)} {which.value}") for owner in owners]
    return found


def _masks(slots: HostSlots) -> dict[HostBlockState, BoolArray]:
    used = slots.owner != NO_OWNER
    coming = used & slots.is_loading
    overwritten = used & slots.is_overwritten & ~coming
    going = used & slots.is_storing & ~coming & ~overwritten
    kept = used & ~coming & ~overwritten & ~going
    return {
        HostBlockState.KEPT: kept,
        HostBlockState.STORING: going,
        HostBlockState.LOADING: coming,
        HostBlockState.OVERWRITTEN: overwritten,
    }


def _paints(slots: HostSlots, *, hued: bool) -> PaintArray:
    """Return the paint of each host block: the hue of its owner, darker during a store.

    Loaded and overwritten blocks have paints of their own.
    """
    masks, hue = _masks(slots), slots.owner % NUM_HUES
    paints = np.where(slots.owner == NO_OWNER, int(SlotState.FREE), OWNER + hue)
    paints = np.where(masks[HostBlockState.STORING], KEPT + hue if hued else STORING, paints)
    for which, paint in (
        (HostBlockState.LOADING, LOADING_HUED if hued else LOADING),
        (HostBlockState.OVERWRITTEN, OVERWRITTEN),
    ):
        paints[masks[which]] = paint
    return paints.astype(np.uint8)


def _cells(paints: PaintArray, num_cells: int) -> PaintArray:
    """Return the paint of each cell: that of its most important host block, and of the last of equals."""
    together = slots_per_cell(len(paints), num_cells)
    rank = np.full(256, 0, np.uint16)
    for order, paint in enumerate((EMPTY, int(SlotState.FREE))):
        rank[paint] = order
    rank[OWNER : OWNER + NUM_HUES] = 2
    rank[KEPT : KEPT + NUM_HUES] = 3
    for order, paint in enumerate((STORING, OVERWRITTEN, LOADING, LOADING_HUED), start=3):
        rank[paint] = order
    padded = np.full(num_cells * together, EMPTY, np.uint8)
    padded[: len(paints)] = paints
    grouped = padded.reshape(num_cells, together)
    # `argmax` finds the first maximum, so the reversed slots give the last.
    chosen = together - 1 - rank[grouped][:, ::-1].argmax(axis=1)
    return np.asarray(grouped[np.arange(num_cells), chosen])
