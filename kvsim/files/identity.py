"""Identity of a recording: a digest of all its files. Each of the files states it, so that changes are detected."""

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
"""Names of two files: `META` has the provenance of a complete recording, `LOG` the events of one still growing."""
TABLES = ("requests", "steps", "schedule", "memory", "copies", "transfers", "images", "encoder")
"""Names of the tables that a recording may have, in the order of the digest."""
_STATED = re.compile(rb',\n "identity": "([0-9a-f]{32})"')
"""Pattern of the identity in `meta.json`. A JSON string has no line break, so no other value can match."""


def identity_of(meta: bytes, tables: Iterable[bytes]) -> str:
    """Return the identity of a recording: a digest of `meta.json` without identity, and of its tables' digests."""
    digest = hashlib.blake2b(meta, digest_size=16)
    for each in tables:
        digest.update(each)
    return digest.hexdigest()


def is_as_written(folder: Path) -> bool:
    """Tell whether the recording in `folder` is unchanged since kvsim wrote it; False if a file is unreadable."""
    with suppress(OSError):
        meta = content_of(folder / META, META_BYTES)
        files = (folder / f"{name}.parquet" for name in TABLES)
        digests = [_digest_of_rows(file) for file in files if os.path.lexists(file)]
        return _STATED.findall(meta) == [identity_of(_STATED.sub(b"", meta), digests).encode()]
    return False


def _digest_of_rows(file: Path) -> bytes:
    """Return the digest of a Parquet file without its footer, which is written last and states the identity."""
    with open_file(file) as opened:
        end = opened.seek(max(0, opened.seek(0, os.SEEK_END) - 8))
        left = max(0, end - int.from_bytes(opened.read(4), "little"))
        opened.seek(0)
        digest = hashlib.blake2b(digest_size=16)
        while left and (part := opened.read(min(left, 1 << 20))):
            digest.update(part)
            left -= len(part)
    return digest.digest()
