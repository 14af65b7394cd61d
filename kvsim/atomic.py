"""Files and folders that appear under their name only when they are whole."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A scratch file to write to, beside `path`, which takes that name when the block ends without an exception.

    Raises:
        UsageError: `path` is a folder, or cannot be written.
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder; name a file.")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            file = Path(scratch, target.name)
            yield file
            file.replace(target)
    except OSError as error:
        raise UsageError(
            f"cannot write {target}: {error.strerror}; choose a folder that exists and may be written."
        ) from error


@contextmanager
def whole_folder(path: str | os.PathLike[str], *, replacing: str | None = None) -> Iterator[Path]:
    """A scratch folder to fill, beside `path`, which takes that name when the block ends without an exception.

    Args:
        path: the folder; its parents are made.
        replacing: the name of a file; a folder that has it is one of ours and is replaced.

    Raises:
        UsageError: `path` exists and is not one of ours, or cannot be written.
    """
    target = Path(path)
    if target.exists() and not (replacing and (target / replacing).is_file()):
        raise UsageError(f"{target} exists; name a new folder, nothing was overwritten.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; choose a folder that may be written.") from error
    new, old = scratch / "new", scratch / "old"
    try:
        new.mkdir()
        yield new
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
