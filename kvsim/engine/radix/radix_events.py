"""Events in the radix cache, recorded for a comparison with SGLang, if `RadixArguments.reports` is True.

Events are evictions, frees of duplicates (slots whose tokens are also in other slots of the tree), and retractions,
which is SGLang's word for preemptions.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix_records import ASKED, DUPLICATE, LEAF, RETRACTED, WINDOW, Node
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def eviction_request(engine: Engine, num_tokens: int, num_window_tokens: int) -> None:
    """Record that the scheduler asks the tree to evict `num_tokens` slots and `num_window_tokens` window slots."""
    if engine.radix.settings.reports:
        _write(engine, ASKED, True, num_tokens, num_window_tokens, 0)


@part
def leaf(engine: Engine, node: Node) -> None:
    """Record the pages of a leaf that is evicted."""
    _write_node(engine, LEAF, node)


@part
def window(engine: Engine, node: Node) -> None:
    """Record the pages of a node whose window slots are evicted; after `leaf`, if the whole node is evicted."""
    _write_node(engine, WINDOW, node)


@part
def duplicate_of_node(engine: Engine, node: Node) -> None:
    """Record that the pages of a node are freed as duplicates. The node takes over a request's pages instead, which
    hold the same tokens and have window slots.
    """
    _write_node(engine, DUPLICATE, node)


@part
def _write_node(engine: Engine, kind: int, node: Node) -> None:
    if not engine.radix.settings.reports:
        return
    for index in range(node.num_pages):
        _write(engine, kind, index == 0, engine.radix.node_pages[node.first_entry + index], 1, 0)


@part
def duplicate(engine: Engine, begin: int, end: int) -> None:
    """Record that a request's pages `RadixTables.rows[begin:end]` are freed as duplicates of pages of the tree."""
    if not engine.radix.settings.reports:
        return
    for index in range(begin, end):
        _write(engine, DUPLICATE, index == begin, engine.radix.rows[index], 1, 0)


@part
def retracted(engine: Engine, sequence: Sequence, num_others: int) -> None:
    """Record that a request is retracted (preempted), while `num_others` requests of its batch continue."""
    if engine.radix.settings.reports:
        outputs = sequence.num_tokens - sequence.prompt_tokens
        _write(engine, RETRACTED, True, sequence.number, outputs, num_others)


@part
def _write(engine: Engine, kind: int, is_first: bool, subject: int, length: int, others: int) -> None:
    row = engine.radix.events[engine.radix.state.num_events]
    engine.radix.state.num_events += 1
    row.kind, row.is_first, row.subject, row.length, row.num_continuing = kind, is_first, subject, length, others
