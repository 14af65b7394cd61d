"""Changes of ownership of SGLang's slots, written as rows of a recording while the engine runs.

A row describes consecutive pages. The pages of a request need not be consecutive, so a step may need more rows than
there is room for. The run then ends with an error.
"""

from __future__ import annotations

from kvsim.engine import journal
from kvsim.engine.arrays import Numbers
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.ownership import MemoryKind
from kvsim.engine.radix_records import Node
from kvsim.engine.records import RANGES_UNRECORDED, Sequence
from kvsim.engine.state import Engine

_APPEND, _SHARE, _RELEASE, _EVICT = (int(kind) for kind in MemoryKind)
_NO_REQUEST = -1
_WHOLE_TABLE = -1


@part
def append(engine: Engine, sequence: Sequence, begin: int, end: int) -> None:
    """Record that a request takes free pages for the entries [begin, end) of its row."""
    _write_row(engine, _APPEND, sequence, begin, end)


@part
def share(engine: Engine, sequence: Sequence, begin: int, end: int) -> None:
    """Record that the entries [begin, end) of a request's row are pages of the tree."""
    _write_row(engine, _SHARE, sequence, begin, end)


@part
def replace(engine: Engine, sequence: Sequence, begin: int, end: int) -> None:
    """Record pages [begin, end) of a request's row as freed duplicates. `share` then records those of the tree."""
    _write_row(engine, _RELEASE, sequence, begin, end)


@part
def release(engine: Engine, sequence: Sequence, num_pages: int, num_kept: int) -> None:
    """Record that a request frees its row of `num_pages` pages, of which the first `num_kept` stay in the tree."""
    if engine.settings.records_memory and num_pages > 0:
        _write(engine, _RELEASE, sequence.number - 1, 0, _WHOLE_TABLE, num_pages, num_kept)


@part
def evict(engine: Engine, node: Node) -> None:
    """Record that a node loses its pages on the device, whether or not it stays on the host."""
    if not engine.settings.records_memory:
        return
    pages, begin, end = engine.radix.node_pages, node.first_entry, node.first_entry + node.num_pages
    while begin < end:
        length = _run_length(pages, begin, end)
        _write(engine, _EVICT, _NO_REQUEST, 0, pages[begin], length, 0)
        begin += length


@part
def _write_row(engine: Engine, kind: int, sequence: Sequence, begin: int, end: int) -> None:
    """Write a memory row for each range of consecutive pages in entries [begin, end) of a request's row."""
    if not engine.settings.records_memory:
        return
    rows, row = engine.radix.rows, sequence.place * engine.radix.settings.row_pages
    while begin < end:
        length = _run_length(rows, row + begin, row + end)
        _write(engine, kind, sequence.number - 1, begin, rows[row + begin], length, 0)
        begin += length


@part
def _run_length(pages: Numbers, begin: int, end: int) -> int:
    length = 1
    while begin + length < end and pages[begin + length] == pages[begin] + length:
        length += 1
    return length


@part
def _write(engine: Engine, kind: int, request: int, position: int, address: int, length: int, num_kept: int) -> None:
    if engine.state.num_memory_rows >= engine.radix.settings.most_memory_rows:
        engine.state.failure = RANGES_UNRECORDED
        return
    journal.write(engine, kind, 0, request, position, address, length, length, num_kept, 1)
