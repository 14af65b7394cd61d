"""SGLang's radix tree, which caches prefixes: match, insert, split and evict.

A node holds consecutive pages of a prefix. Two pages have the same key exactly if all tokens up to their ends are the
same (see `prefix_keys`). So the key of a node's first page suffices to find a child, and a binary search over the keys
of a node finds how many of its pages match a request. A match that ends inside a node splits the node there. A request
locks the path from the root to the end of its prefix. Leaves that nothing locks can be evicted, one at a time.

A match or an insert stamps the nodes on its path, and the eviction strategy compares these stamps: a larger stamp is a
later access. A match stamps its path from the end upwards, so that each node has a smaller stamp than its child. An
insert stamps its path from the root downwards.
"""

from __future__ import annotations

from kvsim.engine import bucket
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged.prefix_cache import bucket_of
from kvsim.engine.radix import (
    evictable_leaves,
    host_slots,
    radix_events,
    radix_journal,
    token_slots,
    tree_copies,
    tree_nodes,
    tree_windows,
)
from kvsim.engine.radix_records import NO_PAGE, NO_PRIORITY, ROOT
from kvsim.engine.records import NEVER, Sequence
from kvsim.engine.state import Engine

_TICK = 1 << 20
"""Distance from the first stamp of an access to that of the next: more than the nodes of a path, each of which gets a
stamp of its own in a match.
"""
_ROW_BITS = 32


@part
def key_of(engine: Engine, number: int, page: int) -> int:
    """Return the key of page `page`, from 0, of request `number`: negative, and its own, if the tokens are unknown."""
    sequence = engine.sequences[number]
    if page < sequence.num_keys:
        return engine.prompt_keys[sequence.first_key + page]
    return -1 - ((number - 1) << _ROW_BITS | page)  # known keys are not negative


@part
def match_prefix(engine: Engine, sequence: Sequence, num_tokens: int) -> int:
    """Match the first `num_tokens` tokens of a request with the tree. Return the last node of the longest cached prefix
    that is on the device; `ROOT` if there is none.

    With a host tier, the prefix may continue in nodes that are only on the host; `RadixState.host_node` is the last
    one. All nodes of the prefix are stamped. With windows, the tokens at the end of the prefix must have window slots:
    the tokens of one window, or the whole prefix if it is shorter.
    """
    radix, num_pages = engine.radix.state, num_tokens // engine.settings.unit_tokens
    radix.matched_pages, radix.host_node = 0, ROOT
    if num_pages == 0:
        return ROOT
    # Go down the path. `found` is the last node at which a hit may end, because enough tokens before have windows.
    node, depth, found, num_live = ROOT, 0, ROOT, NEVER
    while depth < num_pages:
        child = find_child(engine, sequence, depth)
        if child == ROOT:
            break
        num_common = _num_common_pages(engine, sequence, child, num_pages - depth)
        is_cut = num_common < engine.radix.nodes[child].num_pages
        node, depth = split(engine, child, num_common) if is_cut else child, depth + num_common
        num_live = _num_live_tokens(engine, node, num_live)
        if num_live >= engine.radix.settings.window_tokens:
            found = node
        if is_cut:
            break
    node = radix.host_node = found
    radix.matched_pages = depth
    tree_windows.touch(engine, node)
    radix.last_stamp += _TICK
    ancestor, stamp = node, radix.last_stamp
    while ancestor != ROOT:  # stamp the hit
        engine.radix.nodes[ancestor].accessed = stamp
        stamp -= 1
        ancestor = engine.radix.nodes[ancestor].parent
    while node != ROOT and not engine.radix.nodes[node].is_on_device:  # the host's part of the hit is its end
        node = engine.radix.nodes[node].parent
    evictable_leaves.update(engine, node)
    return node


@part
def _num_live_tokens(engine: Engine, node: int, num_before: int) -> int:
    """Return the number of tokens with window slots that directly precede the end of a node, without a gap.

    `num_before` is the result for the node's parent. If there are no windows, it is returned unchanged.
    """
    if engine.radix.settings.window_tokens == 0:
        return num_before
    record = engine.radix.nodes[node]
    return num_before + record.num_pages * engine.settings.unit_tokens if record.has_window else 0


@part
def insert(engine: Engine, sequence: Sequence, num_pages: int, protected: int, inserted: int, priority: int) -> int:
    """Insert the first `num_pages` pages of a request's row into the tree. Return the node at which they end.

    Where the tree already has the same tokens, the request's pages are freed as duplicates, and its row gets the pages
    of the tree instead. There are two exceptions: nodes without windows (see `_replace_duplicates`), and nodes that are
    only on the host, which take over the request's pages. The first `protected` pages of the row are pages of the tree
    already.

    A hit is counted for each node that ends after the first `inserted` pages, which the request has inserted before.
    """
    nodes = engine.radix.nodes
    _tick(engine)  # counts as an access, although the root has no stamp
    node, depth = ROOT, 0
    while depth < num_pages:
        child = find_child(engine, sequence, depth)
        if child == ROOT:
            break
        nodes[child].accessed = _tick(engine)
        num_common = _num_common_pages(engine, sequence, child, num_pages - depth)
        if num_common < nodes[child].num_pages:
            child = split(engine, child, num_common)
        nodes[child].priority = max(nodes[child].priority, priority)
        if not nodes[child].is_on_device:
            tree_nodes.gain_device_pages(engine, child)
            _copy_from_row(engine, sequence, child)
            tree_nodes.update_double(engine, child)
        elif protected < depth + num_common:
            _replace_duplicates(engine, sequence, child, max(depth, protected))
        node, depth = child, depth + num_common
        if depth > inserted:
            tree_copies.count_hit(engine, node)
        evictable_leaves.update(engine, node)
    if depth < num_pages:
        node = _add_leaf(engine, sequence, node, num_pages, inserted, priority)
    tree_windows.touch(engine, node)
    return node


@part
def split_at_prompt_end(engine: Engine, sequence: Sequence, num_pages: int, priority: int) -> None:
    """Split the path of a request at the end of its prompt, after `num_pages` pages, so that the answer can be evicted
    without the prompt. The tree must have these pages. As in SGLang, the prompt is inserted again, with the
    priority `priority` + 1, at most `NO_PRIORITY`.
    """
    insert(engine, sequence, num_pages, num_pages, num_pages, min(priority + 1, NO_PRIORITY))


@part
def split(engine: Engine, node: int, num_pages: int) -> int:
    """Split a node after its first `num_pages` pages. Return the new node, which holds these pages.

    The new node becomes the parent of the old node, and a child of the old node's former parent. It has the same locks,
    hits and priority as the old node.
    """
    nodes, buckets = engine.radix.nodes, engine.buckets
    upper = _new_node(engine)
    new, old = nodes[upper], nodes[node]
    assert 0 < num_pages < old.num_pages
    new.parent, new.owner, new.begin, new.num_pages = old.parent, old.owner, old.begin, num_pages
    new.key, new.attached, new.num_children = old.key, old.attached, int(old.is_on_device)
    new.is_on_device, new.is_on_host = old.is_on_device, old.is_on_host
    new.num_host_children = int(not old.is_on_device)
    new.loaded_for = old.loaded_for
    new.locks, new.copy_locks, new.hits = old.locks, old.copy_locks, old.hits
    new.priority, new.created = old.priority, old.created
    new.first_entry = old.first_entry
    old.first_entry += num_pages
    tree_windows.share_with(engine, node, upper)
    bucket.remove(nodes, buckets[bucket_of(engine, old.key)], node)
    old.parent, old.begin, old.num_pages = upper, old.begin + num_pages, old.num_pages - num_pages
    old.key = key_of(engine, old.owner, old.begin)
    bucket.push_back(nodes, buckets[bucket_of(engine, new.key)], upper)
    bucket.push_back(nodes, buckets[bucket_of(engine, old.key)], node)
    old.accessed = _tick(engine)
    evictable_leaves.update(engine, node)
    host_slots.split(engine, upper, node)
    tree_nodes.update_double(engine, upper)
    return upper


@part
def evict(engine: Engine, num_tokens: int, num_window_tokens: int) -> None:
    """Evict leaves until at least `num_tokens` slots have become free. Then evict windows until at least
    `num_window_tokens` window slots have become free, those of the evicted leaves included. Stop early if nothing is
    left that can be evicted.
    """
    radix = engine.radix.state
    radix_events.eviction_request(engine, num_tokens, num_window_tokens)
    enough = engine.state.num_free + token_slots.ceil_pages(engine, num_tokens)
    begin, most = radix.num_free_windows, token_slots.ceil_pages(engine, num_window_tokens)
    while engine.state.num_free < enough and radix.num_leaves > 0:
        _evict_leaf(engine, engine.radix.leaves[0])
    node = tree_windows.next_unlocked(engine, ROOT)
    while radix.num_free_windows < begin + most and node != ROOT:
        younger = tree_windows.next_unlocked(engine, node)
        if engine.radix.nodes[node].place >= 0:  # a leaf that can be evicted
            _evict_leaf(engine, node)
        else:
            _evict_windows(engine, node)
        node = younger


@part
def _evict_leaf(engine: Engine, node: int) -> None:
    """Evict a leaf with its windows. With a host tier, it stays in the tree if it is on the host or is now copied
    there; see `tree_copies.demote`.
    """
    record = engine.radix.nodes[node]
    if tree_copies.has_host_tier(engine) and tree_copies.demote(engine, node):
        return
    radix_events.leaf(engine, record)
    radix_journal.evict(engine, record)
    if record.has_window:
        _evict_windows(engine, node)
    tree_nodes.lose_device_pages(engine, node)
    token_slots.free(engine, engine.radix.node_pages, record.first_entry, record.first_entry + record.num_pages)
    tree_nodes.remove(engine, node)


@part
def _evict_windows(engine: Engine, node: int) -> None:
    record = engine.radix.nodes[node]
    radix_events.window(engine, record)
    first = record.first_entry
    token_slots.free_windows(engine, engine.radix.node_pages, first, first + record.num_pages)
    tree_windows.take(engine, node)


@part
def end_of(engine: Engine, node: int) -> int:
    """Return the number of pages on the path from the root to the end of a node."""
    return engine.radix.nodes[node].begin + engine.radix.nodes[node].num_pages


@part
def find_child(engine: Engine, sequence: Sequence, depth: int) -> int:
    """Return the node with the next page after a request's first `depth` pages, which the tree has; or `ROOT`."""
    key = key_of(engine, sequence.number, depth)
    node = engine.buckets[bucket_of(engine, key)].first
    while node != ROOT and engine.radix.nodes[node].key != key:
        node = engine.radix.nodes[node].next_in_bucket
    return node


@part
def _num_common_pages(engine: Engine, sequence: Sequence, node: int, most: int) -> int:
    """Return the number of leading pages of a node that match a request, at most `most`. The first page must match."""
    record = engine.radix.nodes[node]
    low, high = 1, min(record.num_pages, most)
    page = record.begin + high - 1
    if key_of(engine, record.owner, page) == key_of(engine, sequence.number, page):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        page = record.begin + middle - 1
        if key_of(engine, record.owner, page) == key_of(engine, sequence.number, page):
            low = middle
        else:
            high = middle
    return low


@part
def _replace_duplicates(engine: Engine, sequence: Sequence, node: int, begin: int) -> None:
    """Replace a request's own pages by the pages of a node with the same tokens, from page `begin` of the path on.

    If the node has no windows, but the request still has some there, the node is split where these begin, and the lower
    part gets them; see `_restore_windows`.
    """
    record, num_windowless = engine.radix.nodes[node], _num_windowless_pages(engine, sequence)
    end, live = record.begin + record.num_pages, max(record.begin, num_windowless)
    if engine.radix.settings.window_tokens == 0 or record.has_window or live >= end:
        _replace_from_node(engine, sequence, node, begin, num_windowless)
        return
    upper = split(engine, node, live - record.begin) if live > record.begin else ROOT
    _restore_windows(engine, sequence, node)
    if upper != ROOT:
        _replace_from_node(engine, sequence, upper, begin, num_windowless)


@part
def _num_windowless_pages(engine: Engine, sequence: Sequence) -> int:
    """Return the number of leading pages of a request whose window slots it has freed."""
    return engine.radix.holdings[sequence.number].freed_window_tokens // engine.settings.unit_tokens


@part
def _replace_from_node(engine: Engine, sequence: Sequence, node: int, begin: int, num_windowless: int) -> None:
    """Replace a request's pages by those of a node, from page `begin` of the path on. The first `num_windowless` pages
    of the request have no window slots to free.
    """
    record = engine.radix.nodes[node]
    end = record.begin + record.num_pages
    middle = min(max(num_windowless, begin), end)
    _replace_run(engine, sequence, node, begin, middle, False)
    _replace_run(engine, sequence, node, middle, end, engine.radix.settings.window_tokens > 0)


@part
def _replace_run(engine: Engine, sequence: Sequence, node: int, begin: int, end: int, has_windows: bool) -> None:
    """Free a request's pages [begin, end), also of windows if `has_windows`; a node's pages replace them."""
    rows, row = engine.radix.rows, sequence.place * engine.radix.settings.row_pages
    if begin == end:
        return
    radix_events.duplicate(engine, row + begin, row + end)
    radix_journal.replace(engine, sequence, begin, end)
    if has_windows:
        token_slots.free_windows(engine, rows, row + begin, row + end)
    token_slots.free(engine, rows, row + begin, row + end)
    copy_to_row(engine, node, begin - engine.radix.nodes[node].begin, row + begin, end - begin)
    radix_journal.share(engine, sequence, begin, end)


@part
def _restore_windows(engine: Engine, sequence: Sequence, node: int) -> None:
    """Move the window slots of a request's pages to a node that has the same tokens, but no window slots.

    If nothing locks the node, its pages are freed, and it takes over the request's pages, which have the window slots.
    Otherwise the node keeps its pages and gets only the window slots. The request's pages are then freed, and its row
    gets the pages of the node.
    """
    record, windows, rows = engine.radix.nodes[node], engine.radix.window_pages, engine.radix.rows
    begin, first = sequence.place * engine.radix.settings.row_pages + record.begin, record.first_entry
    if record.locks == 0:
        radix_events.duplicate_of_node(engine, record)
        radix_journal.evict(engine, record)
        token_slots.free(engine, engine.radix.node_pages, first, first + record.num_pages)
        _copy_from_row(engine, sequence, node)
    else:
        radix_journal.replace(engine, sequence, record.begin, record.begin + record.num_pages)
        token_slots.free(engine, rows, begin, begin + record.num_pages)
        for index in range(record.num_pages):
            page, own = engine.radix.node_pages[first + index], rows[begin + index]
            windows[page], windows[own], rows[begin + index] = windows[own], NO_PAGE, page
        radix_journal.share(engine, sequence, record.begin, record.begin + record.num_pages)
    tree_windows.give(engine, node)


@part
def _add_leaf(engine: Engine, sequence: Sequence, parent: int, num_pages: int, inserted: int, priority: int) -> int:
    """Add a leaf below `parent` with the pages of a request's row from the end of `parent` up to page `num_pages`.
    Return the leaf. If it ends after the first `inserted` pages, a hit is counted for it.

    With windows, the leaf is split: a node for pages without window slots, a node for pages with window slots before
    the last window, and the leaf itself with the pages of the last window.
    """
    nodes, begin = engine.radix.nodes, end_of(engine, parent)
    first_entry = tree_nodes.new_entries(engine, num_pages - begin)
    node = _new_node(engine)
    record = nodes[node]
    record.parent, record.owner, record.begin, record.num_pages = parent, sequence.number, begin, num_pages - begin
    record.key = key_of(engine, sequence.number, begin)
    record.first_entry = first_entry
    _copy_from_row(engine, sequence, node)
    record.locks = record.copy_locks = record.num_children = record.hits = 0
    record.priority, record.created, record.attached = priority, record.accessed, record.accessed
    nodes[parent].num_children += 1
    engine.state.num_cached += record.num_pages
    bucket.push_back(nodes, engine.buckets[bucket_of(engine, record.key)], node)
    evictable_leaves.update(engine, parent)
    evictable_leaves.update(engine, node)
    if engine.radix.settings.window_tokens > 0:
        _give_windows(engine, node, max(begin, _num_windowless_pages(engine, sequence)), num_pages)
    if begin + record.num_pages > inserted:
        tree_copies.count_hit(engine, node)
    evictable_leaves.update(engine, node)
    return node


@part
def _give_windows(engine: Engine, node: int, begin: int, end: int) -> None:
    """Record that a new leaf has window slots for its pages [begin, end), counted on the whole path.

    Split the leaf at page `begin`, because a node has window slots for all of its pages or none. Split it also where
    the last window of tokens begins, so that the older pages can lose their window slots alone.
    """
    if begin >= end:
        return
    if begin > engine.radix.nodes[node].begin:
        split(engine, node, begin - engine.radix.nodes[node].begin)
    num_older = end - begin - token_slots.ceil_pages(engine, engine.radix.settings.window_tokens)
    if num_older > 0:
        tree_windows.give(engine, split(engine, node, num_older))
    tree_windows.give(engine, node)


@part
def copy_to_row(engine: Engine, node: int, first: int, begin: int, num_pages: int) -> None:
    """Copy `num_pages` pages of a node, from page `first` (from 0) on, to `RadixTables.rows` from index `begin` on."""
    rows, pages, entry = engine.radix.rows, engine.radix.node_pages, engine.radix.nodes[node].first_entry + first
    for index in range(num_pages):
        rows[begin + index] = pages[entry + index]


@part
def _copy_from_row(engine: Engine, sequence: Sequence, node: int) -> None:
    record, rows, pages = engine.radix.nodes[node], engine.radix.rows, engine.radix.node_pages
    begin, first = sequence.place * engine.radix.settings.row_pages + record.begin, record.first_entry
    for index in range(record.num_pages):
        pages[first + index] = rows[begin + index]


@part
def _new_node(engine: Engine) -> int:
    nodes, radix = engine.radix.nodes, engine.radix.state
    node = radix.first_spare
    if node != ROOT:
        radix.first_spare = nodes[node].parent
    else:
        radix.num_nodes += 1
        node = radix.num_nodes
    nodes[node].place = -1
    nodes[node].has_window = nodes[node].is_spare = nodes[node].is_on_host = False
    nodes[node].is_on_device = True
    nodes[node].num_host_children = nodes[node].host_locks = nodes[node].loaded_for = nodes[node].doubled = 0
    nodes[node].window_locks = nodes[node].edge = 0
    nodes[node].accessed = _tick(engine)
    return node


@part
def _tick(engine: Engine) -> int:
    """Begin an access to the tree. Return its first stamp, which is larger than all earlier ones."""
    engine.radix.state.last_stamp += _TICK
    return engine.radix.state.last_stamp
