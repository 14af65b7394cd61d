"""Memory by owner: the requests that hold memory, in groups of requests that share blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.recording.order import is_new

from ..look.wording import percent, plural
from .units import slots_text

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Number of the request's units that other requests hold as well."""
    slots: Slots
    """Slots in each state, in the units that no other request holds."""

    shared_tokens: int
    """Number of written tokens in the units that other requests hold as well."""

    @property
    def own_tokens(self) -> int:
        """Number of written tokens in the units that no other request holds."""
        return int(self.slots[SlotState.TOKEN])

    @property
    def num_tokens(self) -> int:
        """Number of written tokens in all units of the request."""
        return self.own_tokens + self.shared_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnerGroup:
    """Requests that share units, directly or through others, or one request that shares none.

    A picture draws a group as one shape.
    """

    owners: tuple[Owner, ...]
    """Requests of the group, the one with the most tokens first."""
    num_shared: int
    """Number of units with several holders, each counted once."""
    shared: Slots
    """Slots in each state, in the units with several holders."""

    @property
    def size(self) -> int:
        """Number of slots of the group. A unit counts once, even with several holders."""
        return int(self.shared.sum() + sum(owner.slots.sum() for owner in self.owners))

    @property
    def num_tokens(self) -> int:
        """Number of written tokens of the group. A unit counts once, even with several holders."""
        return int(self.shared[SlotState.TOKEN]) + sum(owner.own_tokens for owner in self.owners)


def holdings(session: Session) -> list[OwnerGroup]:
    """Return the groups that hold memory at the current frame, those with the most tokens first."""
    replay = session.replay
    live, holder, address = replay.block_tables()
    if not len(holder):
        return []
    pairs = np.sort(holder * replay.num_units + (address - replay.first_unit))  # np.unique is several times as slow
    holder, units = np.divmod(pairs[is_new(pairs)], replay.num_units)
    slots, shared = replay.slots(units), replay.refs[units] > 1
    is_first = is_new(holder)
    begins, owner_of_row = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    own, shared_tokens, num_shared = (
        np.add.reduceat(column, begins)
        for column in (
            np.where(shared[:, np.newaxis], 0, slots),
            slots[:, SlotState.TOKEN] * shared,
            shared.astype(int),
        )
    )
    owners = [
        Owner(
            request=int(live[holder[begin]]),
            num_units=end - begin,
            num_shared=int(num_shared[nth]),
            slots=own[nth],
            shared_tokens=int(shared_tokens[nth]),
        )
        for nth, (begin, end) in enumerate(pairwise([*begins.tolist(), len(units)]))
    ]
    found = _groups(owners, owner_of_row[shared], units[shared], slots[shared])
    return sorted(found, key=lambda group: (-group.num_tokens, -group.size))


def _groups(owners: Sequence[Owner], owner_of_row: Units, units: Units, slots: Slots) -> list[OwnerGroup]:
    """Return `owners` in groups.

    `owner_of_row`, `units` and `slots` have a row for each owner of each shared unit, ascending by owner: index in
    `owners`, unit, and number of the unit's slots in each state.
    """
    shared = np.split(units, np.searchsorted(owner_of_row, np.arange(1, len(owners))))
    groups = _sharing([each.tolist() for each in shared])
    group_of = np.empty(len(owners), np.int64)
    for nth, group in enumerate(groups):
        group_of[group] = nth
    once = np.unique(units, return_index=True)[1]
    group_of_unit = group_of[owner_of_row[once]]
    num_shared = np.bincount(group_of_unit, minlength=len(groups)).tolist()
    slots_of_group = np.zeros((len(groups), slots.shape[1]), slots.dtype)
    np.add.at(slots_of_group, group_of_unit, slots[once])
    return [
        OwnerGroup(
            owners=tuple(sorted((owners[each] for each in group), key=lambda owner: -owner.num_tokens)),
            num_shared=num_shared[nth],
            shared=slots_of_group[nth],
        )
        for nth, group in enumerate(groups)
    ]


def units_of(session: Session, request: int) -> Units:
    """Return the indices, from 0, of the units that `request` holds, in address order."""
    return np.unique(session.replay.block_table(request)[1]) - session.replay.first_unit


def _sharing(shared: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return groups of owners. Owners that share a unit, directly or through others, are in one group.

    For each owner, `shared` lists the units that other owners hold as well.
    """
    # The key of a group is one of its shared units, or a negative number for an owner alone.
    group_of: dict[int, int] = {}  # key of the group of each shared unit
    members: dict[int, list[int]] = {}  # owners of each group
    for owner, units in enumerate(shared):
        joined = {group_of[unit] for unit in units if unit in group_of}
        key = min(joined) if joined else units[0] if units else -1 - owner
        for other in joined - {key}:  # this owner connects groups that were separate so far
            members[key] += members.pop(other)
            group_of.update((unit, key) for unit, group in group_of.items() if group == other)
        group_of.update((unit, key) for unit in units)
        members.setdefault(key, []).append(owner)
    return list(members.values())


def largest_owner(found: Sequence[OwnerGroup]) -> Owner | None:
    """Return the request with the most tokens; None if no request holds memory."""
    return max(_owners(found), key=lambda owner: owner.num_tokens, default=None)


def owners_line(session: Session, found: Sequence[OwnerGroup], width: int, dot: str) -> str:
    """Describe the held memory in one line: number of requests, the largest one, units saved by sharing, free share.

    Texts are shortened or left out to fit into `width` characters. They are separated by `dot`. `found` has all owners.
    """
    unit = session.unit_name
    shared, saved = _shared_and_saved(found)
    available = sum(int(session.breakdown[state]) for state in (SlotState.FREE, SlotState.CACHED))
    most, begin = _most_words(session, largest_owner(found)), _held_words(session, found)
    free = f"{percent(available, session.capacity)} free" + " or cached" * session.recording.meta.prefix_caching
    savings = f"{plural(shared, f'shared {unit}')} save {saved:,}" if shared else "nothing is shared"
    # What is left out is said elsewhere on the screen.
    less = (begin, most, "nothing shared" * (not shared), free)
    without_unit = tuple(text.replace(" tokens", "") for text in less)
    least = tuple(text.replace(" hold ", ": ").replace(" or cached", "/cached") for text in without_unit)
    texts = ((begin, most, savings, free), less, without_unit, least, (begin, most), least[:2], (begin,))
    return _first_that_fits(texts, width, dot)


def scatter_lines(session: Session, found: Sequence[OwnerGroup], lit: int | None, width: int, dot: str) -> list[str]:
    """Return the two lines below the pool in physical order, which tell how the held memory is scattered.

    The first line is about `lit`, the only request in colour (None: no request is), and the request with the most
    tokens. The second is about all requests and about sharing. Parts are separated by `dot`.
    """
    shared, saved = _shared_and_saved(found)
    largest = largest_owner(found)
    owner = next((each for each in _owners(found) if each.request == lit), None)
    first: tuple[tuple[str, ...], ...]
    if largest is None or owner is None:
        first = ((_most_words(session, largest),),)
    else:
        units = units_of(session, owner.request)
        size, name = plural(len(units), session.unit_name), session.request_name(owner.request)
        place = f"at {plural(_num_extents(units), 'place')} of the pool"
        is_most = owner is largest
        most = "" if is_most else _most_words(session, largest)
        begin = f"{name} holds {'most' if is_most else size}: {_tokens_words(session, owner)}"
        first = (
            (f"{begin}{f' in {size}' if is_most else ''} {place}", most),
            (f"{begin} {place}", most),
            (f"{begin} {place}",),
            (begin,),
        )
    groups = plural(len([group for group in found if group.num_shared]), "group")
    saves = f", saving {plural(saved, session.unit_name)}"
    held, sharing = _held_words(session, found), _group_words(session, found) if shared else ""
    second = (
        ((held, sharing + saves), (sharing + saves,), (sharing,), (groups,))
        if shared
        else ((held, "no block is shared"), (held,))
    )
    return [_first_that_fits(texts, width, dot) for texts in (first, second)]


def _held_words(session: Session, found: Sequence[OwnerGroup]) -> str:
    owners = _owners(found)
    held = _shared_and_saved(found)[0] + sum(owner.num_units - owner.num_shared for owner in owners)
    return f"{plural(len(owners), 'request')} hold{'s' * (len(owners) == 1)} {plural(held, session.unit_name)}"


def _most_words(session: Session, largest: Owner | None) -> str:
    return "" if largest is None else f"most {session.request_name(largest.request)}: {_tokens_words(session, largest)}"


def _tokens_words(session: Session, owner: Owner) -> str:
    shared = f" ({slots_text(session, owner.shared_tokens)} shared)" * (owner.num_shared > 0)
    return slots_text(session, owner.num_tokens, "token") + shared


def _owners(found: Sequence[OwnerGroup]) -> list[Owner]:
    return [owner for group in found for owner in group.owners]


def _shared_and_saved(found: Sequence[OwnerGroup]) -> tuple[int, int]:
    """Return the number of units with several holders, and the number of units that sharing saves."""
    shared = sum(group.num_shared for group in found)
    return shared, sum(owner.num_shared for owner in _owners(found)) - shared


def _num_extents(units: Units) -> int:
    return int((np.diff(units, prepend=-2) != 1).sum())


def _first_that_fits(texts: Sequence[Sequence[str]], width: int, dot: str) -> str:
    """Return the first of `texts` (parts of a line) with at most `width` characters; the last if none fits."""
    lines = [f" {dot} ".join(filter(None, parts)) for parts in texts]
    return next((line for line in lines if len(line) <= width), lines[-1])


def _group_words(session: Session, found: Sequence[OwnerGroup]) -> str:
    sizes = sorted(len(group.owners) for group in found if group.num_shared)
    tokens = {int(group.shared[SlotState.TOKEN]) for group in found if group.num_shared}
    amount = slots_text(session, tokens.pop(), "token") if len(tokens) == 1 else "blocks"
    if len(sizes) == 1:
        return f"{sizes[0]:,} requests share {amount}"
    members = f"{sizes[0]:,} to {sizes[-1]:,}" if sizes[0] < sizes[-1] else f"{sizes[0]:,}"
    return f"{len(sizes):,} groups of {members} requests share {amount} each"
