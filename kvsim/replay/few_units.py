"""Select the operations on a sample of a pool's units, because a picture of a large pool shows only such a sample.

Replaying only these operations is several times faster than replaying the whole pool.
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

_WORTH_IT = 8
"""Smallest number of units in the pool per sampled unit for which selecting the operations is faster."""


class FewUnits:
    """A ledger of a sample of units. Operations and units are renumbered, so that no memory is needed for others."""

    def __init__(self, ledger: Ledger, addresses: IntArray) -> None:
        self._ledger = ledger
        self.has_groups, self.is_shared = ledger.has_groups, ledger.is_shared
        self._addresses = np.unique(addresses)
        self.initial_cached = np.flatnonzero(np.isin(self._addresses, ledger.initial_cached))
        self.end_of_pool = len(self._addresses)
        is_one = np.zeros(max(ledger.end_of_pool, int(addresses.max(initial=-1)) + 1), np.bool_)
        is_one[addresses] = True
        self._ops = ledger.ops_on(is_one)

    @staticmethod
    def are(ledger: Ledger, num_units: int, num_in_pool: int) -> bool:
        """Tell whether following `num_units` units alone is possible and faster."""
        return ledger.unit_by_unit and not ledger.lists_operations and num_units * _WORTH_IT <= num_in_pool

    def places(self, addresses: IntArray) -> IntArray:
        """Return the number of each of `addresses` in the sample."""
        return self._addresses.searchsorted(addresses)

    @property
    def num_ops(self) -> int:
        """Number of operations on these units."""
        return len(self._ops)

    def ops_until(self, op: int) -> int:
        """Return how many of the first `op` operations of the whole pool are on these units."""
        return int(np.searchsorted(self._ops, np.int32(op)))

    def part(self, begin: int, end: int) -> Part:
        """Return the operations [begin, end)."""
        return self._renumbered(self._ledger.at(self._ops[begin:end]))

    def parts(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, Part]]:
        """Yield the operations [begin, end) as a single part, with the number of its first operation."""
        yield begin, self.part(begin, self.num_ops if end is None else end)

    def at(self, ops: npt.NDArray[np.int32]) -> Part:
        """Return the operations `ops`, in any order."""
        return self._renumbered(self._ledger.at(self._ops[ops]))

    def _renumbered(self, part: Part) -> Part:
        return replace(part, address=self.places(part.address))

    def keeps(self, row: IntArray, position: IntArray) -> npt.NDArray[np.bool_]:
        """Tell whether units keep their prefixes, as `Ledger.keeps` does."""
        return self._ledger.keeps(row, position)
