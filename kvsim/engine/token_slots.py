"""The slots of SGLang's pool, in pages: which is handed out next.

Pages of one slot are first in, first out. Larger pages are last freed, first taken: a call that frees puts its pages in
front, in their order. While the output of a step is processed, pages are collected and freed in one call. Every page
has one successor: in the free list, in a node of the tree, or among those being freed. So a run of pages moves from one
to another at once, however long it is.
"""

from __future__ import annotations

from kvsim.engine.compiled import part
from kvsim.engine.radix_records import NO_PAGE
from kvsim.engine.state import Engine


@part
def num_free_tokens(engine: Engine) -> int:
    """Return the free slots."""
    return engine.state.num_free * engine.settings.unit_tokens


@part
def ceil_pages(engine: Engine, num_tokens: int) -> int:
    """Return the pages that hold `num_tokens`."""
    return -(-num_tokens // engine.settings.unit_tokens)


@part
def ceil_tokens(engine: Engine, num_tokens: int) -> int:
    """Return `num_tokens` rounded up to whole pages."""
    return ceil_pages(engine, num_tokens) * engine.settings.unit_tokens


@part
def alloc(engine: Engine) -> int:
    """Take the page at the front of the free list, which is not empty."""
    state, radix = engine.state, engine.radix.state
    assert state.num_free > 0
    page = radix.first_free
    radix.first_free = engine.radix.pages[page]
    if radix.first_free == NO_PAGE:
        radix.last_free = NO_PAGE
    state.num_free -= 1
    return page


@part
def free(engine: Engine, first: int, last: int, num_pages: int) -> None:
    """Free the pages from `first` to `last`, each of which leads to the next, or collect them to be freed."""
    pages, radix = engine.radix.pages, engine.radix.state
    if num_pages == 0:
        return
    if not radix.is_collecting:
        _free_now(engine, first, last, num_pages)
        return
    if radix.num_collected == 0:
        radix.first_collected = first
    else:
        pages[radix.last_collected] = first
    radix.last_collected = last
    radix.num_collected += num_pages


@part
def begin_free_group(engine: Engine) -> None:
    """Collect freed slots from now on."""
    radix = engine.radix.state
    assert not radix.is_collecting
    radix.is_collecting, radix.num_collected = True, 0


@part
def end_free_group(engine: Engine) -> None:
    """Free the collected slots, in one call."""
    radix = engine.radix.state
    radix.is_collecting = False
    free(engine, radix.first_collected, radix.last_collected, radix.num_collected)


@part
def _free_now(engine: Engine, first: int, last: int, num_pages: int) -> None:
    pages, radix = engine.radix.pages, engine.radix.state
    if engine.settings.unit_tokens > 1:
        pages[last] = radix.first_free
        radix.first_free = first
        if radix.last_free == NO_PAGE:
            radix.last_free = last
    else:
        pages[last] = NO_PAGE
        if radix.last_free == NO_PAGE:
            radix.first_free = first
        else:
            pages[radix.last_free] = first
        radix.last_free = last
    engine.state.num_free += num_pages
