"""SGLang's radix tree and its slots against a plain model: tokens one by one, evicted by looking at every node."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.paged.prefix_keys import PrefixKeys
from kvsim.engine.radix import radix_tree, token_slots, tree_nodes
from kvsim.engine.radix_records import ROOT, SLOTS
from kvsim.policies import Radix, RadixSettings, SGLangSettings
from kvsim.policies.sglang import EVICTION_POLICIES

from .by_hand import driver_of

PAGES, UNITS = 48, (1, 3)
EVERY_ROW = [
    [1, 1, 1, 1, 2, 2],
    [1, 1, 1, 2, 2, 2],
    [1, 1, 1, 1, 2, 3, 3, 3],
    [2, 2, 2],
    [1, 1, 1, 1, 2, 2, 3],
    [2, 2, 3],
]
"""Tokens of each request, one for each page; those of a page are alike."""


def engine_of(unit: int, eviction: str) -> Any:
    """An engine with such requests, all of which have a row."""
    keys = PrefixKeys(1)
    policy = Radix(
        scheduler=SGLangSettings(max_running_requests=len(EVERY_ROW)),
        cache=RadixSettings(page_size=unit, radix_eviction_policy=eviction),
    )
    requests = [(len(row) * unit, 1) for row in EVERY_ROW]
    engine = driver_of(policy, PAGES, *requests, keys=[keys.from_tokens(row) for row in EVERY_ROW]).engine
    for number in range(1, len(EVERY_ROW) + 1):
        engine.sequences[number].place = number - 1
    return engine


def free_list(engine: Any) -> list[int]:
    return token_slots.free_pages_in_order(engine, SLOTS)


@dataclass(eq=False)
class Plain:
    """A node of the model."""

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    parent: Plain | None = None
    children: list[Plain] = field(default_factory=list)
    locks: int = 0
    hits: int = 0
    priority: int = 0
    accessed: float = 0.0
    created: float = 0.0

    def path(self) -> list[Plain]:
        """The nodes from this one up, without the root."""
        return [] if self.parent is None else [self, *self.parent.path()]


class Model:
    """A tree and its free pages, as the specification says it in words."""

    def __init__(self, unit: int, eviction: str) -> None:
        self.root, self.clock, self.unit, self.eviction = Plain(), count(1), unit, eviction
        self.free = deque(range(1, PAGES + 1))

    def give_back(self, pages: list[int]) -> None:
        if self.unit == 1:
            self.free.extend(pages)
        else:
            self.free.extendleft(reversed(pages))

    def nodes(self) -> list[Plain]:
        found, ahead = [], [self.root]
        while ahead:
            node = ahead.pop()
            ahead += node.children
            found += [] if node is self.root else [node]
        return found

    def split(self, node: Plain, length: int) -> Plain:
        upper = Plain(
            node.tokens[:length], node.pages[:length], node.parent, [node], node.locks, node.hits, node.priority
        )
        upper.accessed, upper.created = next(self.clock), node.created
        assert node.parent is not None
        node.parent.children[node.parent.children.index(node)] = upper
        node.tokens, node.pages, node.parent = node.tokens[length:], node.pages[length:], upper
        node.accessed = next(self.clock)
        return upper

    def step(self, node: Plain, tokens: list[int]) -> tuple[Plain | None, int]:
        for child in node.children:
            length = 0
            while length < min(len(child.tokens), len(tokens)) and child.tokens[length] == tokens[length]:
                length += 1
            if length:
                return child, length
        return None, 0

    def match(self, tokens: list[int]) -> Plain:
        node = self.root
        while tokens:
            child, length = self.step(node, tokens)
            if child is None:
                break
            node = self.split(child, length) if length < len(child.tokens) else child
            tokens = tokens[length:] if node is child else []
        stamp = float(next(self.clock))
        for ancestor in node.path():
            ancestor.accessed, stamp = stamp, stamp - 1e-5
        return node

    def insert(self, tokens: list[int], pages: list[int], priority: int) -> tuple[Plain, list[int]]:
        """Return the node at the end and the pages of the row, now the tree's."""
        node, row = self.root, []
        while tokens:
            child, length = self.step(node, tokens)
            if child is None:
                break
            child.accessed = next(self.clock)
            node = self.split(child, length) if length < len(child.tokens) else child
            node.priority = max(node.priority, priority)
            node.hits += 1
            self.give_back(pages[:length])
            row += node.pages
            tokens, pages = tokens[length:], pages[length:]
        if tokens:
            leaf = Plain(tokens, pages, node, priority=priority, hits=1, accessed=next(self.clock))
            leaf.created = leaf.accessed
            node.children.append(leaf)
            node = leaf
        return node, row + pages

    def rank(self, node: Plain) -> tuple[float, ...]:
        return {
            "lru": (node.accessed,),
            "lfu": (node.hits, node.accessed),
            "fifo": (node.created,),
            "filo": (-node.created,),
            "mru": (-node.accessed,),
            "priority": (node.priority, node.accessed),
            "slru": (node.hits >= 2, node.accessed),
        }[self.eviction]

    def evict(self, num_pages: int) -> None:
        enough = len(self.free) + num_pages
        while len(self.free) < enough:
            leaves = [node for node in self.nodes() if not node.children and not node.locks]
            if not leaves:
                break
            node = min(leaves, key=self.rank)
            assert node.parent is not None
            node.parent.children.remove(node)
            self.give_back(node.pages)


NUMBERS = st.integers(1, len(EVERY_ROW))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("match"), NUMBERS, st.integers(0, 8)),
        st.tuples(st.just("insert"), NUMBERS, st.integers(1, 8), st.integers(0, 2)),
        st.tuples(st.just("lock"), NUMBERS),
        st.tuples(st.just("unlock"), NUMBERS),
        st.tuples(st.just("evict"), st.integers(1, 9)),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(actions=ACTIONS, unit=st.sampled_from(UNITS), eviction=st.sampled_from(list(EVICTION_POLICIES)))
def test_the_tree_and_the_free_list_are_those_of_the_model(actions: list[Any], unit: int, eviction: str) -> None:
    engine, model = engine_of(unit, eviction), Model(unit, eviction)
    locked: dict[int, tuple[int, Plain]] = {}
    for name, *arguments in actions:
        if name == "evict":
            radix_tree.evict(engine, arguments[0] * unit, 0)
            model.evict(arguments[0])
        elif name == "unlock":
            if arguments[0] in locked:
                node, plain = locked.pop(arguments[0])
                tree_nodes.dec_lock_ref(engine, node, 0)
                for each in plain.path():
                    each.locks -= 1
        else:
            number = arguments[0]
            sequence, tokens = engine.sequences[number], EVERY_ROW[number - 1]
            if name == "match":
                radix_tree.match_prefix(engine, sequence, arguments[1] * unit + unit - 1)
                if arguments[1]:
                    model.match(tokens[: arguments[1]])
            elif name == "lock" and number not in locked:
                node, plain = radix_tree.match_prefix(engine, sequence, len(tokens) * unit), model.match(tokens)
                tree_nodes.inc_lock_ref(engine, node)
                for each in plain.path():
                    each.locks += 1
                locked[number] = node, plain
            elif name == "insert":
                insert(engine, model, number, tokens[: arguments[1]], arguments[2])
        compare(engine, model)


def insert(engine: Any, model: Model, number: int, tokens: list[int], priority: int) -> None:
    """Take pages for all tokens of a request and put them into both trees."""
    if len(tokens) > len(model.free):
        return
    begin = (number - 1) * engine.radix.settings.row_pages
    pages = [model.free.popleft() for _ in tokens]
    for index in range(len(tokens)):
        engine.radix.rows[begin + index] = token_slots.alloc(engine)
    assert engine.radix.rows[begin : begin + len(tokens)] == pages
    node = radix_tree.insert(engine, engine.sequences[number], len(tokens), 0, 0, priority)
    _, row = model.insert(tokens, pages, priority)
    assert engine.radix.rows[begin : begin + len(tokens)] == row
    assert radix_tree.end_of(engine, node) == len(tokens)


def compare(engine: Any, model: Model) -> None:
    assert free_list(engine) == list(model.free)
    plain = model.nodes()
    is_locked = [bool(node.locks) for node in plain]
    sizes = [len(node.pages) for node in plain]
    state = engine.radix.state
    assert state.locked_pages == sum(size for size, locked in zip(sizes, is_locked, strict=True) if locked)
    assert engine.state.num_cached == sum(sizes) - state.locked_pages
    assert state.num_leaves == sum(not node.children and not node.locks for node in plain)
    assert engine.state.num_free + sum(sizes) == PAGES
    every = [engine.radix.nodes[index] for index in range(1, state.num_nodes + 1)]
    pages = engine.radix.node_pages
    ours = {pages[node.first_entry]: node for node in every if node.num_pages and _is_found(engine, node)}
    for node in plain:
        mine = ours[node.pages[0]]
        assert pages[mine.first_entry : mine.first_entry + mine.num_pages] == node.pages
        assert (mine.num_pages, mine.hits, mine.locks) == (len(node.pages), node.hits, node.locks)
        assert (mine.priority, mine.num_children) == (node.priority, len(node.children))
    by_age = sorted(plain, key=lambda node: node.accessed)
    assert all(ours[one.pages[0]].accessed < ours[other.pages[0]].accessed for one, other in pairwise(by_age))


def _is_found(engine: Any, node: Any) -> bool:
    """Tell whether a record is that of a node in the tree, and not a spare one."""
    found = radix_tree.find_child(engine, engine.sequences[node.owner], node.begin)
    return found != ROOT and engine.radix.nodes[found] is node


@pytest.mark.parametrize("unit", UNITS)
def test_pages_freed_together_are_freed_in_one_call(unit: int) -> None:
    engine = engine_of(unit, "lru")
    taken = [token_slots.alloc(engine) for _ in range(6)]
    assert taken == [1, 2, 3, 4, 5, 6]
    token_slots.begin_free_group(engine)
    token_slots.free(engine, [5, 2], 0, 2)
    token_slots.free(engine, [1], 0, 1)
    assert engine.state.num_free == PAGES - 6
    token_slots.end_free_group(engine)
    rest = list(range(7, PAGES + 1))
    assert free_list(engine) == ([*rest, 5, 2, 1] if unit == 1 else [5, 2, 1, *rest])


def test_freed_pages_are_taken_again_when_none_was_left() -> None:
    for unit in UNITS:
        engine = engine_of(unit, "lru")
        for _ in range(PAGES):
            token_slots.alloc(engine)
        assert free_list(engine) == []
        token_slots.free(engine, [7], 0, 1)
        token_slots.free(engine, [3], 0, 1)
        assert free_list(engine) == ([7, 3] if unit == 1 else [3, 7])
