"""Run a command in a fork of a server of `forks`, with the streams of this process. This file imports little, to start
fast.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence


def ask(place: str, arguments: Sequence[str], folder: str, environment: Mapping[str, str], streams: list[int]) -> int:
    """Run an interpreter with `arguments` in a fork; return its exit code. `streams` are stdin, stdout and stderr."""
    request = {"arguments": arguments, "folder": folder, "environment": dict(environment)}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [json.dumps(request).encode()], streams)
        server.shutdown(socket.SHUT_WR)
        code = server.recv(16)
    assert code, f"the process that forks has ended: {place.rpartition('/')[0]}/log says why"
    return int(code)


if __name__ == "__main__":
    code = ask(sys.argv[1], sys.argv[2:], os.getcwd(), os.environ, [0, 1, 2])  # noqa: PTH109
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
