"""Reading files that may be anything: of a size that fits into memory, unpacked to one that does, and files at all.

A pipe is refused: opening one waits until another process writes to it, perhaps for ever.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

TOML_BYTES = 1 << 20
"""The largest profile, card, lesson or GPU: many times those that ship, and read within seconds."""
TEXT_BYTES = 1 << 26
"""The largest list of shapes, or workload of an oracle."""
META_BYTES = 1 << 28
"""The largest `meta.json`: one that names every unit of the largest pool by itself would be smaller."""
TABLE_BYTES = 1 << 31
"""The largest text with a request in every line, plain or unpacked; published traces have some hundred megabytes."""
UNPACKED_TABLE_BYTES = 1 << 29
"""Largest size of a compressed table when it is decompressed, in bytes: a few kilobytes may become gigabytes."""
_UNPACKED_AT_ONCE = 1 << 24
_FEW_UNPACKED, _UNPACKED_PER_BYTE = 1 << 26, 128
"""Bytes that any packed file may unpack to, and those for each of its own bytes: published traces have some twenty."""


def open_file(file: Path) -> BinaryIO:
    """Open an ordinary file to read from."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(what, os.strerror(what) if stat.S_ISDIR(mode) else "It is a pipe or a device, not a file")
    return os.fdopen(descriptor, "rb")


def content_of(file: Path, most_bytes: int) -> bytes:
    """The content of an ordinary file."""
    with open_file(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > most_bytes:
            raise _too_large(most_bytes)
        # Reading takes as much memory as is asked for, whatever is there.
        content: bytes | None = opened.read(size + 1)
        if content is None:
            raise OSError(errno.EAGAIN, "It is a file of the system that has nothing to say now")
        if len(content) > size:  # it has grown meanwhile, or is one of the system
            content += opened.read(most_bytes)
    if len(content) > most_bytes:
        raise _too_large(most_bytes)
    return content


def unpacked(content: bytes, most_bytes: int, *, most_lines: int | None = None) -> bytes:
    """The content of a gzip file of one member or several."""
    most_bytes = min(most_bytes, _FEW_UNPACKED + _UNPACKED_PER_BYTE * len(content))
    parts, size, num_lines = [], 0, 0
    while content:
        unpack = zlib.decompressobj(wbits=31)
        while not unpack.eof:
            part = unpack.decompress(content, _UNPACKED_AT_ONCE)
            content = unpack.unconsumed_tail or unpack.unused_data
            size += len(part)
            if size > most_bytes:
                raise _too_large(most_bytes)
            num_lines += part.count(b"\n")
            if most_lines is not None and num_lines > most_lines:
                raise OSError(errno.EFBIG, f"It unpacks to more than {most_lines:,} lines; unpack it first")
            if not part and not content and not unpack.eof:
                raise EOFError("its end is missing")
            parts.append(part)
        content = unpack.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _too_large(most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"It has more than {most_bytes:,} bytes")
