"""Lines of the view by owner: which requests get a strip of their own if there is not enough room for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState

from ..facts.owners import Owner, OwnerGroup
from ..facts.units import slots_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..facts.owners import Slots
    from ..playback.session import Session

_MOST_MEMBERS = (1 << 30, 16, 12, 8, 6, 5, 4, 3, 2, 1, 0)
"""Limits on how many requests of a group get their own strips. The first limit with which all strips fit is used."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnerLine:
    """Content of a strip: one request, the shared units of a group, several requests together, or nothing."""

    name: str
    """Name of a request, or words about several requests."""
    figure: str
    """Number of tokens as text; empty in a blank line."""
    slots: Slots
    edge: str = " "
    """Character of the bracket around a group; a space for a request alone."""
    owners: tuple[Owner, ...] = ()
    """Requests of the strip; empty for the shared units of a group, and in a blank line."""
    num_tokens: int = 0
    num_shared_slots: int = 0
    """Number of slots that the request shares with its group. The bar begins with this much empty space."""
    group: OwnerGroup | None = None
    """Group whose shared units the strip shows; None for a strip of requests."""

    @property
    def request(self) -> int | None:
        """Row of the request, if the strip shows a single one; otherwise None."""
        return self.owners[0].request if len(self.owners) == 1 else None


def fitting_lines(
    session: Session, found: Sequence[OwnerGroup], *, room: int, most_columns: int, edges: tuple[str, str, str]
) -> tuple[list[OwnerLine], int]:
    """Return the lines of all groups, and the number of columns in which they are drawn, at most `most_columns`.

    A column has `room` lines. As many requests of each group as fit have their own lines. If not even the groups fit,
    or if only the smallest requests of all would need one more column, the last line is for all remaining requests
    together. `edges` are the characters of the bracket around a group, at
    its first line, at the lines between, and at its last line.
    """
    for most_members in _MOST_MEMBERS:
        strips = [line for holding in found for line in lines_of_group(session, holding, edges, most_members)]
        lines = without_split_groups(strips, room)
        if len(lines) <= most_columns * room:
            break
    # A column for a few last requests would make all bars narrower.
    few = 0 if any(line.group for line in lines) else room // 4
    num_columns = min(max(-(-(len(lines) - few) // room), 1), most_columns)
    if len(lines) > num_columns * room:
        lines = _with_last_line_folded(session, lines, num_columns * room)
    return lines, num_columns


def lines_of_group(
    session: Session, holding: OwnerGroup, edges: tuple[str, str, str], most_members: int
) -> Iterator[OwnerLine]:
    """Yield the lines of a group: its shared units, then the requests' own units, the largest first.

    At most `most_members` requests have their own lines. There is one more if only one request would be left for the
    shared line, or if `most_members` is 0 and the group has the followed request. The others share a line. A group of
    one request has one line, without a bracket of `edges`.
    """
    if len(holding.owners) == 1:
        yield line_of_request(session, holding.owners[0], " ")
        return
    top, side, bottom = edges
    words, tokens = f"{len(holding.owners):,} share", int(holding.shared[SlotState.TOKEN])
    # Without strips of requests, the bar of the shared units goes on with the units of all requests.
    slots = holding.shared + (0 if most_members else sum(owner.slots for owner in holding.owners))
    yield OwnerLine(words, slots_text(session, tokens), slots, edge=top, num_tokens=tokens, group=holding)
    # The followed request is ranked first, and always has its own strip.
    ranked = sorted(holding.owners, key=lambda owner: owner.request != session.followed)
    least = ranked[0].request == session.followed
    # If one request would remain, it gets its own strip, too: a strip "1 more" would take the same line.
    num_own = max(most_members + (len(ranked) == most_members + 1), least)
    own = sorted(ranked[:num_own], key=lambda owner: -owner.own_tokens)
    rest = ranked[num_own:]
    for nth, owner in enumerate(own):
        edge = bottom if not rest and nth == len(own) - 1 else side
        yield replace(line_of_request(session, owner, edge), num_shared_slots=int(holding.shared.sum()))
    if rest and not own:
        yield replace(_line_of_several(session, rest, holding.num_tokens - tokens, edge=bottom), name="their own")
    elif rest:
        yield _line_of_several(session, rest, sum(owner.own_tokens for owner in rest), edge=bottom)


def line_of_request(session: Session, owner: Owner, edge: str) -> OwnerLine:
    """Return the line of one request. `edge` is as in `OwnerLine`."""
    tokens = owner.own_tokens
    figure = "+" * (edge != " ") + slots_text(session, tokens)  # in addition to what the group shares
    name = session.request_name(owner.request)
    return OwnerLine(name, figure, owner.slots, edge=edge, owners=(owner,), num_tokens=tokens)


def without_split_groups(lines: list[OwnerLine], room: int) -> list[OwnerLine]:
    """Insert blank lines into `lines`, so that columns of `room` lines split no group that fits into one column."""
    found: list[OwnerLine] = []
    for group in _groups(lines):
        left = -len(found) % room
        if left < len(group) <= room:
            found += [_blank_line()] * left
        found += group
    return found


def _blank_line() -> OwnerLine:
    return OwnerLine("", "", np.zeros(len(SlotState), np.int64))


def _groups(lines: list[OwnerLine]) -> list[list[OwnerLine]]:
    begins = [at for at, line in enumerate(lines) if line.edge == " " or line.group is not None]
    return [lines[begin:end] for begin, end in pairwise([*begins, len(lines)])]


def _with_last_line_folded(session: Session, lines: list[OwnerLine], room: int) -> list[OwnerLine]:
    """Return the lines of the first groups that fit into `room` - 1 lines, and a last line for all other requests
    together. The group of the followed request is kept, too, if there is room for it.
    """
    groups, followed = _groups(lines), session.followed
    own = [group for group in groups if followed is not None and followed in (line.request for line in group)]
    num_own = sum(map(len, own))
    if num_own >= room:
        own, num_own = [], 0
    others = [group for group in groups if group not in own]
    first = others[: int((np.cumsum([len(group) for group in others]) < room - num_own).sum())]
    kept = [line for group in groups if group in own or group in first for line in group]
    rest = [line for group in others[len(first) :] for line in group]
    blank = [_blank_line()] * (room - 1 - len(kept))
    owners = [owner for line in rest for owner in line.owners]
    return [*kept, *blank, _line_of_several(session, owners, sum(line.num_tokens for line in rest))]


def _line_of_several(session: Session, owners: Sequence[Owner], num_tokens: int, edge: str = " ") -> OwnerLine:
    """Return the line of several requests together, which own `num_tokens`. `edge` is as in `OwnerLine`.

    It has no bar, because the bar of a sum could be longer than all other bars.
    """
    figure = "+" * (edge != " ") + slots_text(session, num_tokens)
    name = f"{len(owners):,} more"
    return replace(_blank_line(), name=name, figure=figure, edge=edge, owners=tuple(owners), num_tokens=num_tokens)
