"""Windows in SGLang's radix tree: which nodes have them, which are locked, which go first.

A node has the window slots of all of its pages or of none. Requests lock windows from the end of their own path up,
until one window of tokens is covered. Windows that no request locks can be evicted, those that were used longest ago
first, while their node stays in the tree.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix_records import ROOT
from kvsim.engine.state import Engine


@part
def is_on(engine: Engine) -> bool:
    """Tell whether the model has layers with windows."""
    return engine.radix.settings.window_tokens > 0


@part
def give(engine: Engine, node: int) -> None:
    """Let a node have the windows of its pages, as the one used last."""
    record = engine.radix.nodes[node]
    record.has_window = True
    if record.window_locks == 0:
        engine.radix.state.num_cached_windows += record.num_pages
    _link(engine, node, ROOT)


@part
def take(engine: Engine, node: int) -> None:
    """Take the windows from a node, which no request locks."""
    record = engine.radix.nodes[node]
    assert record.has_window
    assert record.window_locks == 0
    record.has_window = False
    engine.radix.state.num_cached_windows -= record.num_pages
    _unlink(engine, node)


@part
def share_with(engine: Engine, node: int, upper: int) -> None:
    """Let the upper part of a node that is split have what the node has."""
    old, new = engine.radix.nodes[node], engine.radix.nodes[upper]
    new.has_window, new.window_locks = old.has_window, old.window_locks
    new.edge, old.edge = old.edge, 0
    if old.has_window:
        _link(engine, upper, node)


@part
def touch(engine: Engine, node: int) -> None:
    """Count the windows of a path as used last: those of its last window and page, the end first."""
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
    """Lock the last window of a path; return the edge by which it is unlocked."""
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
    """Give up a lock of the last window of a path."""
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
    """Return the next younger node with unlocked windows; from the root, the oldest; the root if there is none."""
    nodes = engine.radix.nodes
    node = nodes[node].younger
    while node != ROOT and nodes[node].window_locks > 0:
        node = nodes[node].younger
    return node


@part
def _link(engine: Engine, node: int, younger: int) -> None:
    """Put a node right behind a `younger` one; behind the root, which ends the list, it is the youngest."""
    nodes = engine.radix.nodes
    older = nodes[younger].older
    nodes[node].younger, nodes[node].older = younger, older
    nodes[younger].older = nodes[older].younger = node


@part
def _unlink(engine: Engine, node: int) -> None:
    record = engine.radix.nodes[node]
    engine.radix.nodes[record.younger].older, engine.radix.nodes[record.older].younger = record.older, record.younger
