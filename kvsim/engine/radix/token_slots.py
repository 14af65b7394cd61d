"""The free lists of SGLang's pools, which determine the page that is allocated next.

The free pages of a pool are in a ring buffer, in the order in which they will be allocated. With pages of one slot,
freed pages go to the end of this order. With larger pages, freed pages go to its front: the pages of one call of `free`
keep their order, and are allocated next. While the output of a step is processed, freed pages are collected, and all
are freed in one call at the end.
"""

from __future__ import annotations

from kvsim.engine.arrays import Numbers, listed
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix_records import NO_PAGE, SLOTS, WINDOWS, FreeList
from kvsim.engine.records import WINDOWS_FREED_TWICE
from kvsim.engine.state import Engine


@part
def num_free_tokens(engine: Engine) -> int:
    """Return the number of free slots."""
    return engine.state.num_free * engine.settings.unit_tokens


@part
def ceil_pages(engine: Engine, num_tokens: int) -> int:
    """Return the number of pages that hold `num_tokens` tokens."""
    unit = engine.settings.unit_tokens
    return num_tokens if unit == 1 else -(-num_tokens // unit)  # the division would be the slowest part of a step


@part
def ceil_tokens(engine: Engine, num_tokens: int) -> int:
    """Return `num_tokens` rounded up to whole pages."""
    return ceil_pages(engine, num_tokens) * engine.settings.unit_tokens


@part
def num_free_window_tokens(engine: Engine) -> int:
    """Return the number of free slots in the pool for layers with windows."""
    return engine.radix.state.num_free_windows * engine.settings.unit_tokens


@part
def alloc(engine: Engine) -> int:
    """Allocate the first page of the free list, which must not be empty, and return it. With windows, also allocate the
    page's window page, `RadixTables.window_pages[page]`.
    """
    assert engine.state.num_free > 0
    page = _take_first(engine, SLOTS)
    engine.state.num_free -= 1
    if engine.radix.settings.window_tokens > 0:
        assert engine.radix.state.num_free_windows > 0
        engine.radix.window_pages[page] = _take_first(engine, WINDOWS)
        engine.radix.state.num_free_windows -= 1
    return page


@part
def _take_first(engine: Engine, pool: int) -> int:
    free_list = engine.radix.free_lists[pool]
    page = engine.radix.free_pages[free_list.head]
    free_list.head = _after(free_list, free_list.head)
    return page


@part
def _after(free_list: FreeList, place: int) -> int:
    return free_list.begin if place + 1 == free_list.end else place + 1


@part
def free(engine: Engine, pages: Numbers, begin: int, end: int) -> None:
    """Free `pages[begin:end]`; while a group is open (see `begin_free_group`), only collect these pages."""
    place = _begin_free(engine, SLOTS, end - begin)
    free_list = engine.radix.free_lists[SLOTS]
    for index in range(begin, end):
        engine.radix.free_pages[place] = pages[index]
        place = _after(free_list, place)
    _end_free(engine, SLOTS, place, end - begin)


@part
def free_windows(engine: Engine, pages: Numbers, begin: int, end: int) -> None:
    """Free the window pages of `pages[begin:end]`; while a group is open (see `begin_free_group`), only collect them.

    If a page has no window page any more, the simulation ends with the failure `WINDOWS_FREED_TWICE`. SGLang itself
    goes on with damaged memory in this case: it serves a request without the last tokens of its prompt, and for these
    tokens the request's row has pages of an earlier request.
    """
    windows = engine.radix.window_pages
    place = _begin_free(engine, WINDOWS, end - begin)
    free_list = engine.radix.free_lists[WINDOWS]
    for index in range(begin, end):
        page = pages[index]
        if windows[page] == NO_PAGE:
            engine.state.failure = WINDOWS_FREED_TWICE
        engine.radix.free_pages[place] = windows[page]
        windows[page] = NO_PAGE
        place = _after(free_list, place)
    _end_free(engine, WINDOWS, place, end - begin)


@part
def begin_free_group(engine: Engine) -> None:
    """Open a group: from now on, freed pages are only collected, until `end_free_group` frees them."""
    assert not engine.radix.state.is_collecting
    engine.radix.state.is_collecting = True


@part
def end_free_group(engine: Engine) -> None:
    """Close the group: free the collected pages, those of each pool in one call."""
    engine.radix.state.is_collecting = False
    for pool in range(len(engine.radix.free_lists)):
        free_list = engine.radix.free_lists[pool]
        num_pages, free_list.num_collected = free_list.num_collected, 0
        if engine.settings.unit_tokens == 1:
            _end_free(engine, pool, free_list.collected_end, num_pages)
            continue
        source, place = free_list.tail, _begin_free(engine, pool, num_pages)
        free_list.collected_end = free_list.tail
        for _ in range(num_pages):
            engine.radix.free_pages[place] = engine.radix.free_pages[source]
            source, place = _after(free_list, source), _after(free_list, place)
        _end_free(engine, pool, place, num_pages)


@part
def _begin_free(engine: Engine, pool: int, num_pages: int) -> int:
    """Return the index in `RadixTables.free_pages` from which on `num_pages` freed pages are to be written.

    For pages of one slot, and while a group is open, this is the index after the last free or collected page.
    Otherwise it is `num_pages` before the first free page, and becomes the head of the list. The ring has room for
    twice the pages of the pool, so no page is overwritten.
    """
    free_list = engine.radix.free_lists[pool]
    if engine.radix.state.is_collecting or engine.settings.unit_tokens == 1:
        return free_list.collected_end
    free_list.head -= num_pages
    if free_list.head < free_list.begin:
        free_list.head += free_list.end - free_list.begin
    return free_list.head


@part
def _end_free(engine: Engine, pool: int, place: int, num_pages: int) -> None:
    """Count `num_pages` freed pages, which were written to the ring, as free or, while a group is open, as collected.
    `place` is the index after the last one.
    """
    free_list = engine.radix.free_lists[pool]
    at_back = engine.radix.state.is_collecting or engine.settings.unit_tokens == 1
    if at_back:
        free_list.collected_end = place
    if engine.radix.state.is_collecting:
        free_list.num_collected += num_pages
        return
    if at_back:
        free_list.tail = place
    if pool == SLOTS:
        engine.state.num_free += num_pages
    else:
        engine.radix.state.num_free_windows += num_pages


def free_pages_in_order(engine: Engine, pool: int) -> list[int]:
    """Return the free pages of a pool in the order in which they are allocated."""
    free_list, pages = engine.radix.free_lists[pool], engine.radix.free_pages
    num_free = engine.state.num_free if pool == SLOTS else engine.radix.state.num_free_windows
    begin, end = int(free_list.begin), int(free_list.end)
    last = int(free_list.head) + int(num_free)
    return listed(pages, int(free_list.head), min(last, end)) + listed(pages, begin, begin + max(last - end, 0))
