"""The whole radix tree of SGLang's cache at the current frame: its nodes, their holders, and what can be evicted.

A recording states the slots of each request's table, not the nodes of the tree. But a slot in the tree has exactly one
predecessor, so the tree follows from the tables. A node ends where two paths separate, where the next slot has other
holders, or where a prompt ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import WHOLE_TABLE, MemoryKind

from ..look.wording import seconds
from ..playback.run_events import EventKind
from .tree import in_tree_units

if TYPE_CHECKING:
    from ..playback.session import Session

_NONE = -1


@dataclass(slots=True)
class TreeNode:
    """Node of the radix tree: consecutive units of one path with the same holders."""

    begin: int
    """Number of units on the path from the root to the node."""
    num_units: int
    num_holders: int
    used_frame: int
    """Frame of the last use: the current frame if a request holds the node."""
    depth: int
    """Number of nodes on the path from the root to the node."""
    last_request: int
    """Row of the request that used the node last."""
    holders: list[int] = field(default_factory=list)
    """Rows of the requests that hold the node."""
    children: list[TreeNode] = field(default_factory=list)
    num_units_in_branch: int = 0
    """Number of units of the node and its descendants."""

    @property
    def is_evictable(self) -> bool:
        """True if the node can be evicted now: a leaf that no request holds."""
        return self.num_holders == 0 and not self.children


@dataclass(frozen=True, slots=True)
class Retraction:
    """Last retraction, as SGLang calls a preemption, and the units that it cost."""

    frame: int
    request: int
    """Row of the retracted request."""
    num_own: int
    """Number of the request's units that were not in the tree."""
    num_evicted: int
    """Number of units of the tree that were evicted in the same step."""


@dataclass(frozen=True, slots=True)
class RadixTree:
    """All nodes at one frame. A parent precedes its children, and branches with more units come first."""

    nodes: tuple[TreeNode, ...]
    last_retraction: Retraction | None

    @property
    def num_units(self) -> int:
        """Number of units in the tree."""
        return sum(node.num_units for node in self.nodes)

    @property
    def leaves(self) -> list[TreeNode]:
        """Nodes that can be evicted now, the least recently used first."""
        return sorted((node for node in self.nodes if node.is_evictable), key=lambda node: node.used_frame)

    @property
    def num_locked(self) -> int:
        """Number of units that requests hold, which prevents their eviction."""
        return sum(node.num_units for node in self.nodes if node.num_holders)


def has_tree(session: Session) -> bool:
    """Tell whether the run keeps a radix tree."""
    return session.recording.meta.policy_name == "radix" and bool(session.recording.meta.prefix_caching)


def ago(session: Session, frame: int) -> str:
    """Return the time between `frame` and the current frame in words."""
    age_s = float(session.times_s[session.player.frame]) - float(session.times_s[frame])
    return f"{seconds(max(age_s, 0.0), session.player.duration_s / 1000)} ago"


def tree_at(session: Session) -> RadixTree:
    """Return the tree at the current frame."""
    units = _Units(session)
    ordered: list[TreeNode] = []
    pending = [*reversed(_root_nodes(session, units))]
    while pending:
        node = pending.pop()
        ordered.append(node)
        pending += reversed(node.children)
    return RadixTree(tuple(ordered), _last_retraction(session))


class _Units:
    """Predecessor, index on its path, last use and last holder of each unit, at the current frame."""

    def __init__(self, session: Session) -> None:
        replay, memory = session.replay, session.recording.memory
        size = replay.num_units
        self._before, self._place = [_NONE] * size, [0] * size
        self._used_seq, self._last = [0] * size, [_NONE] * size
        self.tables: dict[int, list[int]] = {}
        end = int(np.searchsorted(memory.seq, replay.frame_seq[session.player.frame], side="right"))
        columns = (memory.seq, memory.kind, memory.request, memory.position, memory.address, memory.length)
        for seq, kind, request, position, address, length in zip(
            *(column[:end].tolist() for column in columns), strict=True
        ):
            if kind in (MemoryKind.APPEND, MemoryKind.SHARE):
                self._enter(seq, request, position, address - replay.first_unit, length)
            elif kind == MemoryKind.RELEASE and address == WHOLE_TABLE:
                for unit in self.tables.pop(request, ()):
                    self._used_seq[unit] = seq
        self.before, self.place = np.array(self._before, np.int64), np.array(self._place, np.int64)
        """Predecessor of each unit on its path, -1 for the first; index of each unit on its path."""
        self.used_seq, self.last = np.array(self._used_seq, np.int64), np.array(self._last, np.int64)
        """Event number of each unit's last use; row of the request whose table the unit entered last."""

    def _enter(self, seq: int, request: int, position: int, first: int, length: int) -> None:
        """Write units `first` to `first + length - 1` to the table of `request`, from index `position` on."""
        table, end = self.tables.setdefault(request, []), first + length
        table[position : position + length] = range(first, end)
        if position + length < len(table):  # a copy in the tree replaces units of the table; later units follow it now
            self._before[table[position + length]] = end - 1
        self._before[first:end] = range(first - 1, end - 1)
        self._before[first] = table[position - 1] if position else _NONE
        self._place[first:end] = range(position, position + length)
        self._used_seq[first:end], self._last[first:end] = [seq] * length, [request] * length


def _root_nodes(session: Session, units: _Units) -> list[TreeNode]:
    """Build the tree from the tables and the cached units; return the nodes at the root."""
    replay, frame = session.replay, session.player.frame
    paths = {row: table[: in_tree_units(session, row)] for row, table in units.tables.items()}
    num_holders = np.zeros(replay.num_units, np.int64)
    for path in paths.values():
        num_holders[path] += 1
    is_in = (num_holders > 0) | replay.cached
    inside = np.flatnonzero(is_in)
    before = np.where(is_in[units.before], units.before, _NONE)
    before[units.before == _NONE] = _NONE
    num_children = np.bincount(before[inside][before[inside] != _NONE], minlength=replay.num_units)
    prompt_units = session.recording.requests.prompt_tokens[units.last] // replay.unit_tokens
    begins = before == _NONE  # units with which a node begins
    begins |= (num_children[before] > 1) | (num_holders != num_holders[before]) | (units.place == prompt_units)
    node_of: dict[int, TreeNode] = {}
    top: list[TreeNode] = []
    for unit in inside[np.argsort(units.place[inside], kind="stable")].tolist():
        parent = node_of.get(int(before[unit]))
        if parent is not None and not begins[unit]:
            parent.num_units += 1
            node_of[unit] = parent
            continue
        used = int(np.searchsorted(replay.frame_seq, units.used_seq[unit]))
        depth = parent.depth + 1 if parent else 0
        node = TreeNode(
            int(units.place[unit]), 1, int(num_holders[unit]), min(used, frame), depth, int(units.last[unit])
        )
        node_of[unit] = node
        (parent.children if parent else top).append(node)
    for row, path in paths.items():
        place = 0
        while place < len(path):
            node = node_of[path[place]]
            node.holders.append(row)
            node.used_frame, place = frame, node.begin + node.num_units
    _count_units_below_and_sort(top)
    return top


def _count_units_below_and_sort(top: list[TreeNode]) -> None:
    ordered = [*top]
    for node in ordered:  # the list grows during the iteration, until it contains all descendants
        ordered += node.children
    for node in reversed(ordered):
        node.num_units_in_branch = node.num_units + sum(child.num_units_in_branch for child in node.children)
        node.children.sort(key=lambda child: -child.num_units_in_branch)
    top.sort(key=lambda node: -node.num_units_in_branch)


def _last_retraction(session: Session) -> Retraction | None:
    events = session.events.of_kinds((EventKind.PREEMPTED,))
    happened = np.flatnonzero(events.frame <= session.player.frame)
    if not len(happened):
        return None
    frame, request = int(events.frame[happened[-1]]), int(events.request[happened[-1]])
    memory, seqs = session.recording.memory, session.replay.frame_seq
    begin, end = np.searchsorted(memory.seq, (seqs[max(frame - 1, 0)], seqs[frame]), side="right")
    kind, length = memory.kind[begin:end], memory.length[begin:end]
    is_release: npt.NDArray[np.bool_] = (kind == MemoryKind.RELEASE) & (memory.address[begin:end] == WHOLE_TABLE)
    own = is_release & (memory.request[begin:end] == request)
    kept = 0 if memory.cached is None else int(memory.cached[begin:end][own].sum())
    evicted = int(length[kind == MemoryKind.EVICT].sum())
    return Retraction(frame, request, int(length[own].sum()) - kept, evicted)
