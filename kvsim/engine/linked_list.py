"""Doubly linked lists of records, used for the free queue of blocks and for the queue of waiting sequences.

Record `HEAD` is not a member. It marks both ends of a list: its `next` is the first record, its `previous` the last.
"""

from __future__ import annotations

from kvsim.engine.arrays import Records
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Linked

HEAD = 0


@part
def push_front(records: Records[Linked], index: int) -> None:
    """Insert record `index`, which is in no list, at the front of the list."""
    insert_before(records, records[HEAD].next, index)


@part
def push_back(records: Records[Linked], index: int) -> None:
    """Append record `index`, which is in no list, to the list."""
    insert_before(records, HEAD, index)


@part
def remove(records: Records[Linked], index: int) -> None:
    """Remove record `index` from its list. Its own links keep their values."""
    record = records[index]
    before, after = record.previous, record.next
    records[before].next, records[after].previous = after, before


@part
def insert_before(records: Records[Linked], place: int, index: int) -> None:
    """Insert record `index` before record `place`, which is in a list or is the `HEAD` of a list."""
    record, after = records[index], records[place]
    before = after.previous
    record.previous, record.next = before, place
    records[before].next = after.previous = index
