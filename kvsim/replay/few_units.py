"""Replay a sample of the units, because a picture of a large pool shows only a sample.

It is several times faster to replay only the operations on the sample than those on the whole pool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.recording.tables import IntArray
    from kvsim.replay.ledger import Ledger
    from kvsim.replay.unfolding import Part

_LEAST_UNITS_PER_SAMPLED = 8
"""Smallest number of units in the pool per sampled unit at which it is faster to replay only the sample."""


class FewUnits:
    """Operations on a sample of units, with the interface of `Ledger`.

    The sampled units are numbered from 0 in order of address, and the operations on them from 0 in order of time.
    """

    def __init__(self, ledger: Ledger, addresses: IntArray) -> None:
        """Select the operations on the units at `addresses`.

        An address may be repeated. It may lie beyond the pool; there are no operations on such a unit.
        """
        self._ledger = ledger
        self.has_groups, self.is_shared = ledger.has_groups, ledger.is_shared
        self._addresses = np.unique(addresses)
        self.initial_cached = np.flatnonzero(np.isin(self._addresses, ledger.initial_cached))
        self.end_of_pool = len(self._addresses)
        is_sampled = np.zeros(max(ledger.end_of_pool, int(addresses.max(initial=-1)) + 1), np.bool_)
        is_sampled[addresses] = True
        self._ops = ledger.ops_on(is_sampled)

    @staticmethod
    def is_faster(ledger: Ledger, num_units: int, num_in_pool: int) -> bool:
        """Tell whether a sample of `num_units` units can be replayed faster than all `num_in_pool` units of the pool.

        Always False if extents have several units, or if tables may free some units before others: then a sample cannot
        be replayed.
        """
        is_possible = ledger.unit_by_unit and not ledger.lists_operations
        return is_possible and num_units * _LEAST_UNITS_PER_SAMPLED <= num_in_pool

    def numbers_of(self, addresses: IntArray) -> IntArray:
        """Return the number in the sample of the unit at each of `addresses`, all of which must be sampled."""
        return self._addresses.searchsorted(addresses)

    @property
    def num_ops(self) -> int:
        """Number of operations on the sample."""
        return len(self._ops)

    def ops_until(self, op: int) -> int:
        """Return the number of operations on the sample among the first `op` operations on the whole pool."""
        return int(np.searchsorted(self._ops, np.int32(op)))

    def part(self, begin: int, end: int) -> Part:
        """Return the operations [begin, end) on the sample."""
        return self._renumbered(self._ledger.at(self._ops[begin:end]))

    def parts(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, Part]]:
        """Yield the operations [begin, end) on the sample as one part; see `Ledger.parts`."""
        yield begin, self.part(begin, self.num_ops if end is None else end)

    def at(self, ops: npt.NDArray[np.int32]) -> Part:
        """Return the operations `ops`, in their order; `ops` need not ascend."""
        return self._renumbered(self._ledger.at(self._ops[ops]))

    def _renumbered(self, part: Part) -> Part:
        return replace(part, address=self.numbers_of(part.address))

    def keeps(self, row: IntArray, position: IntArray) -> npt.NDArray[np.bool_]:
        """Tell, for each unit that a release frees, whether it stays in the prefix cache, as `Ledger.keeps` does."""
        return self._ledger.keeps(row, position)
