"""Where a server publishes."""

from __future__ import annotations

from kvsim.errors import UsageError

DEFAULT_HOST = "127.0.0.1"


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, or `PORT` on the loopback interface.

    Raises:
        UsageError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise UsageError(f"{text!r} is not an address; it should be HOST:PORT, or PORT on this machine.")
    return host.strip("[]") or DEFAULT_HOST, int(port)
