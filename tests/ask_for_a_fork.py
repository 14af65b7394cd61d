"""Ask a process of `forks` for a fork with the streams of this one, and wait for it; its imports take milliseconds."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence


def ask(place: str, arguments: Sequence[str], folder: str, environment: Mapping[str, str], streams: list[int]) -> int:
    """The exit code of a fork with these arguments, in this folder and environment, with these three streams."""
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
