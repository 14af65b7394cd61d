"""The identity of a recording: a digest of everything in its folder, which each of its files states."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kvsim.files.contents import META_BYTES, content_of, open_file

FORMAT = "kvsim-recording"
META, LOG = "meta.json", "events.jsonl"
"""Files of a recording that say what it is: the second is of one that grows."""
TABLES = ("requests", "steps", "schedule", "memory", "copies")
"""The tables of a recording, in the order in which they are digested."""
_STATED = re.compile(rb',\n "identity": "([0-9a-f]{32})"')
"""The statement of it in `meta.json`. No text in JSON has a line break in it."""


def identity_of(meta: bytes, tables: Iterable[bytes]) -> str:
    """The identity of a recording with this `meta.json`, but for its identity, and tables with these digests."""
    digest = hashlib.blake2b(meta, digest_size=16)
    for each in tables:
        digest.update(each)
    return digest.hexdigest()


def is_as_written(folder: Path) -> bool:
    """Whether the recording in `folder` is, byte for byte, what kvsim wrote there."""
    with suppress(OSError):
        meta = content_of(folder / META, META_BYTES)
        files = (folder / f"{name}.parquet" for name in TABLES)
        digests = [_digest_of_rows(file) for file in files if os.path.lexists(file)]
        return _STATED.findall(meta) == [identity_of(_STATED.sub(b"", meta), digests).encode()]
    return False


def _digest_of_rows(file: Path) -> bytes:
    """The digest of a Parquet file up to its footer, which is made when all rows are written."""
    with open_file(file) as opened:
        end = opened.seek(max(0, opened.seek(0, os.SEEK_END) - 8))
        left = max(0, end - int.from_bytes(opened.read(4), "little"))
        opened.seek(0)
        digest = hashlib.blake2b(digest_size=16)
        while left and (part := opened.read(min(left, 1 << 20))):
            digest.update(part)
            left -= len(part)
    return digest.digest()
