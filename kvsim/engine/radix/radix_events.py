"""Events of the radix cache that a comparison asks for: evictions, slots freed as duplicates, retractions."""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix_records import ASKED, DUPLICATE, LEAF, RETRACTED, WINDOW, Node
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def asked(engine: Engine, num_tokens: int, num_window_tokens: int) -> None:
    """Write down that an eviction is asked for `num_tokens` slots, and `num_window_tokens` of windows."""
    if engine.radix.settings.reports:
        _write(engine, ASKED, True, num_tokens, num_window_tokens, 0)


@part
def leaf(engine: Engine, node: Node) -> None:
    """Write down the pages of a node that is evicted."""
    _write_node(engine, LEAF, node)


@part
def window(engine: Engine, node: Node) -> None:
    """Write down the pages of a node whose windows are evicted."""
    _write_node(engine, WINDOW, node)


@part
def duplicate_of_node(engine: Engine, node: Node) -> None:
    """Write down the pages that a node gives up for those of a request, which have their windows."""
    _write_node(engine, DUPLICATE, node)


@part
def _write_node(engine: Engine, kind: int, node: Node) -> None:
    if not engine.radix.settings.reports:
        return
    page = node.first_page
    for index in range(node.num_pages):
        _write(engine, kind, index == 0, page, 1, 0)
        page = engine.radix.pages[page]


@part
def duplicate(engine: Engine, begin: int, end: int) -> None:
    """Write down that the pages in `rows[begin:end]` are freed, because the tree has their tokens."""
    if not engine.radix.settings.reports:
        return
    for index in range(begin, end):
        _write(engine, DUPLICATE, index == begin, engine.radix.rows[index], 1, 0)


@part
def retracted(engine: Engine, sequence: Sequence, num_others: int) -> None:
    """Write down that a request gives its memory back while `num_others` others of its batch go on."""
    if engine.radix.settings.reports:
        outputs = sequence.num_tokens - sequence.prompt_tokens
        _write(engine, RETRACTED, True, sequence.number, outputs, num_others)


@part
def _write(engine: Engine, kind: int, is_first: bool, subject: int, length: int, others: int) -> None:
    row = engine.radix.events[engine.radix.state.num_events]
    engine.radix.state.num_events += 1
    row.kind, row.is_first, row.subject, row.length, row.others = kind, is_first, subject, length, others
