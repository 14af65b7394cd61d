"""Kinds of changes of who owns units of memory or cached images, for the engine and for readers of recordings."""

from __future__ import annotations

from enum import IntEnum


class MemoryKind(IntEnum):
    """Kind of a change in the ownership of units. A recording has the names in lower case."""

    APPEND = 0
    """A request's table gets further units, which no request held."""
    SHARE = 1
    """A request's table gets further units, which hold its prefix already."""
    RELEASE = 2
    """A request frees its whole table, the last unit first; or single units that it no longer reads."""
    EVICT = 3
    """Free units lose their cached prefix, because a request needs memory."""


class ImageEventKind(IntEnum):
    """Kind of an event of the encoder cache. A recording has the names in lower case."""

    COMPUTE = 0
    """A step computes the image, which is then in the cache."""
    HOLD = 1
    """A request begins to use the image. An image in use cannot be evicted."""
    LET_GO = 2
    """A request no longer uses the image. An image that no request uses can be evicted."""
    EVICT = 3
    """The image is removed from the cache to make room for another one."""
