"""Publisher of the events of a recording on a local socket, for `kvsim tui --attach`.

Another process (`kvsim.capture.viewers`) serves viewers and gets the log through a pipe. The engine's process has one
thread and one descriptor for it, so that a viewer cannot slow the engine.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from kvsim.capture.pump import Pump
from kvsim.capture.sinks import write_all
from kvsim.live.address import parse_address

log = logging.getLogger("kvsim")

_PERIOD_S = 0.1
"""Longest time in seconds that an event waits before it is sent."""
_MAX_WAITING_BYTES = 16 << 20
"""Largest number of bytes that may wait for the process that serves viewers; more end the publication."""
_BACKLOG = 16
_END_S = 3.0
"""Longest time in seconds for the process that serves viewers to end."""


class Publisher:
    """Sink that sends events to viewers."""

    def __init__(self, address: str) -> None:
        """Listen on `address`: `HOST:PORT`, or `PORT` of the loopback interface."""
        host, port = parse_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family, backlog=_BACKLOG) as listener:
            bound, bound_port = listener.getsockname()[:2]
            self._process = _serve(listener)
        self.address: str = f"{bound}:{bound_port}"
        """Address to which viewers connect, as HOST:PORT."""
        assert self._process.stdin is not None, "it was asked for"
        self._log = self._process.stdin
        self._pump = Pump(
            self._send, self._give_up, name="kvsim-publisher", period_s=_PERIOD_S, max_waiting_bytes=_MAX_WAITING_BYTES
        )
        log.info("kvsim: publishing at %s", self.address)
        if not ipaddress.ip_address(bound).is_loopback:
            log.warning(
                "kvsim: %s can be reached from other machines, and viewers are not asked who they are.", address
            )

    @property
    def queued_bytes(self) -> int:
        """Number of bytes that the engine's process has not sent. Each counts once, not once per viewer."""
        return self._pump.waiting_bytes

    def write(self, lines: bytes) -> None:
        """Queue `lines` for every viewer."""
        self._pump.push(lines)

    def close(self) -> None:
        """End the log and the process that serves viewers."""
        if not self._pump.close(_END_S):
            self._process.kill()
        with suppress(OSError):  # the process may be gone
            self._log.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, lines: bytes) -> None:
        """Send `lines`, and an empty line, which marks that the engine's state is complete."""
        write_all(self._log.fileno(), lines + b"\n")

    def _give_up(self, reason: str) -> None:
        self._process.kill()
        log.warning("kvsim: publishing at %s ends here: %s.", self.address, reason)


def _serve(listener: socket.socket) -> subprocess.Popen[bytes]:
    descriptor = listener.fileno()
    # The process must find this package wherever this one did.
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "kvsim.capture.viewers", str(descriptor)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        bufsize=0,
        pass_fds=[descriptor],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
    )
