"""Address of a server, and detection of a web server there."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import suppress

from kvsim.errors import UsageError

DEFAULT_HOST = "127.0.0.1"
_ANSWER_S = 2.0
"""Longest time in seconds for the answer of a web server. A publisher of events answers at once, and not in HTTP."""


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, or of `PORT` on the loopback interface.

    Raises:
        UsageError: `text` is neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise UsageError(f"{text!r} is not an address; it should be HOST:PORT, or PORT on this machine.")
    return host.strip("[]") or DEFAULT_HOST, int(port)


def page_of(address: str) -> str | None:
    """Return the address of the metrics page at `address`; None if no web server answers there.

    An address that begins with http:// or https:// is returned unchanged, without a connection.
    """
    if address.startswith(("http://", "https://")):
        return address
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        connection.connect()
        hang_up_later(connection.sock, _ANSWER_S)
        connection.request("GET", "/metrics")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}/metrics"


def hang_up_later(connection: socket.socket, seconds: float) -> None:
    """End all reads and writes of `connection` after this many `seconds`, if it is still open.

    A socket timeout begins anew with every byte, so a slow server could keep a connection open forever.
    """

    def hang_up() -> None:
        with suppress(OSError):  # closed already
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
