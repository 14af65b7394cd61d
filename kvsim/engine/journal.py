"""The journal of a run: functions that append rows to a recording's tables of memory and schedule."""

from __future__ import annotations

from kvsim.engine.linked_list import HEAD as NULL_BLOCK
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.ownership import MemoryKind
from kvsim.engine.records import Sequence
from kvsim.engine.state import NO_KEY, Engine

_APPEND, _SHARE, _RELEASE, _EVICT = (int(kind) for kind in MemoryKind)
_NO_REQUEST = -1
_WHOLE_TABLE = -1
"""Value of the column `address` in a row that frees a request's whole table."""


@part
def append_blocks(engine: Engine, sequence: Sequence, group: int, position: int, begin: int, end: int) -> None:
    """Record that a sequence allocated `Engine.entries[begin:end]`, in its table of `group` from `position` on."""
    if engine.settings.records_memory:
        _blocks(engine, _APPEND, group, sequence.number - 1, position, begin, end)


@part
def share_blocks(engine: Engine, sequence: Sequence, group: int, position: int, begin: int, end: int) -> None:
    """Record that a sequence hit `Engine.entries[begin:end]`, in its table of `group` from `position` on."""
    if engine.settings.records_memory:
        _blocks(engine, _SHARE, group, sequence.number - 1, position, begin, end)


@part
def evict(engine: Engine, begin: int, end: int) -> None:
    """Record that the blocks `Engine.entries[begin:end]` lost their cached prefix."""
    if engine.settings.records_memory:
        _blocks(engine, _EVICT, 0, _NO_REQUEST, 0, begin, end)


@part
def append_extent(
    engine: Engine, sequence: Sequence, position: int, address: int, length: int, requested: int, repeat: int
) -> None:
    """Record that a sequence asked for `requested` slots and got `length` slots, from `address` on.

    If `repeat` is above 1, the row is for `repeat` steps. Each step appends `length` slots to the extent.
    """
    if engine.settings.records_memory:
        write(engine, _APPEND, 0, sequence.number - 1, position, address, length, requested, 0, repeat)


@part
def release(engine: Engine, sequence: Sequence, group: int, begin: int, end: int, num_cached: int) -> None:
    """Record that a sequence frees its table of `group`, which is `Engine.entries[begin:end]`. The first `num_cached`
    blocks stay in the prefix cache.

    If only some full blocks of the group are cached (`Group.keeps_only_some`), each block gets a row of its own. One
    more row then frees the empty table.
    """
    if not engine.settings.records_memory:
        return
    num_held = 0
    if engine.groups[group].keeps_only_some:
        for index in range(end - begin - 1, -1, -1):
            if engine.entries[begin + index] != NULL_BLOCK:
                release_block(engine, sequence, group, index, engine.entries[begin + index])
        num_cached = 0
    else:
        for entry in range(begin, end):
            num_held += engine.entries[entry] != NULL_BLOCK
    if end > begin:
        write(engine, _RELEASE, group, sequence.number - 1, 0, _WHOLE_TABLE, num_held, num_held, num_cached, 1)


@part
def release_extent(engine: Engine, sequence: Sequence, num_units: int) -> None:
    """Record that a sequence freed all `num_units` units of its extent."""
    if engine.settings.records_memory:
        write(engine, _RELEASE, 0, sequence.number - 1, 0, _WHOLE_TABLE, num_units, num_units, 0, 1)


@part
def release_block(engine: Engine, sequence: Sequence, group: int, position: int, block: int) -> None:
    """Record that a sequence freed one block, at `position` of its table of `group`."""
    if engine.settings.records_memory:
        keeps_prefix = engine.blocks[block].key != NO_KEY
        write(engine, _RELEASE, group, sequence.number - 1, position, block, 1, 1, 1 if keeps_prefix else 0, 1)


@part
def scheduled(engine: Engine, sequence: Sequence, computed_before: int, tokens: int, repeat: int) -> None:
    """Record that a sequence computes `tokens` tokens in this step and in each of the next `repeat - 1` steps. The
    caller checks whether the schedule is recorded, since this function is called often.
    """
    state, rows = engine.state, engine.schedule_rows
    if extends_row(engine, sequence, computed_before, tokens):
        extend_row(engine, sequence, repeat)
        return
    sequence.open_row = state.num_schedule_rows
    row = rows[state.num_schedule_rows]
    state.num_schedule_rows += 1
    row.step, row.request, row.known = state.num_steps, sequence.number - 1, sequence.num_tokens
    row.outputs = 0
    row.computed_before, row.tokens, row.repeat = computed_before, tokens, repeat


@part
def count_outputs(engine: Engine, sign: int) -> None:
    """Count in the schedule how many tokens the oldest step's output gives each sequence.

    Call it before the output is processed, with `sign` -1, and after it, with `sign` 1. Each call adds `sign` times the
    number of known tokens to `ScheduleRow.outputs`. So the sum is the number of new tokens.
    """
    state, rows = engine.state, engine.schedule_rows
    index = state.num_schedule_rows - 1
    while index >= 0 and rows[index].step >= state.num_outputs:
        row = rows[index]
        if row.step == state.num_outputs:
            row.outputs += sign * engine.sequences[row.request + 1].num_tokens
        index -= 1


@part
def list_batch(engine: Engine) -> None:
    """Record the tokens of every sequence of this step, one row each, in order of scheduling."""
    state = engine.state
    for index in range(state.num_listed):
        sequence, tokens = engine.sequences[engine.batch[index]], engine.batch_tokens[index]
        row = engine.schedule_rows[state.num_schedule_rows]
        state.num_schedule_rows += 1
        row.step, row.request, row.tokens, row.repeat = state.num_steps, sequence.number - 1, tokens, 1
        row.computed_before = sequence.computed - tokens


@part
def extends_row(engine: Engine, sequence: Sequence, computed_before: int, tokens: int) -> bool:
    """Tell whether the latest schedule row of a sequence can be extended by this step: it ends with the step before,
    and has the same number of tokens. Always False with drafts.
    """
    open_row = sequence.open_row
    if open_row < 0 or engine.settings.num_drafts > 0:
        return False
    row = engine.schedule_rows[open_row]
    is_next = row.step + row.repeat == engine.state.num_steps and row.tokens == tokens
    return is_next and row.computed_before + tokens * row.repeat == computed_before


@part
def extend_row(engine: Engine, sequence: Sequence, num_steps: int) -> None:
    """Count `num_steps` more steps in the latest schedule row of a sequence."""
    engine.schedule_rows[sequence.open_row].repeat += num_steps


@part
def _blocks(engine: Engine, kind: int, group: int, request: int, position: int, begin: int, end: int) -> None:
    """Append a memory row for each range of consecutive block ids in `Engine.entries[begin:end]`. Null blocks are left
    out, and end a range.
    """
    entries = engine.entries
    while begin < end:
        if entries[begin] == NULL_BLOCK:
            begin += 1
            position += 1
            continue
        length = 1
        while begin + length < end and entries[begin + length] == entries[begin] + length:
            length += 1
        write(engine, kind, group, request, position, entries[begin], length, length, 0, 1)
        position += length
        begin += length


@part
def write(
    engine: Engine, kind: int, group: int, request: int, position: int, address: int, length: int, requested: int,
    cached: int, repeat: int,
) -> None:  # fmt: skip
    """Append a row to the memory table."""
    state = engine.state
    row = engine.memory_rows[state.num_memory_rows]
    state.num_memory_rows += 1
    row.seq, row.step, row.kind, row.group, row.request = state.seq, state.num_steps, kind, group, request
    row.position, row.address, row.length, row.requested = position, address, length, requested
    row.cached, row.repeat = cached, repeat
