"""Window slots in SGLang's radix tree, for models with sliding-window layers: locks and order of eviction.

A node has window slots (its windows, for short) for all of its pages or for none. A request locks the windows of the
last nodes of its path that together cover one window of tokens. The topmost of these nodes gets a number, `Node.edge`,
by which unlocking finds it. Windows that no request locks can be evicted, the least recently used first. Their node
stays in the tree.

The nodes with windows are linked in the order of use. `Node.younger` leads to the node whose windows were used next.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix_records import ROOT
from kvsim.engine.state import Engine


@part
def has_windows(engine: Engine) -> bool:
    """Tell whether the model has layers with windows that have a pool of their own."""
    return engine.radix.settings.window_tokens > 0


@part
def give(engine: Engine, node: int) -> None:
    """Record that a node now has windows. They count as the most recently used ones."""
    record = engine.radix.nodes[node]
    record.has_window = True
    if record.window_locks == 0:
        engine.radix.state.num_cached_windows += record.num_pages
    _link(engine, node, ROOT)


@part
def take(engine: Engine, node: int) -> None:
    """Record that a node no longer has windows. No request must have locked them."""
    record = engine.radix.nodes[node]
    assert record.has_window
    assert record.window_locks == 0
    record.has_window = False
    engine.radix.state.num_cached_windows -= record.num_pages
    _unlink(engine, node)


@part
def share_with(engine: Engine, node: int, upper: int) -> None:
    """Record the state of the windows of a node that was split. `upper`, the new node, has windows if `node` has, with
    the same locks. If `node` was the topmost node whose windows a request locks, `upper` now is, and gets the value of
    `Node.edge`.
    """
    old, new = engine.radix.nodes[node], engine.radix.nodes[upper]
    new.has_window, new.window_locks = old.has_window, old.window_locks
    new.edge, old.edge = old.edge, 0
    if old.has_window:
        _link(engine, upper, node)


@part
def touch(engine: Engine, node: int) -> None:
    """Mark windows at the end of the path to `node` as the most recently used: those of the last nodes that together
    cover one window of tokens and one page. The nearer a node is to the end, the later its use.
    """
    nodes, previous, covered = engine.radix.nodes, ROOT, 0
    reach = engine.radix.settings.window_tokens + engine.settings.unit_tokens
    while node != ROOT and covered < reach:
        if nodes[node].has_window:
            _unlink(engine, node)
            _link(engine, node, previous)
            previous = node
        covered += nodes[node].num_pages * engine.settings.unit_tokens
        node = nodes[node].parent


@part
def lock(engine: Engine, node: int) -> int:
    """Lock the windows of the last nodes of the path to `node` that together cover one window of tokens. Return the
    value of `Node.edge` of the topmost of these nodes, for `unlock`; 0 if the path is shorter than a window, or if
    there are no windows.
    """
    nodes, radix, covered, edge = engine.radix.nodes, engine.radix.state, 0, 0
    window = engine.radix.settings.window_tokens
    while node != ROOT and covered < window:
        record = nodes[node]
        if record.window_locks == 0 and record.has_window:
            radix.num_cached_windows -= record.num_pages
        record.window_locks += 1
        covered += record.num_pages * engine.settings.unit_tokens
        if covered >= window:
            if record.edge == 0:
                radix.num_edges += 1
                record.edge = radix.num_edges
            edge = record.edge
        node = record.parent
    return edge


@part
def unlock(engine: Engine, node: int, edge: int) -> None:
    """Remove a lock from the windows of the nodes from `node` up to the one with this `Node.edge`; 0 for the root."""
    nodes, is_edge = engine.radix.nodes, engine.radix.settings.window_tokens == 0
    while node != ROOT and not is_edge:
        record = nodes[node]
        assert record.window_locks > 0
        record.window_locks -= 1
        if record.window_locks == 0 and record.has_window:
            engine.radix.state.num_cached_windows += record.num_pages
        is_edge = edge != 0 and record.edge == edge
        node = record.parent


@part
def next_unlocked(engine: Engine, node: int) -> int:
    """Return the node whose windows were used next after those of `node`, among the nodes whose windows no request
    locks; `ROOT` if there is none. For `ROOT`, return the node whose windows were used least recently.
    """
    nodes = engine.radix.nodes
    node = nodes[node].younger
    while node != ROOT and nodes[node].window_locks > 0:
        node = nodes[node].younger
    return node


@part
def _link(engine: Engine, node: int, younger: int) -> None:
    """Insert a node into the list of windows as the one used directly before the node `younger`; as the most recently
    used one if `younger` is `ROOT`.
    """
    nodes = engine.radix.nodes
    older = nodes[younger].older
    nodes[node].younger, nodes[node].older = younger, older
    nodes[younger].older = nodes[older].younger = node


@part
def _unlink(engine: Engine, node: int) -> None:
    record = engine.radix.nodes[node]
    engine.radix.nodes[record.younger].older, engine.radix.nodes[record.older].younger = record.older, record.younger
