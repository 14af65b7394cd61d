"""Prefix hits of requests that are served one at a time: with vLLM's eviction rule, and the most of any rule.

This maximum shows how much a better eviction rule could gain. If the order is fixed and requests do not overlap,
eviction changes neither the next request nor the number of blocks that it takes. So Belady's rule is optimal.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.engine.paged.prefix_keys import prompt_keys, with_answers
from kvsim.errors import BudgetError, UsageError
from kvsim.policies.settings import PrefixEviction
from kvsim.setting_fields import check_instance, whole_number
from kvsim.workload import Workload
from kvsim.workload.lengths import check_tokens


class _Blocks(NamedTuple):
    """Blocks of a request, in the order of its tokens."""

    keys: list[int]
    """Prefix keys of the leading full blocks. Requests with equal keys can share these blocks."""
    num_lookups: int
    """Number of leading blocks looked up: without that of the last prompt token, which is always computed."""
    num_full: int
    num_blocks: int


def hits_in_order(
    workload: Workload, num_blocks: int, *, block_size: int = 16, eviction: str = "optimal"
) -> npt.NDArray[np.int64]:
    """Return the number of prompt tokens that each request hits in the prefix cache if requests run one at a time.

    No eviction rule hits more tokens in total than "optimal". `kvsim.simulate` with `max_num_seqs` 1 returns the same
    numbers with "optimal" and with "lru".

    Args:
        workload: Requests, which are served in their order; arrival times are ignored.
        num_blocks: Number of blocks in the pool.
        block_size: Number of tokens in a block.
        eviction: "optimal", or "lru" for vLLM's rule.

    Returns:
        Numbers of tokens as int64[n], in the order of the requests.

    Raises:
        BudgetError: a request needs more blocks than the pool has.
        UsageError: there is no such rule.
        WorkloadError: the prompts are hashed in units that are not whole blocks of `block_size` tokens.
    """
    check_instance(
        "the workload", workload, Workload, "a Workload, as kvsim.generate or kvsim.read_workload returns it"
    )
    check_instance("eviction", eviction, str, "optimal or lru")
    whole_number("num_blocks", num_blocks)
    check_tokens("block_size", block_size)
    rules = {PrefixEviction.OPTIMAL.value: _optimal, PrefixEviction.LRU.value: _least_recent}
    if eviction not in rules:
        raise UsageError(f"eviction should be {' or '.join(rules)}, not {eviction!r}.")
    requests = list(_blocks_of(workload, block_size))
    most = max((each.num_blocks for each in requests), default=0)
    if most > num_blocks:
        raise BudgetError(f"a request needs {most:,} blocks, and the pool has {num_blocks:,}; give it more.")
    return block_size * np.fromiter(rules[eviction](requests, num_blocks), np.int64, len(requests))


def _blocks_of(workload: Workload, block_size: int) -> Iterator[_Blocks]:
    keys = with_answers(workload.turns, prompt_keys(workload, block_size), block_size)
    for row in range(len(workload)):
        prompt = int(workload.prompt_tokens[row])
        computed = prompt + int(workload.output_tokens[row]) - 1  # the last token is never computed
        num_full = computed // block_size
        known = keys[row].tolist()[:num_full]
        yield _Blocks(known, min((prompt - 1) // block_size, len(known)), num_full, -(-computed // block_size))


def _optimal(requests: list[_Blocks], num_blocks: int) -> Iterator[int]:
    """Yield how many blocks each request hits with Belady's rule: evict the block whose next use is latest."""
    uses: defaultdict[int, list[int]] = defaultdict(list)
    for number, request in reversed(list(enumerate(requests))):
        for key in request.keys[: request.num_lookups]:
            uses[key].append(number)
    kept: dict[int, int] = {}  # key of each cached block that will be used again -> number of the next request
    latest: list[tuple[int, int, int]] = []  # heap of these blocks, the latest use first; some entries are outdated
    for request in requests:
        for key in request.keys[: request.num_lookups]:
            uses[key].pop()
        num_hits = 0
        while num_hits < request.num_lookups and request.keys[num_hits] in kept:
            num_hits += 1
        yield num_hits
        # While the request runs, its own blocks cannot be evicted; evict others until its blocks fit into the pool.
        for key in request.keys:
            kept.pop(key, None)
        while len(kept) > num_blocks - request.num_blocks:
            use, _, key = heappop(latest)
            if kept.get(key) == -use:  # otherwise the entry is outdated
                del kept[key]
        # The request ends. Of its blocks with the same next use, the last one is evicted first.
        for index, key in enumerate(request.keys):
            if uses[key]:
                kept[key] = uses[key][-1]
                heappush(latest, (-uses[key][-1], -index, key))


def _least_recent(requests: list[_Blocks], num_blocks: int) -> Iterator[int]:
    """Yield the number of blocks that each request hits with vLLM's rule, which evicts the least recently freed block.

    Blocks without a cached prefix are taken first. A request frees its blocks from the last to the first.
    """
    free: OrderedDict[int, int] = OrderedDict()  # keys of the cached free blocks, by serial number of the block
    blocks_of: defaultdict[int, list[int]] = defaultdict(list)  # cached blocks of each key, the oldest first
    num_empty, serial = num_blocks, 0
    for request in requests:
        table: list[int] = []
        # 1. Hits: the oldest cached block of each leading key.
        while len(table) < request.num_lookups and blocks_of[request.keys[len(table)]]:
            table.append(blocks_of[request.keys[len(table)]][0])
            del free[table[-1]]
        yield (num_hits := len(table))
        # 2. Other blocks: first the empty ones, then the least recently freed one, whose prefix is evicted.
        for _ in range(request.num_blocks - num_hits):
            if num_empty:
                num_empty -= 1
            else:
                block, key = free.popitem(last=False)
                blocks_of[key].remove(block)
        # 3. Every new full block gets a serial number and a key. Blocks that no other request has get unique, negative
        #    keys.
        keys = [*request.keys, *range(-serial - 1, -serial - 1 - request.num_full, -1)][: request.num_full]
        table += range(serial, serial + request.num_full - num_hits)
        serial += request.num_full
        for block, key in zip(table[num_hits:], keys[num_hits:], strict=True):
            blocks_of[key].append(block)
        # 4. The request ends. Its partial last block has no prefix, so it is empty again.
        for block, key in reversed(list(zip(table, keys, strict=True))):
            free[block] = key
        num_empty += request.num_blocks - request.num_full
