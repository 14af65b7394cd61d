"""Memory by owner: the requests that hold memory, in groups of requests that share blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.replay.unfolding import NO_OWNER

from ..look.wording import percent, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..playback.session import Session

Slots: TypeAlias = "npt.NDArray[np.int64]"
"""Number of slots in each state, in the order of `SlotState`."""
Units: TypeAlias = "npt.NDArray[np.integer[Any]]"
_MOST_GROUPS: Final = 12
"""Largest number of groups whose sizes are listed."""


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


def owners_line(session: Session, found: Sequence[OwnerGroup], width: int, dot: str) -> str:
    """Describe the held memory in one line: requests, the largest one, the units saved by sharing, the free share.

    If the line exceeds `width`, texts are shortened or left out.
    """
    unit, owners = session.unit_name, _owners(found)
    shared, saved = _shared_and_saved(found)
    held = shared + sum(owner.num_units - owner.num_shared for owner in owners)
    free, cached = (int(session.breakdown[state]) for state in (SlotState.FREE, SlotState.CACHED))
    most = _most_words(session, owners)
    requests, or_cached = _requests_hold(owners), " or cached" * session.recording.meta.prefix_caching
    begin, free_words = f"{requests} {plural(held, unit)}", f"{percent(free, session.capacity)} free"
    long = (
        begin,
        most,
        f"{plural(shared, f'shared {unit}')} save {saved:,}" if shared else "nothing is shared",
        f"{percent(free + cached, session.capacity)} free{or_cached}",
    )
    # What is left out is said elsewhere on the screen.
    less = (begin, most, free_words) if shared else (begin, most.replace(" tokens", ""), "nothing shared", free_words)
    return _first_that_fits((long, less, (begin, most), (begin,)), width, dot)


def scatter_lines(session: Session, found: Sequence[OwnerGroup], width: int, dot: str, *, num_lines: int) -> list[str]:
    """Describe the held memory for the pool in physical order: its pieces, the largest request, and sharing.

    The last of two lines is about sharing alone; it is there only if requests share units.
    """
    owners = _owners(found)
    shared, saved = _shared_and_saved(found)
    most = _most_words(session, owners)
    requests, pieces = plural(len(owners), "request"), plural(_num_pieces(session.replay.owner), "piece")
    units = plural(shared + sum(owner.num_units - owner.num_shared for owner in owners), session.unit_name)
    groups = f"{plural(len([group for group in found if group.num_shared]), 'group')} share" if shared else ""
    sharing = groups or "nothing shared"
    in_short = most.replace(" tokens", "")
    texts = (
        (f"{_requests_hold(owners)} {units} in {pieces}", most, sharing),
        (f"{requests} in {pieces}", most, sharing),
        (f"{requests} in {pieces}", in_short, sharing),
        (f"{requests}, {pieces}", in_short),
        (f"{requests}, {pieces}",),
    )
    lines = [_first_that_fits(texts, width, dot)]
    if shared and num_lines > 1:
        saves = f", which saves {plural(saved, session.unit_name)}"
        lines.append(_first_that_fits(((_group_words(found) + saves,), (_group_words(found),), (groups,)), width, dot))
    return lines


def _requests_hold(owners: Sequence[Owner]) -> str:
    return f"{plural(len(owners), 'request')} hold{'s' * (len(owners) == 1)}"


def _most_words(session: Session, owners: Sequence[Owner]) -> str:
    """Describe the request with the most tokens of its own; empty without requests."""
    largest = max(owners, key=lambda owner: owner.num_tokens, default=None)
    if largest is None:
        return ""
    words = f"most {session.request_name(largest.request)}: {largest.num_tokens:,} tokens"
    return words + f" + {largest.num_shared * session.replay.unit_tokens:,} shared" * (largest.num_shared > 0)


def _owners(found: Sequence[OwnerGroup]) -> list[Owner]:
    return [owner for group in found for owner in group.owners]


def _shared_and_saved(found: Sequence[OwnerGroup]) -> tuple[int, int]:
    """Return the number of units with several holders, and the number of units that would be needed in addition."""
    shared = sum(group.num_shared for group in found)
    return shared, sum(owner.num_shared for owner in _owners(found)) - shared


def _num_pieces(owner: Units) -> int:
    """Count the runs of neighbouring units with one owner; `owner` is the owner of each unit, or `NO_OWNER`."""
    begins = np.append(True, owner[1:] != owner[:-1])
    return int((begins & (owner != NO_OWNER)).sum())


def _first_that_fits(texts: Sequence[Sequence[str]], width: int, dot: str) -> str:
    """Return the first of `texts`, each given in parts, that has at most `width` characters; else the last one."""
    lines = [f" {dot} ".join(filter(None, parts)) for parts in texts]
    return next((line for line in lines if len(line) <= width), lines[-1])


def _group_words(found: Sequence[OwnerGroup]) -> str:
    """Describe the groups that share units: `13, 9 and 7 requests share 512 tokens each`, `20 groups of up to 13`."""
    sizes = sorted((len(group.owners) for group in found if group.num_shared), reverse=True)
    tokens = {int(group.shared[SlotState.TOKEN]) for group in found if group.num_shared}
    amount = f"{tokens.pop():,} tokens" if len(tokens) == 1 else "blocks"
    if len(sizes) == 1:
        return f"{sizes[0]:,} requests share {amount}"
    if len(sizes) > _MOST_GROUPS:
        return f"{len(sizes):,} groups of up to {sizes[0]:,} requests share {amount} each"
    *most, last = (f"{size:,}" for size in sizes)
    return f"{', '.join(most)} and {last} requests share {amount} each"
