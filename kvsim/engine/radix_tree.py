"""SGLang's radix tree: runs of pages with known tokens, found by the tokens before them.

A node holds a run of pages. The keys of pages are those of prefixes (`prefix_keys`): equal exactly where all tokens up
to the end of the page are. So the child of a node is found by the key of its first page alone, and how far a run agrees
with a request is found by looking at few of its keys. A match that ends inside a node splits it there. Requests lock
the path from the root to where their own prefix ends; what no request locks can be evicted, leaf by leaf, and a leaf
goes whole.

Accesses are counted. A match stamps the path from its end up, each node a little older than the one below it; an insert
stamps it from the root down.
"""

from __future__ import annotations

from kvsim.engine import bucket, evictable_leaves, radix_events, radix_journal, token_slots
from kvsim.engine.compiled import part
from kvsim.engine.prefix_cache import bucket_of
from kvsim.engine.radix_records import NO_PRIORITY, ROOT
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine

_TICK = 1 << 20
"""Stamps of one access, of which a match gives one to each node of a path."""
_ROW_BITS = 32


@part
def key_of(engine: Engine, number: int, page: int) -> int:
    """Return the key of a page of a request; behind the keys that are known no other request has it."""
    sequence = engine.sequences[number]
    if page < sequence.num_keys:
        return engine.prompt_keys[sequence.first_key + page]
    return -1 - ((number - 1) << _ROW_BITS | page)


@part
def match_prefix(engine: Engine, sequence: Sequence, num_tokens: int) -> int:
    """Return the node at which the longest prefix of the first `num_tokens` tokens ends, and stamp its path."""
    radix, num_pages = engine.radix.state, num_tokens // engine.settings.unit_tokens
    if num_pages == 0:
        return ROOT
    node, depth = ROOT, 0
    while depth < num_pages:
        child = find_child(engine, sequence, depth)
        if child == ROOT:
            break
        num_common = _num_common_pages(engine, sequence, child, num_pages - depth)
        if num_common < engine.radix.nodes[child].num_pages:
            node = split(engine, child, num_common)
            break
        node, depth = child, depth + num_common
    radix.clock += _TICK
    ancestor, stamp = node, radix.clock
    while ancestor != ROOT:
        engine.radix.nodes[ancestor].accessed = stamp
        stamp -= 1
        ancestor = engine.radix.nodes[ancestor].parent
    evictable_leaves.update(engine, node)
    return node


@part
def insert(engine: Engine, sequence: Sequence, num_pages: int, protected: int, inserted: int, priority: int) -> int:
    """Put the first `num_pages` pages of the row of a request into the tree; return the node at which they end.

    Where the tree has their tokens, it keeps its own pages: those of the request, from page `protected` on, are freed,
    and its row lists the tree's. Nodes that end behind page `inserted` count a hit.
    """
    nodes = engine.radix.nodes
    _tick(engine)  # the root
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
        if protected < depth + num_common:
            _adopt(engine, sequence, child, max(depth, protected))
        node, depth = child, depth + num_common
        nodes[node].hits += int(depth > inserted)
        evictable_leaves.update(engine, node)
    return node if depth == num_pages else _add_leaf(engine, sequence, node, num_pages, inserted, priority)


@part
def insert_prompt(engine: Engine, sequence: Sequence, num_pages: int, priority: int) -> None:
    """Give the path of a request, which the tree has, a boundary where its prompt ends.

    So its answer can be evicted without its prompt.
    """
    insert(engine, sequence, num_pages, num_pages, num_pages, min(priority + 1, NO_PRIORITY))


@part
def split(engine: Engine, node: int, num_pages: int) -> int:
    """Split a node behind its first `num_pages` pages; return the new node, which holds these.

    The new node has what is known of the old one, and its place among the children of its parent.
    """
    nodes, buckets = engine.radix.nodes, engine.buckets
    upper = _new_node(engine)
    new, old = nodes[upper], nodes[node]
    assert 0 < num_pages < old.num_pages
    new.parent, new.owner, new.begin, new.num_pages = old.parent, old.owner, old.begin, num_pages
    new.key, new.attached, new.num_children = old.key, old.attached, 1
    new.locks, new.hits, new.priority, new.created = old.locks, old.hits, old.priority, old.created
    new.first_page = page = old.first_page
    for _ in range(num_pages - 1):
        page = engine.radix.pages[page]
    new.last_page, old.first_page = page, engine.radix.pages[page]
    bucket.remove(nodes, buckets[bucket_of(engine, old.key)], node)
    old.parent, old.begin, old.num_pages = upper, old.begin + num_pages, old.num_pages - num_pages
    old.key = key_of(engine, old.owner, old.begin)
    bucket.push_back(nodes, buckets[bucket_of(engine, new.key)], upper)
    bucket.push_back(nodes, buckets[bucket_of(engine, old.key)], node)
    old.accessed = _tick(engine)
    evictable_leaves.update(engine, node)
    return upper


@part
def inc_lock_ref(engine: Engine, node: int) -> None:
    """Lock the path from a node to the root once more."""
    nodes, radix = engine.radix.nodes, engine.radix.state
    while node != ROOT:
        record = nodes[node]
        record.locks += 1
        if record.locks == 1:
            engine.state.num_cached -= record.num_pages
            radix.locked_pages += record.num_pages
            evictable_leaves.update(engine, node)
        else:
            engine.groups[0].num_shared += record.num_pages
        node = record.parent


@part
def dec_lock_ref(engine: Engine, node: int) -> None:
    """Give up one lock of the path from a node to the root."""
    nodes, radix = engine.radix.nodes, engine.radix.state
    while node != ROOT:
        record = nodes[node]
        assert record.locks > 0
        record.locks -= 1
        if record.locks == 0:
            engine.state.num_cached += record.num_pages
            radix.locked_pages -= record.num_pages
            evictable_leaves.update(engine, node)
        else:
            engine.groups[0].num_shared -= record.num_pages
        node = record.parent


@part
def evict(engine: Engine, num_tokens: int) -> None:
    """Evict leaves until `num_tokens` slots more are free, or none is left that can be evicted."""
    nodes, radix = engine.radix.nodes, engine.radix.state
    radix_events.asked(engine, num_tokens)
    enough = engine.state.num_free + token_slots.ceil_pages(engine, num_tokens)
    while engine.state.num_free < enough and radix.num_leaves > 0:
        node = engine.radix.leaves[0]
        record = nodes[node]
        radix_events.leaf(engine, record)
        radix_journal.evict(engine, record)
        evictable_leaves.remove(engine, node)
        bucket.remove(nodes, engine.buckets[bucket_of(engine, record.key)], node)
        token_slots.free(engine, record.first_page, record.last_page, record.num_pages)
        engine.state.num_cached -= record.num_pages
        parent = record.parent
        nodes[parent].num_children -= 1
        evictable_leaves.update(engine, parent)
        record.parent, radix.first_spare = radix.first_spare, node


@part
def end_of(engine: Engine, node: int) -> int:
    """Return the pages of the path from the root to the end of a node."""
    return engine.radix.nodes[node].begin + engine.radix.nodes[node].num_pages


@part
def find_child(engine: Engine, sequence: Sequence, depth: int) -> int:
    """Return the child that matches the request's page at `depth`; the root for none."""
    key = key_of(engine, sequence.number, depth)
    node = engine.buckets[bucket_of(engine, key)].first
    while node != ROOT and engine.radix.nodes[node].key != key:
        node = engine.radix.nodes[node].next_alike
    return node


@part
def _num_common_pages(engine: Engine, sequence: Sequence, node: int, most: int) -> int:
    """Count the leading pages of a node, of which the first agrees, that agree with a request; `most` at most."""
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
def _adopt(engine: Engine, sequence: Sequence, node: int, begin: int) -> None:
    """Let the row of a request list the pages of a node from page `begin` of the path on; free its own."""
    record, pages, rows = engine.radix.nodes[node], engine.radix.pages, engine.radix.rows
    row, end = sequence.place * engine.radix.settings.row_pages, record.begin + record.num_pages
    page = record.first_page
    for _ in range(begin - record.begin):
        page = pages[page]
    radix_events.duplicate(engine, row + begin, row + end)
    radix_journal.replace(engine, sequence, begin, end)
    first = last = rows[row + begin]
    for index in range(row + begin, row + end):
        own, rows[index] = rows[index], page
        page = pages[page]
        if own != first:
            pages[last] = own
            last = own
    token_slots.free(engine, first, last, end - begin)
    radix_journal.share(engine, sequence, begin, end)


@part
def _add_leaf(engine: Engine, sequence: Sequence, parent: int, num_pages: int, inserted: int, priority: int) -> int:
    """Add a leaf below `parent`, with the pages of a row behind those of the path, up to page `num_pages`."""
    nodes, rows = engine.radix.nodes, engine.radix.rows
    begin, row = end_of(engine, parent), sequence.place * engine.radix.settings.row_pages
    node = _new_node(engine)
    record = nodes[node]
    record.parent, record.owner, record.begin, record.num_pages = parent, sequence.number, begin, num_pages - begin
    record.key = key_of(engine, sequence.number, begin)
    record.first_page, record.last_page = rows[row + begin], rows[row + num_pages - 1]
    link_row(engine, row + begin, row + num_pages)
    record.locks = record.num_children = 0
    record.hits = int(num_pages > inserted)
    record.priority, record.created, record.attached = priority, record.accessed, record.accessed
    nodes[parent].num_children += 1
    engine.state.num_cached += record.num_pages
    bucket.push_back(nodes, engine.buckets[bucket_of(engine, record.key)], node)
    evictable_leaves.update(engine, parent)
    evictable_leaves.update(engine, node)
    return node


@part
def link_row(engine: Engine, begin: int, end: int) -> None:
    """Let each page in `rows[begin:end]` lead to the next."""
    pages, rows = engine.radix.pages, engine.radix.rows
    for index in range(begin + 1, end):
        pages[rows[index - 1]] = rows[index]


@part
def _new_node(engine: Engine) -> int:
    """Take a record for a node; it is stamped."""
    nodes, radix = engine.radix.nodes, engine.radix.state
    node = radix.first_spare
    if node != ROOT:
        radix.first_spare = nodes[node].parent
    else:
        radix.num_nodes += 1
        node = radix.num_nodes
    nodes[node].place = -1
    nodes[node].accessed = _tick(engine)
    return node


@part
def _tick(engine: Engine) -> int:
    """Count an access; return its stamp."""
    engine.radix.state.clock += _TICK
    return engine.radix.state.clock
