"""Where a growing recording comes from. It knows nothing of terminals."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from kvsim.errors import RecordingError

if TYPE_CHECKING:
    from kvsim.live.tail import Excerpt

_POLL_S = 0.2


class Feed(Protocol):
    """A server that is being followed, such as by `kvsim.live.feed.LiveFeed`."""

    name: str
    ended: str | None
    """The reason why there will be no more, as a sentence; None while there may be."""

    @property
    def quiet_s(self) -> float:
        """Seconds since it was heard last."""

    def recent(self) -> Excerpt | None:
        """The last steps, and all since it was asked last; None before the first."""

    def whole(self) -> Excerpt | None:
        """All that was heard and kept; None before the first step."""

    def close(self) -> None:
        """Hang up."""


def first_excerpt(feed: Feed) -> Excerpt:
    """Wait for the first step of `feed`.

    Raises:
        RecordingError: it ended before.
    """
    while (excerpt := feed.recent()) is None:
        if feed.ended is not None:
            raise RecordingError(feed.ended)
        time.sleep(_POLL_S)
    return excerpt
