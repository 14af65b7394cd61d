"""The memory manager of a policy with a custom allocator in Python, which chooses the units of each request.

Each choice is checked: the units are in the pool and free, there are enough, and a shared unit holds the tokens of the
request's prefix. A unit that no table contains is free, even if it stays in the allocator's prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from kvsim.engine import journal, totals
from kvsim.engine.memory import MemoryManager
from kvsim.engine.ownership import MemoryKind
from kvsim.engine.paged import kv_cache
from kvsim.engine.paged.prefix_hits import key_of
from kvsim.engine.records import Sequence
from kvsim.engine.state import NO_KEY, Engine
from kvsim.errors import shortened
from kvsim.policies.custom import ServedRequest, shares_prefixes

Answer = TypeVar("Answer")

_NO_REQUEST = _WHOLE_TABLE = -1
_FIRST_ADDRESS = 1
"""Address of unit 0 in a recording, because the first block that vLLM allocates is block 1."""


@dataclass(slots=True)
class CustomUnits:
    """A custom allocator, and kvsim's own account of its units, against which its answers are checked."""

    allocator: Any
    """The policy's allocator, a `kvsim.policies.custom.AnyAllocator`."""
    tables: dict[int, list[int]]
    """Units of each request that has a table, by the request's number."""
    refs: list[int]
    """Number of tables that contain each unit."""
    keys: list[int]
    """Key of the prefix that each unit holds; `NO_KEY` if it holds none."""
    found: list[int] = field(default_factory=list)
    """Units that the allocator has found for the prefix of the sequence that is being admitted."""

    @classmethod
    def of(cls, allocator: Any, num_units: int) -> CustomUnits:
        """Return the account of a pool of `num_units` units, all free and without prefixes."""
        return cls(allocator, {}, [0] * num_units, [NO_KEY] * num_units)

    @property
    def shares(self) -> bool:
        """True if the allocator shares prefixes."""
        return shares_prefixes(self.allocator)


class MemoryRules(Protocol):
    """The part of `custom_rules.CustomRules` that this module uses."""

    @property
    def units(self) -> CustomUnits:
        """Units of the policy's allocator."""

    def served(self, engine: Engine, sequence: Sequence) -> ServedRequest:
        """Return a request as the policy sees it."""

    def ask(self, hook: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a method of the allocator, and return its answer."""

    def refuse(self, what: str) -> NoReturn:
        """End the run with an error about the policy. `what` is the rest of a sentence about it."""


def find_prefix(engine: Engine, sequence: Sequence) -> int:
    """Return the number of leading tokens of a waiting sequence whose units the allocator finds in its prefix cache.
    Keep these units in `CustomUnits.found`.
    """
    units = _rules(engine).units
    units.found = _found_units(engine, sequence)
    return len(units.found) * engine.settings.unit_tokens


def cached_prefix(engine: Engine, sequence: Sequence) -> tuple[int, int]:
    """Return the number of leading tokens of a waiting sequence whose units the allocator finds in its prefix cache,
    and how many of these units are in a table.
    """
    found, refs = _found_units(engine, sequence), _rules(engine).units.refs
    return len(found) * engine.settings.unit_tokens, sum(refs[unit] > 0 for unit in found)


def _found_units(engine: Engine, sequence: Sequence) -> list[int]:
    """Return the units that the allocator finds for a waiting sequence, after a check. Nothing is changed."""
    rules = _rules(engine)
    if not (rules.units.shares and engine.settings.prefix_caching):
        return []
    request, keys = rules.served(engine, sequence), rules.units.keys
    found = [int(unit) for unit in rules.ask(rules.units.allocator.find_prefix, request)]
    wanted = request.prefix_keys
    if len(found) > len(wanted):
        rules.refuse(f"found {len(found)} units for {request!r}, which may share {len(wanted)} at most")
    for unit, key in zip(found, wanted, strict=False):
        if not 0 <= unit < len(keys) or keys[unit] != key:
            rules.refuse(f"found unit {unit} for {request!r}, whose tokens it does not hold")
    return found


def keys(engine: Engine) -> npt.NDArray[np.int64]:
    """Return the key of each unit that holds a prefix; units without a prefix are left out."""
    return np.array([key for key in _rules(engine).units.keys if key != NO_KEY], np.int64)


def admit(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:
    """Allocate units for the `num_tokens` tokens of a waiting sequence after its first `computed`, whose units
    `find_prefix` has found. Return False if the allocator has no room.
    """
    found = _rules(engine).units.found
    if not _ask(engine, sequence, computed + num_tokens, found):
        return False
    engine.state.written += computed * engine.settings.token_slots
    if engine.settings.prefix_caching:
        sequence.cache_at = computed + engine.settings.unit_tokens
    cache(engine, sequence, min(computed + num_tokens, sequence.num_tokens))
    return True


def grow(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:
    """Extend a running sequence's table for `num_tokens` more tokens, if necessary; return False without room."""
    total = sequence.computed + num_tokens
    if total > sequence.room_tokens and not _ask(engine, sequence, total, []):
        return False
    cache(engine, sequence, min(total, sequence.num_tokens))
    return True


def cache(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    """Tell the allocator which units the first `num_tokens` tokens of a sequence fill, once for each unit.

    As in vLLM, this happens when a step is scheduled, before it computes the tokens' KV. So a request that is admitted
    later in the same step can share the units.
    """
    rules, unit_tokens = _rules(engine), engine.settings.unit_tokens
    if num_tokens < sequence.cache_at:
        return
    table, request = rules.units.tables[sequence.number], rules.served(engine, sequence)
    end = num_tokens // unit_tokens
    for index in range(sequence.cache_at // unit_tokens - 1, end):
        key = rules.units.keys[table[index]] = key_of(engine, sequence, 0, index)
        rules.ask(rules.units.allocator.cache, request, table[index], key)
    sequence.cache_at = (end + 1) * unit_tokens


def free(engine: Engine, sequence: Sequence) -> None:
    """Free all units of a sequence. The allocator may keep some of these in its prefix cache."""
    if sequence.num_units == 0:
        return
    totals.remove_computed(engine, sequence)
    rules, state = _rules(engine), engine.state
    units, table = rules.units, rules.units.tables.pop(sequence.number)
    totals.remove_slots(engine, sequence, len(table) * engine.settings.unit_tokens)
    for unit in table:
        units.refs[unit] -= 1
    freed = [unit for unit in table if units.refs[unit] == 0]
    state.num_free += len(freed)
    engine.groups[0].num_duplicate_entries -= len(table) - len(freed)
    answer = rules.ask(units.allocator.free, rules.served(engine, sequence), freed)
    kept = {int(unit) for unit in answer or ()} if units.shares else set()
    if wrong := [unit for unit in kept if unit not in freed or units.keys[unit] == NO_KEY]:
        rules.refuse(f"keeps unit {wrong[0]} for its prefix, which was not freed or is not full")
    state.num_cached += len(kept)
    for unit in freed:
        if unit not in kept:
            units.keys[unit] = NO_KEY
    _write_release(engine, sequence, table, [units.keys[unit] != NO_KEY for unit in table])
    sequence.num_units = 0


def unusable_units(engine: Engine, head: Sequence) -> int:
    """Return the number of free units that the allocator cannot use for `head`, the first request of the queue."""
    rules = _rules(engine)
    unusable: int = rules.ask(rules.units.allocator.unusable_units, rules.served(engine, head))
    if not isinstance(unusable, int | np.integer) or not 0 <= unusable <= engine.state.num_free:
        rules.refuse(f"says that {shortened(unusable)} of {engine.state.num_free} free units are unusable")
    return unusable


def _ask(engine: Engine, sequence: Sequence, num_tokens: int, found: list[int]) -> bool:
    """Append the `found` and new units to a table, for `num_tokens` more tokens; return False without room."""
    rules = _rules(engine)
    units, unit_tokens = rules.units, engine.settings.unit_tokens
    request, arguments = rules.served(engine, sequence), [found] if found else []
    answer = rules.ask(units.allocator.allocate, request, num_tokens, *arguments)
    if answer is None:
        return False
    table = units.tables.setdefault(sequence.number, [])
    before = len(table)
    _hold_found(engine, sequence, found)
    table.extend(found)
    _hold_free(engine, table, [int(unit) for unit in answer])
    if len(table) * unit_tokens < num_tokens:
        rules.refuse(f"allocated a table of {len(table)} units of {unit_tokens} tokens where {num_tokens} need room")
    totals.add_slots(engine, sequence, before * unit_tokens, (len(table) - before) * unit_tokens)
    sequence.num_units = len(table)
    sequence.room_tokens = len(table) * unit_tokens
    first_new = before + len(found)
    for position, unit, length in _runs(table[first_new:], first_new):
        journal.append_extent(engine, sequence, position, _FIRST_ADDRESS + unit, length, length, 1)
    return True


def _hold_found(engine: Engine, sequence: Sequence, found: list[int]) -> None:
    state, refs = engine.state, _rules(engine).units.refs
    for unit in found:
        if refs[unit] == 0:
            state.num_free -= 1
            state.num_cached -= 1
        else:
            engine.groups[0].num_duplicate_entries += 1
        refs[unit] += 1
    for position, unit, length in _runs(found, 0):
        _write(engine, MemoryKind.SHARE, sequence.number - 1, position, _FIRST_ADDRESS + unit, length)


def _hold_free(engine: Engine, table: list[int], added: list[int]) -> None:
    """Check that the `added` units are in the pool and free, append them to a table, and remove their prefixes."""
    rules, units = _rules(engine), _rules(engine).units
    evicted = []
    for unit in added:
        if not 0 <= unit < len(units.refs):
            rules.refuse(f"allocated unit {unit} of a pool that has 0 to {len(units.refs) - 1}")
        if units.refs[unit]:
            rules.refuse(f"allocated unit {unit}, which is in a table")
        units.refs[unit] = 1
        if units.keys[unit] != NO_KEY:
            units.keys[unit] = NO_KEY
            evicted.append(unit)
    table.extend(added)
    engine.state.num_free -= len(added)
    engine.state.num_cached -= len(evicted)
    _write_evicted(engine, evicted)


def _runs(units: list[int], position: int) -> Iterator[tuple[int, int, int]]:
    """Yield (position, first unit, length) for each range of consecutive numbers in `units`. The yielded position is
    the range's index in `units` plus the argument `position`.
    """
    begin = 0
    while begin < len(units):
        length = 1
        while begin + length < len(units) and units[begin + length] == units[begin] + length:
            length += 1
        yield position + begin, units[begin], length
        begin += length


def _write_release(engine: Engine, sequence: Sequence, table: list[int], keeps: list[bool]) -> None:
    """Record that a table is freed. `keeps` has a value for each entry: True if its unit still holds a prefix.

    The row of the release has one number of cached entries: all entries up to the last one whose unit holds a prefix.
    Further rows record the units of these entries that hold no prefix as evicted.
    """
    num_kept = len(table) - next((index for index, kept in enumerate(reversed(keeps)) if kept), len(table))
    _write(engine, MemoryKind.RELEASE, sequence.number - 1, 0, _WHOLE_TABLE, len(table), num_kept)
    _write_evicted(engine, [unit for unit, kept in zip(table[:num_kept], keeps, strict=False) if not kept])


def _write_evicted(engine: Engine, units: list[int]) -> None:
    for position, unit, length in _runs(units, 0):
        _write(engine, MemoryKind.EVICT, _NO_REQUEST, position, _FIRST_ADDRESS + unit, length)


def _write(
    engine: Engine, kind: MemoryKind, request: int, position: int, address: int, length: int, cached: int = 0
) -> None:
    """Append a row to the memory table, if this is recorded. `request` is the request's row in the workload."""
    if engine.settings.records_memory:
        journal.write(engine, int(kind), 0, request, position, address, length, length, cached, 1)


def _rules(engine: Engine) -> MemoryRules:
    rules: Any = engine.rules
    return cast("MemoryRules", rules)


CUSTOM = MemoryManager(
    name="custom",
    find_prefix=find_prefix,
    admit=admit,
    grow=grow,
    cache=cache,
    free=free,
    unusable_units=unusable_units,
    shared_tokens=kv_cache.shared_tokens,
)
