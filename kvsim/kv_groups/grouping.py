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

_SPLIT_RATIO = 1.5
"""Limit for the number of layers of the most frequent kind divided by that of the rarest kind. Below it, each kind of
layers is one group. From it on, kinds are split into groups with at most as many layers as the rarest kind.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Groups of layers, and the layers' specs after their pages were made equal in size."""

    groups: tuple[tuple[int, ...], ...]
    """Indices of the layers of each group."""
    specs: tuple[LayerSpec, ...]
    """Spec of each layer. All layers have pages of the same size, unless `has_unequal_pages` is True."""
    has_unequal_pages: bool
    """True if there is one group, and its layers may have pages of different sizes. Each layer then has a tensor."""

    def bytes_per_block(self, layers: range) -> int:
        """Return the bytes of one block id on a GPU with the layers of the indices `layers`; 0 if there are none."""
        mine = [[index for index in group if index in layers] for group in self.groups]
        if self.has_unequal_pages:
            return sum(self.specs[index].page_bytes for index in mine[0])
        return max(map(len, mine)) * self.specs[self.groups[0][0]].page_bytes

    def layout(self, *, hash_block_size: int | None, caches_prefixes: bool, stages: Sequence[range]) -> KVCacheLayout:
        """Return the layout of these groups.

        Args:
            hash_block_size: number of tokens that one prefix hash covers; None for vLLM's choice.
            caches_prefixes: whether the engine caches prefixes. If not, `hash_block_size` is not used.
            stages: indices of the layers of each pipeline stage.

        Raises:
            UsageError: `hash_block_size` does not divide the block sizes of all groups.
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
                    has_draft_layers=any(self.specs[index].is_draft for index in group),
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

    With `hybrid_manager`, layers of different kinds get separate groups. Without it, all layers share one group: if
    they are of different kinds, those with windows or chunks are converted to layers that keep every token.

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
        return Grouping(groups=whole, specs=tuple(specs), has_unequal_pages=False)
    if _one_kind(specs):
        return Grouping(groups=whole, specs=tuple(specs), has_unequal_pages=True)
    page = max(spec.page_bytes for spec in specs)
    specs = [_with_page(spec, page) for spec in specs]
    return Grouping(groups=_split(specs), specs=tuple(specs), has_unequal_pages=False)


def _all_equal(specs: Sequence[LayerSpec]) -> bool:
    """Tell whether all specs are equal. Windows of full layers are ignored: they limit only what the layers read."""
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
    """Return `spec` with a page enlarged to `page` bytes, by more tokens in a block or by padding.

    Raises:
        UsageError: neither is possible.
    """
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
    """Divide the layers into groups of equal specs and about equal size. Return the indices of each group's layers."""
    by_spec: dict[LayerSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(index)
    lengths = [len(layers) for layers in by_spec.values()]
    size = max(lengths) if max(lengths) < _SPLIT_RATIO * min(lengths) else min(lengths)
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
    """Return the number of tokens that one prefix hash covers: the user's choice `stated`, or, if it is None, the
    largest number that divides all block sizes.

    The result is `scheduler_block_size`, whatever `stated` is, if there is one group, if no prefixes are cached, or if
    a recurrent group has larger blocks than another group.

    Raises:
        UsageError: `stated` does not divide the block sizes of all groups.
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
    """Return `layout` with `hash_block_size` by the rule of releases with `ReleaseRules.hashes_aligned_states`.

    If all recurrent groups have the mode `ALIGN`, it is the greatest common divisor of all block sizes, otherwise
    `scheduler_block_size`. A layout with one group, or without recurrent groups, is returned unchanged.
    """
    modes = {group.mamba_mode for group in layout.groups if group.mamba_mode is not None}
    if not modes or len(layout.groups) == 1:
        return layout
    parts = gcd(*(group.block_size for group in layout.groups))
    return replace(layout, hash_block_size=parts if modes == {MambaMode.ALIGN} else layout.scheduler_block_size)


def pipeline_stages(num_layers: int, pipeline_parallel_size: int) -> tuple[range, ...]:
    """Return the indices of the layers of each pipeline stage. The numbers of layers are equal, or they differ by 1:
    then the stages just before the last one have one layer more.

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
