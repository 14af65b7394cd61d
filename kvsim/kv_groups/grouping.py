"""Divide layers into groups that share one table of blocks, and compute the bytes of a block id on each GPU.

The rules are those of `get_kv_cache_configs` in vLLM 0.25.1. Layers are numbered in the order of the model. A pipeline
stage has consecutive layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.kv_groups.group import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode
from kvsim.kv_groups.specs import LayerSpec, as_full

if TYPE_CHECKING:
    from collections.abc import Sequence

_MUCH_LONGER = 1.5
"""Ratio of the layers of the most frequent kind to those of the rarest kind, below which each kind is one group. From
this ratio on, each group has as many layers as the rarest kind.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Groups of layers, and the layers' specs after their pages were made equal in size."""

    groups: tuple[tuple[int, ...], ...]
    """Indices of each group's layers."""
    specs: tuple[LayerSpec, ...]
    """Spec of each layer. All layers have pages of the same size, unless `sums_pages` is True."""
    sums_pages: bool
    """True if there is one group whose layers have pages of different sizes. Each layer then has its own tensor."""

    def bytes_per_block(self, layers: range) -> int:
        """Return the bytes that one block id takes on a GPU with the layers `layers`; 0 if there are none."""
        mine = [[index for index in group if index in layers] for group in self.groups]
        if self.sums_pages:
            return sum(self.specs[index].page_bytes for index in mine[0])
        return max(map(len, mine)) * self.specs[self.groups[0][0]].page_bytes

    def layout(self, *, hash_block_size: int | None, caches_prefixes: bool, stages: Sequence[range]) -> KVCacheLayout:
        """Return the layout of these groups. `stages` has the layers of each pipeline stage. `hash_block_size` is the
        number of tokens that one prefix hash covers; None for vLLM's choice.
        """
        seen: list[LayerSpec] = []
        groups = []
        for group in self.groups:
            spec = self.specs[group[0]]
            if spec not in seen:
                seen.append(spec)
            groups.append(
                KVCacheGroup(
                    kind=spec.kind,
                    block_size=spec.block_size,
                    num_layers=len(group),
                    page_bytes=spec.page_bytes,
                    content_bytes=None if spec.content_bytes == spec.page_bytes else spec.content_bytes,
                    window=_window_of([self.specs[index] for index in group]),
                    spec=seen.index(spec),
                    mamba_mode=spec.mamba_mode,
                    num_speculative_blocks=spec.num_speculative_blocks,
                    has_draft_layers=any(self.specs[index].drafts for index in group),
                )
            )
        scheduler_block_size = lcm(*(group.block_size for group in groups))
        return KVCacheLayout(
            groups=tuple(groups),
            bytes_per_block=max(self.bytes_per_block(stage) for stage in stages),
            scheduler_block_size=scheduler_block_size,
            hash_block_size=_hash_block_size(groups, scheduler_block_size, hash_block_size, caches_prefixes),
        )


def group_layers(specs: Sequence[LayerSpec], *, hybrid_manager: bool = True) -> Grouping:
    """Divide the layers with these specs, in the order of the model, into groups.

    With a `hybrid_manager`, layers of different kinds get separate groups. Without it, layers with windows or chunks
    are treated as full layers, and all share one group.

    Raises:
        UsageError: vLLM cannot group these layers.
    """
    if not hybrid_manager and not _one_kind(specs):
        specs = [as_full(spec) for spec in specs] if any(spec.keeps_all for spec in specs) else specs
        if not _one_kind(specs):
            raise UsageError("layers of these kinds need separate groups; leave out --disable-hybrid-kv-cache-manager.")
    whole = (tuple(range(len(specs))),)
    _check_windows(specs)
    if _all_equal(specs):
        return Grouping(groups=whole, specs=tuple(specs), sums_pages=False)
    if _one_kind(specs):
        return Grouping(groups=whole, specs=tuple(specs), sums_pages=True)
    page = max(spec.page_bytes for spec in specs)
    specs = [_with_page(spec, page) for spec in specs]
    return Grouping(groups=_split(specs), specs=tuple(specs), sums_pages=False)


def _all_equal(specs: Sequence[LayerSpec]) -> bool:
    """Tell whether all specs are equal. Windows of full layers are ignored, because full layers keep every token."""
    first = specs[0]
    return all(_without_window(spec) == _without_window(first) for spec in specs)


def _without_window(spec: LayerSpec) -> LayerSpec:
    if spec.kind is not CacheKind.FULL or spec.window is None:
        return spec
    return replace(spec, window=None)


def _check_windows(specs: Sequence[LayerSpec]) -> None:
    windows = {spec.window for spec in specs if spec.window is not None}
    if len(windows) > 1 and all(spec.kind is CacheKind.FULL for spec in specs):
        raise UsageError(f"one group cannot hold windows of {' and '.join(map(str, sorted(windows)))} tokens.")


def _one_kind(specs: Sequence[LayerSpec]) -> bool:
    """Tell whether all layers have equal block sizes and keep the same tokens or states, in pages of any size."""
    first = specs[0]
    if any(spec.block_size != first.block_size for spec in specs):
        return False
    if first.keeps_all:
        return all(spec.keeps_all for spec in specs)
    if first.kind is CacheKind.MAMBA:
        return all(
            spec.kind is first.kind and spec.num_speculative_blocks == first.num_speculative_blocks for spec in specs
        )
    return all((spec.kind, spec.window) == (first.kind, first.window) for spec in specs)


def _with_page(spec: LayerSpec, page: int) -> LayerSpec:
    """Return `spec` with a page of `page` bytes, made larger by more tokens in a block or by padding."""
    if spec.page_bytes == page:
        return spec
    if page % spec.page_bytes == 0:
        larger = replace(spec, block_size=spec.block_size * (page // spec.page_bytes))
        if larger.page_bytes == page:
            return larger
    elif spec.pads_pages:
        return replace(spec, padded_page_bytes=page)
    raise UsageError(
        f"a page of {spec.page_bytes:,} bytes of a {spec.kind} layer cannot be made as large as the largest, {page:,}; "
        "vLLM refuses such a model, too."
    )


def _split(specs: Sequence[LayerSpec]) -> tuple[tuple[int, ...], ...]:
    """Divide the layers into groups of equal specs and about equal size; return each group's layers."""
    by_spec: dict[LayerSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(index)
    lengths = [len(layers) for layers in by_spec.values()]
    size = max(lengths) if max(lengths) < _MUCH_LONGER * min(lengths) else min(lengths)
    groups = []
    for layers in by_spec.values():
        num_groups = -(-len(layers) // size)
        groups += [tuple(layers[first::num_groups]) for first in range(num_groups)]
    return tuple(groups)


def _window_of(specs: Sequence[LayerSpec]) -> int | None:
    """Return the window that all these layers have, in tokens; None if they have no window, or different ones."""
    [*windows] = {spec.window for spec in specs}
    return windows[0] if len(windows) == 1 else None


def _hash_block_size(
    groups: Sequence[KVCacheGroup], scheduler_block_size: int, stated: int | None, caches_prefixes: bool
) -> int:
    """Return the number of tokens that one prefix hash covers, by default the largest that divides all block sizes.

    `stated` is the user's choice; None for the default. The result is `scheduler_block_size` if there is one group, if
    no prefixes are cached, or if recurrent blocks are not the smallest.

    Raises:
        UsageError: `stated` does not divide the blocks of all groups.
    """
    if len(groups) == 1 or not caches_prefixes:
        return scheduler_block_size
    smallest = min(group.block_size for group in groups)
    if any(group.kind is CacheKind.MAMBA and group.block_size != smallest for group in groups):
        return scheduler_block_size
    size = stated or gcd(*(group.block_size for group in groups))
    if any(group.block_size % size for group in groups):
        sizes = ", ".join(str(group.block_size) for group in groups)
        raise UsageError(f"hash_block_size is {size}; it must divide the block of every group: {sizes} tokens.")
    return size


def hashed_by_mode(layout: KVCacheLayout) -> KVCacheLayout:
    """Return `layout` with the hash block size of those releases in which it depends on the mode of recurrent layers.

    In mode `ALIGN` it is the greatest common divisor of all block sizes, otherwise the block size of the scheduler.
    Unlike in `_hash_block_size`, recurrent layers may have any block size. A layout with one group, or without
    recurrent layers, is returned unchanged.
    """
    modes = {group.mamba_mode for group in layout.groups if group.mamba_mode is not None}
    if not modes or len(layout.groups) == 1:
        return layout
    parts = gcd(*(group.block_size for group in layout.groups))
    return replace(layout, hash_block_size=parts if modes == {MambaMode.ALIGN} else layout.scheduler_block_size)


def pipeline_stages(num_layers: int, pipeline_parallel_size: int) -> tuple[range, ...]:
    """Return the layers of each pipeline stage, in numbers as equal as possible.

    If the division leaves a rest, the stages just before the last one get one more layer each.

    Raises:
        UsageError: there are more stages than layers.
    """
    if not 1 <= pipeline_parallel_size <= num_layers:
        raise UsageError(
            f"pipeline_parallel_size is {pipeline_parallel_size}; it must be 1 to the number of layers, {num_layers}."
        )
    share, rest = divmod(num_layers, pipeline_parallel_size)
    lengths = [share] * pipeline_parallel_size
    for stage in range(2, rest + 2):
        lengths[-stage] += 1
    ends = [sum(lengths[: stage + 1]) for stage in range(pipeline_parallel_size)]
    return tuple(range(end - length, end) for end, length in zip(ends, lengths, strict=True))
