"""Subscriber to the KV events that vLLM and SGLang publish over ZeroMQ, from which their prefix cache is known.

A message has a topic, the number of its batch in 8 bytes, and the batch. A subscriber gets only batches that are
published after it has connected. If the server has a replay endpoint, missed batches are requested from it; the answer
ends with a message numbered -1.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.errors import MissingExtraError, RecordingError, UsageError, unexpected
from kvsim.live.address import parse_address
from kvsim.live.kv_events import MAX_BYTES, ServerCache

if TYPE_CHECKING:
    from collections.abc import Callable

PORT = 5557
"""Port at which vLLM publishes by default."""
_END = (-1).to_bytes(8, "big", signed=True)
_POLL_MS = 100
_REPLAY_S = 5.0
"""Seconds without a further batch after which a replay has ended."""
_WHAT = "Reading KV events"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """State of a server's prefix cache, from the KV events received up to now."""

    num_blocks: int
    """Number of blocks, of all KV-cache groups, that are in the GPU's prefix cache as far as the received events say.
    """
    num_tokens: int
    """Number of tokens in these blocks of the first KV-cache group; other groups cache the same tokens."""
    elsewhere: tuple[tuple[str, int], ...]
    """Medium, such as CPU, and number of blocks there, for each medium but the GPU."""
    num_stored: int
    num_removed: int
    num_cleared: int
    lifetimes_s: tuple[float, ...]
    """Seconds for which each of the last 10,000 removed blocks was cached, oldest removal first."""
    shared: tuple[tuple[int, int], ...]
    """(length in tokens, number of cached blocks directly after it) of the prefixes with most such blocks.

    At most three, each with at least two blocks.
    """
    num_batches: int
    lost: int
    """Number of batches that were missed and not replayed."""
    replayed: int
    """Number of batches that came from the replay endpoint."""
    restarts: int
    from_start: bool
    """True if every batch since the server's start was received. Otherwise, older blocks are unknown."""
    quiet_s: float
    """Seconds since the last batch."""
    blocks_of_ranks: tuple[int, ...] = ()
    """Number of blocks of each data-parallel rank; empty if one rank is followed."""
    silent_ranks: tuple[int, ...] = ()
    """Ranks that have sent no batch; empty if one rank is followed."""


class KvEventFeed:
    """Thread that follows the KV events of a server until `close`."""

    def __init__(self, address: str, *, replay: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Subscribe at `address`. Missed batches are requested at the address `replay`; None: they are not requested.

        Raises:
            MissingExtraError: ZeroMQ or msgpack is not installed.
        """
        try:
            import msgpack as _  # noqa: PLC0415, F401
            import zmq  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError(_WHAT, "events") from error
        self.name = endpoint(address)
        self.ended: str | None = None
        """Reason for the end of the feed, as a sentence; None while it is open."""
        self._replay = None if replay is None else endpoint(replay)
        self._cached, self._next = ServerCache(), 0
        self._lost = self._replayed = self._restarts = 0
        self._from_start = True
        self._clock, self._heard_s = clock, clock()
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._zmq, self._context = zmq, zmq.Context()
        self._socket = self._subscribed()
        self._thread = threading.Thread(target=self._follow, name="kvsim-kv-events", daemon=True)
        self._thread.start()

    def state(self) -> CacheState:
        """Return the state as of the last batch."""
        with self._lock:
            cached = self._cached
            gpu = {place: blocks for place, blocks in cached.blocks.items() if place.medium == "GPU"}
            first = gpu[min(gpu, key=lambda place: place.group)] if gpu else {}
            others = {place.medium for place in cached.blocks} - {"GPU"}
            return CacheState(
                num_blocks=sum(map(len, gpu.values())),
                num_tokens=sum(block.num_tokens for block in first.values()),
                elsewhere=tuple(
                    (medium, sum(len(blocks) for place, blocks in cached.blocks.items() if place.medium == medium))
                    for medium in sorted(others)
                ),
                num_stored=cached.num_stored,
                num_removed=cached.num_removed,
                num_cleared=cached.num_cleared,
                lifetimes_s=tuple(cached.lifetimes_s),
                shared=_shared(first),
                num_batches=cached.num_batches,
                lost=self._lost,
                replayed=self._replayed,
                restarts=self._restarts,
                from_start=self._from_start,
                quiet_s=self._clock() - self._heard_s,
            )

    def close(self) -> None:
        """End the subscription."""
        self._stop.set()
        self._thread.join(timeout=_REPLAY_S)
        self._context.destroy(linger=0)

    def _subscribed(self) -> Any:
        socket = self._context.socket(self._zmq.SUB)
        socket.setsockopt(self._zmq.MAXMSGSIZE, MAX_BYTES)
        socket.setsockopt(self._zmq.SUBSCRIBE, b"")
        socket.connect(self.name)
        return socket

    def _follow(self) -> None:
        try:
            if self._replay is not None:
                self._ask_again(0)
            while not self._stop.is_set():
                if self._socket.poll(_POLL_MS):
                    self._receive(*_parts(self._socket.recv_multipart()))
        except RecordingError as error:
            self.ended = f"the KV events of {self.name} are not followed further: {str(error).rstrip('.')}."
        except self._zmq.ZMQError as error:
            if not self._stop.is_set():
                self.ended = f"the KV events of {self.name} ended: {error}."
        except Exception as error:  # otherwise the thread would end without a message
            self.ended = f"the KV events of {self.name} are not followed further: {unexpected(error)}."
        finally:
            self._socket.close(linger=0)

    def _receive(self, number: int, payload: bytes) -> None:
        """Process a published batch. Before it, request missing batches from the replay endpoint, if there is one."""
        # After a restart, numbers begin at 0 again, and the first batches may be missed until the socket has connected.
        # A batch that was replayed may come again, but it is not newer than what is known.
        is_first = number == 0 and not self._replayed
        if number < self._next and (is_first or self._cached.is_newer(payload)):
            with self._lock:
                self._cached.forget()
                self._restarts, self._next, self._from_start = self._restarts + 1, 0, True
        if number > self._next and self._replay is not None:
            self._ask_again(self._next)
        if number >= self._next:
            self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        with self._lock:
            missing = number - self._next
            if missing and not self._cached.num_batches:
                self._from_start = False  # earlier batches were never expected, so they do not count as lost
            else:
                self._lost += missing
            self._cached.hear(payload)
            self._next, self._heard_s = number + 1, self._clock()

    def _ask_again(self, first: int) -> None:
        """Ask the server to send its events again, from number `first` on, and take those not seen yet."""
        socket = self._context.socket(self._zmq.DEALER)
        socket.setsockopt(self._zmq.MAXMSGSIZE, MAX_BYTES)
        try:
            socket.connect(str(self._replay))
            socket.send_multipart((b"", first.to_bytes(8, "big")))
            until_s = self._clock() + _REPLAY_S
            while self._clock() < until_s and not self._stop.is_set():
                if not socket.poll(_POLL_MS):
                    continue
                frames = socket.recv_multipart()
                if len(frames) >= 3 and frames[-2] == _END:
                    return
                number, payload = _parts(frames)
                if number >= self._next:
                    self._take(number, payload)
                    self._replayed += 1
                until_s = self._clock() + _REPLAY_S
        finally:
            socket.close(linger=0)


def endpoint(address: str) -> str:
    """Return the ZeroMQ address of `HOST:PORT`, `PORT` or `tcp://HOST:PORT`.

    Raises:
        UsageError: `address` is none of these.
    """
    if "://" in address and not address.startswith("tcp://"):
        raise UsageError(f"{address!r} is no address of KV events; it should be tcp://HOST:PORT, HOST:PORT or PORT.")
    host, port = parse_address(address.removeprefix("tcp://"))
    if host == "*":
        raise UsageError(
            f"{address!r} is where a server publishes; to listen, name its host, such as 127.0.0.1:{port}."
        )
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _parts(frames: list[bytes]) -> tuple[int, bytes]:
    if len(frames) < 2 or len(frames[-2]) != len(_END):
        sizes = ", ".join(f"{len(frame):,}" for frame in frames[:4])
        raise RecordingError(
            f"a message of parts with {sizes} bytes has no KV events: topic, number in 8 bytes, batch."
        )
    return int.from_bytes(frames[-2], "big"), frames[-1]


def _shared(blocks: dict[Any, Any], most: int = 3) -> tuple[tuple[int, int], ...]:
    """Return up to `most` cached prefixes with at least two blocks directly after them, those with most blocks first.

    Each is (length in tokens, number of blocks directly after the prefix).
    """
    followers: dict[Any, int] = {}
    for block in blocks.values():
        if block.parent in blocks:
            followers[block.parent] = followers.get(block.parent, 0) + 1
    forks = sorted(((number, name) for name, number in followers.items() if number > 1), key=lambda each: -each[0])
    found = []
    for number, name in forks[:most]:
        tokens, at, seen = 0, name, 0
        while at in blocks and seen <= len(blocks):  # the bound ends the loop if a server sends a cycle of parents
            tokens, at, seen = tokens + blocks[at].num_tokens, blocks[at].parent, seen + 1
        found.append((tokens, number))
    return tuple(found)
