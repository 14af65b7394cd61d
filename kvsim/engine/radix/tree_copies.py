"""SGLang's HiCache: copies of the radix tree's nodes in host memory, which can also be hit.

A node is on the device, on the host, or on both (double). The write policy decides when a node is copied to the host:
`write_through` at its first hit by an insert, `write_through_selective` at its second, and `write_back` when it is
evicted. A copy locks its path from its begin until a later pass of the scheduler finds that it has ended (see
`link_copies`).
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix import (
    evictable_leaves,
    host_slots,
    link_copies,
    radix_events,
    radix_journal,
    token_slots,
    tree_nodes,
)
from kvsim.engine.radix_records import NO_HOST, ROOT, WRITE_BACK, WRITE_SELECTIVE
from kvsim.engine.records import NEVER
from kvsim.engine.state import Engine

LEAST_LOADED_TOKENS = 10
"""Smallest number of tokens for which a load from the host is begun."""


@part
def is_on(engine: Engine) -> bool:
    """Tell whether there is a host tier."""
    return engine.radix.settings.write_policy != NO_HOST


@part
def are_awaited(engine: Engine) -> bool:
    """Tell whether a copy is in progress, as far as the scheduler knows."""
    return engine.radix.state.num_storing + engine.radix.state.num_loading > 0


@part
def count_hit(engine: Engine, node: int) -> None:
    """Count a hit of a node on the device. If the write policy asks for it, copy its path to the host."""
    record, policy = engine.radix.nodes[node], engine.radix.settings.write_policy
    if policy == WRITE_BACK:
        return
    record.hits += 1
    if policy == NO_HOST or record.is_on_host or record.hits < (2 if policy == WRITE_SELECTIVE else 1):
        return
    while not record.is_on_host:
        top = node
        parent = record.parent
        while parent != ROOT and not engine.radix.nodes[parent].is_on_host:
            top, parent = parent, engine.radix.nodes[parent].parent
        if not _copy(engine, top):
            return
        link_copies.begin_store(engine, top)


@part
def _copy(engine: Engine, node: int) -> bool:
    """Allocate host memory for a node and begin its copy; return False if even evictions make no room."""
    record, radix = engine.radix.nodes[node], engine.radix.state
    missing = record.num_pages - radix.num_free_host
    if missing > 0 and _evict_host(engine, missing) < missing:
        return False
    host_slots.alloc(engine, node)
    engine.state.num_swapped_out += record.num_pages
    return True


@part
def demote(engine: Engine, node: int) -> bool:
    """Evict the device pages of a leaf that is on the host or is copied there now; return False without room."""
    record = engine.radix.nodes[node]
    if not record.is_on_host:
        if engine.radix.settings.write_policy != WRITE_BACK:
            return False
        if not _copy(engine, node):
            _drop_below(engine, node)
            return False
        link_copies.store_now(engine, node)
        tree_nodes.update_double(engine, node)
    radix_events.leaf(engine, record)
    radix_journal.evict(engine, record)
    tree_nodes.lose_device_pages(engine, node)
    token_slots.free(engine, engine.radix.node_pages, record.first_entry, record.first_entry + record.num_pages)
    return True


@part
def _drop_below(engine: Engine, top: int) -> None:
    """Remove the nodes below `top`, a leaf on the device. They are only on the host."""
    while engine.radix.nodes[top].num_host_children > 0:
        for node in range(1, engine.radix.state.num_nodes + 1):
            record = engine.radix.nodes[node]
            if not record.is_spare and record.num_host_children == 0 and _is_below(engine, node, top):
                _remove_from_host(engine, node)


@part
def _is_below(engine: Engine, node: int, top: int) -> bool:
    node = engine.radix.nodes[node].parent
    while node not in (ROOT, top):
        node = engine.radix.nodes[node].parent
    return node == top


@part
def _remove_from_host(engine: Engine, node: int) -> None:
    host_slots.free(engine, node)
    tree_nodes.remove(engine, node)


@part
def _evict_host(engine: Engine, num_pages: int) -> int:
    """Free up to `num_pages` more pages on the host; return the number of pages freed.

    With `write_back`, the host copies of nodes that are also on the device are freed first: those of inner nodes, then
    those of evictable leaves. Nodes that are only on the host come last.
    """
    before = engine.radix.state.num_free_host
    if engine.radix.settings.write_policy == WRITE_BACK:
        _reclaim_doubles(engine, before + num_pages, True)
        _reclaim_doubles(engine, before + num_pages, False)
    while engine.radix.state.num_free_host < before + num_pages:
        node = _next_host_leaf(engine)
        if node == ROOT:
            break
        _remove_from_host(engine, node)
    return engine.radix.state.num_free_host - before


@part
def _next_host_leaf(engine: Engine) -> int:
    """Return the node that is evicted from the host next; `ROOT` if there is none."""
    found = ROOT
    for node in range(1, engine.radix.state.num_nodes + 1):
        record = engine.radix.nodes[node]
        is_leaf = not record.is_spare and not record.is_on_device and record.num_host_children == 0
        is_leaf &= record.locks == 0 and record.host_locks == 0
        if is_leaf and (found == ROOT or evictable_leaves.goes_first(engine, node, found)):
            found = node
    return found


@part
def _reclaim_doubles(engine: Engine, enough: int, spares_leaves: bool) -> None:
    """Free host copies of nodes that are also on the device, the first copied ones first, until `enough` pages are
    free. With `spares_leaves`, nodes that can be evicted from the device keep their copies.
    """
    last = 0
    while engine.radix.state.num_free_host < enough:
        node = _next_double(engine, last)
        if node == ROOT:
            return
        record = engine.radix.nodes[node]
        last = record.doubled
        if not (record.is_on_device and record.is_on_host):
            record.doubled = 0
        elif not (spares_leaves and record.place >= 0) and record.loaded_for == ROOT and record.host_locks == 0:
            record.doubled = 0
            host_slots.free(engine, node)


@part
def _next_double(engine: Engine, last: int) -> int:
    """Return the node with the smallest `Node.doubled` above `last`; `ROOT` if there is none."""
    found, least = ROOT, NEVER
    for node in range(1, engine.radix.state.num_nodes + 1):
        record = engine.radix.nodes[node]
        if not record.is_spare and last < record.doubled < least:
            found, least = node, record.doubled
    return found


@part
def begin_load(engine: Engine, node: int, top: int, request: int) -> bool:
    """Begin to load the nodes below `top`, down to `node`, for request `request`; return False if nothing is loaded.
    `top` is the last node of the path on the device, and `node` must be locked. Either all nodes are loaded or none.
    """
    nodes, num_pages = engine.radix.nodes, num_host_pages(engine, node)
    if num_pages * engine.settings.unit_tokens < LEAST_LOADED_TOKENS or engine.state.num_free < num_pages:
        return False
    end = nodes[top].begin + nodes[top].num_pages
    while end < nodes[node].begin + nodes[node].num_pages:
        below = node
        while nodes[below].begin > end:
            below = nodes[below].parent
        tree_nodes.get_device_pages(engine, below)
        first = nodes[below].first_entry
        for entry in range(first, first + nodes[below].num_pages):
            engine.radix.node_pages[entry] = token_slots.alloc(engine)
        nodes[below].loaded_for = node
        end += nodes[below].num_pages
    link_copies.begin_load(engine, node, num_pages, request)
    nodes[node].host_locks += 1
    return True


@part
def num_host_pages(engine: Engine, node: int) -> int:
    """Return the number of pages on the path to a node that are only on the host."""
    num_pages = 0
    while node != ROOT and not engine.radix.nodes[node].is_on_device:
        num_pages += engine.radix.nodes[node].num_pages
        node = engine.radix.nodes[node].parent
    return num_pages
