"""Collect the table of copies between GPU and host during a run.

A step decides a copy, later steps may wait for it, and the output of another step reports that it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.recording.growing import GrowingTable
from kvsim.recording.tables import Copies, CopyKind

_NEVER = -1


@dataclass(slots=True)
class _Copy:
    kind: CopyKind
    request: int
    begun_step: int
    units_of_slot: dict[int, list[int]]
    awaited_step: int = _NEVER


class CopiesUnderWay:
    """Growing table of copies, and the copies that were not reported yet, which have no rows."""

    def __init__(self) -> None:
        self._rows = GrowingTable(Copies)
        self._under_way: dict[int, _Copy] = {}
        self._reported: list[int] = []
        """Rows that belong to the output being processed."""
        self._offloads = False
        self._units_per_slot = 1

    def configure(self, policy: Any) -> None:
        """Set, from the settings of the policy, if there is host memory, and the size of its blocks."""
        if isinstance(policy, dict) and isinstance(size := policy.get("kv_offloading_block_size"), int):
            self._offloads = "host_blocks" in policy
            self._units_per_slot = max(size // max(int(policy.get("block_size") or 1), 1), 1)

    def begin(
        self, number: int, is_load: bool, request: int, units: Sequence[int], slots: Sequence[int], step: int
    ) -> None:
        """Record that the step being scheduled copies blocks. A load may begin inside its first host block."""
        missing = len(slots) * self._units_per_slot - len(units)
        if number in self._under_way or not 0 <= missing < self._units_per_slot or (missing and not is_load):
            raise ValueError(f"copy {number} is of {len(units)} blocks and {len(slots)} host blocks")
        # A load that skips the first `missing` blocks of its first host block.
        places = [slots[(missing + index) // self._units_per_slot] for index in range(len(units))]
        units_of_slot: dict[int, list[int]] = {slot: [] for slot in slots}
        for slot, unit in zip(places, units, strict=True):
            units_of_slot[slot].append(unit)
        kind = CopyKind.LOAD if is_load else CopyKind.STORE
        self._under_way[number] = _Copy(kind, request, step, units_of_slot)

    def awaited(self, numbers: Sequence[int], step: int) -> None:
        """Record that the step being scheduled waits for copies."""
        for number in numbers:
            copy = self._under_way[number]
            copy.awaited_step = step if copy.awaited_step == _NEVER else copy.awaited_step

    def report(self, number: int, slots: Sequence[int]) -> None:
        """Record that a copy is complete, and that its host blocks became idle in this order."""
        copy = self._under_way.pop(number)
        if sorted(slots) != sorted(copy.units_of_slot):
            raise ValueError(f"copy {number} is of other host blocks")
        self._add(number, copy, slots)

    def processed(self, step: int) -> None:
        """Record that the output of `step` was processed, with the copies reported since the last output."""
        for row in self._reported:
            self._rows.columns["reported_step"][row] = step
        self._reported.clear()

    def extend(self, table: Copies) -> None:
        """Add final rows."""
        self._offloads = True
        self._rows.extend(table)

    def so_far(self) -> Copies | None:
        """Return all copies, unreported ones last; None for an engine without host memory."""
        if not self._offloads and not len(self._rows) and not self._under_way:
            return None
        for number, copy in self._under_way.items():
            self._add(number, copy, list(copy.units_of_slot))
        self._under_way.clear()
        return Copies(**{name: np.asarray(values) for name, values in self._rows.rows().items()})

    def _add(self, number: int, copy: _Copy, slots: Sequence[int]) -> None:
        for slot in slots:
            for unit in copy.units_of_slot[slot]:
                self._reported.append(len(self._rows))
                values = (
                    number, copy.kind, copy.request, copy.begun_step, copy.awaited_step, _NEVER, unit, slot,
                )  # fmt: skip
                for column, value in zip(self._rows.columns.values(), values, strict=True):
                    column.append(int(value))
