"""Marks in output files. A mark names the command that wrote the file, so that a command replaces only its own output.

A mark is at a place that the file format allows, and has a digest of all other bytes of the file. The digest does not
match in a file that was edited or truncated, or that only quotes a mark, so a user's file is never taken for kvsim's.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

from kvsim.files.contents import open_file

Comment: TypeAlias = Literal["<!-- {} -->", "# {}"]
"""Form of a comment line in a text format, with `{}` in the place of the mark."""

HTML_COMMENT: Comment = "<!-- {} -->"
HASH_COMMENT: Comment = "# {}"
MARK_BYTES = 128
"""Largest number of bytes that a mark adds to a file."""
_MARK = re.compile(rb"Made by: kvsim ([a-z]+) [0-9a-f]{32}")
_PNG_SIGNATURE, _PNG_HEAD_BYTES = b"\x89PNG\r\n\x1a\n", 33
"""Signature of a PNG file, and the number of bytes of the signature (8) and the header chunk (25) together."""
_Format: TypeAlias = Literal["png", "gif", "pdf", "mp4", "parquet", "text"]


def mark_file(file: Path, command: str, comment: Comment = HTML_COMMENT) -> None:
    """Mark `file` as output of `kvsim COMMAND`, so that a later command may replace it. The file must not have a mark.

    The mark is in a place that the format of the file allows. In a text, it is the last line, in the form `comment`.
    """
    with _mapped(file) as content:
        at = _mark_at(content)
        framed = _framed(_format_of(content), command, _digest(command, content, at, at), comment) + content[at:]
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(framed)


def maker_of(file: Path) -> str | None:
    """Return the command of kvsim that wrote `file`; None if it has no mark, was changed, or cannot be read."""
    with suppress(OSError, ValueError), _mapped(file) as content:  # ValueError for an empty file
        file_format, at = _format_of(content), _mark_at(content)
        near = content[at : at + MARK_BYTES] if file_format == "png" else content[max(0, at - MARK_BYTES) : at]
        for command in (found[1].decode() for found in _MARK.finditer(near)):
            for comment in (HTML_COMMENT, HASH_COMMENT):
                length = len(_framed(file_format, command, "0" * 32, comment))
                begin = at if file_format == "png" else max(0, at - length)
                digest = _digest(command, content, begin, begin + length)
                if content[begin : begin + length] == _framed(file_format, command, digest, comment):
                    return command
    return None


@contextmanager
def _mapped(file: Path) -> Iterator[mmap.mmap]:
    with open_file(file) as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _format_of(content: mmap.mmap) -> _Format:
    """Return the format of a file from its first and last bytes. All unknown formats count as text."""
    if content[:8] == _PNG_SIGNATURE:
        return "png"
    if content[:4] == b"GIF8" and content[-1:] == b";":
        return "gif"
    if content[:5] == b"%PDF-":
        return "pdf"
    if content[4:8] == b"ftyp":
        return "mp4"
    return "parquet" if content[:4] == content[-4:] == b"PAR1" else "text"


def _mark_at(content: mmap.mmap) -> int:
    """Return the position of the mark, in bytes: its first byte in a PNG, the byte after it in all other formats."""
    match _format_of(content):
        case "png":
            return _PNG_HEAD_BYTES
        case "gif":
            return len(content) - 1  # before its end sign
        case "pdf":
            return max(0, content.rfind(b"startxref"))
        case "parquet":
            return max(0, len(content) - 8 - int.from_bytes(content[-8:-4], "little"))  # before its footer
    return len(content)


def _framed(file_format: _Format, command: str, digest: str, comment: Comment) -> bytes:
    """Return the mark in bytes that readers of the format skip: a comment, or a chunk of an unused type."""
    mark = f"Made by: kvsim {command} {digest}".encode()
    match file_format:
        case "png":
            chunk = b"tEXtSoftware\0" + mark
            return (len(chunk) - 4).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)
        case "gif":
            return b"!\xfe" + bytes([len(mark)]) + mark + b"\0"
        case "pdf":
            return b"% " + mark + b"\n"
        case "mp4":
            return (len(mark) + 8).to_bytes(4) + b"free" + mark
        case "parquet":
            return mark
    return comment.format(mark.decode()).encode() + b"\n"


def _digest(command: str, content: mmap.mmap, begin: int, end: int) -> str:
    digest = hashlib.blake2b(command.encode(), digest_size=16)
    with memoryview(content) as view:
        digest.update(view[:begin])
        digest.update(view[end:])
    return digest.hexdigest()
