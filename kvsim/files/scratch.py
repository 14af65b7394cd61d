"""Hidden scratch folders beside a target. A complete file or folder in one is renamed to the target.

A killed process leaves its scratch folder behind. The next process that writes to the same target removes it. A lock on
the folder shows whether its process is alive, because the system releases the lock when the process ends. On a system
without locks on folders, no folder that was left behind is removed.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

ENDING_SIGNALS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
"""Signals that end a command: termination, and where it exists, the loss of its terminal."""
_SUFFIX = ".kvsim-scratch"
_REPLACED = "replaced"
"""Name that the old target has in a scratch folder, until that folder is removed."""
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2: paths are relative to the working directory; the two names are exchanged."""
_in_use: set[Path] = set()
"""Scratch folders that this process has created, or is about to create, and has not removed."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_use.clear)


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """Yield an empty folder on the same disk as `target`, and remove it when the block ends.

    Folders that killed processes left beside `target` are removed as well.
    """
    for folder in target.parent.glob(f".{escape(target.name)}-*{_SUFFIX}"):
        _take_away_if_dead(folder, target)
    while True:
        scratch = target.parent / f".{target.name}-{secrets.token_hex(8)}{_SUFFIX}"
        _in_use.add(scratch)
        scratch.mkdir(mode=0o700)
        # Another process may find the folder before it is locked, and remove it.
        with suppress(BlockingIOError, FileNotFoundError):
            lock = _lock(scratch)
            break
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _in_use.discard(scratch)
        if lock is not None:
            os.close(lock)


@atexit.register
def _remove_folders_in_use() -> None:
    """Remove the scratch folders that are left when the process ends.

    `scratch_beside` removes its folder at the end of its block. But an exception from a signal handler may be raised
    after the folder is created and before that block begins.
    """
    for scratch in _in_use:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock `folder` for the block. Yield False if another process has locked it, otherwise True."""
    try:
        lock = _lock(folder)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        if lock is not None:
            os.close(lock)


def replace_folder(new: Path, target: Path, scratch: Path) -> None:
    """Rename the folder `new`, which is in `scratch`, to `target`. An old target is moved to `scratch`.

    The new folder and its files get the permissions and owners of the old ones with the same names. If the system can
    exchange two names in one step, `target` exists at every moment. Otherwise, after a kill between two steps, the next
    process that writes to `target` restores the old one.
    """
    for path in (*new.rglob("*"), new):
        keep_access(path, target / path.relative_to(new))
    try:
        new.rename(target)
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
    else:
        return
    if _exchange(new, target):
        return
    old = scratch / _REPLACED
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise


def keep_access(new: Path, old: Path) -> None:
    """Give `new` the permissions of `old` and, if allowed, its owner and group. Do nothing if `old` is missing."""
    try:
        before, now = old.stat(), new.stat()
    except FileNotFoundError:
        return
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        with suppress(OSError):  # only root may give a file away
            os.chown(new, before.st_uid, before.st_gid)
    new.chmod(stat.S_IMODE(before.st_mode))


def _take_away_if_dead(folder: Path, target: Path) -> None:
    with suppress(OSError):
        lock = _lock(folder)
        if lock is None:
            return
        try:
            if (folder / _REPLACED).exists() and not target.exists():  # killed between the two renames
                (folder / _REPLACED).rename(target)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock `folder` until the returned file descriptor is closed; return None if the system cannot lock folders.

    Raises:
        BlockingIOError: another process has locked it.
        FileNotFoundError: the folder was removed meanwhile.
    """
    try:
        import fcntl  # noqa: PLC0415  not on every system
    except ImportError:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step. Return False if the system or the disk cannot do that."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0)
