"""The operations on a few units of a pool: a picture that shows one of every seventy need not follow the others."""

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
"""Units of the pool for each one that is looked at, from which on it is faster to look for the operations on these."""


class FewUnits:
    """A ledger of single units that tells of some of them, with its operations counted anew, and its units too: they
    go by their place among these, so that a pool of these takes memory for no others.
    """

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
        """Whether so many units are few enough to follow them alone, in a pool where that is possible."""
        return ledger.unit_by_unit and not ledger.has_groups and num_units * _WORTH_IT <= num_in_pool

    def places(self, addresses: IntArray) -> IntArray:
        """The place of each of `addresses` among these units."""
        return self._addresses.searchsorted(addresses)

    @property
    def num_ops(self) -> int:
        """Operations on these units."""
        return len(self._ops)

    def ops_until(self, op: int) -> int:
        """Those among the first `op` of all operations."""
        return int(np.searchsorted(self._ops, np.int32(op)))

    def part(self, begin: int, end: int) -> Part:
        """The operations [begin, end) of these."""
        return self._renumbered(self._ledger.at(self._ops[begin:end]))

    def parts(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, Part]]:
        """The operations [begin, end), with the number of the first; there are few."""
        yield begin, self.part(begin, self.num_ops if end is None else end)

    def at(self, ops: npt.NDArray[np.int32]) -> Part:
        """These operations, in any order."""
        return self._renumbered(self._ledger.at(self._ops[ops]))

    def _renumbered(self, part: Part) -> Part:
        return replace(part, address=self.places(part.address))

    def keeps(self, row: IntArray, position: IntArray) -> npt.NDArray[np.bool_]:
        """Whether a unit keeps its prefix, as the ledger says."""
        return self._ledger.keeps(row, position)
