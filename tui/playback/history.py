"""History of one unit of the pool: the requests that held it, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording.tables import MemoryKind

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Span of frames in which one request holds one unit."""

    request: int
    generation: int
    """Number of allocations of the unit up to the end of this stay, without prefix-cache hits."""
    begin_frame: int
    end_frame: int
    """First frame after the stay."""


def stays(replay: Replay, unit: int) -> list[Stay]:
    """Return all stays in a unit, in the order in which they begin. `unit` is its index in address order, from 0."""
    tables = replay.ledger.tables
    address = unit + replay.first_unit
    rows = np.flatnonzero((tables.address <= address) & (address < tables.address + tables.length))
    rows = rows[np.argsort(tables.birth_row[rows], kind="stable")]
    fresh = replay.recording.memory.kind[tables.birth_row[rows]] == MemoryKind.APPEND
    seqs = np.stack((tables.birth_seq[rows], tables.death_seq[rows]))
    frames = np.searchsorted(replay.frame_seq, seqs)
    return [
        Stay(request=request, generation=generation, begin_frame=begin, end_frame=end)
        for request, generation, begin, end in zip(
            tables.request[rows].tolist(), np.cumsum(fresh).tolist(), *frames.tolist(), strict=True
        )
    ]
