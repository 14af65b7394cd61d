"""A journal that keeps what happened since it was last looked at, and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvsim.recording.tables import MemoryKind

if TYPE_CHECKING:
    from collections.abc import Sequence

Change: TypeAlias = tuple[int, int, int, int]
"""Kind, request, position, block. A release has the length of its table in place of the block, or `UNTOLD`."""
UNTOLD = 0


class Changes:
    """Changes of ownership, block by block; `tell_lengths` says whether a release tells how long its table was."""

    def __init__(self, *, tell_lengths: bool = True) -> None:
        self._tell_lengths = tell_lengths
        self.num_allocations = 0
        self.num_hits = 0
        self.num_evictions = 0
        self._changes: list[Change] = []
        self._evicted: list[int] = []

    def append_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """`request` got free `blocks` for its table from logical index `position` on."""
        self.num_allocations += len(blocks)
        self._changes += [(MemoryKind.APPEND, request, index, block) for index, block in enumerate(blocks, position)]

    def share_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """`request` joined the holders of `blocks`."""
        self.num_hits += len(blocks)
        self._changes += [(MemoryKind.SHARE, request, index, block) for index, block in enumerate(blocks, position)]

    def append_extent(self, request: int, position: int, address: int, length: int, requested: int) -> None:
        """A paged cache has no extents."""
        raise NotImplementedError

    def release(self, request: int, num_units: int, num_cached: int) -> None:  # noqa: ARG002
        """`request` gave back its table of `num_units` blocks."""
        self._changes.append((MemoryKind.RELEASE, request, 0, num_units if self._tell_lengths else UNTOLD))

    def vacate(self, request: int, num_units: int) -> None:
        """Blocks stay where they are."""
        raise NotImplementedError

    def evict(self, blocks: Sequence[int]) -> None:
        """`blocks` lost their prefix because somebody needs the room."""
        self.num_evictions += len(blocks)
        self._evicted += blocks

    def drain(self) -> list[Change]:
        """Everything but evictions since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def drain_evicted(self) -> list[int]:
        """Blocks that lost their prefix since the last call, in order."""
        evicted, self._evicted = self._evicted, []
        return evicted
