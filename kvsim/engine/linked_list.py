"""Doubly linked lists over records: the free queue of blocks, the queue of waiting sequences.

Record `HEAD` stands for both ends and is never in the list. Its `next` is the first record, its `previous` the last.
"""

from __future__ import annotations

from kvsim.engine.arrays import Records
from kvsim.engine.compiled import part
from kvsim.engine.records import Node

HEAD = 0


@part
def push_front(nodes: Records[Node], node: int) -> None:
    """Put `node` before all others."""
    first = nodes[HEAD].next
    nodes[node].previous = HEAD
    nodes[node].next = first
    nodes[first].previous = node
    nodes[HEAD].next = node


@part
def push_back(nodes: Records[Node], node: int) -> None:
    """Put `node` behind all others."""
    last = nodes[HEAD].previous
    nodes[node].previous = last
    nodes[node].next = HEAD
    nodes[last].next = node
    nodes[HEAD].previous = node


@part
def remove(nodes: Records[Node], node: int) -> None:
    """Take `node` out, wherever it stands."""
    before, after = nodes[node].previous, nodes[node].next
    nodes[before].next = after
    nodes[after].previous = before


@part
def insert_before(nodes: Records[Node], place: int, node: int) -> None:
    """Put `node` before `place`: a record in a list, or one that stands for both ends of a list."""
    before = nodes[place].previous
    nodes[node].previous = before
    nodes[node].next = place
    nodes[before].next = node
    nodes[place].previous = node
