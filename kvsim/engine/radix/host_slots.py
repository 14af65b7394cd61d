"""Slots of host memory that hold copies of the radix tree's nodes. Each slot holds one page.

The free slots are a linked list: slots are allocated from its front, and freed to its front. The slots of a node are a
linked list, too, in the order of the node's pages. A recording has the slot of each page. No decision depends on which
slots are allocated, and kvsim's choice was not compared with SGLang's.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix_records import NO_SLOT
from kvsim.engine.state import Engine


@part
def alloc(engine: Engine, node: int) -> None:
    """Allocate a slot for each page of a node. Enough slots must be free."""
    radix, record, following = engine.radix.state, engine.radix.nodes[node], engine.radix.next_slot
    assert record.num_pages <= radix.num_free_host
    radix.num_free_host -= record.num_pages
    record.is_on_host, record.first_slot = True, radix.first_free_slot
    last = _later(engine, record.first_slot, record.num_pages - 1)
    radix.first_free_slot, following[last] = following[last], NO_SLOT


@part
def free(engine: Engine, node: int) -> None:
    """Free the slots of a node, and record that it is not on the host any longer."""
    radix, record = engine.radix.state, engine.radix.nodes[node]
    radix.num_free_host += record.num_pages
    record.is_on_host = False
    engine.radix.next_slot[_later(engine, record.first_slot, record.num_pages - 1)] = radix.first_free_slot
    radix.first_free_slot, record.first_slot = record.first_slot, NO_SLOT


@part
def split(engine: Engine, upper: int, lower: int) -> None:
    """Divide the slots of a node that was split: `upper`, the new node with the first pages, gets the slots of these
    pages from `lower`, which has had all slots. Do nothing if the node is not on the host.
    """
    nodes, following = engine.radix.nodes, engine.radix.next_slot
    if nodes[lower].is_on_host:
        last = _later(engine, nodes[lower].first_slot, nodes[upper].num_pages - 1)
        nodes[upper].first_slot, nodes[lower].first_slot = nodes[lower].first_slot, following[last]
        following[last] = NO_SLOT


@part
def _later(engine: Engine, slot: int, distance: int) -> int:
    for _ in range(distance):
        slot = engine.radix.next_slot[slot]
    return slot
