"""Memory by owner: the requests that hold memory, in groups of requests that share blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kvsim.memory.waste import SlotState

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..playback.session import Session

Slots: TypeAlias = "npt.NDArray[np.int64]"
"""Number of slots in each state, in the order of `SlotState`."""
Units: TypeAlias = "npt.NDArray[np.integer[Any]]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Owner:
    """A request that holds memory."""

    request: int
    num_units: int
    """Number of units in the request's block tables, including shared units."""
    num_shared: int
    """Number of these units that other requests hold as well."""
    slots: Slots
    """Slots of the units that no other request holds."""

    @property
    def num_tokens(self) -> int:
        """Number of written tokens in the units that no other request holds."""
        return int(self.slots[SlotState.TOKEN])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnerGroup:
    """Requests that share units, or a single request that shares none. A picture draws a group as one shape."""

    owners: tuple[Owner, ...]
    """The requests, the one with the most tokens of its own first."""
    num_shared: int
    """Number of units with several holders; each is counted once."""
    shared: Slots
    """Slots of the shared units."""

    @property
    def size(self) -> int:
        """Number of slots of the group; each unit is counted once."""
        return int(self.shared.sum() + sum(owner.slots.sum() for owner in self.owners))

    @property
    def num_tokens(self) -> int:
        """Number of written tokens of the group; each unit is counted once."""
        return int(self.shared[SlotState.TOKEN]) + sum(owner.num_tokens for owner in self.owners)


def holdings(session: Session) -> list[OwnerGroup]:
    """Return the groups that hold memory at the current frame, the group with the most tokens first."""
    tables: dict[int, Units] = {
        int(request): np.unique(session.replay.block_table(int(request))[1]) - session.replay.first_unit
        for request in session.replay.live_requests()
    }
    groups = _sharing(session, tables)
    found = [_owner_group(session, {request: tables[request] for request in group}) for group in groups]
    return sorted((group for group in found if group.owners), key=lambda group: (-group.num_tokens, -group.size))


def _sharing(session: Session, tables: dict[int, Units]) -> list[list[int]]:
    """Return the requests in groups: requests that share a unit, directly or through others, are in one group."""
    refs = session.replay.refs
    # The key of a group is one of its shared units, or a negative number for a request alone.
    group_of: dict[int, int] = {}  # key of the group of each shared unit
    members: dict[int, list[int]] = {}  # requests of each group
    for request, units in tables.items():
        shared = units[refs[units] > 1].tolist()
        joined = {group_of[unit] for unit in shared if unit in group_of}
        key = min(joined) if joined else shared[0] if shared else -1 - request
        for other in joined - {key}:  # this request connects groups that were separate so far
            members[key] += members.pop(other)
            group_of.update((unit, key) for unit, group in group_of.items() if group == other)
        group_of.update((unit, key) for unit in shared)
        members.setdefault(key, []).append(request)
    return list(members.values())


def _owner_group(session: Session, tables: dict[int, Units]) -> OwnerGroup:
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
    shared = np.unique(np.concatenate([units[refs[units] > 1] for units in tables.values()]))
    return OwnerGroup(
        owners=tuple(sorted(owners, key=lambda owner: -owner.num_tokens)),
        num_shared=len(shared),
        shared=session.replay.slots(shared).sum(axis=0) if len(shared) else np.zeros(len(SlotState), np.int64),
    )
