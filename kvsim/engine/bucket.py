"""Records that are alike: of each bucket a list in the order in which they came, beside the list of `linked_list`."""

from __future__ import annotations

from kvsim.engine.arrays import Records
from kvsim.engine.compiled import part
from kvsim.engine.linked_list import HEAD
from kvsim.engine.records import Alike, Bucket


@part
def push_back(nodes: Records[Alike], bucket: Bucket, node: int) -> None:
    """Put `node` behind all others of its bucket."""
    nodes[node].previous_alike = bucket.last
    nodes[node].next_alike = HEAD
    if bucket.last == HEAD:
        bucket.first = node
    else:
        nodes[bucket.last].next_alike = node
    bucket.last = node


@part
def remove(nodes: Records[Alike], bucket: Bucket, node: int) -> None:
    """Take `node` out of its bucket, wherever it stands."""
    before, after = nodes[node].previous_alike, nodes[node].next_alike
    if before == HEAD:
        bucket.first = after
    else:
        nodes[before].next_alike = after
    if after == HEAD:
        bucket.last = before
    else:
        nodes[after].previous_alike = before
