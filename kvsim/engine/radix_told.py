"""Reports of the radix cache, for comparisons: evictions, duplicates and retractions."""

from __future__ import annotations

from kvsim.engine.compiled import part
from kvsim.engine.radix_records import ASKED, DUPLICATE, LEAF, RETRACTED, Node
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def asked(engine: Engine, num_tokens: int) -> None:
    """Tell that an eviction was asked for `num_tokens` slots."""
    if engine.radix.settings.tells:
        _tell(engine, ASKED, True, num_tokens, 0, 0)


@part
def leaf(engine: Engine, node: Node) -> None:
    """Tell the pages of a node that is evicted."""
    if not engine.radix.settings.tells:
        return
    page = node.first_page
    for index in range(node.num_pages):
        _tell(engine, LEAF, index == 0, page, 1, 0)
        page = engine.radix.pages[page]


@part
def duplicate(engine: Engine, begin: int, end: int) -> None:
    """Tell that the pages in `rows[begin:end]` are freed, because the tree has their tokens."""
    if not engine.radix.settings.tells:
        return
    for index in range(begin, end):
        _tell(engine, DUPLICATE, index == begin, engine.radix.rows[index], 1, 0)


@part
def retracted(engine: Engine, sequence: Sequence, num_others: int) -> None:
    """Tell that a request gives its memory back while `num_others` others of its batch go on."""
    if engine.radix.settings.tells:
        outputs = sequence.num_tokens - sequence.prompt_tokens
        _tell(engine, RETRACTED, True, sequence.number, outputs, num_others)


@part
def _tell(engine: Engine, kind: int, is_first: bool, subject: int, length: int, others: int) -> None:
    row = engine.radix.told[engine.radix.state.num_told]
    engine.radix.state.num_told += 1
    row.kind, row.is_first, row.subject, row.length, row.others = kind, is_first, subject, length, others
