"""SGLang's HiCache: copies of the radix tree's nodes in host memory, which can also be hit.

A node is on the device, on the host, or on both; kvsim calls the last a double node. The write policy decides when a
node is copied to the host: `write_through` when an insert visits it for the first time, `write_through_selective` for
the second time, and `write_back` when it is evicted. A copy locks the path from the root to its node, from the
beginning of the copy until a later pass of the scheduler finds that the copy has ended (see `link_copies`).
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
def has_host_tier(engine: Engine) -> bool:
    """Tell whether nodes can be copied to host memory."""
    return engine.radix.settings.write_policy != NO_HOST


@part
def has_copies(engine: Engine) -> bool:
    """Tell whether a copy is in progress, or the scheduler has not found yet that it has ended."""
    return engine.radix.state.num_storing + engine.radix.state.num_loading > 0


@part
def count_hit(engine: Engine, node: int) -> None:
    """Count a hit of a node on the device, except with `WRITE_BACK`. If this makes the node due for the host by the
    write policy, begin to copy it and those nodes on its path that are not on the host, from the root downwards. Stop
    at a node for which the host has no room.
    """
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
    """Allocate host memory for a copy of a node, after evictions from the host if necessary. Return False if the host
    has too little memory that can be evicted. The caller begins the copy.
    """
    record, radix = engine.radix.nodes[node], engine.radix.state
    missing = record.num_pages - radix.num_free_host
    if missing > 0 and _evict_host(engine, missing) < missing:
        return False
    host_slots.alloc(engine, node)
    engine.state.num_swapped_out += record.num_pages
    return True


@part
def demote(engine: Engine, node: int) -> bool:
    """Evict the device pages of a leaf, and keep the leaf on the host. With `WRITE_BACK`, copy it to the host first if
    it is not there.

    Return False, and keep the device pages, if the leaf is not on the host and is not copied: by the write policy, or
    because the host has no room. In the latter case, the nodes below it, which are only on the host, are removed.
    """
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
    """Remove the nodes below `top` from the tree. `top` is a leaf on the device: these nodes are only on the host."""
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
    """Free at least `num_pages` pages on the host, if as many can be evicted. Return the number of pages freed.

    With `write_back`, host copies of double nodes are freed first: those of nodes that cannot be evicted from the
    device, then all others. After that, and with other policies at once, nodes that are only on the host are removed.
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
    """Return the node to evict next among those that are only on the host and have no children; `ROOT` if there is none
    without locks. The eviction strategy is that of the device.
    """
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
    """Free host copies of double nodes, in the order in which these became double, until at least `enough` pages of the
    host are free or all double nodes were visited. With `spares_leaves`, leaves that can be evicted from the device
    keep their copies. Copies that a load reads are kept.
    """
    previous = 0
    while engine.radix.state.num_free_host < enough:
        node = _next_double(engine, previous)
        if node == ROOT:
            return
        record = engine.radix.nodes[node]
        previous = record.doubled
        if not (record.is_on_device and record.is_on_host):
            record.doubled = 0
        elif not (spares_leaves and record.place >= 0) and record.loaded_for == ROOT and record.host_locks == 0:
            record.doubled = 0
            host_slots.free(engine, node)


@part
def _next_double(engine: Engine, previous: int) -> int:
    """Return the node that came to be on both device and host next after the one whose `Node.doubled` is `previous`;
    `ROOT` if there is none. `Node.doubled` is the number of a node in this order.
    """
    found, least = ROOT, NEVER
    for node in range(1, engine.radix.state.num_nodes + 1):
        record = engine.radix.nodes[node]
        if not record.is_spare and previous < record.doubled < least:
            found, least = node, record.doubled
    return found


@part
def begin_load(engine: Engine, node: int, top: int, request: int) -> bool:
    """Begin to load the nodes of a path that are only on the host, for request number `request`. `top` is the last node
    of the path that is on the device, and `node` the last of all, which must be locked.

    Return False, and load nothing, if these nodes have fewer than `LEAST_LOADED_TOKENS` tokens, or more pages than are
    free on the device.
    """
    nodes, num_pages = engine.radix.nodes, num_host_pages(engine, node)
    if num_pages * engine.settings.unit_tokens < LEAST_LOADED_TOKENS or engine.state.num_free < num_pages:
        return False
    end = nodes[top].begin + nodes[top].num_pages
    while end < nodes[node].begin + nodes[node].num_pages:
        below = node
        while nodes[below].begin > end:
            below = nodes[below].parent
        tree_nodes.gain_device_pages(engine, below)
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
    """Return the number of pages, at the end of the path to a node, that are only on the host."""
    num_pages = 0
    while node != ROOT and not engine.radix.nodes[node].is_on_device:
        num_pages += engine.radix.nodes[node].num_pages
        node = engine.radix.nodes[node].parent
    return num_pages
