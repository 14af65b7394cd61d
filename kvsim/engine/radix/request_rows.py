"""Rows of SGLang's request table. A request's row lists the pages of its tokens, like a block table in vLLM.

The functions match a prefix, allocate, insert computed tokens into the tree, and free a row.
"""

from __future__ import annotations

from kvsim.engine import totals
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import MemoryManager
from kvsim.engine.radix import radix_journal, radix_tree, token_slots, tree_copies, tree_nodes, tree_windows
from kvsim.engine.radix_records import ROOT
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine

NO_ROW = -1
_EXTENDS_BEFORE_SLIDING = 2
"""Number of prefills of a request after which its next prefill frees window slots, if two steps may be in flight. After
fewer prefills, it frees none.
"""


@part
def evict_from_tree_cache(engine: Engine, num_tokens: int) -> None:
    """Evict from the tree, if necessary, so that at least `num_tokens` slots are free; with windows, also at least
    `num_tokens` window slots. If the tree has too little to evict, fewer are free afterwards.
    """
    shortfall = max(num_tokens - token_slots.num_free_tokens(engine), 0)
    of_windows = 0
    if tree_windows.has_windows(engine):
        of_windows = max(num_tokens - token_slots.num_free_window_tokens(engine), 0)
    if (shortfall > 0 or of_windows > 0) and engine.radix.settings.has_tree:
        radix_tree.evict(engine, shortfall, of_windows)


@part
def match_kv_cache(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    """Match the first `num_tokens` tokens of a waiting request with the tree, and store the hit in the request's
    record, `Holding`.
    Without a tree, the hit is empty.
    """
    holding = engine.radix.holdings[sequence.number]
    holding.node = ROOT
    if engine.radix.settings.has_tree:
        holding.node = radix_tree.match_prefix(engine, sequence, num_tokens)
    holding.prefix_tokens = radix_tree.end_of(engine, holding.node) * engine.settings.unit_tokens
    holding.protected_tokens = holding.prefix_tokens
    holding.host_tokens = 0
    if tree_copies.has_host_tier(engine) and engine.radix.settings.has_tree:
        holding.host_node = engine.radix.state.host_node
        holding.host_tokens = tree_copies.num_host_pages(engine, holding.host_node) * engine.settings.unit_tokens
    holding.matched_tokens = min(holding.prefix_tokens + holding.host_tokens, sequence.num_tokens - 1)
    holding.branch_tokens = 0
    if tree_windows.has_windows(engine) and engine.radix.settings.has_tree:
        matched = engine.radix.state.matched_pages * engine.settings.unit_tokens
        holding.branch_tokens = matched if matched > holding.prefix_tokens else 0


@part
def init_next_round_input(engine: Engine, sequence: Sequence) -> None:
    """Match a candidate for admission with the tree: all of its known tokens but the last, which must be computed."""
    engine.radix.holdings[sequence.number].laid_out_tokens = sequence.num_tokens
    match_kv_cache(engine, sequence, sequence.num_tokens - 1)


@part
def alloc_req_slots(engine: Engine, num_seqs: int) -> None:
    """Assign a free row to those of the batch's first `num_seqs` requests that have none. Enough rows must be free."""
    radix, needed = engine.radix, 0
    for index in range(num_seqs):
        needed += int(engine.sequences[engine.batch[index]].place == NO_ROW)
    radix.state.num_free_rows -= needed
    row = radix.state.num_free_rows
    for index in range(num_seqs):
        sequence = engine.sequences[engine.batch[index]]
        if sequence.place == NO_ROW:
            sequence.place = radix.free_rows[row]
            row += 1
            _write_prefix(engine, sequence)
            totals.add_slots(engine, sequence, 0, sequence.computed)
            engine.state.written += sequence.computed


@part
def _write_prefix(engine: Engine, sequence: Sequence) -> None:
    holding = engine.radix.holdings[sequence.number]
    row, node = sequence.place * engine.radix.settings.row_pages, holding.node
    end = radix_tree.end_of(engine, node)
    while node != ROOT:
        record = engine.radix.nodes[node]
        radix_tree.copy_to_row(engine, node, 0, row + record.begin, record.num_pages)
        node = record.parent
    radix_journal.share(engine, sequence, 0, end - holding.loaded_pages)
    radix_journal.append(engine, sequence, end - holding.loaded_pages, end)
    holding.loaded_pages = 0


@part
def alloc_for_extend(engine: Engine, num_seqs: int) -> bool:
    """Allocate slots to prefill the first `num_seqs` requests of the batch, after evictions if necessary. Return False,
    and allocate nothing, if too few slots are free.
    """
    unit, num_tokens, num_pages = engine.settings.unit_tokens, 0, 0
    if tree_windows.has_windows(engine) and not engine.radix.settings.has_tree:
        _slide_in_prefill(engine, num_seqs)
    for index in range(num_seqs):
        sequence, tokens = engine.sequences[engine.batch[index]], engine.batch_tokens[index]
        num_tokens += tokens + (unit if unit > 1 else 0)  # SGLang evicts for a page more, where pages are larger
        num_pages += _num_new_pages(engine, sequence.computed, tokens)
    evict_from_tree_cache(engine, num_tokens)
    if num_pages > engine.state.num_free or (
        tree_windows.has_windows(engine) and num_pages > engine.radix.state.num_free_windows
    ):
        return False
    for index in range(num_seqs):
        engine.radix.holdings[engine.batch[index]].num_extends += 1
        extend(engine, engine.sequences[engine.batch[index]], engine.batch_tokens[index])
    return True


@part
def num_tokens_required_next_decode(engine: Engine, sequence: Sequence) -> int:
    """Return the number of slots to allocate for a request's next token: 0 if its last page has room, else a page."""
    return _num_new_pages(engine, sequence.computed, 1) * engine.settings.unit_tokens


@part
def make_room_for_decode(engine: Engine, first: int, num_seqs: int) -> None:
    """Evict pages so that the `num_seqs` requests from index `first` of the batch on can decode one token each. Before
    that, free window slots that they no longer read.
    """
    if tree_windows.has_windows(engine):
        _slide_in_decode(engine, first, num_seqs)
    evict_from_tree_cache(engine, num_seqs * engine.settings.unit_tokens)


@part
def _slide_in_prefill(engine: Engine, num_seqs: int) -> None:
    """Free the window slots that the first `num_seqs` requests of the batch no longer read. Used without a prefix
    cache. If two steps may be in flight, the previous chunk of a prompt may still be computing, so the window before
    this chunk is kept.
    """
    chunk_tokens = engine.radix.settings.chunk_tokens
    token_slots.begin_free_group(engine)
    for index in range(num_seqs):
        sequence = engine.sequences[engine.batch[index]]
        if engine.settings.most_in_flight == 1:
            slide(engine, sequence, sequence.computed)
        elif engine.radix.holdings[sequence.number].num_extends >= _EXTENDS_BEFORE_SLIDING:
            slide(engine, sequence, sequence.computed - chunk_tokens)
    token_slots.end_free_group(engine)


@part
def _slide_in_decode(engine: Engine, first: int, num_seqs: int) -> None:
    """Free the window slots that the `num_seqs` requests from index `first` of the batch on no longer read. For one
    request, this is done only once in `window_interval` tokens, and not for its first decode.
    """
    settings = engine.radix.settings
    token_slots.begin_free_group(engine)
    for index in range(first, first + num_seqs):
        sequence = engine.sequences[engine.batch[index]]
        holding, computed = engine.radix.holdings[sequence.number], sequence.num_tokens - 1
        is_due = computed - settings.window_tokens >= holding.freed_window_tokens + settings.window_interval
        if holding.num_decodes > 0 and is_due:
            slide(engine, sequence, computed)
        holding.num_decodes += 1
    token_slots.end_free_group(engine)


@part
def slide(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    """Free the window slots not read by tokens after a request's first `num_tokens`, except pages in the tree."""
    unit, holding = engine.settings.unit_tokens, engine.radix.holdings[sequence.number]
    window = engine.radix.settings.window_tokens
    if num_tokens - window < holding.freed_window_tokens + 1:
        return
    if engine.radix.settings.has_tree:
        window = token_slots.ceil_tokens(engine, max(window, unit))
    gone = max(holding.freed_window_tokens, holding.protected_tokens)
    begin, end = gone // unit, max(gone, num_tokens - window) // unit
    holding.freed_window_tokens = gone
    if end > begin:
        row = sequence.place * engine.radix.settings.row_pages
        token_slots.free_windows(engine, engine.radix.rows, row + begin, row + end)
        holding.freed_window_tokens = end * unit


@part
def extend(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    """Allocate pages for `num_tokens` more tokens of a request, and append them to its row."""
    begin = token_slots.ceil_pages(engine, sequence.computed)
    row = sequence.place * engine.radix.settings.row_pages
    num_pages = _num_new_pages(engine, sequence.computed, num_tokens)
    for index in range(begin, begin + num_pages):
        engine.radix.rows[row + index] = token_slots.alloc(engine)
    radix_journal.append(engine, sequence, begin, begin + num_pages)
    unit = engine.settings.unit_tokens
    totals.add_slots(engine, sequence, begin * unit, num_pages * unit)


@part
def _num_new_pages(engine: Engine, computed: int, num_tokens: int) -> int:
    if engine.settings.unit_tokens == 1:
        return num_tokens
    return token_slots.ceil_pages(engine, computed + num_tokens) - token_slots.ceil_pages(engine, computed)


@part
def cache_req(engine: Engine, sequence: Sequence, up_to: int, is_finished: bool) -> None:
    """Insert the whole pages of a request's first `up_to` tokens into the tree, and lock their path instead of the one
    that the request has locked. Without a tree, do nothing.

    It is SGLang's `cache_finished_req` if `is_finished`, which is True if the request leaves its row; otherwise
    `cache_unfinished_req`. Without windows, the path is split at the end of the prompt.

    If some matched nodes lack their windows, the request's match is longer than its hit. The first call that reaches
    the end of the match (`Holding.branch_tokens`) then inserts only the tokens of the match.
    """
    unit, holding = engine.settings.unit_tokens, engine.radix.holdings[sequence.number]
    if not engine.radix.settings.has_tree or up_to == 0:
        return
    branch = holding.branch_tokens if holding.protected_tokens < holding.branch_tokens <= up_to else 0
    up_to = branch if branch > 0 else up_to
    if tree_windows.has_windows(engine) and not is_finished:
        slide(engine, sequence, up_to - 1)
    num_pages, prompt_pages = up_to // unit, sequence.prompt_tokens // unit
    protected, inserted = holding.protected_tokens // unit, holding.inserted_tokens // unit
    node = radix_tree.insert(engine, sequence, num_pages, protected, inserted, holding.priority)
    holding.inserted_tokens = max(holding.inserted_tokens, num_pages * unit)
    if 0 < prompt_pages < num_pages and not tree_windows.has_windows(engine):
        radix_tree.split_at_prompt_end(engine, sequence, prompt_pages, holding.priority)
    tree_nodes.dec_lock_ref(engine, holding.lock, holding.edge)
    holding.edge = tree_nodes.inc_lock_ref(engine, node)
    holding.lock = holding.node = node
    holding.protected_tokens = num_pages * unit
    if branch > 0:
        holding.branch_tokens = 0
        if not is_finished:
            slide(engine, sequence, holding.extend_end - 1)


@part
def cache_prefill(engine: Engine, sequence: Sequence) -> None:
    """Insert the tokens of a request up to the end of its last prefill into the tree. A next prefill begins there."""
    holding = engine.radix.holdings[sequence.number]
    cache_req(engine, sequence, holding.extend_end, False)
    holding.prefix_tokens = holding.extend_end


@part
def release_kv_cache(engine: Engine, sequence: Sequence, is_insert: bool) -> None:
    """Free a request's row, locks and pages outside the tree. With `is_insert`, first insert its computed tokens."""
    radix, holding, owned = engine.radix, engine.radix.holdings[sequence.number], sequence.computed
    assert owned <= sequence.num_tokens
    if is_insert:
        holding.laid_out_tokens = sequence.num_tokens
        cache_req(engine, sequence, owned, True)
    totals.remove_computed(engine, sequence)
    totals.remove_slots(engine, sequence, token_slots.ceil_tokens(engine, owned))
    num_pages, num_kept = token_slots.ceil_pages(engine, owned), holding.protected_tokens // engine.settings.unit_tokens
    radix_journal.release(engine, sequence, num_pages, num_kept)
    row = sequence.place * radix.settings.row_pages
    num_gone = max(holding.freed_window_tokens // engine.settings.unit_tokens, num_kept)
    _free_row(engine, row + num_kept, row + num_gone, False)
    _free_row(engine, row + num_gone, row + num_pages, tree_windows.has_windows(engine))
    tree_nodes.dec_lock_ref(engine, holding.lock, holding.edge)
    holding.lock = ROOT
    holding.edge = holding.freed_window_tokens = holding.branch_tokens = holding.num_extends = holding.num_decodes = 0
    radix.free_rows[radix.state.num_free_rows] = sequence.place
    radix.state.num_free_rows += 1
    sequence.place = NO_ROW


@part
def _free_row(engine: Engine, begin: int, end: int, has_windows: bool) -> None:
    """Free the pages `RadixTables.rows[begin:end]`; with `has_windows`, also their window slots."""
    rows = engine.radix.rows
    if end > begin:
        if has_windows:
            token_slots.free_windows(engine, rows, begin, end)
        token_slots.free(engine, rows, begin, end)


@part
def num_unlocked(engine: Engine) -> int:
    """Return the number of pages that are free, or in the tree and not locked."""
    return engine.state.num_free + engine.state.num_cached


@part
def num_unlocked_windows(engine: Engine) -> int:
    """Return the number of window pages that are free, or in the tree and not locked."""
    return engine.radix.state.num_free_windows + engine.radix.state.num_cached_windows


@part
def num_cached_windows(engine: Engine) -> int:
    """Return the number of window pages that are in the tree and not locked."""
    return engine.radix.state.num_cached_windows


RADIX = MemoryManager(
    name="radix", free_units=num_unlocked, free_windows=num_unlocked_windows, cached_windows=num_cached_windows
)
"""Memory manager of SGLang. It has only the functions whose results fill a step's row in the recording's table of
steps. SGLang's scheduler calls functions that allocate and free directly.
"""
