"""Changes of nodes in SGLang's radix tree (locks, device pages, removal), and of the counts that depend on them."""

from __future__ import annotations

from kvsim.engine import bucket
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged.prefix_cache import bucket_of
from kvsim.engine.radix import evictable_leaves, tree_windows
from kvsim.engine.radix_records import ROOT
from kvsim.engine.state import Engine


@part
def inc_lock_ref(engine: Engine, node: int) -> int:
    """Add a request's lock to the path from a node up to the root, and to the windows at the end of the path. Return
    the value of `Node.edge` of the topmost node whose windows are locked, for `dec_lock_ref`; 0 if the windows of the
    whole path are locked, or if there are no windows.
    """
    edge = tree_windows.lock(engine, node)
    while node != ROOT:
        record = engine.radix.nodes[node]
        _add_lock(engine, node)
        num_readers = record.locks - record.copy_locks
        if record.is_on_device and num_readers > 1:
            engine.groups[0].num_duplicate_entries += record.num_pages
        elif record.is_on_device and record.copy_locks > 0:
            engine.radix.state.num_copying -= record.num_pages
        node = record.parent
    return edge


@part
def dec_lock_ref(engine: Engine, node: int, edge: int) -> None:
    """Remove a request's lock from the path from a node up to the root, and from the windows up to the node with the
    value `edge` of `Node.edge`; 0 for the windows of the whole path.
    """
    tree_windows.unlock(engine, node, edge)
    while node != ROOT:
        record = engine.radix.nodes[node]
        _remove_lock(engine, node)
        num_readers = record.locks - record.copy_locks
        if record.is_on_device and num_readers > 0:
            engine.groups[0].num_duplicate_entries -= record.num_pages
        elif record.is_on_device and record.copy_locks > 0:
            engine.radix.state.num_copying += record.num_pages
        node = record.parent


@part
def lock_for_copy(engine: Engine, node: int) -> None:
    """Add a copy's lock to the path from a node up to the root. The whole path must be on the device."""
    while node != ROOT:
        record = engine.radix.nodes[node]
        _add_lock(engine, node)
        record.copy_locks += 1
        if record.locks == 1:
            engine.radix.state.num_copying += record.num_pages
        node = record.parent


@part
def unlock_after_copy(engine: Engine, node: int) -> None:
    """Remove a copy's lock from the path from a node up to the root."""
    while node != ROOT:
        record = engine.radix.nodes[node]
        assert record.copy_locks > 0
        record.copy_locks -= 1
        _remove_lock(engine, node)
        if record.locks == 0:
            engine.radix.state.num_copying -= record.num_pages
        node = record.parent


@part
def _add_lock(engine: Engine, node: int) -> None:
    record = engine.radix.nodes[node]
    record.locks += 1
    if record.locks == 1 and record.is_on_device:
        engine.state.num_cached -= record.num_pages
        engine.radix.state.locked_pages += record.num_pages
        evictable_leaves.update(engine, node)


@part
def _remove_lock(engine: Engine, node: int) -> None:
    record = engine.radix.nodes[node]
    assert record.locks > 0
    record.locks -= 1
    if record.locks == 0 and record.is_on_device:
        engine.state.num_cached += record.num_pages
        engine.radix.state.locked_pages -= record.num_pages
        evictable_leaves.update(engine, node)


@part
def lose_device_pages(engine: Engine, node: int) -> None:
    """Record that an evictable leaf no longer has pages on the device. The caller frees the pages."""
    record = engine.radix.nodes[node]
    evictable_leaves.remove(engine, node)
    engine.state.num_cached -= record.num_pages
    record.is_on_device = False
    engine.radix.nodes[record.parent].num_children -= 1
    engine.radix.nodes[record.parent].num_host_children += 1
    evictable_leaves.update(engine, record.parent)


@part
def gain_device_pages(engine: Engine, node: int) -> None:
    """Record that a node on the host now has device pages, which the caller writes from `Node.first_entry` on."""
    record = engine.radix.nodes[node]
    record.first_entry = new_entries(engine, record.num_pages)
    record.is_on_device = True
    if record.locks > 0:
        engine.radix.state.locked_pages += record.num_pages
    else:
        engine.state.num_cached += record.num_pages
    engine.radix.nodes[record.parent].num_children += 1
    engine.radix.nodes[record.parent].num_host_children -= 1
    evictable_leaves.update(engine, node)
    evictable_leaves.update(engine, record.parent)


@part
def update_double(engine: Engine, node: int) -> None:
    """Set `Node.doubled` after a change: True if the node is on the device and the host, and no load is under way."""
    record = engine.radix.nodes[node]
    if not (record.is_on_device and record.is_on_host and record.loaded_for == ROOT):
        record.doubled = 0
    elif record.doubled == 0:
        engine.radix.state.num_doubled += 1
        record.doubled = engine.radix.state.num_doubled


@part
def new_entries(engine: Engine, num_pages: int) -> int:
    """Return the index of the first of `num_pages` unused entries of `RadixTables.node_pages`. If the half in use has
    too few, first copy the entries of all nodes on the device to the other half, which has room for all nodes.
    """
    radix, nodes, pages = engine.radix.state, engine.radix.nodes, engine.radix.node_pages
    if radix.entries_end + num_pages > radix.entries_limit:
        half = len(pages) // 2
        radix.entries_end = half if radix.entries_limit == half else 0
        radix.entries_limit = radix.entries_end + half
        for node in range(1, radix.num_nodes + 1):
            record = nodes[node]
            if record.is_on_device and not record.is_spare:
                begin, record.first_entry = record.first_entry, radix.entries_end
                for index in range(record.num_pages):
                    pages[record.first_entry + index] = pages[begin + index]
                radix.entries_end += record.num_pages
    radix.entries_end += num_pages
    assert radix.entries_end <= radix.entries_limit
    return radix.entries_end - num_pages


@part
def remove(engine: Engine, node: int) -> None:
    """Remove a node from the tree. It must have no pages on the device."""
    nodes, radix = engine.radix.nodes, engine.radix.state
    record = nodes[node]
    bucket.remove(nodes, engine.buckets[bucket_of(engine, record.key)], node)
    nodes[record.parent].num_host_children -= 1
    record.parent, radix.first_spare = radix.first_spare, node
    record.is_spare = True
