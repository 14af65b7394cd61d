"""Copy of all block tables and of the contents of their blocks, for `--check`. It is updated after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from kvsim.engine.connector.connected import CONNECTED
from kvsim.engine.connector.disaggregated import DISAGGREGATED
from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.engine.paged.groups import num_unread_tokens
from kvsim.engine.state import RUNNING
from kvsim.errors import IntegrityError
from kvsim.memory.waste import NUM_STATES, SlotState

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.engine.driver import Driver
    from kvsim.engine.state import Engine


class Content(NamedTuple):
    """Numbers of slots of one block by state, as seen from one block table or from all tables that list the block."""

    written: int
    expired: int
    """Number of written slots that no later step reads; `written` counts them too."""
    reserved: int
    """Number of slots that will be written later."""


class Held(NamedTuple):
    """A block table, and how far its sequence is computed, in tokens."""

    blocks: list[int]
    computed: int
    """Number of tokens with computed KV."""
    skipped: int
    """Number of leading tokens that no later step reads."""
    full: int
    """Number of tokens that the sequence will have at its end."""


CONNECTOR_KINDS = (CONNECTED, DISAGGREGATED)
"""Kinds of memory of servers with a KV connector."""
_Entry: TypeAlias = "tuple[int, int, int]"
"""A table entry: the number of a sequence, a KV-cache group, and an index in the sequence's table of this group."""
_NOTHING = Held([], 0, 0, 0)


def held(driver: Driver, number: int, group: int) -> Held:
    """Return the table of sequence `number` in a KV-cache group. The sequence must hold memory."""
    engine, sequence = driver.engine, driver.sequence(number)
    blocks = driver.table(number, group)
    counted = int(engine.tables[int(sequence.place) * engine.settings.num_groups + group].num_held)
    there = len(blocks) - blocks.count(NULL_BLOCK)
    if sequence.status == RUNNING and counted != there:
        raise IntegrityError(f"{there} blocks are in a table of request {number - 1}, and {counted} are counted.")
    computed = int(sequence.computed + sequence.rejected)
    if engine.external and sequence.num_units == 0:  # it has ended, and its blocks are freed late
        computed = int(engine.external.sequences[number].dead_tokens)
    skipped = int(num_unread_tokens(engine, group, sequence.computed))
    return Held(blocks, computed, skipped, int(sequence.full_tokens))


def content(engine: Engine, group: int, table: Held, index: int) -> Content:
    """Return the contents of the block at `index` of a table, as if no other table listed the block."""
    record = engine.groups[group]
    if record.state_slots:
        is_newest = index == len(table.blocks) - 1
        return Content(record.state_slots, 0 if is_newest else record.state_slots, 0)
    begin, end, slots = index * record.block_size, (index + 1) * record.block_size, record.token_slots
    return Content(
        written=max(min(table.computed, end) - begin, 0) * slots,
        expired=max(min(table.skipped, table.computed, end) - begin, 0) * slots,
        reserved=max(min(table.full, end) - max(begin, table.computed), 0) * slots,
    )


class TableMirror:
    """Copy of all block tables as of the last `follow`, and the number of slots of their blocks in each state."""

    def __init__(self, unit_slots: int) -> None:
        self._unit_slots = unit_slots
        self._tables: dict[tuple[int, int], Held] = {}
        self._holders: dict[int, dict[_Entry, Content]] = {}
        self._slots = [0] * NUM_STATES

    def num_holders(self, block: int) -> int:
        """Return the number of table entries that list a block."""
        return len(self._holders.get(block, ()))

    def slots(self) -> npt.NDArray[np.int64]:
        """Return the number of slots in each state, over all held blocks. A block in several tables counts once."""
        return np.array(self._slots, np.int64)

    def follow(self, driver: Driver) -> set[int]:
        """Update the copy; return the blocks of the table entries that have changed."""
        numbers = driver.holders()
        if len(set(numbers)) != len(numbers):
            raise IntegrityError(f"{len(numbers)} sequences hold memory, and only {len(set(numbers))} of these differ.")
        groups = range(driver.engine.settings.num_groups)
        tables = {(number, group): held(driver, number, group) for number in numbers for group in groups}
        removed: list[tuple[_Entry, int]] = []
        added: list[tuple[_Entry, int, Content]] = []
        for key in tables.keys() | self._tables.keys():
            before, now = self._tables.get(key, _NOTHING), tables.get(key, _NOTHING)
            if before == now:
                continue
            for index in _changed_entries(driver.engine, key[1], before, now):
                if (block := _block_at(before, index)) != NULL_BLOCK:
                    removed.append(((*key, index), block))
                if (block := _block_at(now, index)) != NULL_BLOCK:
                    added.append(((*key, index), block, content(driver.engine, key[1], now, index)))
        self._tables = tables
        return self._replace(removed, added)

    def _replace(self, removed: list[tuple[_Entry, int]], added: list[tuple[_Entry, int, Content]]) -> set[int]:
        blocks = {block for _, block in removed} | {block for _, block, _ in added}
        for block in blocks:
            self._count(block, -1)
        for entry, block in removed:
            del self._holders[block][entry]
        for entry, block, of_entry in added:
            self._holders.setdefault(block, {})[entry] = of_entry
        for block in blocks:
            self._count(block, 1)
        return blocks

    def _count(self, block: int, sign: int) -> None:
        """Add the contents of a block to the slots in each state if `sign` is 1; subtract them if it is -1."""
        if contents := self._holders.get(block):
            written, expired, reserved = shared_content(*contents.values())
            self._slots[SlotState.TOKEN] += sign * (written - expired)
            self._slots[SlotState.EXPIRED] += sign * expired
            self._slots[SlotState.RESERVED] += sign * reserved
            self._slots[SlotState.INTERNAL] += sign * (self._unit_slots - written - reserved)


def shared_content(*contents: Content) -> Content:
    """Return the contents of a block that several tables list, from its contents as each table sees them.

    A slot is written if one table has written it, and expired if it has expired in all tables.
    """
    if len(contents) == 1:
        return contents[0]
    written, expired, reserved = zip(*contents, strict=True)
    return Content(max(written), min(expired), min(reserved))


def _block_at(table: Held, index: int) -> int:
    return table.blocks[index] if index < len(table.blocks) else NULL_BLOCK


def _changed_entries(engine: Engine, group: int, before: Held, now: Held) -> set[int]:
    """Return the indices at which two versions of a table differ, in the block or in its contents."""
    old, new, block_size = before.blocks, now.blocks, engine.groups[group].block_size
    longest, shortest = max(len(old), len(new)), min(len(old), len(new))
    changed = set(range(shortest, longest))
    if old[:shortest] != new[:shortest]:
        changed.update(index for index in range(shortest) if old[index] != new[index])
    if engine.groups[group].state_slots and longest > shortest > 0:
        changed.add(shortest - 1)  # the newest state of one of the two
    # `computed`, `skipped` and `full` are positions in the sequence. If one moves, slots between its old and its new
    # position change their state.
    for earlier, later in zip(before[1:], now[1:], strict=True):
        if earlier != later:
            first, last = min(earlier, later) // block_size, max(earlier, later) // block_size
            changed.update(range(first, min(last + 1, longest)))
    return changed
