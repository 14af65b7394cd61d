"""Units that an allocator of a user's own hands out: the same account as of blocks, but that none is shared.

The allocator says which units; that they are free, in the pool and enough is checked here, once for all allocators.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from kvsim.engine import journal, totals
from kvsim.engine.state import Engine
from kvsim.policies.own import Allocator, ServedRequest


class Rules(Protocol):
    """What is known of a policy at work; see `own.OwnRules`."""

    allocator: Allocator | None
    tables: dict[int, list[int]]
    is_taken: bytearray

    def served(self, engine: Engine, node: int) -> ServedRequest:
        """The request as the policy sees it."""

    def refuse(self, what: str) -> NoReturn:
        """Raise: the policy did what it must not."""


def find_hits(engine: Engine, node: int) -> int:  # noqa: ARG001  a paged cache looks at the sequence
    """Nothing is shared."""
    return 0


def cache_tokens(engine: Engine, node: int, num_tokens: int) -> None:
    """Nothing is shared."""


def admit(engine: Engine, node: int, hit_tokens: int, computed: int, num_tokens: int) -> bool:  # noqa: ARG001
    """Ask for room for the first tokens of a waiting sequence."""
    return _ask(engine, node, computed + num_tokens)


def grow(engine: Engine, node: int, num_tokens: int) -> bool:
    """Ask for room for `num_tokens` more tokens of a running sequence."""
    return _ask(engine, node, engine.sequences[node].computed + num_tokens)


def free(engine: Engine, node: int) -> None:
    """Give the whole table back."""
    rules, state = _rules(engine), engine.state[0]
    assert rules.allocator is not None
    units = rules.tables.pop(node)
    journal.release_extent(engine, node, len(units))
    totals.remove_slots(engine, node, len(units) * engine.settings[0].unit_tokens)
    for unit in units:
        rules.is_taken[unit] = False
    state.num_free += len(units)
    rules.allocator.free(rules.served(engine, node), units)


def unusable_units(engine: Engine, head: int) -> int:
    """What the allocator says of the head of the queue."""
    rules = _rules(engine)
    assert rules.allocator is not None
    unusable = rules.allocator.unusable_units(rules.served(engine, head))
    if not 0 <= unusable <= engine.state[0].num_free:
        rules.refuse(f"says that {unusable} of {engine.state[0].num_free} free units are unusable")
    return unusable


def expired_slots(engine: Engine) -> int:  # noqa: ARG001  windows are looked at where vLLM's cache has groups
    """Every token is read as long as its sequence runs."""
    return 0


def shared_tokens(engine: Engine, context_tokens: int) -> int:  # noqa: ARG001  other memories look at both
    """Nothing is shared."""
    return 0


def _ask(engine: Engine, node: int, num_tokens: int) -> bool:
    """Append units to the table of a sequence, so that it has room for `num_tokens` tokens, if there are any."""
    rules, state, sequence = _rules(engine), engine.state[0], engine.sequences[node]
    assert rules.allocator is not None
    unit_tokens = engine.settings[0].unit_tokens
    answer = rules.allocator.allocate(rules.served(engine, node), num_tokens)
    if answer is None:
        return False
    units = [int(unit) for unit in answer]
    for unit in units:
        if not 0 <= unit < len(rules.is_taken):
            rules.refuse(f"handed out unit {unit} of a pool that has 0 to {len(rules.is_taken) - 1}")
        if rules.is_taken[unit]:
            rules.refuse(f"handed out unit {unit}, which is in a table")
        rules.is_taken[unit] = True
    table = rules.tables.setdefault(node, [])
    before = len(table)
    table.extend(units)
    if len(table) * unit_tokens < num_tokens:
        rules.refuse(f"handed out a table of {len(table)} units of {unit_tokens} tokens where {num_tokens} need room")
    state.num_free -= len(units)
    totals.add_slots(engine, node, before * unit_tokens, len(units) * unit_tokens)
    sequence.num_units = len(table)
    sequence.room_tokens = len(table) * unit_tokens
    _write_down(engine, node, before, units)
    return True


def _write_down(engine: Engine, node: int, position: int, units: list[int]) -> None:
    """Units in a row make one row; the first unit of the pool has the address 1, as vLLM's first block has."""
    begin = 0
    while begin < len(units):
        length = 1
        while begin + length < len(units) and units[begin + length] == units[begin] + length:
            length += 1
        journal.append_extent(engine, node, position + begin, units[begin] + 1, length, length)
        begin += length


def _rules(engine: Engine) -> Rules:
    rules: Rules = engine.rules[0]
    return rules
