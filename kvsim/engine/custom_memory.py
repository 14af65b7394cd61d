"""Units that a custom allocator allocates. They are accounted for like blocks, and none is shared.

The allocator chooses the units. Here they are checked: each is free and in the pool, and there are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar, cast

from kvsim.engine import journal, totals
from kvsim.engine.memory import MemoryManager
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine
from kvsim.policies.custom import Allocator, ServedRequest

Answer = TypeVar("Answer")


class MemoryRules(Protocol):
    """The part of `custom_rules.CustomRules` that memory needs."""

    allocator: Allocator | None
    tables: dict[int, list[int]]
    is_taken: bytearray

    def served(self, engine: Engine, sequence: Sequence) -> ServedRequest:
        """Return the request as the policy sees it."""

    def ask(self, hook: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a hook of the allocator."""

    def refuse(self, what: str) -> NoReturn:
        """End the run with an error: the policy broke a rule."""


def admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:
    """Allocate room for the first tokens of a waiting sequence."""
    return _ask(engine, sequence, computed + num_tokens)


def grow(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:
    """Allocate room for `num_tokens` more tokens of a running sequence."""
    return _ask(engine, sequence, sequence.computed + num_tokens)


def free(engine: Engine, sequence: Sequence) -> None:
    """Free the whole table, if there is one."""
    if sequence.num_units == 0:
        return
    totals.lose_tokens(engine, sequence)
    rules, state = _rules(engine), engine.state
    assert rules.allocator is not None
    units = rules.tables.pop(sequence.number)
    journal.release_extent(engine, sequence, len(units))
    totals.remove_slots(engine, sequence, len(units) * engine.settings.unit_tokens)
    for unit in units:
        rules.is_taken[unit] = False
    state.num_free += len(units)
    rules.ask(rules.allocator.free, rules.served(engine, sequence), units)
    sequence.num_units = 0


def unusable_units(engine: Engine, head: Sequence) -> int:
    """Count the free units that the allocator cannot use for the head of the queue."""
    rules = _rules(engine)
    assert rules.allocator is not None
    unusable = rules.ask(rules.allocator.unusable_units, rules.served(engine, head))
    if not 0 <= unusable <= engine.state.num_free:
        rules.refuse(f"says that {unusable} of {engine.state.num_free} free units are unusable")
    return unusable


def _ask(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:
    """Append units to the table of a sequence, so that it has room for `num_tokens` tokens; return False if there is
    no room.
    """
    rules, state = _rules(engine), engine.state
    assert rules.allocator is not None
    unit_tokens = engine.settings.unit_tokens
    answer = rules.ask(rules.allocator.allocate, rules.served(engine, sequence), num_tokens)
    if answer is None:
        return False
    units = [int(unit) for unit in answer]
    for unit in units:
        if not 0 <= unit < len(rules.is_taken):
            rules.refuse(f"handed out unit {unit} of a pool that has 0 to {len(rules.is_taken) - 1}")
        if rules.is_taken[unit]:
            rules.refuse(f"handed out unit {unit}, which is in a table")
        rules.is_taken[unit] = True
    table = rules.tables.setdefault(sequence.number, [])
    before = len(table)
    table.extend(units)
    if len(table) * unit_tokens < num_tokens:
        rules.refuse(f"handed out a table of {len(table)} units of {unit_tokens} tokens where {num_tokens} need room")
    state.num_free -= len(units)
    totals.add_slots(engine, sequence, before * unit_tokens, len(units) * unit_tokens)
    sequence.num_units = len(table)
    sequence.room_tokens = len(table) * unit_tokens
    _write_down(engine, sequence, before, units)
    return True


def _write_down(engine: Engine, sequence: Sequence, position: int, units: list[int]) -> None:
    """Record the units, one row for each run of units; unit 0 has the address 1, as vLLM's first block has."""
    begin = 0
    while begin < len(units):
        length = 1
        while begin + length < len(units) and units[begin + length] == units[begin] + length:
            length += 1
        journal.append_extent(engine, sequence, position + begin, units[begin] + 1, length, length)
        begin += length


def _rules(engine: Engine) -> MemoryRules:
    rules: Any = engine.rules
    return cast("MemoryRules", rules)


CUSTOM = MemoryManager(name="custom", admit=admit, grow=grow, free=free, unusable_units=unusable_units)
