"""Receiver of the recorder's events from a running server over a socket, for `kvsim tui --attach`.

The server publishes them if the environment variable `KVSIM_PUBLISH` is set when it starts.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvsim.errors import RecordingError, unexpected
from kvsim.live.address import parse_address
from kvsim.live.event_follower import TAIL_STEPS, EventFollower
from kvsim.live.events import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.live.tail import Excerpt

_CONNECT_S = 5.0
_COMPLETE_S, _PAUSE_S = 0.1, 0.002
"""Longest time in seconds to wait for the rest of a change that is received in part, and seconds between two checks."""


class LiveFeed:
    """Events of a running server, collected by a thread until `close`."""

    def __init__(self, address: str, *, tail_steps: int = TAIL_STEPS) -> None:
        """Connect to the publisher at `address`. Every `tail_steps`-th step may be the first that `recent` returns.

        Raises:
            RecordingError: nothing is published there.
        """
        self.name = address
        self.ended: str | None = None
        """Reason for the end of the feed, as a sentence; None while it is open."""
        self._ended_by_itself = False
        self._follower = EventFollower(address, tail_steps=tail_steps)
        self._lock = threading.Lock()
        self._heard_s = time.monotonic()
        self._shown: Excerpt | None = None
        self._connection = _connect(address)
        self._thread = threading.Thread(target=self._follow, name="kvsim-feed", daemon=True)
        self._thread.start()

    @property
    def ended_before_close(self) -> str | None:
        """Reason why the feed ended before `close`; None if it did not."""
        return self.ended if self._ended_by_itself else None

    @property
    def joined(self) -> bool:
        """True if the server has sent its state."""
        with self._lock:
            return self._follower.joined

    @property
    def quiet_s(self) -> float:
        """Seconds since the last event."""
        return time.monotonic() - self._heard_s

    def recent(self) -> Excerpt | None:
        """Return the last steps, at least all since the previous call; None before the server's first step.

        If an event is received only in part, wait at most `_COMPLETE_S` seconds for the rest. If the rest does not
        come, or the feed has failed, return the previous result again.
        """
        self._shown = self._taken(self._follower.recent) or self._shown
        return self._shown

    def whole(self) -> Excerpt | None:
        """Return all steps that are kept; None before the server's first step."""
        return self._taken(self._follower.whole) or self._shown

    def close(self) -> None:
        """Close the connection without a message to the server."""
        self._ended_by_itself = self.ended is not None
        # Only a shutdown wakes the thread from its blocking read.
        with suppress(OSError):  # the server may have closed it already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._thread.join(timeout=_CONNECT_S)

    def _taken(self, take: Callable[[], Excerpt | None]) -> Excerpt | None:
        """Call `take` once no change is received in part; return None if that takes too long, or if `take` fails."""
        last_s = time.monotonic() + _COMPLETE_S
        while self.ended is None or self._follower.is_complete:
            with self._lock:
                if self._follower.is_complete:
                    try:
                        return take()
                    except RecordingError as error:
                        self.ended = self._sentence(error)
                        return None
            if time.monotonic() > last_s:
                return None
            time.sleep(_PAUSE_S)
        return None

    def _follow(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                self._read(lines)
        except RecordingError as error:
            self.ended = self._sentence(error)
        except (OSError, ValueError) as error:  # ValueError after `close`
            self.ended = f"the connection to {self.name} broke: {error}."
        except Exception as error:  # otherwise the thread would end without a message
            self.ended = f"the server at {self.name} is not followed further: {unexpected(error)}."
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _read(self, lines: Any) -> None:
        while text := lines.readline(MAX_LINE_BYTES):
            if not text.endswith(b"\n"):
                whole = len(text) == MAX_LINE_BYTES
                what = f"sent a line of more than {MAX_LINE_BYTES:,} bytes" if whole else "hung up within a line"
                self.ended = f"the server at {self.name} {what}."
                return
            self._heard_s = time.monotonic()
            with self._lock:
                self._follower.hear(text)
        self.ended = f"the server at {self.name} has hung up."

    def _sentence(self, error: RecordingError) -> str:
        return f"the server at {self.name} is not followed further: {str(error).rstrip('.')}."


def _connect(address: str) -> socket.socket:
    try:
        connection = socket.create_connection(parse_address(address), timeout=_CONNECT_S)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordingError(
            f"nothing is published at {address} ({reason}): is the server running? Its events have a port of their "
            "own, which KVSIM_PUBLISH names when it starts; vLLM's port has its /metrics."
        ) from error
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # the other machine may disappear
    return connection
