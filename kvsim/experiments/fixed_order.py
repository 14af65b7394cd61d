"""Prefix hits of requests that are served one at a time, in their order: vLLM's eviction, and the bound of all.

Nothing here depends on time, so no rule of eviction changes which request is next or how many blocks it takes. Under
these two conditions Belady's rule finds as many blocks as any rule can: the pool beside a request is a cache whose
size at every request is given, and each prefix is kept from its beginning.
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
from kvsim.workload import Workload


class _Blocks(NamedTuple):
    """Blocks of one request, from its first token on."""

    keys: list[int]
    """Keys of its full blocks whose prefix another request may have."""
    num_lookups: int
    """Leading blocks that are looked up: not the one that the prompt ends with."""
    num_full: int
    num_blocks: int


def hits_in_order(
    workload: Workload, num_blocks: int, *, block_size: int = 16, eviction: str = "optimal"
) -> npt.NDArray[np.int64]:
    """Return the prompt tokens that each request finds in the prefix cache if they are served one at a time.

    With "optimal", no rule of eviction finds more in all under these conditions. `kvsim.simulate` with `max_num_seqs`
    1 finds the same for both.

    Args:
        workload: requests, served in their order, whatever their times.
        num_blocks: blocks of the pool.
        block_size: tokens of a block.
        eviction: "optimal", or "lru" for vLLM's rule.

    Returns:
        Tokens as int64[n], in the order of the requests.

    Raises:
        BudgetError: a request needs more blocks than there are.
        UsageError: there is no such rule.
        WorkloadError: blocks would straddle the units that the workload has hashes of.
    """
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
    """Yield the blocks that each request finds if the block that is needed last is evicted."""
    uses: defaultdict[int, list[int]] = defaultdict(list)
    for number, request in reversed(list(enumerate(requests))):
        for key in request.keys[: request.num_lookups]:
            uses[key].append(number)
    kept: dict[int, int] = {}  # the next use of each cached block beside the request; others are of no use
    latest: list[tuple[int, int, int]] = []
    for request in requests:
        for key in request.keys[: request.num_lookups]:
            uses[key].pop()
        num_hits = 0
        while num_hits < request.num_lookups and request.keys[num_hits] in kept:
            num_hits += 1
        yield num_hits
        for key in request.keys:
            kept.pop(key, None)
        while len(kept) > num_blocks - request.num_blocks:
            use, _, key = heappop(latest)
            if kept.get(key) == -use:
                del kept[key]
        for index, key in enumerate(request.keys):
            if uses[key]:
                kept[key] = uses[key][-1]
                heappush(latest, (-uses[key][-1], -index, key))


def _least_recent(requests: list[_Blocks], num_blocks: int) -> Iterator[int]:
    """Yield the blocks that each request finds if the least recently freed one is evicted, as in vLLM.

    A block without a prefix is taken first. Blocks are freed from the last to the first.
    """
    free: OrderedDict[int, int] = OrderedDict()  # the key of each free block that keeps a prefix, by its serial number
    blocks_of: defaultdict[int, list[int]] = defaultdict(list)  # those of equal prefixes, the first cached one first
    num_empty, serial = num_blocks, 0
    for request in requests:
        table: list[int] = []
        while len(table) < request.num_lookups and blocks_of[request.keys[len(table)]]:
            table.append(blocks_of[request.keys[len(table)]][0])
            del free[table[-1]]
        yield (num_hits := len(table))
        for _ in range(request.num_blocks - num_hits):
            if num_empty:
                num_empty -= 1
            else:
                block, key = free.popitem(last=False)
                blocks_of[key].remove(block)
        keys = [*request.keys, *range(-serial - 1, -serial - 1 - request.num_full, -1)][: request.num_full]
        table += range(serial, serial + request.num_full - num_hits)
        serial += request.num_full
        for block, key in zip(table[num_hits:], keys[num_hits:], strict=True):
            blocks_of[key].append(block)
        for block, key in reversed(list(zip(table, keys, strict=True))):
            free[block] = key
        num_empty += request.num_blocks - request.num_full
