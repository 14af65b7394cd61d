"""What a scheduler reports while it works, so that somebody can write it down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Journal(Protocol):
    """Changes of ownership, in the order in which they happen. `request` is a row of the workload."""

    def append_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """`request` got free `blocks` for its table from logical index `position` on."""

    def share_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """`request` joined the holders of `blocks`."""

    def append_extent(self, request: int, position: int, address: int, length: int, requested: int) -> None:
        """`request` got `length` slots from `address` on, having asked for `requested`."""

    def release(self, request: int, num_units: int, num_cached: int) -> None:
        """`request` gave back its table; the first `num_cached` units keep a prefix that could be hit."""

    def vacate(self, request: int, num_units: int) -> None:
        """`request` left its `num_units` for others, and takes what it has computed along."""

    def evict(self, blocks: Sequence[int]) -> None:
        """`blocks` lost their prefix because somebody needs the room."""


class NoJournal:
    """Writes nothing down."""

    def append_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """Ignore."""

    def share_blocks(self, request: int, position: int, blocks: Sequence[int]) -> None:
        """Ignore."""

    def append_extent(self, request: int, position: int, address: int, length: int, requested: int) -> None:
        """Ignore."""

    def release(self, request: int, num_units: int, num_cached: int) -> None:
        """Ignore."""

    def vacate(self, request: int, num_units: int) -> None:
        """Ignore."""

    def evict(self, blocks: Sequence[int]) -> None:
        """Ignore."""
