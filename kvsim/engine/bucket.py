"""Buckets of hash tables and indexes. A bucket lists its records in order of insertion, linked by `next_in_bucket`.

The links are separate from those of `linked_list`, so a record can be in a bucket and in a list at once.
"""

from __future__ import annotations

from kvsim.engine.arrays import Records
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Bucket, Bucketed


@part
def push_back(records: Records[Bucketed], bucket: Bucket, index: int) -> None:
    """Append record `index`, which is in no bucket, to `bucket`."""
    records[index].previous_in_bucket = bucket.last
    records[index].next_in_bucket = HEAD
    if bucket.last == HEAD:
        bucket.first = index
    else:
        records[bucket.last].next_in_bucket = index
    bucket.last = index


@part
def remove(records: Records[Bucketed], bucket: Bucket, index: int) -> None:
    """Remove record `index` from `bucket`, which must contain it."""
    before, after = records[index].previous_in_bucket, records[index].next_in_bucket
    if before == HEAD:
        bucket.first = after
    else:
        records[before].next_in_bucket = after
    if after == HEAD:
        bucket.last = before
    else:
        records[after].previous_in_bucket = before
