"""Protocol of the source of a growing recording."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from kvsim.errors import RecordingError

if TYPE_CHECKING:
    from kvsim.live.tail import Excerpt

_POLL_S = 0.2


class Feed(Protocol):
    """A followed server, such as `kvsim.live.event_feed.LiveFeed`."""

    name: str
    ended: str | None
    """Reason for the end of the feed, as a sentence; None while it goes on."""

    @property
    def quiet_s(self) -> float:
        """Return the seconds since the last event."""

    def recent(self) -> Excerpt | None:
        """Return the last steps, and all since the previous call; None before the first step."""

    def whole(self) -> Excerpt | None:
        """Return all kept steps; None before the first."""

    def close(self) -> None:
        """Close the connection."""


def first_excerpt(feed: Feed) -> Excerpt:
    """Wait for the first step of `feed`, and return it.

    Raises:
        RecordingError: it ended before.
    """
    while (excerpt := feed.recent()) is None:
        if feed.ended is not None:
            raise RecordingError(feed.ended)
        time.sleep(_POLL_S)
    return excerpt
