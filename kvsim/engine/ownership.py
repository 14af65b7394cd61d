"""The kinds of changes in the ownership of memory, for the engine that records them and for readers of recordings."""

from __future__ import annotations

from enum import IntEnum


class MemoryKind(IntEnum):
    """Kind of change in the ownership of units. A recording has the names in lower case."""

    APPEND = 0
    """A request's table grows by units that no request held."""
    SHARE = 1
    """A request's table grows by units that already hold its prefix."""
    RELEASE = 2
    """A request frees its whole table, the last unit first."""
    EVICT = 3
    """Units with a cached prefix lose it, because a request needs memory."""


class ImageEventKind(IntEnum):
    """Event of the encoder cache. A recording has the names in lower case."""

    COMPUTE = 0
    """A step computes the image, which is in the cache from then on."""
    HOLD = 1
    """A request begins to use the image, which cannot be evicted as long as a request uses it."""
    LET_GO = 2
    """A request stops using the image."""
    EVICT = 3
    """The image is removed to make room for another."""
