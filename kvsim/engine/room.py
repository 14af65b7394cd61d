"""Capacities of an engine's arrays: tables, free ranges, buckets, and rows of a recording."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.host import host_initialization
from kvsim.engine.known_requests import Demand
from kvsim.engine.radix import radix_initialization
from kvsim.errors import BudgetError
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies import Contiguous, Paged, Policy, Radix, Static
from kvsim.policies.kinds import most_running

_MOST_ENTRIES = 1 << 28
"""Largest number of entries of all block tables together."""
_MOST_BLOCKS = 1 << 22
"""Largest number of blocks in the pool."""
_MOST_BUCKET_BITS = 16
"""Largest number of bits of a bucket's index for a radix tree, which has far fewer nodes than the pool has pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Number of records in each of an engine's arrays."""

    most_running: int
    """Largest number of sequences that run at once."""
    num_places: int
    """Largest number of sequences that have block tables at once; 0 if memory has no blocks."""
    widths: list[int]
    """Number of entries in the longest table of each KV-cache group."""
    num_holes: int
    """Length of `Engine.holes`: twice the largest number of free ranges of a contiguous memory. Compaction saves the
    ranges in the second half.
    """
    rows_of_loads: int
    """Largest number of rows of the memory table that loads write in one step."""
    rows_of_step: int
    """Largest number of rows of the memory table that one step writes, including `rows_of_loads`."""
    num_buckets: int
    """Number of buckets of prefix keys, or of prompt lengths of batches sorted by length; 1 if there are none."""

    @property
    def width(self) -> int:
        """Number of table entries of one sequence, over all groups."""
        return sum(self.widths)

    @classmethod
    def of(
        cls, demand: Demand, policy: Policy, num_units: int, layout: KVCacheLayout, *, tokens_ahead: int,
        most_in_flight: int, has_connector: bool,
    ) -> Room:  # fmt: skip
        """Return the capacities that the requests of `demand` need.

        A sequence may have slots for up to `tokens_ahead` tokens beyond its last token. At most `most_in_flight` steps
        are in flight.

        Raises:
            BudgetError: the pool has too many blocks, or the tables too many entries.
        """
        num_requests = len(demand.prompt)
        batch = min(most_running(policy), num_requests)
        num_places, widths = 0, [1]
        if isinstance(policy, Paged):
            _check_pool(policy, num_units)
            most_tables = _most_tables(policy, batch, num_units, most_in_flight, has_connector=has_connector)
            num_places = min(num_requests, most_tables)
            widths = _table_widths(demand, policy, layout, num_units, num_places, tokens_ahead)
        rows_of_loads = host_initialization.rows_of_loads(
            policy, num_units, num_requests, sum(widths), has_connector=has_connector
        )
        rows_of_step = _rows_of_step(policy, batch, sum(widths) + len(layout.groups), num_units) + rows_of_loads
        return cls(
            most_running=batch,
            num_places=num_places,
            widths=widths,
            num_holes=2 * _most_holes(policy, batch, num_units),
            rows_of_loads=rows_of_loads,
            rows_of_step=rows_of_step,
            num_buckets=_num_buckets(demand, policy, num_units),
        )


def _check_pool(policy: Paged, num_units: int) -> None:
    if num_units > _MOST_BLOCKS:
        raise BudgetError(
            f"the pool has {num_units:,} blocks of {policy.unit_tokens} tokens, and at most {_MOST_BLOCKS:,} are "
            "simulated; take fewer (--num-blocks, --kv-gib), or a larger --block-size."
        )


def _most_tables(policy: Paged, batch: int, num_units: int, most_in_flight: int, *, has_connector: bool) -> int:
    """Return the largest number of sequences that have block tables at once, if at most `batch` run at once.

    With a second tier or a connector, sequences that do not run have tables, too:

    - A sequence whose KV is loaded or fetched by another server holds blocks of its own. The pool has `num_units`.
    - A sequence whose blocks are freed late was in a step that is in flight. Each of these steps has at most `batch`.
    """
    if not (has_connector or policy.cache.kv_offloading_size):
        return batch
    transferring = num_units if has_connector else num_units // host_initialization.blocks_per_slot(policy)
    return (1 + most_in_flight) * batch + transferring


def _table_widths(
    demand: Demand, policy: Paged, layout: KVCacheLayout, num_units: int, num_places: int, tokens_ahead: int
) -> list[int]:
    """Return the number of entries in the longest table of each group, for `num_places` sequences.

    Raises:
        BudgetError: the tables have too many entries.
    """
    tokens = int((demand.prompt + demand.output).max(initial=1)) + tokens_ahead - 1
    widths = [-(-min(tokens, policy.max_model_len) // group.block_size) for group in layout.groups]
    if layout.is_uniform:
        widths = [min(widths[0], num_units)]
    num_entries = sum(widths) * num_places
    if num_entries > _MOST_ENTRIES:
        raise BudgetError(
            f"{num_places:,} sequences of up to {tokens:,} tokens in blocks of {policy.unit_tokens} need tables of "
            f"{num_entries:,} entries, and at most {_MOST_ENTRIES:,} are simulated; lower --max-num-seqs, or take "
            "a larger --block-size."
        )
    return widths


def _most_holes(policy: Policy, batch: int, num_units: int) -> int:
    """Return the most free ranges of a contiguous memory, plus a scratch record for a change; 0 for other memory."""
    if not isinstance(policy, Contiguous):
        return 0
    return (batch + 2) * (2 * num_units.bit_length() if policy.cache.fit == "buddy" else 1) + 1


def _rows_of_step(policy: Policy, batch: int, width: int, num_units: int) -> int:
    """Return `Room.rows_of_step` without the rows of loads, if at most `batch` sequences run at once."""
    if isinstance(policy, Paged):
        return batch * host_initialization.rows_of_table(width)
    if isinstance(policy, Static):
        return 3 * batch
    if isinstance(policy, Radix):
        return radix_initialization.MOST_ROWS_OF_PAGE * num_units + radix_initialization.ROWS_OF_HITS
    # A sequence may be released, admitted and moved, which is a release and an admission: 4 rows. With compaction, each
    # of up to `batch` admissions may also move all others.
    return 4 * batch * (batch + 1) if policy.cache.compaction else 4 * batch


def _num_buckets(demand: Demand, policy: Policy, num_units: int) -> int:
    """Return `Room.num_buckets`."""
    if isinstance(policy, Radix):
        return 1 << min(num_units.bit_length(), _MOST_BUCKET_BITS)
    if isinstance(policy, Paged) and policy.cache.enable_prefix_caching:
        return int(1 << num_units.bit_length())
    if isinstance(policy, Static) and policy.scheduler.sort_by_length:
        return int(demand.prompt.max(initial=0)) + 1
    return 1
