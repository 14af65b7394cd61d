"""Lines in which anybody may stand anywhere: records linked in a ring, with one of them as both of its ends.

The record `END` says is never in the line. Whoever follows it is the head, whoever it follows the tail.
"""

from __future__ import annotations

from kvsim.simulation.compiled.jit import jit
from kvsim.simulation.compiled.records import Node, Records

END = 0


@jit
def make_empty(nodes: Records[Node]) -> None:
    """Nobody stands in line."""
    nodes[END].next = END
    nodes[END].previous = END


@jit
def link_first(nodes: Records[Node], node: int) -> None:
    """Put `node` before all others."""
    head = nodes[END].next
    nodes[node].previous = END
    nodes[node].next = head
    nodes[head].previous = node
    nodes[END].next = node


@jit
def link_last(nodes: Records[Node], node: int) -> None:
    """Put `node` behind all others."""
    tail = nodes[END].previous
    nodes[node].previous = tail
    nodes[node].next = END
    nodes[tail].next = node
    nodes[END].previous = node


@jit
def unlink(nodes: Records[Node], node: int) -> None:
    """Take `node` out, wherever it stands."""
    before, after = nodes[node].previous, nodes[node].next
    nodes[before].next = after
    nodes[after].previous = before
