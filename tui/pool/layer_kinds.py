"""Kinds of layers of a model, such as full attention and sliding windows, which have separate blocks in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.kv_groups import CacheKind

from .paint import KIND

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay
    from kvsim.replay.unit_slots import TableGroup

    from .array_types import IndexArray, PaintArray


_PLACES: Final = {
    CacheKind.FULL: (0,),
    CacheKind.MLA: (0,),
    CacheKind.SLIDING_WINDOW: (1, 2),
    CacheKind.CHUNKED_LOCAL: (1, 2),
    CacheKind.MAMBA: (3, 4),
}
"""Offsets from the paint `KIND` that each kind of cache may use."""
_LAST_PLACE: Final = 5
"""Offset from the paint `KIND` for all further kinds of layers, if no offset of their cache in `_PLACES` is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers that keep their keys and values, or their states, in the same way."""

    group: TableGroup
    """Description of the block tables of this kind."""
    numbers: tuple[int, ...]
    """Indices of the KV-cache groups of this kind. A request has one block table per group."""
    place: int
    """Offset from `KIND` of the paint for this kind."""

    @property
    def paint(self) -> int:
        """Paint of the slots that layers of this kind have written."""
        return KIND + self.place

    @property
    def words(self) -> str:
        """Description, such as `full attention` or `sliding window of 1,024, 5 tables`."""
        tables = f", {len(self.numbers)} tables" if len(self.numbers) > 1 else ""
        return group_words(self.group) + tables


def layer_kinds(replay: Replay) -> list[LayerKind]:
    """Return the kinds of layers in the pool of `replay`, in the order: full attention, windows, states, others."""
    specs = [group.spec for group in replay.recording.meta.pool.groups] or [0]
    kinds: list[LayerKind] = []
    for spec in dict.fromkeys(specs):
        alike = tuple(number for number, other in enumerate(specs) if other == spec)
        group = replay.groups[alike[0]]
        taken = {kind.place for kind in kinds}
        place = next((place for place in _PLACES[group.kind] if place not in taken), _LAST_PLACE)
        kinds.append(LayerKind(group=group, numbers=alike, place=place))
    return sorted(kinds, key=lambda kind: kind.place)


def places_of_units(replay: Replay, units: IndexArray) -> PaintArray:
    """Return the `place` of the kind of layers that uses each of `units` now, or used it last."""
    kinds = layer_kinds(replay)
    if len(kinds) == 1:
        return np.full(len(units), kinds[0].place, np.uint8)
    place_of_group = np.zeros(len(replay.groups), np.uint8)
    for kind in kinds:
        place_of_group[list(kind.numbers)] = kind.place
    found: PaintArray = place_of_group[replay.group[units]]
    return found


def group_words(group: TableGroup) -> str:
    """Describe the layers of a KV-cache group, for example `sliding window of 1,024`."""
    kinds = {CacheKind.FULL: "full attention", CacheKind.MLA: "latents", CacheKind.MAMBA: "recurrent state"}
    if group.kind in kinds:
        return kinds[group.kind]
    return f"{'chunk' if group.kind is CacheKind.CHUNKED_LOCAL else 'sliding window'} of {group.window or 0:,}"
