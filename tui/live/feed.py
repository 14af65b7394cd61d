"""Protocol for the source of a growing recording, so that screens do not depend on how steps arrive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from kvsim.errors import RecordingError

if TYPE_CHECKING:
    from kvsim.live.tail import Excerpt

_POLL_S = 0.2


class Feed(Protocol):
    """Source of the steps of a running server, such as `kvsim.live.event_feed.LiveFeed`."""

    name: str
    ended: str | None
    """Reason why the feed ended, as a sentence; None if it has not ended."""

    @property
    def quiet_s(self) -> float:
        """Seconds since the last event."""

    def recent(self) -> Excerpt | None:
        """Return the last steps, including all since the previous call; None before the first step."""

    def whole(self) -> Excerpt | None:
        """Return all steps that the feed has kept; None before the first step."""

    def close(self) -> None: ...


def first_excerpt(feed: Feed) -> Excerpt:
    """Wait for the first step of `feed`, and return it.

    Raises:
        RecordingError: the feed ended before its first step.
    """
    while (excerpt := feed.recent()) is None:
        if feed.ended is not None:
            raise RecordingError(feed.ended)
        time.sleep(_POLL_S)
    return excerpt
