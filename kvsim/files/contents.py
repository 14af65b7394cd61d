"""Read untrusted files: only regular files, with a maximum size on the disk and after decompression.

A pipe is refused, because opening it would wait until another process writes to it.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from typing import TYPE_CHECKING, BinaryIO

from kvsim.errors import reason_of

if TYPE_CHECKING:
    from pathlib import Path

TOML_BYTES = 1 << 20
"""Limit for the bytes of a TOML file: a profile, machine card, lesson or GPU. Such a file is parsed in seconds.

Those that come with kvsim are many times smaller.
"""
TEXT_BYTES = 1 << 26
"""Limit for the number of bytes of a model's `config.json`, or of a workload of `kvsim.conformance`."""
META_BYTES = 1 << 28
"""Limit for the number of bytes of a recording's `meta.json`: enough to list every unit of the largest pool."""
TABLE_BYTES = 1 << 31
"""Limit for the bytes of a text file with one request per line. Published traces have some hundred megabytes."""
UNPACKED_TABLE_BYTES = 1 << 29
"""Limit for the number of bytes of a table after decompression. A few kilobytes could otherwise become gigabytes."""
_UNPACKED_AT_ONCE = 1 << 24
_FEW_UNPACKED, _UNPACKED_PER_BYTE = 1 << 26, 128
"""Limit for the bytes of a gzip file after decompression: the first, plus the second times the compressed bytes.

Published traces expand about 20 times.
"""


def open_file(file: Path) -> BinaryIO:
    """Open a regular file for reading, in binary mode.

    Raises:
        OSError: it cannot be opened, or is a folder, pipe or device.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # the path has a character that no path can have
        raise OSError(errno.EINVAL, reason_of(error)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(what, os.strerror(what) if stat.S_ISDIR(mode) else "It is a pipe or a device, not a file")
    return os.fdopen(descriptor, "rb")


def content_of(file: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, or has more than `most_bytes` bytes.
    """
    with open_file(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > most_bytes:
            raise _too_large(most_bytes)
        # `read` allocates the requested size, whatever the size of the file.
        content: bytes | None = opened.read(size + 1)
        if content is None:
            raise OSError(errno.EAGAIN, "It is a file of the system that has nothing to say now")
        if len(content) > size:  # it has grown meanwhile, or is a system file
            content += opened.read(most_bytes)
    if len(content) > most_bytes:
        raise _too_large(most_bytes)
    return content


def unpacked(content: bytes, most_bytes: int, *, most_lines: int | None = None) -> bytes:
    """Unpack `content`, the bytes of a gzip file with one or more members.

    Args:
        content: compressed bytes.
        most_bytes: largest number of bytes after decompression. A limit by the length of `content` applies as well.
        most_lines: largest number of lines after decompression; None for no limit.

    Raises:
        OSError: the result would have more bytes or lines.
        EOFError: the file is truncated.
        zlib.error: the file is damaged.
    """
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
