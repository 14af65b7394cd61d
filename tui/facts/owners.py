"""Requests by the memory that they hold; requests that share blocks are one group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kvsim.memory.waste import SlotState

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..playback.session import Session

Slots: TypeAlias = "npt.NDArray[np.int64]"
"""Slots by state, in the order of `SlotState`."""
Units: TypeAlias = "npt.NDArray[np.integer[Any]]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Owner:
    """One request that holds memory."""

    request: int
    num_units: int
    """Units of its tables, shared ones included."""
    num_shared: int
    """Units that others hold as well."""
    slots: Slots
    """Slots of the units that it alone holds."""

    @property
    def num_tokens(self) -> int:
        """Written tokens in the units that it alone holds."""
        return int(self.slots[SlotState.TOKEN])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnerGroup:
    """One request, or requests that share units, largest first: one shape in the picture."""

    owners: tuple[Owner, ...]
    num_shared: int
    """Units with several holders; each is counted once."""
    shared: Slots
    """Slots of the shared units."""

    @property
    def size(self) -> int:
        """Slots of all its units; each unit is counted once."""
        return int(self.shared.sum() + sum(owner.slots.sum() for owner in self.owners))

    @property
    def num_tokens(self) -> int:
        """Written tokens in all its units; each unit is counted once."""
        return int(self.shared[SlotState.TOKEN]) + sum(owner.num_tokens for owner in self.owners)


def holdings(session: Session) -> list[OwnerGroup]:
    """Return what is held at the current frame, the one with most tokens first."""
    tables: dict[int, Units] = {
        int(request): np.unique(session.replay.block_table(int(request))[1]) - session.replay.first_unit
        for request in session.replay.live_requests()
    }
    groups = _sharing(session, tables)
    found = [_holding(session, {request: tables[request] for request in group}) for group in groups]
    return sorted((one for one in found if one.owners), key=lambda one: (-one.num_tokens, -one.size))


def _sharing(session: Session, tables: dict[int, Units]) -> list[list[int]]:
    """Return the requests in groups: two are in one group if they hold a unit together."""
    refs = session.replay.refs
    group_of: dict[int, int] = {}
    """The first unit of a group, by shared unit."""
    members: dict[int, list[int]] = {}
    for request, units in tables.items():
        shared = units[refs[units] > 1].tolist()
        met = {group_of[unit] for unit in shared if unit in group_of}
        into = min(met) if met else shared[0] if shared else -1 - request
        for other in met - {into}:
            members[into] += members.pop(other)
            group_of.update((unit, into) for unit, group in group_of.items() if group == other)
        group_of.update((unit, into) for unit in shared)
        members.setdefault(into, []).append(request)
    return list(members.values())


def _holding(session: Session, tables: dict[int, Units]) -> OwnerGroup:
    refs = session.replay.refs
    owners = [
        Owner(
            request=request,
            num_units=len(units),
            num_shared=int((refs[units] > 1).sum()),
            slots=session.replay.slots(units[refs[units] <= 1]).sum(axis=0),
        )
        for request, units in tables.items()
        if len(units)
    ]
    together = np.unique(np.concatenate([units[refs[units] > 1] for units in tables.values()]))
    return OwnerGroup(
        owners=tuple(sorted(owners, key=lambda owner: -owner.num_tokens)),
        num_shared=len(together),
        shared=session.replay.slots(together).sum(axis=0) if len(together) else np.zeros(len(SlotState), np.int64),
    )
