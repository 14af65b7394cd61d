"""Recorder of block tables inside vLLM's cache manager: which blocks each request gets, shares, frees, and evicts.

Allocation and release are observed by wrapping methods of the cache manager, its coordinator and its block pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Protocol

from kvsim.capture.release_settings import retention_interval, rules_or_newest
from kvsim.engine.paged.group_initialization import keeps_only_some
from kvsim.kv_groups import CacheKind, KVCacheLayout

_KEEP_ALL = ("FullAttentionManager",)
"""vLLM's managers of groups whose requests keep every block until they end. MLA has the manager of full attention."""


class Recorder(Protocol):
    """Methods of a recorder that a `TableWatch` calls."""

    @property
    def is_recording(self) -> bool:
        """True while events are reported."""

    def call(self, hook: Callable[..., None], *args: Any) -> None:
        """Call `hook` if something is recorded. If it fails, the recording ends and the engine goes on."""

    def report(self, *event: Any) -> None:
        """Report an event: its name and its fields."""

    def ending(self, request: Any) -> None:
        """Note that `request` has finished."""


class TableWatch:
    """Reporter of the changes of the block tables of one scheduler."""

    def __init__(self, scheduler: Any, recorder: Recorder) -> None:
        self._scheduler, self._manager, self._recorder = scheduler, scheduler.kv_cache_manager, recorder
        self._skipped: list[tuple[int, list[tuple[int, Any]]]] = []
        """Blocks freed by this call of `remove_skipped_blocks`: groups, each with blocks and their table positions."""
        self._watch_memory()

    def set_layout(self, layout: KVCacheLayout, release: str) -> None:
        """Store the groups of `layout`, and the rules of a vLLM release for their blocks."""
        self._layout = layout
        rules, retention_tokens = rules_or_newest(release), retention_interval(self._scheduler)
        self._keeps_only_some = [keeps_only_some(layout, group, rules, retention_tokens) for group in layout.groups]

    def start(self, rows: dict[str, int], all_rows: dict[str, int]) -> None:
        """Begin a recording. `all_rows` has the rows of all requests, by name; `rows` those not ended."""
        self._rows, self._all_rows = rows, all_rows
        managers = self._manager.coordinator.single_type_managers
        self._held: list[dict[str, int]] = [{} for _ in managers]
        self._places: list[dict[str, dict[int, int]]] = [{} for _ in managers]
        self._evicted: list[int] = []
        self._deferred: deque[tuple[int, ...]] = deque()
        """Fields of the "release" events of the tables that vLLM will free at a later step, in the order of release."""

    def _allocated(self, request: Any, hits: Any) -> None:
        """Report, in vLLM's order: prefix `hits`, cached blocks that were evicted for new ones, and the new blocks."""
        name = request.request_id
        if name not in self._rows:
            return
        row, appended = self._rows[name], []
        for group, manager in enumerate(self._manager.coordinator.single_type_managers):
            table, held = manager.req_to_blocks[name], self._held[group].get(name, 0)
            if len(table) == held:
                continue
            num_hits = len(hits.blocks[group]) if hits is not None else 0
            self._report_entries("share", row, group, table, held, min(num_hits, len(table)))
            appended.append((group, table, max(held, num_hits)))
            self._held[group][name] = len(table)
            if self._has_window[group]:
                places = self._places[group].setdefault(name, {})
                places.update((table[place].block_id, place) for place in range(held, len(table)))
        if self._evicted:
            self._recorder.report("evict", self._evicted)
            self._evicted = []
        for group, table, begin in appended:
            self._report_entries("append", row, group, table, begin, len(table))

    def _report_entries(self, event: str, row: int, group: int, table: list[Any], begin: int, end: int) -> None:
        while begin < end and table[begin].is_null:
            begin += 1
        if begin < end:
            blocks = [table[place].block_id for place in range(begin, end)]
            self._recorder.report(event, row, begin, blocks, *self._group_field(group))

    def _freeing(self, request: Any, deferred: bool = False) -> None:
        """Report that the tables of `request` are about to be freed; if `deferred`, store the report for `freed`."""
        name = request.request_id
        if name not in self._all_rows:
            return
        row = self._all_rows[name]
        for group, manager in enumerate(self._manager.coordinator.single_type_managers):
            self._places[group].pop(name, None)
            if not self._held[group].pop(name, 0):
                continue
            table = manager.req_to_blocks.get(name, ())
            num_held, num_cached = sum(not block.is_null for block in table), manager.num_cached_block.get(name, 0)
            if self._keeps_only_some[group]:
                places = [place for place in reversed(range(len(table))) if not table[place].is_null]
                self._report_skipped(row, group, places, [table[place] for place in places])
                num_held = num_cached = 0
            release = row, num_held, num_cached, *self._group_field(group)
            if deferred:
                self._deferred.append(release)
            else:
                self._recorder.report("release", *release)
        if request.is_finished():
            self._recorder.ending(request)

    def _is_full(self, block: Any) -> bool:
        """Tell whether a cached block is full; with drafts, a partly filled one may be cached by its tokens' hash."""
        num_tokens = getattr(block, "block_hash_num_tokens", None)
        if num_tokens is None or not isinstance(block.block_hash, bytes):
            return True
        group = self._layout.groups[int.from_bytes(block.block_hash[-4:], "big")]
        return group.kind not in (CacheKind.FULL, CacheKind.MLA) or num_tokens % group.block_size == 0

    def _removing_skipped(self, name: str, blocks: list[Any]) -> None:
        """Store blocks of one group that the running request `name` is about to free.

        vLLM 0.23 frees the blocks of a window or a chunk in two calls, which are reported as one event.
        """
        if name not in self._rows:
            return
        for group, places in enumerate(self._places):
            held = places.get(name, {})
            if blocks and blocks[0].block_id in held:
                freed = [(held.pop(each.block_id), each) for each in blocks]
                is_window = self._layout.groups[group].kind is not CacheKind.MAMBA
                if is_window and self._skipped and self._skipped[-1][0] == group:
                    self._skipped[-1][1].extend(freed)
                else:
                    self._skipped.append((group, freed))
                return

    def _removed_skipped(self, name: str) -> None:
        for group, freed in self._skipped:
            freed.sort(key=itemgetter(0), reverse=True)
            self._report_skipped(self._rows[name], group, [place for place, _ in freed], [block for _, block in freed])
        self._skipped.clear()

    def _report_skipped(self, row: int, group: int, places: list[int], blocks: list[Any]) -> None:
        kept = [int(block.block_hash is not None) for block in blocks]
        self._recorder.report("let_go", row, places, [block.block_id for block in blocks], kept, group)

    def _group_field(self, group: int) -> tuple[int, ...]:
        """Return the index of a group as the last field of an event; no field if the engine has one group."""
        return (group,) if len(self._layout.groups) > 1 else ()

    def freed(self, num_tables: int) -> None:
        """Report that vLLM has freed the next `num_tables` block tables whose release it had deferred."""
        for _ in range(num_tables):
            self._recorder.report("release", *self._deferred.popleft())

    def _watch_memory(self) -> None:
        """Replace the functions of vLLM that change block tables by ones that also report the changes."""
        manager, pool = self._manager, self._manager.block_pool
        allocate_slots, free, evict = manager.allocate_slots, manager.free, pool._maybe_evict_cached_block
        pop_blocks = getattr(manager, "pop_blocks_for_free", None)

        def watched_allocate(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate_slots(request, *args, **kwargs)
            # Called for every running request in every step: return at once if nothing was allocated.
            if blocks is not None and self._recorder.is_recording:
                hits = kwargs.get("new_computed_blocks") or (args[2] if len(args) > 2 else None)
                if hits is not None or any(blocks.blocks):
                    self._recorder.call(self._allocated, request, hits)
            return blocks

        def watched_free(request: Any) -> Any:
            self._recorder.call(self._freeing, request)
            return free(request)

        def watched_pop(request: Any) -> Any:
            self._recorder.call(self._freeing, request, True)
            return pop_blocks(request)  # type: ignore[misc]

        def watched_evict(block: Any) -> Any:
            is_reported = self._recorder.is_recording and self._is_full(block)
            evicted = evict(block)
            if evicted and is_reported:
                self._evicted.append(block.block_id)
            return evicted

        manager.allocate_slots, manager.free = watched_allocate, watched_free
        if pop_blocks is not None:
            manager.pop_blocks_for_free = watched_pop
        pool._maybe_evict_cached_block = watched_evict
        self._watch_windows()

    def _watch_windows(self) -> None:
        """Replace, for models with windows, the functions of vLLM that free the blocks outside a window."""
        coordinator, pool = self._manager.coordinator, self._manager.block_pool
        removing: list[str] = []

        def watched_remove(request_id: str, *args: Any, **kwargs: Any) -> Any:
            removing.append(request_id)
            try:
                return remove_skipped(request_id, *args, **kwargs)
            finally:
                removing.clear()
                self._recorder.call(self._removed_skipped, request_id)

        def watched_free_blocks(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            if removing and self._recorder.is_recording:
                blocks = list(blocks)
                self._recorder.call(self._removing_skipped, removing[0], blocks)
            return free_blocks(blocks, *args, **kwargs)

        self._has_window = [
            type(manager).__name__ not in _KEEP_ALL for manager in self._manager.coordinator.single_type_managers
        ]
        if any(self._has_window):
            remove_skipped, free_blocks = coordinator.remove_skipped_blocks, pool.free_blocks
            coordinator.remove_skipped_blocks, pool.free_blocks = watched_remove, watched_free_blocks
