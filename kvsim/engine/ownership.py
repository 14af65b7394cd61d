"""The kinds of changes of ownership, as the engine reports them and as a recording names them."""

from __future__ import annotations

from enum import IntEnum


class MemoryKind(IntEnum):
    """Kind of change in the ownership of units; the names in a file are these in lower case."""

    APPEND = 0
    """A request's table grows by units that no request held."""
    SHARE = 1
    """A request's table grows by units that already hold its prefix."""
    RELEASE = 2
    """A request gives back its whole table, last unit first."""
    EVICT = 3
    """Units that held a reusable prefix lose it, because a request needs the room."""
