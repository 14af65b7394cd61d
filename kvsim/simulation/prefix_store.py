"""A prefix store that all servers of a fleet read and write.

This models stores such as LMCache's server and Mooncake Store. Each server decides as vLLM does with a KV connector:
the store is asked when the scheduler considers a waiting request; then blocks are allocated, and loaded between steps.
The model of the store has these assumptions:

- The full blocks of a prompt are written when its first token is computed. The write takes the time of the server's
  link, and does not delay the server's steps.
- The least recently used prefix is evicted first, from its last block to its first.
- A load that has begun completes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, NamedTuple

import simpy

from kvsim.engine.paged import prefix_hits
from kvsim.engine.state import ABORTED, FINISHED, PREEMPTED, WAITING
from kvsim.errors import IntegrityError, UsageError, shortened
from kvsim.hardware import GIB
from kvsim.metrics.fleet_totals import StoreTotals
from kvsim.policies import Paged
from kvsim.policies.connectors import Connector, Exchange, KvLink, Role, refuse_with_connector
from kvsim.setting_fields import check_instance, is_finite

if TYPE_CHECKING:
    from kvsim.simulation.server import ServerProcess
    from kvsim.simulation.setup import Setup

_DEFAULT_LINK = KvLink()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStore:
    """Settings of a prefix store: memory that the servers of a fleet share, such as a part of each host's memory."""

    gib: float
    link: KvLink = _DEFAULT_LINK
    """Link of each server, or of each of its data-parallel ranks, to the store."""

    def __post_init__(self) -> None:
        if not (is_finite(self.gib) and self.gib > 0):
            raise UsageError(f"--prefix-store-gib should be above 0 and finite, not {shortened(self.gib)}.")
        check_instance("the link of the prefix store", self.link, KvLink, "a KvLink")

    def connector(self, size: int) -> Connector:
        """Return the connector of a server in a workload of `size` requests."""
        return Connector(role=Role.BOTH, is_store=True, link=self.link, exchanges=[Exchange()] * size)


class StoredPrefixes:
    """Contents of a prefix store: keys of blocks, the least recently used first."""

    def __init__(self, num_blocks: int) -> None:
        """Create an empty store for at most `num_blocks` blocks."""
        self.capacity = num_blocks
        self.num_written = self.num_evicted = self.most = 0
        self._used: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def num_leading(self, keys: Sequence[int]) -> int:
        """Return how many blocks at the beginning of a prompt are stored without a gap. `keys` are those of its blocks.

        A binary search suffices: all blocks before a stored block are stored too, because the last block of a prefix is
        evicted first.
        """
        return bisect_left(range(len(keys)), True, key=lambda index: keys[index] not in self._used)

    def put(self, keys: Sequence[int]) -> None:
        """Store the blocks of a prompt, given by their `keys`. If there are more than the capacity, store only the
        first ones.

        The stored blocks become the most recently used ones. Among them, the first block of the prompt is the most
        recent, and the last one is the least recent. If there are too many blocks, the least recently used are evicted.
        """
        keys = keys[: self.capacity]
        for key in reversed(keys):
            if key in self._used:
                self._used.move_to_end(key)
            else:
                self._used[key] = None
                self.num_written += 1
        while len(self._used) > self.capacity:
            self._used.popitem(last=False)
            self.num_evicted += 1
        self.most = max(self.most, len(self._used))

    def check(self, chains: Sequence[Sequence[int]] = ()) -> None:
        """Check the counts of blocks, and that the store holds all blocks before each stored block.

        `chains` are the block keys of whole prompts, in which gaps are looked for.
        """
        if len(self) > self.capacity or self.num_written != len(self) + self.num_evicted:
            raise IntegrityError(
                f"the prefix store holds {len(self):,} of {self.capacity:,} blocks; {self.num_written:,} were written "
                f"and {self.num_evicted:,} evicted."
            )
        for keys in chains:
            if sum(key in self._used for key in keys) != self.num_leading(keys):
                raise IntegrityError("the prefix store holds a block without one before it.")


class StoredPrompt(NamedTuple):
    """The write of one prompt to the prefix store."""

    computed_s: float
    """Time in seconds at which the prompt's first output token was computed and the write began."""
    stored_s: float
    """Time in seconds at which all blocks of the prompt are in the store."""
    first_block: int
    """Index in the prompt of the first block that was not stored when the write began."""
    num_blocks: int
    """Number of full blocks of the prompt from `first_block` on."""


@dataclass(slots=True)
class StoreLoad:
    """A load of blocks from the prefix store to one server."""

    number: int
    """Number of the request: its row in the workload, counted from 1."""
    begun_seq: int
    begin_s: float
    end_s: float
    first_block: int
    num_blocks: int
    num_tokens: int
    ended_seq: int = -1
    """Number of the engine's last event (`State.seq`) when the server reported the end of the load; -1 before."""


class SharedStore:
    """The prefix store of a fleet, on the simulation's clock. It is the other side of every server's KV connector."""

    def __init__(self, environment: simpy.Environment, setup: Setup, store: PrefixStore) -> None:
        _check(setup)
        block_bytes = setup.pool.bytes_per_unit * setup.machine.model.tensor_parallel_size
        self.content = StoredPrefixes(int(store.gib * GIB) // block_bytes)
        if not self.content.capacity:
            raise UsageError(f"--prefix-store-gib {store.gib:g} has no room for a block of {block_bytes:,} bytes.")
        self._environment, self._link, self._block_bytes = environment, store.link, setup.pool.bytes_per_unit
        self._is_checked = setup.options.get("check", False)
        self.loads: dict[ServerProcess, list[StoreLoad]] = {}
        """Loads of each server, in the order in which they began."""
        self._loading: dict[ServerProcess, list[StoreLoad]] = {}
        """Loads without a reported end, by server."""
        self._without_token: dict[int, ServerProcess] = {}
        """Server of each request that has no output token yet, by the number of the request."""
        self._keys: dict[int, list[int]] = {}
        """Block keys of the prompt of each request that has not ended, by the number of the request."""
        self._unfinished: dict[ServerProcess, list[int]] = {}
        """Numbers of the unfinished requests of each server."""
        self.writes: dict[int, StoredPrompt] = {}
        """Writes that have ended, by the number of the request whose prompt was written."""

    @property
    def totals(self) -> StoreTotals:
        """Counts of blocks up to now."""
        content = self.content
        num_loaded = sum(load.num_blocks for loads in self.loads.values() for load in loads)
        return StoreTotals(num_loaded, content.num_written, content.num_evicted, content.most, content.capacity)

    def horizon_s(self) -> float:
        """Return the time in seconds up to which a server may run ahead: now, as its next step may hit new blocks."""
        return float(self._environment.now)

    def add(self, server: ServerProcess, number: int) -> None:
        """Record that request `number` was sent to `server`, and tell its connector how many tokens are stored."""
        engine = server.driver.engine
        sequence = server.driver.sequence(number)
        blocks = int(sequence.prompt_tokens) // int(engine.settings.unit_tokens)
        with_keys = min(blocks, int(sequence.num_keys) // int(engine.groups[0].hashes_per_block))
        self._keys[number] = [int(prefix_hits.key_of(engine, sequence, 0, index)) for index in range(with_keys)]
        self._without_token[number] = server
        self._unfinished.setdefault(server, []).append(number)
        self._set_stored_tokens(server, number)

    def process_transfers(self, server: ServerProcess) -> None:
        """Record the loads `server` has begun, and begin to write the prompts whose first token it has computed."""
        self._take_loads(server)
        times = server.driver.engine.times
        done = [number for number, home in self._without_token.items()
                if home is server and not isnan(times[number].first_token_s)]  # fmt: skip
        for number in done:
            del self._without_token[number]
            self._environment.process(self._write(number, self._keys[number], float(times[number].first_token_s)))
        self._update_preempted(server)

    def _take_loads(self, server: ServerProcess) -> None:
        """Record the loads that ended and the loads that began since the previous call for this server.

        A request computes tokens between two of its loads. So between two calls, a load of a request cannot end and its
        next one begin.
        """
        transfers = server.driver.engine.connector.transfers
        under_way = self._loading.get(server, [])
        for load in under_way:
            load.ended_seq = int(transfers[load.number].ended_seq)
        self._loading[server] = under_way = [load for load in under_way if load.ended_seq < 0]
        begun, _ = server.driver.news()
        for number, done_s in begun:
            record = transfers[number]
            load = StoreLoad(
                number=number,
                begun_seq=int(record.begun_seq),
                begin_s=float(record.begin_s),
                end_s=done_s,
                first_block=int(record.first_entry),
                num_blocks=int(record.num_blocks),
                num_tokens=int(record.num_tokens),
            )
            self.loads.setdefault(server, []).append(load)
            under_way.append(load)

    def _write(self, number: int, keys: list[int], computed_s: float) -> Generator[simpy.Event, None, None]:
        num_stored = self.content.num_leading(keys)
        num_new = len(keys) - num_stored
        seconds = self._link.latency_s + self._link.seconds_of(num_new * self._block_bytes) if num_new else 0.0
        yield self._environment.timeout(max(computed_s + seconds - self._environment.now, 0.0))
        self.content.put(keys)
        self.writes[number] = StoredPrompt(computed_s, float(self._environment.now), num_stored, num_new)
        if self._is_checked:
            self.content.check([keys, *self._keys.values()])
        for server, numbers in self._unfinished.items():
            for other in numbers:
                self._set_stored_tokens(server, other)

    def _update_preempted(self, server: ServerProcess) -> None:
        """Update how many tokens of a server's preempted requests are stored. Forget requests that have ended."""
        sequences, left = server.driver.engine.sequences, []
        for number in self._unfinished.get(server, ()):
            if sequences[number].status in (FINISHED, ABORTED):
                self._keys.pop(number)
                self._without_token.pop(number, None)
            else:
                left.append(number)
                if sequences[number].status == PREEMPTED:
                    self._set_stored_tokens(server, number)
        self._unfinished[server] = left

    def _set_stored_tokens(self, server: ServerProcess, number: int) -> None:
        """Tell the connector how many tokens of a request are stored, if the request waits."""
        engine = server.driver.engine
        if engine.sequences[number].status in (WAITING, PREEMPTED):
            stored = self.content.num_leading(self._keys[number]) * int(engine.settings.unit_tokens)
            engine.connector.transfers[number].stored_tokens = stored


def _check(setup: Setup) -> None:
    policy = setup.policy
    if not isinstance(policy, Paged):
        raise UsageError("--prefix-store-gib is for the paged policy; leave it out, or --policy.")
    if not policy.cache.enable_prefix_caching:
        raise UsageError("--prefix-store-gib stores prefixes by the keys of prefix caching; leave out "
                         "--no-prefix-caching.")  # fmt: skip
    refuse_with_connector(policy, "beside a prefix store")
    if setup.pipeline.pipeline_parallel_size > 1:
        raise UsageError("a prefix store is modelled for servers of one stage; leave out --pipeline-parallel-size.")
