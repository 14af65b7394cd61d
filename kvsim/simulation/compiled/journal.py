"""What a recording says of memory and schedule, written as it happens; see `kvsim.recording.builder`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import MemoryKind
from kvsim.simulation.compiled.engine import Engine
from kvsim.simulation.compiled.jit import jit

_APPEND, _SHARE, _RELEASE, _EVICT = (int(kind) for kind in MemoryKind)
_NOBODY = -1
_WHOLE_TABLE = -1


@jit
def append_blocks(engine: Engine, node: int, position: int, num_blocks: int) -> None:
    """A sequence got free blocks, which stand in its table from `position` on."""
    table = engine.tables[engine.sequences[node].place]
    _blocks(engine, _APPEND, node - 1, position, table, position, position + num_blocks)


@jit
def share_blocks(engine: Engine, node: int, num_blocks: int) -> None:
    """A sequence joined the holders of the blocks at the beginning of its table."""
    _blocks(engine, _SHARE, node - 1, 0, engine.tables[engine.sequences[node].place], 0, num_blocks)


@jit
def evict(engine: Engine, node: int, begin: int, end: int) -> None:
    """The blocks that now stand at [begin, end) of a table lost their prefix."""
    _blocks(engine, _EVICT, _NOBODY, 0, engine.tables[engine.sequences[node].place], begin, end)


@jit
def append_extent(engine: Engine, node: int) -> None:
    """A sequence got its extent."""
    sequence = engine.sequences[node]
    _row(engine, _APPEND, node - 1, 0, sequence.place, sequence.num_units, 0)


@jit
def release(engine: Engine, node: int) -> None:
    """A sequence gave back all that it held."""
    sequence = engine.sequences[node]
    _row(engine, _RELEASE, node - 1, 0, _WHOLE_TABLE, sequence.num_units, sequence.num_registered)


@jit
def scheduled(engine: Engine, node: int, computed_before: int, tokens: int) -> None:
    """A sequence computes `tokens` more tokens in the step being recorded."""
    state, sequence, rows = engine.state[0], engine.sequences[node], engine.schedule_rows
    if sequence.open_row >= 0:
        row = rows[sequence.open_row]
        is_next = row.step + row.repeat == state.num_steps
        if is_next and row.tokens == tokens and row.computed_before + tokens * row.repeat == computed_before:
            row.repeat += 1
            return
    sequence.open_row = state.num_schedule_rows
    row = rows[state.num_schedule_rows]
    state.num_schedule_rows += 1
    row.step, row.request, row.computed_before, row.tokens = state.num_steps, node - 1, computed_before, tokens
    row.repeat = 1


@jit
def _blocks(
    engine: Engine, kind: int, request: int, position: int, table: npt.NDArray[np.int32], begin: int, end: int
) -> None:
    """Blocks in a row with consecutive numbers make one row."""
    while begin < end:
        length = 1
        while begin + length < end and table[begin + length] == table[begin] + length:
            length += 1
        _row(engine, kind, request, position, table[begin], length, 0)
        position += length
        begin += length


@jit
def _row(engine: Engine, kind: int, request: int, position: int, address: int, length: int, cached: int) -> None:
    state = engine.state[0]
    row = engine.memory_rows[state.num_memory_rows]
    state.num_memory_rows += 1
    row.seq, row.step, row.kind, row.request = state.seq, state.num_steps, kind, request
    row.position, row.address, row.length, row.cached = position, address, length, cached
