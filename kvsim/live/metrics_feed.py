"""Thread that polls the Prometheus metrics of a server, for `kvsim tui --attach` and `kvsim diagnose`.

The server is not trusted: a page is bounded in size and in the time that it may take.
"""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from kvsim.errors import KvsimError, RecordingError, UsageError, reason_of, unexpected
from kvsim.live.address import hang_up_later
from kvsim.live.metrics import ServerMetrics, parse_metrics

PERIOD_S = 1.0
_TIMEOUT_S = 5.0
_MAX_BYTES = 4 << 20
_MAX_POLLS = 3_600
_PATIENCE_S = 30.0
"""Seconds without an answer after which the feed ends. A restart with a large model takes longer, and ends it."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that does not follow redirects, so that a server cannot make kvsim read another address."""

    def http_error_302(self, *_: Any, **__: Any) -> None:
        """Report the redirect as an error. Its address is not parsed, because it may be missing or invalid."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Connection(http.client.HTTPConnection):
    """Connection that is closed after `_TIMEOUT_S` seconds, even if the server is still sending."""

    def connect(self) -> None:
        super().connect()
        hang_up_later(self.sock, _TIMEOUT_S)


class _SafeConnection(_Connection, http.client.HTTPSConnection):
    """TLS connection that is closed after `_TIMEOUT_S` seconds."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, request)


class _Safe(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SafeConnection, request)


_OPENER = urllib.request.build_opener(_NoRedirect, _Plain, _Safe)


class MetricsFeed:
    """Thread that polls a `/metrics` page until `close`."""

    def __init__(
        self,
        url: str,
        *,
        period_s: float = PERIOD_S,
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Poll `url` once, and from then on every `period_s` in a thread. `/metrics` is added if the URL has no path.

        The feed ends if no poll is answered for `patience_s`. `clock` returns the time in seconds.

        Raises:
            RecordingError: the first poll fails.
        """
        self.name = _with_page(url)
        self.ended: str | None = None
        """Reason for the end of the feed, as a sentence; None while it is open."""
        self.restarts = 0
        """Number of restarts of the server, seen by counters that fall. Polls before a restart are discarded."""
        self._period_s, self._patience_s, self._clock = period_s, patience_s, clock
        self._polls: deque[ServerMetrics] = deque([self._poll()], maxlen=_MAX_POLLS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="kvsim-metrics", daemon=True)
        self._thread.start()

    @property
    def quiet_s(self) -> float:
        """Seconds since the last answer."""
        return self._clock() - self._polls[-1].time_s

    def polls(self) -> list[ServerMetrics]:
        """Return the metrics of the last hour since the server's last restart, in order of time; at least one."""
        return list(self._polls)

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()
        self._thread.join(timeout=2 * _TIMEOUT_S)

    def _follow(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                self._add(self._poll())
            except _NoAnswerError as error:
                if self.quiet_s > self._patience_s:
                    self.ended = str(error)
                    return
            except KvsimError as error:
                self.ended = str(error)
                return
            except Exception as error:  # otherwise the thread would end without a message
                self.ended = f"{self.name} is not followed further: {unexpected(error)}."
                return

    def _add(self, poll: ServerMetrics) -> None:
        last = self._polls[-1]
        if any(now < before for now, before in zip(poll.counters, last.counters, strict=True)):
            self.restarts += 1
            self._polls = deque([poll], maxlen=_MAX_POLLS)
            return
        if poll.hit_tokens - last.hit_tokens > poll.queried_tokens - last.queried_tokens:
            raise RecordingError(
                f"{self.name}: more tokens were found in the prefix cache than were looked up meanwhile."
            )
        self._polls.append(poll)

    def _poll(self) -> ServerMetrics:
        page = page_text(self.name, self._clock)
        try:
            return parse_metrics(page, self._clock())
        except RecordingError as error:
            raise RecordingError(f"{self.name}: {error}") from error


class _NoAnswerError(RecordingError):
    """Error for a page that could not be read this time."""


def page_text(url: str, clock: Callable[[], float] = time.monotonic) -> str:
    """Return the page at `url`. `/metrics` is added if the URL has no path.

    Raises:
        RecordingError: the server does not answer, or with an error, a redirect or too long a page.
        UsageError: `url` is not an address.
    """
    url = _with_page(url)
    try:
        return _page(url, clock)
    except urllib.error.HTTPError as error:
        error.close()  # an HTTPError is also the open response
        raise _NoAnswerError(f"{url} cannot be read: {error.code} {error.reason}.") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        cause = getattr(error, "reason", None)
        reason = reason_of(cause if isinstance(cause, Exception) else error)
        raise _NoAnswerError(f"{url} cannot be read: {reason}.") from error
    except ValueError as error:
        raise UsageError(f"{url!r} is no address of a page: {error}.") from error


def _with_page(url: str) -> str:
    """Return `url`, with `/metrics` added if it has no path."""
    try:
        parts = urlsplit(url)
        names_page = bool(parts.path.strip("/"))
    except ValueError:  # not an address, which is reported when it is opened
        return url
    if not parts.hostname:
        raise UsageError(f"{url!r} is no address of a page: it has no host, as in http://127.0.0.1:8000/metrics.")
    return url if names_page else f"{url.rstrip('/')}/metrics"


def _page(url: str, clock: Callable[[], float]) -> str:
    end_s = clock() + _TIMEOUT_S
    with _OPENER.open(url, timeout=_TIMEOUT_S) as answer:
        body = bytearray()
        while part := answer.read1(1 << 16):
            body += part
            if len(body) > _MAX_BYTES:
                raise RecordingError(f"{url} is a page of more than {_MAX_BYTES:,} bytes, and no server's metrics.")
            if clock() > end_s:
                break
        if clock() > end_s:  # `hang_up_later` has closed the connection, so the body may be incomplete
            raise TimeoutError(f"it takes more than {_TIMEOUT_S:g} s")
        announced = answer.headers.get("Content-Length", "")
        if announced.isascii() and announced.isdigit() and len(announced) < 16 and len(body) < int(announced):
            raise http.client.IncompleteRead(b"", int(announced) - len(body))
    return body.decode("utf-8", "replace")
