"""A hidden folder beside a target for what is only half made. Who is killed leaves one; the next to come takes it away.

Whether its owner lives is known from a lock, which the system lets go of when a process ends in whatever way. Where
files cannot be locked, nothing is ever taken away.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

REPLACED = "old"
"""Where in a scratch folder the target waits that another one is about to replace."""
_LOCK = "kvsim.lock"


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """An empty folder on the same disk as `target`, gone afterwards; and so are those that the dead have left.

    Raises:
        OSError: it cannot be made.
    """
    for folder in target.parent.glob(f".{escape(target.name)}-*"):
        _take_away_if_dead(folder, target)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with (scratch / f"{_LOCK}.new").open("w") as lock:
            # Under its final name it is locked already, so that nobody finds it before it is.
            if _locks(lock):
                Path(lock.name).rename(scratch / _LOCK)
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _take_away_if_dead(folder: Path, target: Path) -> None:
    with suppress(OSError), (folder / _LOCK).open("r+") as lock:
        if _locks(lock):
            if (folder / REPLACED).exists() and not target.exists():  # it died between one rename and the next
                (folder / REPLACED).rename(target)
            shutil.rmtree(folder, ignore_errors=True)


def _locks(file: IO[str]) -> bool:
    """Lock `file` until it is closed; return whether that was possible."""
    try:
        import fcntl  # noqa: PLC0415  not on every system

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
