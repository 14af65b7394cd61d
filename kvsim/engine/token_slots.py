"""The slots of SGLang's pool, in pages: which is handed out next.

Pages of one slot are first in, first out. Larger pages are last freed, first taken: a call that frees puts its pages in
front, in their order. While the output of a step is processed, pages are collected and freed in one call. Every page
has one successor: in the free list, in a node of the tree, or among those being freed. So a run of pages moves from one
to another at once, however long it is.
"""

from __future__ import annotations

from kvsim.engine.compiled import part
from kvsim.engine.radix_records import NO_PAGE, SLOTS, WINDOWS
from kvsim.engine.state import Engine


@part
def num_free_tokens(engine: Engine) -> int:
    """Return the free slots."""
    return engine.state.num_free * engine.settings.unit_tokens


@part
def ceil_pages(engine: Engine, num_tokens: int) -> int:
    """Return the pages that hold `num_tokens`."""
    unit = engine.settings.unit_tokens
    return num_tokens if unit == 1 else -(-num_tokens // unit)  # a division takes longer than all else in a step


@part
def ceil_tokens(engine: Engine, num_tokens: int) -> int:
    """Return `num_tokens` rounded up to whole pages."""
    return ceil_pages(engine, num_tokens) * engine.settings.unit_tokens


@part
def num_free_window_tokens(engine: Engine) -> int:
    """Return the free slots of windows."""
    return engine.radix.state.num_free_windows * engine.settings.unit_tokens


@part
def alloc(engine: Engine) -> int:
    """Take the page at the front of the free list, which is not empty, with one for windows where there are such."""
    assert engine.state.num_free > 0
    page = _take_first(engine, SLOTS)
    engine.state.num_free -= 1
    if engine.radix.settings.window_tokens > 0:
        assert engine.radix.state.num_free_windows > 0
        engine.radix.windows[page] = _take_first(engine, WINDOWS)
        engine.radix.state.num_free_windows -= 1
    return page


@part
def _take_first(engine: Engine, pool: int) -> int:
    free_list = engine.radix.free[pool]
    page = free_list.first
    free_list.first = engine.radix.pages[page]
    if free_list.first == NO_PAGE:
        free_list.last = NO_PAGE
    return page


@part
def free(engine: Engine, first: int, last: int, num_pages: int) -> None:
    """Free the pages from `first` to `last`, each of which leads to the next, or collect them to be freed."""
    _free(engine, SLOTS, first, last, num_pages)


@part
def free_windows(engine: Engine, page: int, num_pages: int) -> None:
    """Free the windows of `num_pages` pages, each of which leads to the next, from `page` on."""
    windows, pages = engine.radix.windows, engine.radix.pages
    first = last = NO_PAGE
    for _ in range(num_pages):
        window = windows[page]
        assert window != NO_PAGE
        windows[page] = NO_PAGE
        if first == NO_PAGE:
            first = window
        else:
            pages[last] = window
        last = window
        page = pages[page]
    _free(engine, WINDOWS, first, last, num_pages)


@part
def begin_free_group(engine: Engine) -> None:
    """Collect freed slots from now on."""
    assert not engine.radix.state.is_collecting
    engine.radix.state.is_collecting = True
    engine.radix.free[SLOTS].num_collected = engine.radix.free[WINDOWS].num_collected = 0


@part
def end_free_group(engine: Engine) -> None:
    """Free the collected slots of each pool, in one call."""
    engine.radix.state.is_collecting = False
    for pool in range(len(engine.radix.free)):
        free_list = engine.radix.free[pool]
        _free(engine, pool, free_list.first_collected, free_list.last_collected, free_list.num_collected)


@part
def _free(engine: Engine, pool: int, first: int, last: int, num_pages: int) -> None:
    pages, free_list = engine.radix.pages, engine.radix.free[pool]
    if num_pages == 0:
        return
    if not engine.radix.state.is_collecting:
        _free_now(engine, pool, first, last)
        if pool == SLOTS:
            engine.state.num_free += num_pages
        else:
            engine.radix.state.num_free_windows += num_pages
        return
    if free_list.num_collected == 0:
        free_list.first_collected = first
    else:
        pages[free_list.last_collected] = first
    free_list.last_collected = last
    free_list.num_collected += num_pages


@part
def _free_now(engine: Engine, pool: int, first: int, last: int) -> None:
    pages, free_list = engine.radix.pages, engine.radix.free[pool]
    if engine.settings.unit_tokens > 1:
        pages[last] = free_list.first
        free_list.first = first
        if free_list.last == NO_PAGE:
            free_list.last = last
    else:
        pages[last] = NO_PAGE
        if free_list.last == NO_PAGE:
            free_list.first = first
        else:
            pages[free_list.last] = first
        free_list.last = last
