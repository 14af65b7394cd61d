"""Bytes that the interface sends to a terminal until it plays, and while it plays: the load of a slow link.

    python benchmarks/link.py [RECORDING] [--size 120x40] [--seconds 8] [--goal 60] [FLAG OF kvsim tui ...]

A pseudo-terminal reads as fast as it can, so that nothing is dropped. The exit code is 1 when playing sends more than
the goal, in thousands of bytes a second.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections import Counter
from pathlib import Path

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
PLAYS = b"laying"
"""Shown once the interface plays; its first letter may be sent apart."""
FRAME = b"\x1b[1;1H"
"""Ends every update of the screen."""
LOADING_S, OPENING_S = 60.0, 3.0
"""Seconds within which the interface plays, and after that until the first pictures are not counted any more."""


def spawn(arguments: list[str], columns: int, rows: int) -> tuple[int, int]:
    """Start the interface in a pseudo-terminal; return its process and the terminal's descriptor."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.execv(sys.executable, [sys.executable, "-m", "kvsim", "tui", *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return process, terminal


def read_for(terminal: int, seconds: float, until: bytes | None = None) -> bytes:
    """Return all that the terminal gets in so many seconds, or `until` that is seen."""
    until_s, parts = time.monotonic() + seconds, list[bytes]()
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            try:
                parts.append(os.read(terminal, 1 << 20))
            except OSError:  # the process has closed its end
                break
            if until is not None and until in parts[-1]:
                break
    return b"".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", nargs="?", default="vllm-h200-llama-3-8b-sharegpt-pressure")
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--seconds", type=float, default=8.0, help="of playing")
    parser.add_argument("--goal", type=float, default=60.0, help="kB a second")

    parser.add_argument("--dump", help="keep what was sent while playing in this file")
    stated, flags = parser.parse_known_args()
    columns, rows = map(int, stated.size.split("x"))
    process, terminal = spawn([stated.recording, *flags], columns, rows)
    try:
        opening = read_for(terminal, LOADING_S, PLAYS) + read_for(terminal, OPENING_S)
        playing = read_for(terminal, stated.seconds)
    finally:
        os.write(terminal, b"q")
        read_for(terminal, 0.5)
        os.close(terminal)
        os.waitpid(process, 0)
    rate = len(playing) / stated.seconds / 1e3
    frames = playing.count(FRAME)
    codes = Counter(code[-1:].decode() for code in ESCAPE.findall(playing))
    in_codes = sum(map(len, ESCAPE.findall(playing)))
    print(f"opening: {len(opening) / 1e3:,.0f} kB until {OPENING_S:g} s after it began to play")
    print(f"playing: {rate:,.1f} kB/s at {stated.size}, {frames / stated.seconds:.1f} frames/s; goal {stated.goal:g}")
    print(f"codes: {in_codes / max(len(playing), 1):.0%} of the bytes; {dict(codes.most_common(4))}")
    if stated.dump:
        Path(stated.dump).write_bytes(playing)
    return rate > stated.goal


if __name__ == "__main__":
    raise SystemExit(main())
