"""Where a server publishes, and whether a web server answers there instead."""

from __future__ import annotations

import http.client

from kvsim.errors import UsageError

DEFAULT_HOST = "127.0.0.1"
_ANSWER_S = 2.0
"""A web server answers within; one that publishes events at once, and not in HTTP."""


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, or `PORT` on the loopback interface.

    Raises:
        UsageError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise UsageError(f"{text!r} is not an address; it should be HOST:PORT, or PORT on this machine.")
    return host.strip("[]") or DEFAULT_HOST, int(port)


def page_of(address: str) -> str | None:
    """The page of metrics that `address` is, or that of the web server there, which `vllm serve` is.

    None where no web server answers: events may be published there.

    Raises:
        UsageError: it is neither an http:// address nor HOST:PORT.
    """
    if address.startswith(("http://", "https://")):
        return address
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}/metrics"
