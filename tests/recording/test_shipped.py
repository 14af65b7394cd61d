"""The recordings that come with kvsim."""

from __future__ import annotations

import zlib
from pathlib import Path

from kvsim.recording import shipped_names

MOST_BYTES = 13_900_000
"""A wheel has at most 15 MB, and everything else in it takes about one."""


def test_they_leave_the_wheel_below_fifteen_megabytes(repository: Path) -> None:
    files = [file for name in shipped_names() for file in (repository / "traces" / name).iterdir()]
    packed = [file.read_bytes() for file in files]
    assert sum(min(len(content), len(zlib.compress(content))) for content in packed) < MOST_BYTES
