"""Short form of a block table: runs of consecutive blocks instead of single blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

    from ..look.states import Symbols


class BlockRun(NamedTuple):
    """Consecutive entries of a block table whose block ids rise or fall by one."""

    position: int
    """Index of the first block in the table."""
    address: int
    """Block id of the first block."""
    length: int
    step: int
    """1 if block ids rise, -1 if they fall. They fall because blocks that were freed together are reused in reverse."""

    def words(self, symbols: Symbols) -> str:
        """Return `12→407`, or `13-20 → 408-415` for several blocks."""
        if self.length == 1:
            return f"{self.position}{symbols.arrow}{self.address}"
        last = self.length - 1
        ends = (f"{self.position + last}", f"{self.address + self.step * last}")
        positions, addresses = (
            f"{begin}{symbols.dash}{end}" for begin, end in zip((self.position, self.address), ends, strict=True)
        )
        return f"{positions} {symbols.arrow} {addresses}"


def block_runs(positions: IntArray, addresses: IntArray) -> list[BlockRun]:
    """Return the runs of a table in order of position; each run is as long as possible."""
    order = np.argsort(positions)
    positions, addresses = positions[order].astype(np.int64), addresses[order].astype(np.int64)
    steps = np.where(np.diff(positions) == 1, np.diff(addresses), 0).tolist()
    runs, begin = list[BlockRun](), 0
    while begin < len(positions):
        step = steps[begin] if begin < len(steps) and abs(steps[begin]) == 1 else 0
        end = begin + 1
        while step and end <= len(steps) and steps[end - 1] == step:
            end += 1
        runs.append(BlockRun(int(positions[begin]), int(addresses[begin]), end - begin, step or 1))
        begin = end
    return runs
